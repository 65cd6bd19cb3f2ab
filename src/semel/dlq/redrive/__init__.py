"""Redrive: dead-letter messages go back to their source queue, each once."""
