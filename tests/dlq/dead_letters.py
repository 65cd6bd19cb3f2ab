"""Dead-letter messages for tests."""

from __future__ import annotations

from typing import Any

from driven import Place
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.service import DeadLetterService
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Entry
from semel.sqs.client.messages import Attribute

DLQ = "orders-dlq"
NOW = 1_800_000_000.0


def message(**known: Any) -> DeadLetterMessage:
    """A message that Semel dead-lettered an hour ago, with the fields that a test sets."""
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


def ended(job: Job) -> Job:
    assert job.wait(60)
    return job


def audited(service: DeadLetterService) -> list[tuple[str, str, int | None]]:
    """The entries of the audit log, oldest first."""
    return [(entry.action, entry.outcome, entry.count) for entry in reversed(service.audit_entries())]


def dead_letter(
    place: Place, count: int, queue: str = DLQ, error: str = "read timed out after {n} s", **options: Any
) -> None:
    """Write messages to the dead-letter queue as a worker does."""
    entries = []
    for n in range(count):
        about = own_attributes.DeadLetterDetails(f"o-{n}", "TimeoutError", error.format(n=n), 3, f"m-{n}", "orders")
        body = f'{{"id": "o-{n}", "n": {n}}}'
        group = {"group": f"g{n % 2}", "dedup": f"d{n}"} if queue.endswith(".fifo") else {}
        own = {"tenant": Attribute("String", "acme" if n % 2 else "umbrella")}
        entries.append(Entry(body, attributes=own_attributes.attributes(about, own, len(body)), **(group | options)))
    place.client.queue(queue).send_many(entries)
