"""`df.write.format("sqs")` and `df.writeStream.format("sqs")`: every row becomes a message.

What holds, even if tasks fail or run twice at once, or a batch is run again after a crash:
1. No row is lost: when a task or batch has succeeded, SQS has confirmed each of its messages.
2. FIFO queues: a retried task or replayed batch sends nothing twice within SQS's five minutes. Each message has a
   deduplication id: the row's own, else its key, else one made of query and batch (or job), task and content.
3. Standard queues do not deduplicate: a retried task may send a message again. The second message has the same
   `idempotency-key` attribute as the first (the row's key, else the id of rule 2), by which Semel's consumer and source
   recognise it.
4. FIFO queues: rows of one group in one partition are sent in the order of the partition. If SQS accepts some messages
   of a call and not others, the others are sent after them.
The id of rule 2 needs a plan that computes the same rows again: a column of random numbers makes new messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.spark.segments.storage import open_store
from semel.spark.source.options import OptionError
from semel.spark.writer.encoder import Outgoing, Rows
from semel.spark.writer.options import WriteOptions, check_fifo, write_options
from semel.spark.writer.rejected_rows import RejectedRows
from semel.spark.writer.sender import Sender, SendError, client_for, send_error
from semel.sqs import limits
from semel.sqs.errors import AccessDenied, SqsError

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("semel.spark")

# Spark sets these for every task of a streaming query. The query's id is kept in its checkpoint.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class TaskResult(WriterCommitMessage):
    task: int
    rows: int = 0
    bytes: int = 0
    rejected: int = 0


class _QueueWriter:
    """The code that both writers share. Created on the driver for a job or query, and pickled to the executors."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        queue = client_for(options.address).queue(options.queue)
        self._name, self._fifo = queue.name, queue.fifo
        try:
            size = queue.attributes("MaximumMessageSize").get("MaximumMessageSize")
        except AccessDenied:  # credentials that may send need not be allowed to read attributes
            size = None
        except SqsError as error:
            raise send_error(self._name, error) from error
        self._max_bytes = int(size or limits.MAX_MESSAGE_BYTES)
        check_fifo(self._name, options.columns, self._fifo)

    def send(self, batches: Iterator[pa.RecordBatch], scope: str, task: int) -> TaskResult:
        """Send the rows of one task."""
        options, result = self._options, TaskResult(task)
        store = None if options.rejects is None else open_store(options.rejects)
        rejects = None if store is None else RejectedRows(store, self._name, scope, task)

        def count(messages: Sequence[Outgoing]) -> None:
            result.rows += len(messages)
            result.bytes += sum(message.size for message in messages)

        refuse = partial(self._fail, task) if rejects is None else rejects.add
        rows = Rows(options.columns, f"{scope}/{task}", self._fifo, self._max_bytes)
        sender = Sender(client_for(options.address).queue(options.queue), options.threads, count, refuse)
        try:
            for batch in batches:
                sender.send(rows.messages(batch))
        except BaseException:
            sender.abandon()
            raise
        sender.close()
        if rejects is not None:
            rejects.flush()
            result.rejected = rejects.count
        return result

    def _fail(self, task: int, message: Outgoing, reason: str) -> NoReturn:
        raise SendError(
            f"row {message.number} of task {task} cannot be sent to {self._name}: {reason} (key {message.key}, "
            f"{message.size} bytes). Rows before it may have been sent. Leave such rows out, or have them written to a "
            "folder with .option('oversized', 'reject').option('rejects', FOLDER)"
        )

    def _report(self, messages: Sequence[Any]) -> None:
        results = [message for message in messages if isinstance(message, TaskResult)]
        _log.info("%d messages sent to %s", sum(result.rows for result in results), self._name)
        if rejected := sum(result.rejected for result in results):
            _log.warning("%d rows could not be sent to %s; see %s", rejected, self._name, self._options.rejects)


class SqsWriter(_QueueWriter, DataSourceArrowWriter):
    """`df.write.format("sqs")`. With the option `sendId`, a job that is run again creates the same ids."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self._scope = options.send_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return self.send(iterator, self._scope, _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        _log.error("writing to %s failed; messages that were already sent stay sent", self._name)


class SqsStreamWriter(_QueueWriter, DataSourceStreamArrowWriter):
    """`df.writeStream.format("sqs")`. Message ids are made of the batch and the query's id, which is kept in its
    checkpoint."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if batch is None or (query is None and self._options.send_id is None):
            raise SendError(
                f"Spark does not say which query and batch it writes to {self._name}, so messages of different batches "
                "could get the same id; write with foreachBatch and the option sendId instead"
            )
        return self.send(iterator, f"{self._options.send_id or query}/{batch}", task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        _log.error("batch %d failed; messages that it already sent to %s stay sent", batchId, self._name)


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
