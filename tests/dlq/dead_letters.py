"""Dead letters for tests."""

from __future__ import annotations

from typing import Any

from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client.messages import Attribute

NOW = 1_800_000_000.0


def message(**known: Any) -> DeadLetterMessage:
    """One that Semel dead-lettered an hour ago, with what a test sets."""
    body: str = known.get(
        "body", '{"order": {"id": "o-17", "total": 120.5, "paid": false, "note": null}, "lines": [1]}'
    )
    usual: dict[str, Any] = {
        "id": "6d2f",
        "queue": "orders-dlq",
        "body": body,
        "sent": NOW - 3_600,
        "receives": 3,
        "attributes": {"tenant": Attribute("String", "acme"), "weight": Attribute("Number", "12.5")},
        "source": "orders",
        "key": "o-17",
        "reason": "TimeoutError",
        "error": "reading from 'bank' timed out after 30 s",
        "attempts": 3,
        "original_id": "aa11",
        "body_bytes": len(body.encode("utf-8", "surrogatepass")),
        "by_semel": True,
    }
    return DeadLetterMessage(**(usual | known))
