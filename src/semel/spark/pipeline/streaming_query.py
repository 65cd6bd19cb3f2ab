"""One pipeline on a running Spark: its sinks, its checkpoint, and its query, started again after an outage.

The order of the steps keeps two promises. Everything that can be refused is refused before anything is received. The
record in the checkpoint is written after the sinks are opened and before the first batch, so that it is never ahead of
what the table can take, nor behind what a batch has done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from semel.errors import SemelError
from semel.spark.pipeline import agreement, body_sql, queues
from semel.spark.pipeline.checkpoint import Checkpoint, Disagreement, Record
from semel.spark.pipeline.config import Dedup, Pipeline
from semel.spark.pipeline.micro_batch import Batches
from semel.spark.pipeline.micro_batch_task import Outcome
from semel.spark.pipeline.progress import status
from semel.spark.pipeline.progress.attempt_events import Events
from semel.spark.pipeline.progress.metrics import Metrics
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.spark.pipeline.progress.totals import Progress, source_totals
from semel.spark.pipeline.sink_factory import needs_validation, traces
from semel.spark.pipeline.stream import Stream, Trigger
from semel.spark.segments.model import Totals as SourceTotals
from semel.spark.sinks.contract import Checkable, ReturnsMessages, Sink
from semel.spark.sinks.rejects import TABLE as REJECTED
from semel.spark.source.deduplication import late_rows
from semel.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log: Final = logging.getLogger("semel.spark")
SOURCE_DUE: Final = 3.0  # seconds after a batch: by then the source has committed it, unless the next one runs


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline is run. `adopt`: write to a table that another pipeline has written to."""

    trigger: Trigger
    create_dlq: bool = False
    adopt: bool = False


