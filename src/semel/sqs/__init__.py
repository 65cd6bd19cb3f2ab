"""What client and broker must agree on (limits, checksums, errors, shapes), and the SQS client.

The client's names are loaded on first use, because the broker needs none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.sqs.client import Attribute, AttributeValue, Cancel, Client, Entry, Failure, Queue, Received, Sent
    from semel.sqs.errors import Cancelled, SqsError

_WHERE: Final = {
    "Attribute": "semel.sqs.client",
    "AttributeValue": "semel.sqs.client",
    "Cancel": "semel.sqs.client",
    "Cancelled": "semel.sqs.errors",
    "Client": "semel.sqs.client",
    "Entry": "semel.sqs.client",
    "Failure": "semel.sqs.client",
    "Queue": "semel.sqs.client",
    "Received": "semel.sqs.client",
    "Sent": "semel.sqs.client",
    "SqsError": "semel.sqs.errors",
}
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
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
