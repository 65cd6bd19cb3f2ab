"""The web page over all of it: queues, messages, dead letters, workers, and what "once" came to."""
