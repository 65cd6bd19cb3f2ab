"""Looking at messages without receiving them: no count goes up, no handle is made, nothing is hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from semel.broker.engine.messages import COLUMNS, Stored
from semel.broker.engine.schema import DELAYED, IN_FLIGHT, LANE_BITS, READY
from semel.broker.engine.state import Queue, Store, sequence_number

_PAGE = f"SELECT state, due, {COLUMNS} FROM messages WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
# A filter that matches little must not read a million rows in one go; the answer then says where to go on.
_MAX_SCANNED: Final = 20_000
# Nor should one answer hold a thousand messages of a mebibyte each.
_MAX_BYTES: Final = 4 * 1024 * 1024
_NUMBER_MASK: Final = (1 << LANE_BITS) - 1
STATES: Final = {"visible": READY, "in_flight": IN_FLIGHT, "delayed": DELAYED}
_NAMES: Final = {number: name for name, number in STATES.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages to show; all conditions must hold."""

    state: str | None = None
    message_id: str | None = None
    group: str | None = None
    body: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    min_receives: int = 0

    def matches(self, shown: Mapping[str, Any]) -> bool:
        attributes = shown.get("MessageAttributes", {})
        return (
            self.state in (None, shown["State"])
            and self.message_id in (None, shown["MessageId"])
            and self.group in (None, shown["Attributes"].get("MessageGroupId"))
            and (self.body is None or self.body in shown["Body"])
            and int(shown["Attributes"]["ApproximateReceiveCount"]) >= self.min_receives
            and all(attributes.get(name, {}).get("StringValue") == text for name, text in self.attributes.items())
        )


def peek(store: Store, queue: Queue, wanted: Wanted, *, after: int, limit: int, now: int) -> dict[str, Any]:
    """Messages in the order in which they came; `Next` is what to pass as `after` for more, absent at the end."""
    lane = queue.lane
    found: list[dict[str, Any]] = []
    place, scanned, size = lane.low | after, 0, 0
    while scanned < _MAX_SCANNED:
        rows = store.db.execute(_PAGE, (place, lane.high, 500)).fetchall()
        for row in rows:
            place = row[2]
            message = Stored._make(row[2:])
            shown = _shown(queue, message, state=row[0], due=row[1], now=now)
            if message.enqueued + queue.retention > now and wanted.matches(shown):
                found.append(shown)
                size += len(shown["Body"])
                if len(found) == limit or size >= _MAX_BYTES:
                    return {"Messages": found, "Next": place & _NUMBER_MASK}
        scanned += len(rows)
        if len(rows) < 500:
            return {"Messages": found}
    return {"Messages": found, "Next": place & _NUMBER_MASK}


def _shown(queue: Queue, message: Stored, *, state: int, due: int, now: int) -> dict[str, Any]:
    if state != READY and due <= now:
        state = READY
    extra = orjson.loads(message.extra) if message.extra else {}
    attributes = {
        "SenderId": message.sender,
        "SentTimestamp": str(message.sent),
        "ApproximateReceiveCount": str(message.prior + message.receives),
    }
    if message.first:
        attributes["ApproximateFirstReceiveTimestamp"] = str(message.first)
    if queue.fifo:
        attributes["SequenceNumber"] = sequence_number(message.id)
    names = {"group": "MessageGroupId", "dedup": "MessageDeduplicationId", "trace": "AWSTraceHeader"}
    names["source"] = "DeadLetterQueueSourceArn"
    attributes |= {name: extra[key] for key, name in names.items() if key in extra}
    shown: dict[str, Any] = {
        "MessageId": message.message_id,
        "State": _NAMES[state],
        "Body": message.body,
        "MD5OfBody": message.md5,
        "Attributes": attributes,
        "ReceivesInThisQueue": message.receives,
        "ExpiresAt": (message.enqueued + queue.retention) / 1000,
    }
    if state != READY:
        shown["VisibleAt"] = due / 1000
    if "attributes" in extra:
        shown["MessageAttributes"] = extra["attributes"]
    return shown
