"""Sending dead-letter messages back to work, each once."""
