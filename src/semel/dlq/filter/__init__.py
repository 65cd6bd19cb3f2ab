"""The filter language that selects messages of a queue and entries of the audit log."""