class PipelineQuery:
    """`rejects`: None if nothing can be rejected. `on_commit` is called with the outcomes of each committed batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        sink: Sink,
        rejects: Sink | None,
        record: Record,
        options: Options,
        on_commit: Callable[[Sequence[Outcome]], None] = lambda _: None,
    ) -> None:
        self.pipeline, self.sink, self.rejects = pipeline, sink, rejects
        self.record = record
        self.checkpoint = Checkpoint(pipeline.checkpoint)
        self.log = agreement.log_of(self.checkpoint)
        self._driver_log = agreement.DriverLog(self.log)
        self._source_due: float | None = None  # when to ask what the source has committed since
        self._options, self._on_commit = options, on_commit
        former = status.read(self.checkpoint.store)
        self.progress = Progress(pipeline.name, record.id, sink.name, former)
        self.status = status.StatusFile(self.checkpoint.store, self.progress)
        self.metrics = Metrics(self.progress.snapshot, pipeline.source.queues)
        folder = traces(pipeline)
        self._events = None if folder is None else Events(folder)
        if self._events is not None:
            self.metrics.attempts_dropped = self._events.dropped
        self.stream: Stream | None = None
        self._silence: Callable[[], float] = lambda: 0.0

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def silence(self) -> float:
        """Seconds since the last event of the query; 0 during a batch, which may take long."""
        stream = self.stream
        return 0.0 if stream is None or stream.batches.busy else self._silence()

    @property
    def snapshot(self) -> Snapshot:
        return self.progress.snapshot()

    def open(self) -> None:
        """Opens the sinks, then writes the record: if a sink refuses, the record is still that of the last run. May be
        called again, after an outage."""
        queues.look_up(self.pipeline.source)
        if self._options.create_dlq:
            queues.create_dead_letter_queues(self.pipeline)
        for sink, schema in ((self.sink, body_sql.row_schema(self.pipeline)), (self.rejects, REJECTED)):
            if sink is None:
                continue
            sink.close()
            if isinstance(sink, Checkable) and not self._options.adopt:
                sink.check_owner(self.record.id)
            sink.open(schema)
        if self.checkpoint.record() is not None:
            self._agree()
        self.checkpoint.keep(self.record)

    def start(self, spark: SparkSession) -> None:
        """Raises whatever PySpark raises."""
        from semel.spark.pipeline.progress.listener import Listener

        listener = Listener(self.progress, self.metrics, self.record.base)
        batches = Batches(
            self.record.id,
            self.sink,
            self.rejects,
            self._driver_log,
            self._committed,
            check=partial(self._check_late, spark),
            base=self.record.base,
            traced=self._events is not None,
        )
        self.stream, self._silence = Stream(batches, listener), lambda: listener.silence
        rows = source_rows(spark, self.pipeline, self.checkpoint.url, self.sink, self.record.query)
        query = self.stream.start(rows, self.name, self.checkpoint.query, self._options.trigger)
        self.progress.set_query_id(query)
        self.set_state(State.RUNNING)

    def set_state(self, state: State, error: SemelError | None = None) -> None:
        self.progress.set_state(state, error)
        self.status.write()

    def wait_for(self, outage: SemelError, pause: float) -> None:
        """Shows that the query is started again after `pause` seconds."""
        self.progress.wait_for(str(outage), time.time() + pause)
        self.status.write()

    def tick(self) -> None:
        """Called often. The source commits a batch when Spark asks for the next one; if there is no next
        one, the source's totals are read here, once."""
        if self._source_due is not None and time.monotonic() >= self._source_due:
            try:
                committed = self.log.committed()
            except (SemelError, OSError):
                self._source_due += SOURCE_DUE
            else:
                done = committed.through > self._driver_log.committed.through
                self._source_due = None if done else self._source_due + SOURCE_DUE
                if done:
                    self._received(committed.totals)
        self.status.beat()

    def count_last(self) -> None:
        """Counts, at the end of a run, what the last batch has received, if the source has not committed it."""
        if self._source_due is not None:
            try:
                self._received(source_totals(self.log))
            except (SemelError, OSError) as error:  # figures are missing then; the batches are committed
                log.warning("what was received cannot be counted: %s", error)

    def close(self) -> None:
        with ExitStack() as stack:
            for sink in (self.sink, self.rejects):
                if sink is not None:
                    stack.callback(sink.close)
            if self._events is not None:
                stack.callback(self._events.close)

    def _agree(self) -> None:
        """Checks that log, progress and sinks belong together; otherwise nothing starts. With handlers, a new query is
        started instead: their messages are still in the queue, and their ledger knows what is done, so that nothing is
        lost or repeated."""
        sinks = [sink for sink in (self.sink, self.rejects) if sink is not None]
        try:
            agreement.check(self.checkpoint, self.record, self.log, sinks)
        except Disagreement as error:
            if not isinstance(self.sink, ReturnsMessages):
                raise
            plan = agreement.plan_reset(self.checkpoint, self.record, self.log, sinks)
            if plan.loses:
                raise SemelError(
                    f"queue {self.name}: messages that were sealed under {self.checkpoint.url} are gone, and may be in "
                    f"no queue any more: {', '.join(plan.lost) or self.log.store.url}. Restore these files from a "
                    "copy; or remove that folder, to begin anew without them. Nothing was started"
                ) from error
            log.warning(
                "%s: %s; a new query is started, and the %d messages that are sealed come first",
                self.name,
                error,
                plan.replayed,
            )
            self.record = agreement.reset(self.checkpoint, self.record, self.log, sinks, plan)

    def _check_late(self, spark: SparkSession, number: int) -> None:
        """A row that Spark's state store takes for late is not a duplicate: it would be lost."""
        late = late_rows(spark) if self.pipeline.source.dedup is Dedup.KEY else 0
        if late:
            raise SemelError(
                f"Spark would drop {late} rows of batch {number} as late: its watermark, in {self.checkpoint.query}, "
                "is ahead of the time at which the batch was planned. Nothing of the batch is committed, and its "
                f"messages are sealed in {self.log.store.url}. `semel pipeline reset FILE` begins a new query with "
                "them; the keys that this one knows are forgotten then"
            )

    def _committed(self, number: int, began: float, outcomes: Sequence[Outcome]) -> None:
        """Attempt log, totals and status, in this order: see progress/attempt_events.py."""
        if number > self.snapshot.counted:
            self._received(self._driver_log.committed.totals)  # the totals of the batches before this one
            if self._events is not None:
                self._events.committed(number, outcomes)
        self._source_due = time.monotonic() + SOURCE_DUE
        rejects: dict[str, int] = {}
        for outcome in outcomes:
            for reason, count in outcome.rejects.items():
                rejects[reason] = rejects.get(reason, 0) + count
        written = [outcome.written for outcome in outcomes if outcome.written is not None]
        rows = sum(part.rows for part in (written or outcomes))
        size = sum(part.bytes for part in written)
        self.progress.committed(number, began, rows=rows, size=size, rejects=rejects)
        self.status.write()
        self._on_commit(outcomes)

    def _received(self, totals: SourceTotals) -> None:
        self.progress.set_source_totals(totals, by_key=self.pipeline.source.dedup is Dedup.KEY)


def recorded(pipeline: Pipeline, checkpoint: Checkpoint) -> Record:
    """The record for this run. A change of the file that would break exactly once is refused here."""
    from semel.spark.pipeline import compatibility

    former = checkpoint.record()
    spec = compatibility.recorded(pipeline)
    if former is None:
        return checkpoint.fresh(spec)
    for change in compatibility.check(former.spec, spec):
        log.info("%s: %s", pipeline.name, change.text)
    return replace(former, spec=spec, version=__version__)


def source_rows(spark: SparkSession, pipeline: Pipeline, checkpoint: str, sink: Sink, query: str | None) -> DataFrame:
    """The parsed rows of the source; with dedup = "key", each key once."""
    from semel.spark.source import datasource, deduplication

    datasource.register(spark)
    options = pipeline.source.options(checkpoint)
    if query is not None:
        options["owner"] = query
    folder = traces(pipeline)
    if folder is not None:
        options["attemptLog"] = folder
    if isinstance(sink, ReturnsMessages):
        options["ack"] = "committed"
    rows = spark.readStream.format("sqs").options(**options).load()
    if isinstance(sink, ReturnsMessages) and any(name.rstrip("/").endswith(".fifo") for name in pipeline.source.queues):
        rows = sink.arrange(rows)
    by_key = pipeline.source.dedup is Dedup.KEY
    parsed = body_sql.parsed(
        rows, pipeline, with_message=needs_validation(pipeline), traced=folder is not None, identified=by_key
    )
    if not by_key:
        return parsed
    within = int(pipeline.source.retention or queues.retention(pipeline.source))
    return deduplication.once_by(parsed, body_sql.IDENTITY, within)
