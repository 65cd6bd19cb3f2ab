"""One queue's streaming query: rows go to the handler batch by batch, and in between what waits is tried again.

The rule: no message is deleted from its queue before its outcome is in the ledger. The checkpoint may be lost; what was
in it then comes again, and the ledger knows what was done.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from semel.consumer.app import App
from semel.consumer.queue_setup import QueueSetup
from semel.errors import SemelError
from semel.spark import crash_points
from semel.spark.pipeline import agreement
from semel.spark.pipeline.batch import is_in
from semel.spark.pipeline.checkpoint import Checkpoint, Disagreement, Record
from semel.spark.pipeline.errors import explained
from semel.spark.pipeline.stop import Stop
from semel.spark.sinks.contract import MicroBatch, Written
from semel.spark.sinks.handlers.app_loader import configure_logs
from semel.spark.sinks.handlers.messages import NEEDED
from semel.spark.sinks.handlers.sink import HandlerSink, HandlerWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log: Final = logging.getLogger("semel.spark")
TICK: Final = 0.25
WRITTEN_DOWN: Final = 5.0  # seconds for Spark to write down that a batch is done
RESULT: Final = "task INT, result BINARY"
_RESULT: Final = pa.schema([("task", pa.int32()), ("result", pa.binary())])


class StopAsked(SemelError):
    """The next batch is not begun, as the run is to stop. The next start begins with it."""


@dataclass(frozen=True, slots=True)
class Source:
    """How each queue is read."""

    app: App
    checkpoint: str
    available_now: bool
    wanted_receivers: int | None
    max_messages: int

    def folder_of(self, setup: QueueSetup) -> str:
        return f"{self.checkpoint}/{setup.name}"

    def segments(self, setup: QueueSetup) -> str:
        return f"{self.folder_of(setup)}/segments"

    def receivers(self, setup: QueueSetup) -> int:
        # One for FIFO, as then a batch has each group in the order that SQS gave it out in.
        return 1 if setup.fifo else self.wanted_receivers or min(4, cores())

    def rows(self, spark: SparkSession, setup: QueueSetup, query: str | None) -> DataFrame:
        from semel.spark.source import datasource

        client = self.app.client()
        datasource.register(spark)
        options = {
            "queue": setup.handler.queue,
            "segments": self.segments(setup),
            "ack": "committed",
            "receivers": str(self.receivers(setup)),
            "maxMessagesPerBatch": str(self.max_messages),
            "columns": ",".join(NEEDED.names),
            "endpointUrl": client.endpoint,
            "region": client.region,
        }
        if query is not None:
            options["owner"] = query
        if self.app.profile:
            options["profile"] = self.app.profile
        return spark.readStream.format("sqs").options(**options).load()

    @property
    def trigger(self) -> dict[str, Any]:
        return {"availableNow": True} if self.available_now else {"processingTime": "0 seconds"}


class HandlerQuery:
    """The query of one queue: its batches, and between them what waits for another attempt."""

    def __init__(
        self, setup: QueueSetup, source: Source, sink: HandlerSink, count: Callable[[Sequence[Written]], None]
    ) -> None:
        self.name = setup.name
        self.sink = sink
        self._setup, self._source, self._count = setup, source, count
        self._turn = threading.Lock()  # one job of the handler's at a time
        self._stopping = False
        self._done: int | None = None
        self._returned: dict[str, float] = {}
        self._failed: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._spark: SparkSession | None = None
        self._checkpoint = Checkpoint(source.folder_of(setup))
        self._log = agreement.log_of(self._checkpoint)
        self._content = partial(agreement.content_of, self._log)
        self._record: Record | None = None

    def start(self, spark: SparkSession) -> None:
        self._spark = spark
        self.sink.open(NEEDED)
        self._record = self._proved()
        rows = self._source.rows(spark, self._setup, self._record.query)
        if self._setup.fifo:
            rows = self.sink.arrange(rows, max(2, cores()))
        self._query = (
            rows.writeStream.queryName(f"{self.name}-{uuid4().hex[:6]}")
            .option("checkpointLocation", f"{self._source.folder_of(self._setup)}/query")
            .foreachBatch(self._batch)
            .trigger(**self._source.trigger)
            .start()
        )

    def _proved(self) -> Record:
        """That log, progress and handlers belong together. If not, the query is begun anew, which loses and repeats
        nothing: what is sealed comes first, and the ledger knows what is done."""
        sinks = (self.sink,)
        former = self._checkpoint.record()
        record = self._checkpoint.fresh({}) if former is None else former
        if former is not None:
            try:
                agreement.check(self._checkpoint, record, self._log, sinks)
            except Disagreement as error:
                plan = agreement.plan_reset(self._checkpoint, record, self._log, sinks)
                if plan.loses:
                    raise SemelError(
                        f"queue {self.name}: messages that were sealed under {self._checkpoint.url} are gone, and may "
                        f"be in no queue any more: {', '.join(plan.lost) or self._log.store.url}. Restore these files "
                        "from a copy; or remove that folder, to begin anew without them. Nothing was started"
                    ) from error
                _log.warning(
                    "queue %s: %s; its query is begun anew, and %d messages that are sealed come first",
                    self.name,
                    error,
                    plan.replayed,
                )
                record = agreement.reset(self._checkpoint, record, self._log, sinks, plan)
        self._checkpoint.keep(record)
        return record

    def _batch(self, df: DataFrame, number: int) -> None:
        try:
            with self._turn:
                if self._stopping:
                    raise StopAsked(f"batch {number} of {self.name} is not begun")
                assert self._record is not None
                self._carry_out(df, MicroBatch(self._record.id, self._record.base + number))
                self._done = number
        except BaseException as error:  # Spark tells of it as text only
            self._failed = error
            raise

    def _carry_out(self, df: DataFrame, batch: MicroBatch) -> None:
        if is_in(
            self.sink, batch, self._content
        ):  # the source still has to see its rows read, to be sure of its deletes
            df.write.format("noop").mode("append").save()
            self._give_back()
            return
        written = _outcomes(df, _Task(self.sink.writer(batch)))
        crash_points.reached("before-commit")
        self.sink.commit(replace(batch, content=self._content()), written)
        self._give_back()
        crash_points.reached("after-commit")
        self._count(written)

    def _give_back(self) -> None:
        """Tell the source what of the batch is not to be deleted, before Spark writes down that the batch is done."""
        if self._setup.fifo:  # what a Standard queue's handlers have not finished was sent back as a copy
            state, now = self.sink.state, time.time()
            self._log.give_back(state.batch, state.returned)
            self._returned = {id_: due for id_, due in (self._returned | state.returned).items() if due > now}

    def try_waiting(self) -> None:
        """Try again what is due, unless a batch is in hand, which does it too."""
        if self.sink.state.due is None or self.sink.state.due > time.time() or not self._turn.acquire(blocking=False):
            return
        try:
            partitions = self.sink.state.partitions
            if self._stopping or self._spark is None or partitions is None:
                return
            tasks = self._spark.range(0, partitions, 1, partitions)
            written = _outcomes(tasks, _Task(self.sink.writer(), nothing_new=True))
            self.sink.commit_waiting(written)
            self._count(written)
        finally:
            self._turn.release()

    @property
    def waiting(self) -> int:
        """Messages that are to be tried again later, under the checkpoint or hidden in their queue."""
        now = time.time()
        return 0 if self._query is None else self.sink.state.waiting + sum(due > now for due in self._returned.values())

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def error(self) -> SemelError | None:
        if self._query is None or self._query.isActive:
            return None
        raised = self._query.exception()
        if raised is None or isinstance(self._failed, StopAsked):
            return None
        return explained(self._failed if isinstance(self._failed, SemelError) else raised)

    # The end.

    def begin_no_other(self) -> None:
        self._stopping = True

    def finished(self, until: float, stop: Stop) -> bool:
        """Wait for the batch in hand. Whether the query can end, or has ended, in order."""
        if self._query is None:
            return True
        in_order = False
        while self._query.isActive and time.monotonic() < until and not stop.at_once and not in_order:
            in_order = self._turn.acquire(timeout=TICK)
        if in_order:
            self._turn.release()
            self._written_down()
        return in_order or not self._query.isActive

    def stop(self) -> None:
        if self._query is not None:
            with suppress(Exception):  # it is over anyway; the next start goes on from what is on disk
                self._query.stop()

    def _written_down(self) -> None:
        """Give Spark the time to write down that the last batch is done: it would be run again, to no effect."""
        until = time.monotonic() + WRITTEN_DOWN
        while self._query is not None and self._query.isActive and time.monotonic() < until:
            progress = self._query.lastProgress
            if self._done is None or (progress is not None and int(progress["batchId"]) >= self._done):
                return
            time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Task:
    """What `mapInArrow` calls in the executors; one row comes back. `nothing_new`: only what waits is tried again."""

    writer: HandlerWriter
    nothing_new: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        configure_logs(self.writer.place)
        rows = iter(()) if self.nothing_new else batches
        written = self.writer.write(rows, context.partitionId(), uuid4().hex)
        yield pa.RecordBatch.from_pydict({"task": [written.task], "result": [written.encode()]}, _RESULT)


def _outcomes(df: DataFrame, task: _Task) -> list[Written]:
    with warnings.catch_warnings():
        # It looks for pandas, which it does not use here, and warns of a new one.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        mapped = df.mapInArrow(task, RESULT)
    return [Written.decode(bytes(row.result)) for row in mapped.collect()]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
