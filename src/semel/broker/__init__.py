"""An SQS-compatible broker: the rules of SQS on SQLite, both protocols, the server, and faults on request.

To the rest of Semel it is an address, exactly like AWS; tests start one with `running`.
"""

from semel.broker.embedded_broker import EmbeddedBroker, running

__all__ = ["EmbeddedBroker", "running"]
