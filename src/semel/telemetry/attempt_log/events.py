"""One event of the attempt log, and how it becomes a line of JSON.

The rule: unknown fields are left out of the line. A reader gets null for them, both from JSON lines and from Parquet.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson

from semel.telemetry.logs import safe_text

MAX_ERROR: Final = 2_000  # characters of an error's text

# The columns of a file, in Spark's words; docs/reference/attempt-log.md says what each one means.
SPARK_SCHEMA: Final = (
    "at DOUBLE, step STRING, queue STRING, message_id STRING, key STRING, fence BIGINT, attempt BIGINT, "
    "receive_count BIGINT, sent_at DOUBLE, `group` STRING, seconds DOUBLE, visibility DOUBLE, error STRING, "
    "worker STRING, key_origin STRING, handler STRING, count BIGINT"
)


class Step(enum.StrEnum):
    """What happened to a message.

    >>> from semel.telemetry import Step
    >>> Step("taken_over")
    <Step.TAKEN_OVER: 'taken_over'>
    """

    RECEIVED = "received"
    CLAIMED = "claimed"
    TAKEN_OVER = "taken_over"  # claimed, after an earlier holder let its lease run out
    DUPLICATE = "duplicate"  # the key was already done
    BOUNCED = "bounced"  # another worker has claimed the key
    HELD = "held"  # this worker itself has claimed the key; it goes on with the newest receipt
    CONFLICT = "conflict"  # the key is known with another payload
    STARTED = "started"
    HEARTBEAT = "heartbeat"
    LOST = "lost"
    RECORDED = "recorded"
    FENCED = "fenced"  # its record was refused: a newer claim exists
    DELETED = "deleted"
    DELETE_FAILED = "delete_failed"
    RETRIED = "retried"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    RELEASED = "released"
    LEDGER_DOWN = "ledger_down"
    SENT = "sent"  # a message of the outbox was sent to SQS
    DROPPED = "dropped"  # of the log itself: `count` events could not be kept


class Attempt(NamedTuple):
    """One step of one message. Times are seconds since 1970, durations are seconds; 0 and "" mean unknown.

    >>> from semel.telemetry import Attempt, Step
    >>> event = Attempt(1_700_000_000.0, Step.RECEIVED, "orders", "6f1d", receive_count=2)
    >>> event.queue, event.receive_count
    ('orders', 2)
    """

    at: float
    step: Step
    queue: str
    message_id: str
    key: str = ""
    fence: int = 0
    attempt: int = 0
    receive_count: int = 0
    sent_at: float = 0
    group: str = ""
    seconds: float = 0
    visibility: float = 0
    error: str = ""
    worker: str = ""
    key_origin: str = ""
    handler: str = ""


def encode(events: Iterable[Attempt], worker: str) -> tuple[bytes, int]:
    """The events as lines of JSON, and how many had to be left out. `worker` is used for events that name none."""
    lines: list[bytes] = []
    left_out = 0
    dumps, newline = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    for event in events:
        try:
            fields = _fields(event, worker)
            try:
                lines.append(dumps(fields, None, newline))
            except TypeError:  # half a surrogate pair in a key, a number of more than 64 bits
                lines.append(dumps(_mended(fields), None, newline))
        except Exception:  # noqa: BLE001  one odd event must not cost the others
            left_out += 1
    return b"".join(lines), left_out


def dropped_line(now: float, count: int, worker: str) -> bytes:
    fields = {"at": now, "step": Step.DROPPED.value, "worker": worker, "count": count}
    return orjson.dumps(fields, None, orjson.OPT_APPEND_NEWLINE)


def _fields(event: Attempt, worker: str) -> dict[str, Any]:
    # Written out, because this runs for every step of every message: a loop over the names takes twice as long.
    (
        at, step, queue, message, key, fence, attempt, receives, sent, group, seconds, visibility, error, by, origin,
        handler,
    ) = event  # fmt: skip
    fields: dict[str, Any] = {
        "at": at,
        "step": step._value_,
        "queue": queue,
        "message_id": message,
        "worker": by or worker,
    }
    if key:
        fields["key"] = key
    if fence:
        fields["fence"] = fence
    if attempt:
        fields["attempt"] = attempt
    if receives:
        fields["receive_count"] = receives
    if sent:
        fields["sent_at"] = sent
    if group:
        fields["group"] = group
    if seconds:
        fields["seconds"] = seconds
    if visibility:
        fields["visibility"] = visibility
    if error:
        fields["error"] = safe_text(error, MAX_ERROR)
    if origin:
        fields["key_origin"] = origin
    if handler:
        fields["handler"] = handler
    return fields


def _mended(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: mended for name, value in fields.items() if (mended := _mend(value)) is not None}


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63:
        return value
    return None
