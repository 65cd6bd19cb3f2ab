"""The contract of a sink: the driver opens it and commits batches, tasks on the executors write.

The rule: the rows of a batch are in the table once, even if tasks or batches are replayed, retried, run twice at once
or resumed late. What a task writes is not visible yet, or it is the same as what every other attempt of that task
writes. `commit` may be called again, also with the results of another run of the batch.
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

from semel.errors import PermissionDenied, SemelError, Unavailable
from semel.spark.segments.model import LogBatch
from semel.spark.segments.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Json = bytes
_HEX_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


class SinkError(SemelError):
    """A sink cannot take rows, and waiting does not help. The text names the table and the reason. Do what the
    text says."""


class SinkPermissionDenied(SinkError, PermissionDenied):
    """The credentials are wrong, or do not allow writing to the table. Allow writing to the table."""


class SinkUnavailable(SinkError, Unavailable):
    """The table cannot be written to at the moment: its server or store is unreachable, overloaded or full. Wait, then
    run the pipeline again."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`pipeline`: its id, kept in its checkpoint. `number` only grows. `content` identifies the segments that the batch
    is made of, and is known once its tasks have run: another batch with the same number has another `content`.
    `log_batch`: where those segments are. It is known before the tasks run, and stays the same if a reset gives the
    batch another number. None: the rows do not come from a segment log."""

    pipeline: str
    number: int
    content: str = ""
    log_batch: LogBatch | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """The last batch of a pipeline that was committed to a sink."""

    number: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of one task's write, sent from the executor to the driver; `payload` is for the sink's use."""

    task: int
    attempt: str
    rows: int
    bytes: int
    payload: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> Json:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: Json) -> Written:
        return cls(**orjson.loads(data))


class Writer(Protocol):
    """Created on the driver for one batch, pickled, and used in the executors' tasks."""

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        """Write the rows of one task. Also called for a task without rows."""


class Sink(Protocol):
    """Lives on the driver."""

    @property
    def name(self) -> str:
        """For log lines and errors, such as "Parquet table /data/orders"; without secrets."""

    def open(self, schema: pa.Schema) -> None:
        """Called once, at the start: create the table or add columns. An incompatible change is a `SinkError`."""

    def last(self, pipeline: str) -> Commit | None:
        """The last committed batch of a pipeline, or None. Works before `open`, too."""

    def writer(self, batch: MicroBatch) -> Writer: ...

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        """Make the rows that the tasks have written visible, all of them once. Idempotent."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row that the table would refuse, and with it the whole batch."""

    row: int
    field: str
    reason: str


@runtime_checkable
class RowValidator(Protocol):
    """A writer that can find the rows that its table would refuse before it writes them."""

    def invalid_rows(self, batch: pa.RecordBatch) -> list[InvalidRow]: ...


@runtime_checkable
class Checkable(Protocol):
    """A sink that can be checked before a run, without changing anything."""

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        """Raises SinkError for everything that `open` would refuse, for a missing permission to write, and, without
        `adopt`, for a table that `check_owner` refuses."""

    def check_owner(self, pipeline: str | None) -> None:
        """Raises ForeignTable if the table has rows, but none from the pipeline with this id (None: it never ran)."""


@runtime_checkable
class ReturnsMessages(Protocol):
    """A sink that may leave messages of a batch in their queue, to be processed later. Its source deletes a message
    only after the commit."""

    @property
    def returned(self) -> Mapping[str, float]:
        """The messages that the last committed batch leaves in their queue: by message id, until when each stays
        hidden, in seconds since 1970. Works before `open`, too."""

    def arrange(self, rows: DataFrame) -> DataFrame:
        """Repartitions rows of FIFO queues, so that each group is in one task."""


class ForeignTable(SinkError):
    """The table was written by another pipeline, or by the same one with another checkpoint. Choose a table of its own
    for each pipeline."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"{table} is not this pipeline's: {reason}. It was not written with this checkpoint, so messages that come "
            "again would be in it twice. Choose an empty table, or the checkpoint that this one was written with; to "
            "add to it anyway, run with --adopt"
        )


def already_committed(table: str, last: Commit | None, batch: MicroBatch) -> bool:
    """Whether this batch is in the table. If another batch has its number, that is an error, and not a reason to skip
    it."""
    if last is None or last.number < batch.number:
        return False
    if last.number == batch.number and last.content != batch.content:
        raise SinkError(
            f"{table} holds another batch {batch.number} ({last.content or 'unknown content'}) than the one to be "
            f"written ({batch.content or 'unknown content'}); nothing was committed. The checkpoint no longer belongs "
            "to this table: `semel pipeline reset FILE` continues from what the log and the table have"
        )
    return True


def invalid_rows(writer: object, batch: pa.RecordBatch) -> list[InvalidRow]:
    """The rows of `batch` that `writer` must not get: at most one entry for each row, in the order of the rows."""
    return writer.invalid_rows(batch) if isinstance(writer, RowValidator) else []


def pipeline_tag(pipeline: str) -> str:
    """Twelve characters that stand for a pipeline in the names of files and tables."""
    return pipeline[:12] if _HEX_ID.match(pipeline) else hashlib.sha256(pipeline.encode()).hexdigest()[:12]


def attempt_name(attempt: str) -> str:
    """A name for one write that no other write has, even if `attempt` is not unique."""
    return f"{re.sub('[^A-Za-z0-9]', '', attempt)[:12]}{uuid4().hex[:12]}"


@lru_cache(maxsize=32)
def store_at(url: str) -> Store:
    """The store of a folder, one per process: creating an S3 client takes a third of a second."""
    return open_store(url)


def results_with_rows(batch: MicroBatch, written: Sequence[Written]) -> list[Written]:
    """The results that have rows, by task. Two results of one task are an error: its rows would be in the table
    twice."""
    tasks = sorted(result.task for result in written)
    if len(set(tasks)) < len(tasks):
        raise SinkError(f"batch {batch.number}: more than one result of the same task: {tasks}; nothing was committed")
    return sorted((result for result in written if result.rows), key=lambda result: result.task)
