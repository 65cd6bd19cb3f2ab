"""A pipeline's rows as messages of an SQS queue.

What holds, whatever is replayed, retried or run twice at once:
1. A batch is committed only after SQS has confirmed each of its messages.
2. A message's id is made of pipeline, batch, task and content: the same on every replay, another for every other row.
   It is the deduplication id in a FIFO queue, and the `idempotency-key` attribute in both kinds.
3. Tasks write down under the checkpoint which ids they have sent, every few hundred messages; a replay leaves those
   out. Sent again can only be what was in doubt when a task died (the calls under way, and what was not yet written
   down), and what two attempts that run at once both send. A FIFO queue drops these within its five minutes. A Standard
   queue cannot: whoever reads it tells them by their key, as Semel's consumer and source do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn
from uuid import uuid4

import pyarrow as pa

from semel.spark import crash_points
from semel.spark.segments.storage import Store, open_store
from semel.spark.sinks.contract import Commit, InvalidRow, MicroBatch, SinkError, Written, checked, is_in
from semel.spark.writer.encoder import Columns, Outgoing, Rows
from semel.spark.writer.sender import Sender, client_for
from semel.sqs import limits
from semel.sqs.errors import AccessDenied

if TYPE_CHECKING:  # executors need no models of the file
    from semel.spark.pipeline.config import SqsSpec

THREADS: Final = 4
CHUNK: Final = 500  # ids in one note: what may be sent again to a Standard queue, and one small write
KEPT: Final = 100  # commits that are remembered: a zombie's old batch is known as committed
SENT: Final = "sent"
COMMITS: Final = "commits"


class Progress:
    """Which ids a task of a batch has sent, over all its attempts. `sent` is called by one thread at a time."""

    def __init__(self, store: Store, batch: int, task: int) -> None:
        self._store = store
        self._folder = f"{SENT}/{batch:010d}"
        self._name = f"{task:05d}-"
        self._attempt = uuid4().hex[:12]
        self._ids: list[str] = []
        self._notes = 0
        self.rows = self.bytes = 0

    def known(self) -> set[str]:
        found: set[str] = set()
        for name in self._store.names(self._folder):
            if name.rpartition("/")[2].startswith(self._name):
                found.update((self._store.read(name) or b"").decode().split())
        return found

    def sent(self, messages: Sequence[Outgoing]) -> None:
        self._ids += [message.id for message in messages]
        self.rows += len(messages)
        self.bytes += sum(message.entry.size for message in messages)
        if len(self._ids) >= CHUNK:
            self.note()

    def note(self) -> None:
        if self._ids:
            name = f"{self._folder}/{self._name}{self._attempt}-{self._notes:06d}"
            self._store.put(name, "\n".join(self._ids).encode())
            self._ids, self._notes = [], self._notes + 1


@dataclass(frozen=True, slots=True)
class QueueWriter:
    queue: str
    address: tuple[str | None, str | None, str | None]
    columns: Columns
    fifo: bool
    largest: int
    progress: str
    batch: MicroBatch

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = Rows(self.columns, f"{self.batch.pipeline}/{self.batch.number}/{task}", self.fifo, self.largest)
        progress = Progress(open_store(self.progress), self.batch.number, task)
        known = progress.known()
        left_out = 0
        sender = Sender(client_for(self.address).queue(self.queue), THREADS, progress.sent, self._refused)
        try:
            for batch in batches:
                messages = list(rows.messages(batch))
                fresh = [message for message in messages if message.id not in known]
                left_out += len(messages) - len(fresh)
                sender.send(fresh)
        except BaseException:
            sender.abandon()
            progress.note()
            raise
        try:
            sender.close()
        finally:
            progress.note()
        return Written(task, attempt, progress.rows + left_out, progress.bytes, {"left_out": left_out})

    def invalid_rows(self, batch: pa.RecordBatch) -> list[InvalidRow]:
        """Rows that cannot be messages of this queue: too large, without a group, with a character SQS refuses."""
        rows = Rows(self.columns, "", self.fifo, self.largest)
        field = self.columns.body or ""
        return [InvalidRow(m.number, field, m.problem) for m in rows.messages(batch) if m.problem]

    def _refused(self, message: Outgoing, reason: str) -> NoReturn:
        raise SinkError(f"SQS queue {self.queue} does not take the message with key {message.key}: {reason}")


class QueueSink:
    """`progress` is a folder of the checkpoint that all executors see: which messages of a batch are sent."""

    def __init__(self, spec: SqsSpec, progress: str) -> None:
        self._spec = spec
        self._store = open_store(progress)
        self._address = (spec.endpoint_url, spec.region, spec.profile)
        self._queue = client_for(self._address).queue(spec.queue)
        self._columns: Columns | None = None
        self._largest = limits.MAX_MESSAGE_BYTES

    @property
    def name(self) -> str:
        return f"SQS queue {self._queue.name}"

    def open(self, schema: pa.Schema) -> None:
        spec = self._spec
        for option, names in (("body", [spec.body]), ("group", [spec.group]), ("attributes", spec.attributes)):
            for name in names:
                if name is not None and name not in schema.names:
                    raise SinkError(f"{self.name}: {option} names {name!r}; there are {', '.join(schema.names)}")
        if self._queue.fifo and spec.group is None:
            raise SinkError(f'{self.name} is a FIFO queue: say which field is the group, with group = "…"')
        if len(spec.attributes) >= limits.MAX_MESSAGE_ATTRIBUTES:
            raise SinkError(
                f"{self.name}: attributes names {len(spec.attributes)} fields; nine are possible beside the key"
            )
        body = spec.body or _raw_body(schema)
        if body is not None and not pa.types.is_string(schema.field(body).type):
            raise SinkError(f"{self.name}: body names {body!r}, which is no text; leave it out to send the row as JSON")
        try:
            found = self._queue.attributes("MaximumMessageSize").get("MaximumMessageSize", "")
        except AccessDenied:  # who may send need not be allowed to look
            found = ""
        self._largest = int(found or limits.MAX_MESSAGE_BYTES)
        self._columns = Columns(body=body, group=spec.group, fields=spec.attributes)

    def last(self, pipeline: str) -> Commit | None:  # noqa: ARG002 - its folder is in the pipeline's checkpoint
        names = self._store.names(COMMITS)
        return Commit(_number(names[-1]), (self._store.read(names[-1]) or b"").decode()) if names else None

    def writer(self, batch: MicroBatch) -> QueueWriter:
        if self._columns is None:
            raise SinkError(f"{self.name} was not opened")
        return QueueWriter(
            queue=self._spec.queue,
            address=self._address,
            columns=self._columns,
            fifo=self._queue.fifo,
            largest=self._largest,
            progress=self._store.url,
            batch=batch,
        )

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        checked(batch, written)
        if not is_in(self.name, self.last(batch.pipeline), batch):
            self._store.put(f"{COMMITS}/{batch.number:010d}", batch.content.encode())
        crash_points.reached("during-commit")
        # Also what a zombie has written down for a batch that was over.
        self._store.delete([name for name in self._store.names(SENT) if _number(name) <= batch.number])
        self._store.delete([name for name in self._store.names(COMMITS) if _number(name) <= batch.number - KEPT])

    def close(self) -> None:
        pass


def _raw_body(schema: pa.Schema) -> str | None:
    """The text as it came, where a row is nothing but that; other columns are metadata then."""
    return "body" if [name for name in schema.names if not name.startswith("_")] == ["body"] else None


def _number(name: str) -> int:
    return int(name.split("/")[1])
