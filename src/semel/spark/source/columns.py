"""The columns of a message in Arrow, and how each is built from a received message.

Arrays are built column by column, for speed: this code runs for every message.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from semel.messages.keys import KeyRule, NoKey
from semel.spark.source.column_types import COLUMN_TYPES, MESSAGE
from semel.sqs.client import Received

TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = pa.string()
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final = {"STRING": _TEXT, "TIMESTAMP": TIME, "INT": pa.int32(), "MAP<STRING, STRING>": _TEXTS}
# Always sealed: what identifies a message, and what is needed to delete it.
_NEEDED: Final = frozenset({"message_id", "receipt", "sent_at", "fence"})


class SourceMessage(NamedTuple):
    """A received message. `at` is in seconds since 1970, `hidden_until` is a time of the monotonic clock. `fence`: the
    fence of the claim on its key, if there is one."""

    message: Received
    at: float
    hidden_until: float
    key: str | None
    fence: int | None = None


def key_of(message: Received, rule: KeyRule) -> str | None:
    """The message's key, found by the same rule as in the consumer; None if it has none."""
    try:
        return rule.resolve(message, None).text
    except NoKey:
        return None


Build = Callable[[Sequence[SourceMessage], str], pa.Array]


def _texts(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, _TEXT)
    except (UnicodeEncodeError, pa.ArrowException):  # half of a surrogate pair, which SQS itself refuses
        return pa.array([None if v is None else v.encode("utf-8", "replace").decode() for v in values], _TEXT)


def _system(name: str) -> Build:
    return lambda messages, _: _texts([m.message.system.get(name) for m in messages])


def _milliseconds(name: str) -> Build:
    def build(messages: Sequence[SourceMessage], _queue: str) -> pa.Array:
        values = [m.message.system.get(name) for m in messages]
        return _times([None if text is None else int(text) * 1_000 for text in values])

    return build


def _times(microseconds: list[int | None]) -> pa.Array:
    return pa.array(microseconds, pa.int64()).view(TIME)


def _attributes(messages: Sequence[SourceMessage], _queue: str) -> pa.Array:
    pairs = [_pairs(m.message) for m in messages]
    if not any(pairs):
        empty = pa.array([], _TEXT)
        return pa.MapArray.from_arrays(pa.array([0] * (len(messages) + 1), pa.int32()), empty, empty)
    return pa.array(pairs, _TEXTS)


def _pairs(message: Received) -> list[tuple[str, str]]:
    attributes = message.attributes
    if not attributes:
        return []
    return [
        (name, b64encode(value).decode() if isinstance(value, bytes) else value)
        for name, (_, value) in attributes.items()
    ]


_BUILD: Final[dict[str, Build]] = {
    "message_id": lambda messages, _: pa.array([m.message.message_id for m in messages], _TEXT),
    "body": lambda messages, _: _texts([m.message.body for m in messages]),
    "key": lambda messages, _: _texts([m.key for m in messages]),
    "group_id": _system("MessageGroupId"),
    "dedup_id": _system("MessageDeduplicationId"),
    "sequence_number": _system("SequenceNumber"),
    "sent_at": _milliseconds("SentTimestamp"),
    "first_received_at": _milliseconds("ApproximateFirstReceiveTimestamp"),
    "received_at": lambda messages, _: _times([int(m.at * 1_000_000) for m in messages]),
    "receive_count": lambda messages, _: pa.array([m.message.receive_count for m in messages], pa.int32()),
    "attributes": _attributes,
    "queue": lambda messages, queue: pa.repeat(pa.scalar(queue, _TEXT), len(messages)),
    "receipt": lambda messages, _: pa.array([m.message.receipt for m in messages], _TEXT),
    "fence": lambda messages, _: pa.array([m.fence for m in messages], pa.int64()),
}


def arrow_columns(names: Iterable[str]) -> pa.Schema:
    """Columns of the source as an Arrow schema."""
    return pa.schema([(name, _TYPES[COLUMN_TYPES[name]]) for name in names])


MESSAGE_COLUMNS: Final = arrow_columns(MESSAGE)
SEALED_COLUMNS: Final = pa.schema([*MESSAGE_COLUMNS, ("receipt", _TEXT), ("fence", pa.int64())])
_NOTHING: Final = SEALED_COLUMNS.empty_table()
assert SEALED_COLUMNS.names == list(_BUILD)


def table(messages: Sequence[SourceMessage], queue: str, columns: Collection[str] | None) -> pa.Table:
    """A table with all columns of a segment; columns that are not requested are null. A claim consists of key and
    fence, so the key is sealed whenever a fence is."""
    if not messages:
        return _NOTHING
    wanted = SEALED_COLUMNS.names if columns is None else _NEEDED.union(columns)
    if any(m.fence is not None for m in messages):
        wanted = {*wanted, "key"}
    arrays = [
        _BUILD[column.name](messages, queue) if column.name in wanted else pa.nulls(len(messages), column.type)
        for column in SEALED_COLUMNS
    ]
    return pa.Table.from_arrays(arrays, schema=SEALED_COLUMNS)
