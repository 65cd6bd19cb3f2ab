"""An SQS-compatible broker: the rules of SQS on SQLite, both protocols, the server, and faults on request.

The rest of Semel knows it only as an endpoint, exactly like AWS. Tests start one with `running`.
"""

from semel.broker.embedded_broker import EmbeddedBroker, running

__all__ = ["EmbeddedBroker", "running"]
