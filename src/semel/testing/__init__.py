"""What a user's own tests need: a broker in a thread, the manual clock, faults, and a pytest plugin."""

from semel.broker import EmbeddedBroker, running

__all__ = ["EmbeddedBroker", "running"]
