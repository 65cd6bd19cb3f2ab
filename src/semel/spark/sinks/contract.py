"""The contract of a sink: the driver opens it and commits batches, tasks on the executors write.

The rule: whatever is replayed, retried, run twice at once or woken up late, the rows of a batch are in the table once.
A task's write alone shows nothing, or the same rows as every other write of that task; `commit` may be called again,
and with what another run of the batch has written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable
from uuid import uuid4

import orjson
import pyarrow as pa

from semel.errors import SemelError, Unavailable
from semel.spark.segments.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Encoded = bytes  # JSON
_HEX_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


class SinkError(SemelError):
    """A sink cannot take rows; the text says which table, why, and the way out."""


class SinkUnavailable(SinkError, Unavailable):
    """The table does not answer: waiting may help."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`pipeline`: its id, kept in its checkpoint. `number` only grows. `content`: what the batch is made of, known once
    its tasks have run; another batch under the same number has another one."""

    pipeline: str
    number: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """The last batch of a pipeline that is in a sink."""

    number: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What one task's write came to. It travels from the executor to the driver; `payload` is the sink's own."""

    task: int
    attempt: str
    rows: int
    bytes: int
    payload: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> Encoded:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: Encoded) -> Written:
        return cls(**orjson.loads(data))


class Writer(Protocol):
    """Made on the driver for one batch, pickled, and used in the executors' tasks."""

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        """Write the rows of one task. Called for a task without rows too."""


class Sink(Protocol):
    """Lives on the driver."""

    @property
    def name(self) -> str:
        """For messages to people, such as "Parquet table /data/orders"; no secrets in it."""

    def open(self, schema: pa.Schema) -> None:
        """Once, at the start: make the table, or let it grow; a change that would break it is a `SinkError`."""

    def last(self, pipeline: str) -> Commit | None:
        """The last batch of a pipeline that is in; None if the sink has not heard of it. Also before it is opened."""

    def writer(self, batch: MicroBatch) -> Writer: ...

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        """Make what the tasks have written the batch's rows: all of them, once. Idempotent."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row that the table would refuse, and its whole batch with it."""

    row: int
    field: str
    reason: str


@runtime_checkable
class RowValidator(Protocol):
    """A writer that can tell beforehand which rows its table would refuse."""

    def invalid_rows(self, batch: pa.RecordBatch) -> list[InvalidRow]: ...


@runtime_checkable
class Checkable(Protocol):
    """A sink that can tell beforehand, and without changing anything, why a pipeline must not write to it."""

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        """Raises SinkError for what `open` would refuse, and what `check_owner` would unless it is to be adopted."""

    def check_owner(self, pipeline: str | None) -> None:
        """Raises ForeignTable if the table is another's: it has rows, and none of them are of the pipeline with this
        id (None: it has not run yet)."""


@runtime_checkable
class ReturnsMessages(Protocol):
    """A sink that may leave messages of a batch in their queue, to be processed later. Its source deletes a message
    only after the commit."""

    @property
    def returned(self) -> Mapping[str, float]:
        """By message id, of the batch that was committed last: until when the message stays hidden, in seconds since
        1970. Known once the sink is open."""

    def arrange(self, rows: DataFrame) -> DataFrame:
        """Rows of FIFO queues: each group in one task."""


class ForeignTable(SinkError):
    """The table was written by another pipeline, or by the same one with another checkpoint."""

    def __init__(self, table: str, found: str) -> None:
        super().__init__(
            f"{table} is not this pipeline's: {found}. It was not written with this checkpoint, so what is in it and "
            "comes again would be in it twice. Choose a new and empty place, or the checkpoint that the table was "
            "written with; to add to this table all the same, run with --adopt"
        )


def is_in(table: str, last: Commit | None, batch: MicroBatch) -> bool:
    """Whether a batch is in already. Other rows under its number are an error, never a reason to leave these out."""
    if last is None or last.number < batch.number:
        return False
    if last.number == batch.number and last.content != batch.content:
        raise SinkError(
            f"{table} holds another batch {batch.number} ({last.content or 'not known which'}) than the one that is to "
            f"be written ({batch.content or 'not known which'}); nothing was committed. The checkpoint does not belong "
            "to this table any more: `semel pipeline reset FILE` goes on from what the log and the table have"
        )
    return True


def invalid_rows(writer: object, batch: pa.RecordBatch) -> list[InvalidRow]:
    """The rows of `batch` that must not be given to `writer`: at most one entry a row, in the rows' order."""
    return writer.invalid_rows(batch) if isinstance(writer, RowValidator) else []


def short(pipeline: str) -> str:
    """Twelve characters that stand for a pipeline in the names of files and tables."""
    return pipeline[:12] if _HEX_ID.match(pipeline) else hashlib.sha256(pipeline.encode()).hexdigest()[:12]


@lru_cache(maxsize=32)
def store_at(url: str) -> Store:
    """The store of a folder, one a process: what S3 is reached with takes a third of a second to make."""
    return open_store(url)


def unique(attempt: str) -> str:
    """A name for one write that no other write has, whatever a caller takes for an attempt."""
    return f"{re.sub('[^A-Za-z0-9]', '', attempt)[:12]}{uuid4().hex[:12]}"


def checked(batch: MicroBatch, written: Sequence[Written]) -> list[Written]:
    """What has rows, in the order of the tasks. Two results of one task would be its rows twice."""
    if len({one.task for one in written}) < len(written):
        tasks = sorted(one.task for one in written)
        raise SinkError(f"batch {batch.number}: more than one result of the same task: {tasks}; nothing was committed")
    return sorted((one for one in written if one.rows), key=lambda one: one.task)
