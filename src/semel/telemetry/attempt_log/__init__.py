"""The attempt log: one event for each step of a message."""
