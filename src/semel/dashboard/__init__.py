"""The dashboard: web pages, JSON API and terminal over queues, messages, dead-letter queues and workers."""
