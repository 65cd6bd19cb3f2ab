"""From log files to events."""
