"""The contract of a sink: the driver opens it and commits batches, tasks on the executors write.

The rule: whatever is replayed, retried, run twice at once or resumed late, the rows of a batch are in the table once.
A task's write shows nothing yet, or the same rows as every other write of that task. `commit` may be called again, also
with the results of another run of the batch.
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
    """A sink cannot take rows, and waiting does not help. The text names the table and the reason. Follow the text: it
    names the way out."""


class SinkPermissionDenied(SinkError, PermissionDenied):
    """The credentials are wrong, or do not allow to write to the table. Allow writing to the table."""


class SinkUnavailable(SinkError, Unavailable):
    """The table cannot be written to at the moment: its server or store is away, overloaded or full. Wait, then run the
    pipeline again."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`pipeline`: its id, kept in its checkpoint. `number` only grows. `content` identifies the segments that the batch
    is made of, once its tasks have run: another batch with the same number has another `content`. `log_batch`: where
    those segments are; it is known before, and stays the same if a reset gives the batch another number. None: the rows
    are from no segment log."""

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
    """The result of one task's write, sent from the executor to the driver; `payload` is the sink's own."""

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
    """Made on the driver for one batch, pickled, and used in the executors' tasks."""

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        """Write the rows of one task. Called for a task without rows too."""


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
        """Make the results of the tasks the rows of the batch: all of them, once. Idempotent."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row that the table would refuse, and the whole batch because of it."""

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
        """Raises SinkError for all that `open` would refuse, for missing permission to write, and, unless the table is
        to be adopted, for what `check_owner` refuses."""

    def check_owner(self, pipeline: str | None) -> None:
        """Raises ForeignTable if the table has rows, but none of the pipeline with this id (None: it never ran)."""


@runtime_checkable
class ReturnsMessages(Protocol):
    """A sink that may leave messages of a batch in their queue, to be processed later. Its source deletes a message
    only after the commit."""

    @property
    def returned(self) -> Mapping[str, float]:
        """By message id, of the batch that was committed last: until when the message stays hidden, in seconds since
        1970. Works before `open`, too."""

    def arrange(self, rows: DataFrame) -> DataFrame:
        """Rows of FIFO queues: each group in one task."""


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
    """Whether a batch is in the table. Another batch with its number is an error, never a reason to skip this one."""
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
    """The rows of `batch` that must not be given to `writer`: at most one entry a row, in the rows' order."""
    return writer.invalid_rows(batch) if isinstance(writer, RowValidator) else []


def pipeline_tag(pipeline: str) -> str:
    """Twelve characters that stand for a pipeline in the names of files and tables."""
    return pipeline[:12] if _HEX_ID.match(pipeline) else hashlib.sha256(pipeline.encode()).hexdigest()[:12]


def attempt_name(attempt: str) -> str:
    """A name for one write that no other write has, also if `attempt` is not unique."""
    return f"{re.sub('[^A-Za-z0-9]', '', attempt)[:12]}{uuid4().hex[:12]}"


@lru_cache(maxsize=32)
def store_at(url: str) -> Store:
    """The store of a folder, one a process: to create an S3 client takes a third of a second."""
    return open_store(url)


def results_with_rows(batch: MicroBatch, written: Sequence[Written]) -> list[Written]:
    """The results that have rows, by task. Two results of one task are refused: its rows would be there twice."""
    tasks = sorted(result.task for result in written)
    if len(set(tasks)) < len(tasks):
        raise SinkError(f"batch {batch.number}: more than one result of the same task: {tasks}; nothing was committed")
    return sorted((result for result in written if result.rows), key=lambda result: result.task)
