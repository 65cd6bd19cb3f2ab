"""What a message means to us: keys, JSON paths, decoding, dead-letter attributes."""
