"""Rows of the source as received messages, messages on their way back to the queue, and those that wait meanwhile.

The rule: wherever a message has to wait, it stays the one that it was: its first key and its first id go with it. Else
a copy of it would be another message to the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.consumer.handler import Handler
from semel.messages import dead_letter_attributes as letters
from semel.spark.source.column_types import HANDLED
from semel.spark.source.columns import TIME, arrow_columns
from semel.sqs import Attribute, Entry, Received, limits

# A copy that was sent back: the id under which the message first came. Its key is in `semel-key`, as in all copies.
FIRST_ID: Final = "semel-first-id"
# What is needed of the source's columns.
NEEDED: Final = arrow_columns(HANDLED)
# A message that waits in the checkpoint, until `due` seconds since 1970.
PARKED: Final = NEEDED.append(pa.field("due", pa.float64()))
_SYSTEM: Final = {
    "group_id": "MessageGroupId",
    "dedup_id": "MessageDeduplicationId",
    "sequence_number": "SequenceNumber",
    "sent_at": "SentTimestamp",
    "first_received_at": "ApproximateFirstReceiveTimestamp",
    "receive_count": "ApproximateReceiveCount",
}


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task; those of FIFO queues last, and by their sequence numbers: a shuffle keeps no order."""
    grouped = []
    for batch in batches:
        if any(queue.endswith(".fifo") for queue in pc.unique(batch.column("queue")).to_pylist()):
            grouped.append(batch)
        else:
            yield batch
    if grouped:
        table = pa.Table.from_batches(grouped)
        number = table.column("sequence_number")
        keys = pa.table({"length": pc.utf8_length(number), "number": number})  # a longer number is a larger one
        order = pc.sort_indices(keys, [("length", "ascending"), ("number", "ascending")])
        yield from table.take(order).to_batches()


def messages(batch: pa.RecordBatch) -> Iterator[tuple[str, Received]]:
    """Each row as (queue, message). Attributes are texts: the source has no other kind."""
    columns = {name: batch.column(name) for name in NEEDED.names}
    for name in ("sent_at", "first_received_at"):
        columns[name] = columns[name].cast(TIME).cast(pa.int64())
    for row in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        found = dict(zip(columns, row, strict=True))
        yield found["queue"], _message(found)


def _message(row: dict[str, Any]) -> Received:
    """A message of a FIFO queue is never a copy of ours, and whatever it says, its id is the one that SQS gave it."""
    for name in ("sent_at", "first_received_at"):
        if row[name] is not None:
            row[name] //= 1_000
    system = {wire: str(row[name]) for name, wire in _SYSTEM.items() if row[name] is not None}
    attributes = {name: Attribute("String", value) for name, value in row["attributes"] or ()}
    first = None if row["queue"].endswith(".fifo") else attributes.pop(FIRST_ID, None)
    # Only an id that SQS could have given: the ledger, and a FIFO dead-letter queue, have to take it.
    id_ = str(first.value) if first is not None and limits.TOKEN.match(str(first.value)) else row["message_id"]
    return letters.restored(Received(id_, "", row["body"], system, attributes))


def parked(waiting: Sequence[tuple[Received, float]], queue: str) -> pa.Table:
    """Messages with the time until which each has to wait."""
    rows = []
    for message, due in waiting:
        system = message.system
        row: dict[str, Any] = {name: system.get(wire) for name, wire in _SYSTEM.items()}
        for name in ("sent_at", "first_received_at"):
            row[name] = None if row[name] is None else int(row[name]) * 1_000
        row["receive_count"] = message.receive_count
        attributes = message.attributes
        if not all(isinstance(value.value, str) for value in attributes.values()):
            attributes = letters.as_one(attributes)  # a row has texts only
        row["attributes"] = [(name, str(value.value)) for name, value in attributes.items()]
        rows.append(row | {"message_id": message.message_id, "body": message.body, "queue": queue, "due": due})
    return pa.Table.from_pylist(rows, PARKED)


def unparked(table: pa.Table) -> Iterator[tuple[str, Received, float]]:
    for batch in table.to_batches():
        for (queue, message), due in zip(messages(batch), batch.column("due").to_pylist(), strict=True):
            yield queue, message, due


def returned(message: Received, handler: Handler, delay: float) -> Entry | None:
    """The copy of a message that goes back to its Standard queue; None if it is too large to carry its key along."""
    own = {name: value for name, value in message.attributes.items() if name != letters.CARRIED_KEY}
    ours = {FIRST_ID: Attribute("String", message.message_id)}
    if key := key_of(message, handler):
        ours[letters.CARRIED_KEY] = Attribute("String", key)
    if len(own) + len(ours) > limits.MAX_MESSAGE_ATTRIBUTES:
        own = letters.as_one(own)
    seconds = min(limits.MAX_DELAY, math.ceil(delay))
    entry = Entry(message.body, own | ours, seconds, message.group, trace=message.trace)
    return entry if entry.unsendable() is None else None


def key_of(message: Received, handler: Handler) -> str:
    """The key as the lane finds it; "" if it finds none, and the copy is to be judged as the message was."""
    try:
        value = message if handler.takes_message else handler.decode(message.body)
        return handler.key.resolve(message, value).text
    except Exception:  # noqa: BLE001 - undecodable, without a key, or the user's own function
        return ""
