"""A pipeline's rows as messages of an SQS queue.

What holds, even if tasks or batches are replayed, retried or run twice at once:
1. A batch is committed only after SQS has confirmed each of its messages.
2. A message's id is made of pipeline, batch, task and content: the same in every replay, and different for every other
   row. It is the deduplication id in a FIFO queue, and the `idempotency-key` attribute in both kinds of queues.
3. Tasks record under the checkpoint which ids they have sent, after 500 messages or a second, whichever comes first; a
   replay skips these ids. Only two kinds of messages are sent again: those in doubt when a task died (calls in flight,
   ids not recorded yet), and those of two attempts that run at once. A FIFO queue drops them within five minutes of the
   first send. After a longer pause they are in the queue twice, as in a Standard queue. Readers of the queue recognise
   them by their key, as Semel's consumer and source do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import uuid4

import pyarrow as pa

from semel.spark import crash_points
from semel.spark.segments.storage import Store, open_store
from semel.spark.sinks.commit_log import CommitLog
from semel.spark.sinks.contract import (
    Commit,
    InvalidRow,
    MicroBatch,
    SinkError,
    Written,
    already_committed,
    results_with_rows,
)
from semel.spark.writer.encoder import Columns, Outgoing, Rows
from semel.spark.writer.sender import Sender, client_for
from semel.sqs import Client, Queue, limits
from semel.sqs.errors import AccessDenied, BadRequest, QueueNotFound

THREADS: Final = 4
NOTE_IDS: Final = 500  # ids in one recorded file, a small write
NOTE_SECONDS: Final = 1.0  # an id waits no longer than this while messages are sent
SENT: Final = "sent"
COMMITS: Final = "commits"

Address = tuple[str | None, str | None, str | None]  # endpoint, region, profile


class Progress:
    """The ids that the attempts of a task have sent. `sent` is called by one thread at a time."""

    def __init__(self, store: Store, batch: int, task: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._folder = f"{SENT}/{batch:010d}"
        self._prefix = f"{task:05d}-"
        self._attempt = uuid4().hex[:12]
        self._clock = clock
        self._noted_at = clock()
        self._ids: list[str] = []
        self._notes = 0
        self.rows = self.bytes = 0

    def known(self) -> set[str]:
        ids: set[str] = set()
        for name in self._store.names(self._folder):
            if name.rpartition("/")[2].startswith(self._prefix):
                ids.update((self._store.read(name) or b"").decode().split())
        return ids

    def sent(self, messages: Sequence[Outgoing]) -> None:
        self._ids += [message.id for message in messages]
        self.rows += len(messages)
        self.bytes += sum(message.entry.size for message in messages)
        if len(self._ids) >= NOTE_IDS or self._clock() - self._noted_at >= NOTE_SECONDS:
            self.note()

    def note(self) -> None:
        if self._ids:
            name = f"{self._folder}/{self._prefix}{self._attempt}-{self._notes:06d}"
            self._store.put(name, "\n".join(self._ids).encode())
            self._ids, self._notes = [], self._notes + 1
        self._noted_at = self._clock()


@dataclass(frozen=True, slots=True)
class QueueWriter:
    queue: str
    address: Address
    columns: Columns
    fifo: bool
    max_bytes: int
    progress: str
    batch: MicroBatch

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = Rows(self.columns, f"{self.batch.pipeline}/{self.batch.number}/{task}", self.fifo, self.max_bytes)
        progress = Progress(open_store(self.progress), self.batch.number, task)
        known = progress.known()
        skipped = 0
        sender = Sender(client_for(self.address).queue(self.queue), THREADS, progress.sent, self._refused)
        try:
            for batch in batches:
                messages = list(rows.messages(batch))
                unsent = [message for message in messages if message.id not in known]
                skipped += len(messages) - len(unsent)
                sender.send(unsent)
        except BaseException:
            sender.abandon()
            progress.note()
            raise
        try:
            sender.close()
        finally:
            progress.note()
        return Written(task, attempt, progress.rows + skipped, progress.bytes, {"left_out": skipped})

    def invalid_rows(self, batch: pa.RecordBatch) -> list[InvalidRow]:
        """Rows that cannot be messages of this queue: too large, without a group, or with a character that SQS
        refuses."""
        rows = Rows(self.columns, "", self.fifo, self.max_bytes)
        field = self.columns.body or ""
        return [
            InvalidRow(message.number, field, message.problem) for message in rows.messages(batch) if message.problem
        ]

    def _refused(self, message: Outgoing, reason: str) -> NoReturn:
        raise SinkError(f"SQS queue {self.queue} refuses the message with key {message.key}: {reason}")


class QueueSink:
    """`queue`: name, URL or ARN. `progress`: a folder of the checkpoint that all executors see. `body`, `group` and
    `attributes` name columns of the rows. Without `body`, a row is sent as JSON, or a raw text unchanged."""

    def __init__(
        self,
        queue: str,
        progress: str,
        *,
        body: str | None = None,
        group: str | None = None,
        attributes: Sequence[str] = (),
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
    ) -> None:
        self._store = open_store(progress)
        self._commits = CommitLog(self._store, COMMITS)
        self._address: Address = (endpoint_url, region, profile)
        self._reference = queue
        self._queue = client_for(self._address).queue(queue)
        self._body, self._group, self._attributes = body, group, tuple(attributes)
        self._columns: Columns | None = None
        self._max_bytes = limits.MAX_MESSAGE_BYTES

    @property
    def name(self) -> str:
        return f"SQS queue {self._queue.name}"

    def open(self, schema: pa.Schema) -> None:
        columns = self._message_columns(schema)
        try:
            size = self._queue.attributes("MaximumMessageSize").get("MaximumMessageSize", "")
        except AccessDenied:  # permission to send does not include permission to read attributes
            size = ""
        self._max_bytes = int(size or limits.MAX_MESSAGE_BYTES)
        self._columns = columns

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:  # noqa: ARG002
        self._message_columns(schema)
        with Client(*self._address) as client:  # less patient than the one that sends
            check_sendable(self.name, client.queue(self._reference))

    def check_owner(self, pipeline: str | None) -> None:
        """A queue may have several senders."""

    def last(self, pipeline: str) -> Commit | None:  # noqa: ARG002 - its folder is in the pipeline's checkpoint
        return self._commits.last()

    def writer(self, batch: MicroBatch) -> QueueWriter:
        if self._columns is None:
            raise SinkError(f"{self.name} was not opened")
        return QueueWriter(
            queue=self._reference,
            address=self._address,
            columns=self._columns,
            fifo=self._queue.fifo,
            max_bytes=self._max_bytes,
            progress=self._store.url,
            batch=batch,
        )

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        results_with_rows(batch, written)
        if not already_committed(self.name, self.last(batch.pipeline), batch):
            self._commits.record(batch)
        crash_points.reached("during-commit")
        # Including what late tasks have recorded for batches that were committed before.
        self._store.delete([name for name in self._store.names(SENT) if _number(name) <= batch.number])

    def close(self) -> None:
        pass

    def _message_columns(self, schema: pa.Schema) -> Columns:
        for option, names in (("body", [self._body]), ("group", [self._group]), ("attributes", self._attributes)):
            for name in names:
                if name is not None and name not in schema.names:
                    raise SinkError(f"{self.name}: {option} names {name!r}; there are {', '.join(schema.names)}")
        if self._queue.fifo and self._group is None:
            raise SinkError(f'{self.name} is a FIFO queue: say which field is the group, with group = "…"')
        if len(self._attributes) >= limits.MAX_MESSAGE_ATTRIBUTES:
            raise SinkError(
                f"{self.name}: attributes names {len(self._attributes)} fields; nine are possible beside the key"
            )
        body = self._body or _raw_body(schema)
        if body is not None and not pa.types.is_string(schema.field(body).type):
            raise SinkError(f"{self.name}: body names {body!r}, which is not a text; omit it to send the row as JSON")
        return Columns(body=body, group=self._group, fields=self._attributes)


def check_sendable(name: str, queue: Queue) -> None:
    """Checks that a queue exists and that we may send to it, without sending anything: SQS refuses a batch without
    entries, but checks the permission first."""
    try:
        queue.call("SendMessageBatch", {"Entries": []})
    except QueueNotFound as error:
        raise SinkError(f"{name}: {error}") from error
    except AccessDenied as error:
        raise SinkError(f"{name}: no permission to send: {error}") from error
    except BadRequest:
        pass


def _raw_body(schema: pa.Schema) -> str | None:
    """The column of the raw text, if a row has no other. Columns that begin with an underscore are metadata."""
    return "body" if [name for name in schema.names if not name.startswith("_")] == ["body"] else None


def _number(name: str) -> int:
    return int(name.split("/")[1])
