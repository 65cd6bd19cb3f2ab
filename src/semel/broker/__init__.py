"""The SQS in the box. To the rest of Semel it is an address, exactly like AWS; tests start one with `running`."""

from semel.broker.embedded import EmbeddedBroker, running

__all__ = ["EmbeddedBroker", "running"]
