"""What an executor does with one partition of a batch: rows to the sink's writer, rejects to theirs, one result back.

The rules:
1. The whole partition is consumed, even if a writer stops early or there is none: Spark's state store relies on that,
   and the source acknowledges its messages as they are read.
2. Rows are streamed. Only rejects are held until all rows are written, because a partition can be read only once.
3. Each task returns exactly one result, even if it had no rows. What a failed attempt has written is never reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from semel.spark.sinks.contract import InvalidRow, Writer, Written, invalid_rows
from semel.spark.source.column_types import TRACED

RESULT: Final = "task INT, result BINARY, events BINARY"
_RESULT: Final = pa.schema([("task", pa.int32()), ("result", pa.binary()), ("events", pa.binary())])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one task. `written` and `rejected` are None where there was no writer."""

    task: int
    rows: int
    rejects: dict[str, int]
    seconds: float
    written: Written | None
    rejected: Written | None
    events: bytes = b""

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "rows": self.rows,
                "rejects": self.rejects,
                "seconds": self.seconds,
                "written": None if self.written is None else orjson.Fragment(self.written.encode()),
                "rejected": None if self.rejected is None else orjson.Fragment(self.rejected.encode()),
            }
        )

    @classmethod
    def decode(cls, task: int, data: bytes, events: bytes) -> Outcome:
        values = orjson.loads(data)
        for name in ("written", "rejected"):
            if values[name] is not None:
                values[name] = Written(**values[name])
        return cls(task=task, events=events, **values)


@dataclass(frozen=True, slots=True)
class Task:
    """`writer` None: the batch is in the sink already; `rejects` None: its rejected messages are committed already."""

    writer: Writer | None
    rejects: Writer | None
    traced: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield result(self.run(batches, context.partitionId(), uuid4().hex))

    def run(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Outcome:
        began = time.monotonic()
        sorted_rows = SortedRows(batches, self.writer, traced=self.traced)
        rows = sorted_rows.good()
        written = None if self.writer is None else self.writer.write(rows, task, attempt)
        for _ in rows:  # rows that the writer has left, or all rows without a writer
            pass
        rejected = None if self.rejects is None else self.rejects.write(iter(sorted_rows.rejected), task, attempt)
        seconds = round(time.monotonic() - began, 3)
        return Outcome(task, sorted_rows.rows, sorted_rows.reasons, seconds, written, rejected, sorted_rows.events())


@dataclass(slots=True)
class SortedRows:
    """Gives out good rows as they come, flattened into the sink's columns, and keeps the others with their reason."""

    batches: Iterator[pa.RecordBatch]
    writer: Writer | None
    traced: bool = False
    rows: int = 0
    rejected: list[pa.RecordBatch] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    _traces: list[pa.RecordBatch] = field(default_factory=list)

    def good(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            reason = batch.column("reason")
            if reason.null_count < len(batch):
                good = pc.is_null(reason)
                self._reject(batch.filter(pc.invert(good)))
                batch = batch.filter(good)
            batch, rows = self._valid(batch)
            if self.traced:
                self._trace(batch)
            if len(rows):
                self.rows += len(rows)
                yield rows

    def _valid(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows that the sink's table will take: with all columns, and with the sink's columns only."""
        rows = flat(batch.column("row"))
        invalid = invalid_rows(self.writer, rows) if len(rows) else []
        if not invalid:
            return batch, rows
        self._reject(_with_reasons(batch.take([row.row for row in invalid]), invalid))
        refused = {row.row for row in invalid}
        keep = pa.array([index not in refused for index in range(len(rows))])
        return batch.filter(keep), rows.filter(keep)

    def _reject(self, batch: pa.RecordBatch) -> None:
        for entry in pc.value_counts(batch.column("reason")).to_pylist():
            kind = entry["values"].partition(": ")[0]  # what follows is about this one message
            self.reasons[kind] = self.reasons.get(kind, 0) + entry["counts"]
        if self.traced:
            self._trace(batch)
        message = batch.column("message")
        arrays = [*message.flatten(), batch.column("reason"), batch.column("field")]
        names = [*(part.name for part in message.type), "reason", "field"]
        self.rejected.append(pa.RecordBatch.from_arrays(arrays, names=names))

    def _trace(self, batch: pa.RecordBatch) -> None:
        if len(batch):
            self._traces.append(batch.select([*TRACED, "reason"]))

    def events(self) -> bytes:
        """What the driver writes to the attempt log after the commit: an Arrow stream, or nothing."""
        if not self._traces:
            return b""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, self._traces[0].schema, options=options) as stream:
            for batch in self._traces:
                stream.write_batch(batch)
        return bytes(sink.getvalue())


def result(outcome: Outcome) -> pa.RecordBatch:
    """The one row that a task returns."""
    values: list[Any] = [outcome.task, outcome.encode(), outcome.events]
    arrays = [pa.array([value], kind.type) for value, kind in zip(values, _RESULT, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_RESULT)


def flat(rows: pa.StructArray) -> pa.RecordBatch:
    """The fields of a struct as columns."""
    return pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type)))


def _with_reasons(batch: pa.RecordBatch, invalid: list[InvalidRow]) -> pa.RecordBatch:
    for name, values in (("reason", [row.reason for row in invalid]), ("field", [row.field for row in invalid])):
        index = batch.schema.get_field_index(name)
        batch = batch.set_column(index, batch.schema.field(name), pa.array(values, batch.schema.field(name).type))
    return batch
