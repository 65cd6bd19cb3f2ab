"""The segment log: what was received, sealed before it is deleted from its queue."""
