"""Received messages as the columns of a segment, built column by column: this runs for every message."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from semel.messages.keys import KeyRule, NoKey
from semel.spark.segments.codec import COLUMNS
from semel.sqs.client import Received

_NONE: Final[dict[str, str]] = {}
# Always sealed: who it is and how to delete it.
_NEEDED: Final = frozenset({"message_id", "receipt", "sent_at"})


class SourceMessage(NamedTuple):
    """A message in hand. `at` in seconds since 1970, `hidden_until` by the monotonic clock."""

    message: Received
    at: float
    hidden_until: float
    key: str | None
    fence: int | None = None


def key_of(message: Received, rule: KeyRule) -> str | None:
    """The message's key by the consumer's rule; None if it has none."""
    try:
        return rule.resolve(message, None).text
    except NoKey:
        return None


def table(messages: Sequence[SourceMessage], queue: str, columns: Sequence[str] | None) -> pa.Table:
    """A table with all the columns of a segment; those that nobody asked for are null. A claim is its key and its
    fence: where one is sealed, so is the other."""
    wanted = None if columns is None else _NEEDED | set(columns)
    if wanted is not None and any(t.fence is not None for t in messages):
        wanted |= {"key"}
    arrays = []
    for field in COLUMNS:
        if wanted is None or field.name in wanted or field.name == "fence":
            arrays.append(_BUILD[field.name](messages, queue))
        else:
            arrays.append(pa.nulls(len(messages), field.type))
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def _texts(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (UnicodeEncodeError, pa.ArrowException):  # a body with half a surrogate pair, which SQS itself refuses
        return pa.array([None if v is None else v.encode("utf-8", "replace").decode() for v in values], pa.string())


def _system(name: str) -> Any:
    def build(messages: Sequence[SourceMessage], _queue: str) -> pa.Array:
        return _texts([t.message.system.get(name) for t in messages])

    return build


def _milliseconds(name: str) -> Any:
    def build(messages: Sequence[SourceMessage], _queue: str) -> pa.Array:
        found = [t.message.system.get(name) for t in messages]
        return _times([None if text is None else int(text) * 1_000 for text in found])

    return build


def _times(microseconds: list[int | None]) -> pa.Array:
    return pa.array(microseconds, pa.int64()).view(COLUMNS.field("sent_at").type)


def _attributes(messages: Sequence[SourceMessage], _queue: str) -> pa.Array:
    kind = COLUMNS.field("attributes").type
    pairs = [_pairs(t.message) for t in messages]
    if not any(pairs):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array([0] * (len(messages) + 1), pa.int32()), nothing, nothing)
    return pa.array(pairs, kind)


def _pairs(message: Received) -> list[tuple[str, str]]:
    found = message.attributes
    if not found:
        return []
    return [
        (name, b64encode(value).decode() if isinstance(value, bytes) else value) for name, (_, value) in found.items()
    ]


_BUILD: Final[dict[str, Any]] = {
    "message_id": lambda messages, _: pa.array([t.message.message_id for t in messages], pa.string()),
    "body": lambda messages, _: _texts([t.message.body for t in messages]),
    "key": lambda messages, _: _texts([t.key for t in messages]),
    "group_id": _system("MessageGroupId"),
    "dedup_id": _system("MessageDeduplicationId"),
    "sequence_number": _system("SequenceNumber"),
    "sent_at": _milliseconds("SentTimestamp"),
    "first_received_at": _milliseconds("ApproximateFirstReceiveTimestamp"),
    "received_at": lambda messages, _: _times([int(t.at * 1_000_000) for t in messages]),
    "receive_count": lambda messages, _: pa.array([t.message.receive_count for t in messages], pa.int32()),
    "attributes": _attributes,
    "queue": lambda messages, queue: pa.array([queue], pa.string()).take(pa.array([0] * len(messages), pa.int32())),
    "receipt": lambda messages, _: pa.array([t.message.receipt for t in messages], pa.string()),
    "fence": lambda messages, _: pa.array([t.fence for t in messages], pa.int64()),
}
