"""What selects messages of a queue: a small language, its parser and its fields."""
