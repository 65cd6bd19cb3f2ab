"""What client and broker must agree on (limits, checksums, errors, shapes), and the SQS client.

The client's names are loaded when they are first asked for: the broker needs none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.sqs.client import Attribute, AttributeValue, Cancel, Client, Entry, Failure, Queue, Received, Sent
    from semel.sqs.errors import Cancelled, SqsError

__all__ = [
    "Attribute",
    "AttributeValue",
    "Cancel",
    "Cancelled",
    "Client",
    "Entry",
    "Failure",
    "Queue",
    "Received",
    "Sent",
    "SqsError",
]


def __getattr__(name: str) -> Any:
    if name in ("Cancelled", "SqsError"):
        from semel.sqs import errors

        return getattr(errors, name)
    if name in __all__:
        from semel.sqs import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
