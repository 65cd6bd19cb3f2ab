"""Turns rows of the source back into messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.messages.dead_letter_attributes import restored
from semel.spark.source.column_types import HANDLED
from semel.spark.source.columns import TIME, arrow_columns
from semel.sqs import Attribute, Received

# The columns of the source that are needed.
NEEDED: Final = arrow_columns(HANDLED)
_SYSTEM: Final = {
    "group_id": "MessageGroupId",
    "dedup_id": "MessageDeduplicationId",
    "sequence_number": "SequenceNumber",
    "sent_at": "SentTimestamp",
    "first_received_at": "ApproximateFirstReceiveTimestamp",
    "receive_count": "ApproximateReceiveCount",
}


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task; those of FIFO queues last, sorted by sequence number: a shuffle keeps no order."""
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
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        row = dict(zip(columns, values, strict=True))
        yield row["queue"], _message(row)


def _message(row: dict[str, Any]) -> Received:
    for name in ("sent_at", "first_received_at"):
        if row[name] is not None:
            row[name] //= 1_000
    system = {wire: str(row[name]) for name, wire in _SYSTEM.items() if row[name] is not None}
    attributes = {name: Attribute("String", value) for name, value in row["attributes"] or ()}
    return restored(Received(row["message_id"], "", row["body"], system, attributes))
