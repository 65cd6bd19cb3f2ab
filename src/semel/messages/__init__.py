"""What a message means to Semel: its key, how its body is decoded, and the attributes of a dead-letter message."""
