"""What client and broker must agree on (limits, checksums, errors, shapes), and the SQS client.

The client's names are loaded when they are first asked for: the broker needs none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.sqs.client import Attribute, AttributeValue, Cancel, Client, Entry, Failure, Queue, Received, Sent

__all__ = ["Attribute", "AttributeValue", "Cancel", "Client", "Entry", "Failure", "Queue", "Received", "Sent"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from semel.sqs import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
