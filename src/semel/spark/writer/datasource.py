"""`df.write.format("sqs")` and `df.writeStream.format("sqs")`: every row a message.

What holds, also if tasks fail, run twice at once or a batch is run again after a crash:
1. No row is lost: a task or batch that ended well has had each of its messages confirmed by SQS.
2. FIFO queues: a retried task and a replayed batch send nothing twice within SQS's five minutes. Each message has a
   deduplication id: the row's own, else its key, else one made of query and batch (or job), task and content.
3. Standard queues know no deduplication: such a task may send a message again. It then has the same `idempotency-key`
   attribute as the first (the row's key, else the id of rule 2), by which Semel's consumer and source tell it.
4. FIFO queues: rows of one group that are in one partition are sent in its order. A message that SQS did not take at
   first, while it took others of the same call, is sent after those.
The id of rule 2 needs a plan that computes the same rows again: a column of random numbers makes new messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.spark.segments.storage import open_store
from semel.spark.source.options import OptionError
from semel.spark.writer.encoder import Outgoing, Rows
from semel.spark.writer.options import WriteOptions, check_fifo, write_options
from semel.spark.writer.rejected_rows import Rejects, size_of
from semel.spark.writer.sender import Sender, SendError, client_for
from semel.sqs import limits
from semel.sqs.errors import AccessDenied

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("semel.spark")

# Set by Spark for every task of a streaming query; the first is kept in the checkpoint.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Sent(WriterCommitMessage):
    """What one task came to."""

    task: int
    rows: int = 0
    bytes: int = 0
    rejected: int = 0


@dataclass
class _Tally:
    sent: Sent
    rejects: Rejects | None  # None: a row that cannot be sent fails the task


class _Writing:
    """The part that both writers share. Made on the driver once a job or query, pickled to the executors."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        queue = client_for(options.address).queue(options.queue)
        self._name, self._fifo = queue.name, queue.fifo
        try:
            self._largest = int(queue.attributes("MaximumMessageSize").get("MaximumMessageSize", 0))
        except AccessDenied:  # who may send need not be allowed to look
            self._largest = 0
        self._largest = self._largest or limits.MAX_MESSAGE_BYTES
        check_fifo(self._name, options.columns, self._fifo)

    def send(self, batches: Iterator[pa.RecordBatch], scope: str, task: int) -> Sent:
        """The rows of one task."""
        options = self._options
        rows = Rows(options.columns, f"{scope}/{task}", self._fifo, self._largest)
        rejects = None
        if options.rejects is not None:
            rejects = Rejects(open_store(options.rejects), self._name, scope, task)
        tally = _Tally(Sent(task), rejects)
        sender = Sender(
            client_for(options.address).queue(options.queue),
            options.threads,
            lambda messages: self._count(tally, messages),
            lambda message, reason: self._refuse(tally, message, reason),
        )
        try:
            for batch in batches:
                sender.send(self._sendable(rows.messages(batch), tally))
        except BaseException:
            sender.abandon()
            raise
        sender.close()
        if rejects is not None:
            rejects.close()
            tally.sent.rejected = rejects.count
        return tally.sent

    def _sendable(self, messages: Iterator[Outgoing], tally: _Tally) -> Iterator[Outgoing]:
        for message in messages:
            if message.problem:
                self._refuse(tally, message, message.problem)
            else:
                yield message

    def _count(self, tally: _Tally, messages: Sequence[Outgoing]) -> None:
        tally.sent.rows += len(messages)
        tally.sent.bytes += sum(message.entry.size for message in messages)

    def _refuse(self, tally: _Tally, message: Outgoing, reason: str) -> None:
        if tally.rejects is not None:
            tally.rejects.add(message, reason)
            return
        raise SendError(
            f"row {message.number} of task {tally.sent.task} cannot be sent to {self._name}: {reason} "
            f"(key {message.key}, {size_of(message)} bytes). What came before it may have been sent. Leave such rows "
            "out, or have them put aside with .option('oversized', 'reject').option('rejects', FOLDER)"
        )

    def _report(self, messages: Sequence[Any]) -> None:
        done = [message for message in messages if isinstance(message, Sent)]
        rows, rejected = sum(one.rows for one in done), sum(one.rejected for one in done)
        _log.info("%d messages sent to %s", rows, self._name)
        if rejected:
            _log.warning("%d rows could not be sent to %s; see %s", rejected, self._name, self._options.rejects)


class SqsWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("sqs")`. With the option `sendId`, a job that is run again makes the same ids as the first."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self._scope = options.send_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self.send(iterator, self._scope, _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        _log.error("writing to %s failed; messages that were sent before stay sent", self._name)


class SqsStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("sqs")`. In each id are the query's own, which its checkpoint keeps, and the batch's."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if batch is None or (query is None and self._options.send_id is None):
            raise SendError(
                f"Spark does not tell which query and batch is written to {self._name}, so its messages could not be "
                "told from those of other batches; write with foreachBatch and the option sendId instead"
            )
        return self.send(iterator, f"{self._options.send_id or query}/{batch}", task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        _log.error("batch %d failed; messages that it sent to %s before stay sent", batchId, self._name)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool = False) -> SqsWriter:
    if overwrite:
        raise OptionError("a queue cannot be overwritten: write with .mode('append')")
    return SqsWriter(write_options(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool = False) -> SqsStreamWriter:
    if overwrite:
        raise OptionError("a queue cannot be overwritten: use output mode append or update")
    return SqsStreamWriter(write_options(options, schema))
