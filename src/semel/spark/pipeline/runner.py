"""Runs a pipeline: checks what its checkpoint remembers, opens the sinks, starts Spark, and stays until the end.

The order keeps two promises: whatever can be refused is refused before Spark is started and anything is received; and
the record in the checkpoint is written when the sinks are open and before the first batch, so that it is never ahead of
what the table can take, nor behind what a batch has done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from semel.errors import SemelError
from semel.spark.interpreter import running_spark
from semel.spark.pipeline import agreement, queues, spark_start
from semel.spark.pipeline.batch import Batches
from semel.spark.pipeline.batch_task import Outcome
from semel.spark.pipeline.checkpoint import Checkpoint, Record
from semel.spark.pipeline.config import Dedup, HandlerSpec, Pipeline
from semel.spark.pipeline.errors import explained
from semel.spark.pipeline.progress import status
from semel.spark.pipeline.progress.attempt_events import Events
from semel.spark.pipeline.progress.display import Show, display_for, logging_above, repeatedly
from semel.spark.pipeline.progress.metrics import Metrics, health, serve
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.spark.pipeline.progress.totals import Progress, source_totals
from semel.spark.pipeline.query import End, Running, Trigger
from semel.spark.pipeline.sink_factory import rejects_of, sink_of, traces
from semel.spark.pipeline.stop import Stop, interruptible, on_signals
from semel.spark.sinks.contract import Checkable
from semel.spark.sinks.dead_letters import TABLE as REJECTED
from semel.spark.source.deduplication import late_rows
from semel.spark.spark_session import end_java
from semel.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("semel.spark")
DRAIN: Final = 60.0  # seconds for the batch in hand after SIGTERM


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended. `code` is for the command line: 0 done or stopped, 1 failed, 3 stopped within a batch, 4 every
    message was rejected."""

    snapshot: Snapshot
    error: SemelError | None = None
    unfinished: bool = False

    @property
    def code(self) -> int:
        if self.error is not None:
            return 1
        return 3 if self.unfinished else 4 if self.all_rejected else 0

    @property
    def all_rejected(self) -> bool:
        """Whether there were rejects and nothing else, duplicates included: then the schema is more likely to be wrong
        than every message."""
        run = self.snapshot.run
        return run.rejected > 0 and run.rows == 0 and run.duplicates == 0


def run(
    pipeline: Pipeline,
    *,
    available_now: bool = False,
    master: str | None = None,
    cores: int | None = None,
    show: Show = "auto",
    drain: float = DRAIN,
    create_dlq: bool = False,
    adopt: bool = False,
    stop: Stop | None = None,
) -> Report:
    """Runs it until it fails, is stopped (by a signal or `stop.ask()`), or with `available_now` the backlog is done.

    A refusal before the start is raised; what happens from then on is in the report, and in status.json. A signal that
    comes before the query runs ends it at once, and Spark with it.

    `create_dlq`: create missing dead-letter queues. `adopt`: write to a table that another pipeline, or this one with
    another checkpoint, has written to.
    """
    stop = Stop() if stop is None else stop
    checkpoint = Checkpoint(pipeline.checkpoint)
    with interruptible(), checkpoint.held():
        record = recorded(pipeline, checkpoint)
        wanted = _Wanted(available_now, master, cores, show, drain, create_dlq, adopt)
        return _Run(pipeline, checkpoint, record, wanted, stop).run()


def recorded(pipeline: Pipeline, checkpoint: Checkpoint) -> Record:
    """The record that this run goes by. A change of the file that would break exactly once is refused here."""
    from semel.spark.pipeline import compatibility

    former = checkpoint.record()
    spec = compatibility.recorded(pipeline)
    if former is None:
        return checkpoint.fresh(spec)
    for change in compatibility.check(former.spec, spec):
        log.info("%s: %s", pipeline.name, change.text)
    return replace(former, spec=spec, version=__version__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    available_now: bool
    master: str | None
    cores: int | None
    show: Show
    drain: float
    create_dlq: bool
    adopt: bool


class _Run:
    """One run, from the sinks' opening to the last line of the display."""

    def __init__(self, pipeline: Pipeline, checkpoint: Checkpoint, record: Record, wanted: _Wanted, stop: Stop) -> None:
        self.pipeline, self.checkpoint, self.record = pipeline, checkpoint, record
        self.wanted, self.stop = wanted, stop
        self.sink, self.rejects = sink_of(pipeline), rejects_of(pipeline)
        self.log = agreement.log_of(checkpoint)
        former = status.read(checkpoint.store)
        self.board = Progress(pipeline.name, record.id, self.sink.name, former)
        self.status = status.StatusFile(checkpoint.store, self.board)
        self.metrics = Metrics(self.board.snapshot, pipeline.source.queues)
        folder = traces(pipeline)
        self.events = None if folder is None else Events(folder)
        if self.events is not None:
            self.metrics.attempts_dropped = self.events.dropped
        self.backlog = queues.Backlog(pipeline.source, self.board.set_backlog)
        self.display = display_for(wanted.show)

    def run(self) -> Report:
        with ExitStack() as stack:
            stack.enter_context(logging_above(self.display))
            stack.enter_context(self.backlog.watched())
            if self.events is not None:
                stack.callback(self.events.close)
            self.status.write()
            with repeatedly(self._tick):
                end = self._ended(stack)
            return self._told(end)

    def _ended(self, stack: ExitStack) -> End:
        owns_spark = running_spark() is None
        try:
            return self._carried_out(stack, owns_spark)
        except SemelError as error:
            return End(error=error)
        except KeyboardInterrupt:
            if owns_spark:
                end_java()
            return End(stopped=True)
        except Exception as error:  # a mistake of ours or of a library: one line, and the rest in status.json
            log.debug("the pipeline ended with an error", exc_info=True)
            return End(error=explained(error))

    def _carried_out(self, stack: ExitStack, owns_spark: bool) -> End:
        self._open(stack)
        if self.stop.asked:
            return End(stopped=True)
        spark = spark_start.started(self.pipeline, self.wanted.master, self.wanted.cores)
        if owns_spark:
            stack.callback(spark_start.stop_quietly, spark)
        from semel.spark.pipeline.progress.listener import Listener

        rows = spark_start.source_rows(spark, self.pipeline, self.checkpoint.url, self.sink, self.record.query)
        listener = Listener(self.board, self.metrics, self.record.base)
        batches = Batches(
            self.record.id,
            self.sink,
            self.rejects,
            self._committed,
            check=partial(self._check_late, spark),
            content=partial(agreement.content_of, self.log),
            base=self.record.base,
            traced=self.events is not None,
        )
        self._serve(stack, lambda: 0.0 if batches.busy else listener.silence)
        between = self._trying_again(spark, batches)
        running = Running(
            batches,
            listener,
            self.stop,
            drain=self.wanted.drain,
            tick=between,
            stopping=self._stopping,
            end_spark=end_java if owns_spark else None,
        )
        trigger = Trigger(self.pipeline.trigger.every, self.wanted.available_now)
        with on_signals(self.stop):
            return running.run(rows, self.pipeline.name, self.checkpoint.query, trigger, self._running)

    def _open(self, stack: ExitStack) -> None:
        """Sinks before the record: if a sink refuses, the record is still what the last run went by."""
        from semel.spark.pipeline import body_sql

        queues.look_up(self.pipeline.source)
        if self.wanted.create_dlq:
            queues.create_dead_letter_queues(self.pipeline)
        for sink, schema in ((self.sink, body_sql.row_schema(self.pipeline)), (self.rejects, REJECTED)):
            stack.callback(sink.close)
            if isinstance(sink, Checkable) and not self.wanted.adopt:
                sink.check_owner(self.record.id)
            sink.open(schema)
        if self.checkpoint.record() is not None:
            agreement.check(self.checkpoint, self.record, self.log, (self.sink, self.rejects))
        self.checkpoint.keep(self.record)

    def _serve(self, stack: ExitStack, silence: Callable[[], float]) -> None:
        """`silence`: seconds since the query was heard of. A batch may take its time."""
        address = self.pipeline.metrics.health
        if address is not None:
            server = serve(address, lambda: health(self.board.snapshot(), silence()), self.metrics)
            stack.callback(server.close)
            self.board.set_health_url(server.url)

    # What the query tells on its way.

    def _running(self, query: str) -> None:
        self.board.set_query_id(query)
        self.board.set_state(State.RUNNING)
        self.status.write()

    def _stopping(self) -> None:
        self.board.set_state(State.STOPPING)
        self.status.write()

    def _tick(self) -> None:
        self.display.draw(self.board.snapshot())
        self.status.beat()

    def _trying_again(self, spark: SparkSession, batches: Batches) -> Callable[[], None]:
        if not isinstance(self.pipeline.sink, HandlerSpec):
            return lambda: None
        from semel.spark.pipeline import handler_retries

        return partial(handler_retries.try_again, spark, self.sink, batches)

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
        """A batch is in: tell it, count it, write the count down. In this order: see progress/attempt_events.py."""
        before = self.board.snapshot().counted
        if self.events is not None and number > before:
            self.events.committed(number, outcomes)
        rejects: dict[str, int] = {}
        for one in outcomes:
            for reason, count in one.rejects.items():
                rejects[reason] = rejects.get(reason, 0) + count
        written = [one.written for one in outcomes if one.written is not None]
        rows = sum(one.rows for one in (written or outcomes))
        size = sum(one.bytes for one in written)
        self.board.committed(number, began, rows=rows, size=size, rejects=rejects)
        try:
            self.board.set_source_totals(source_totals(self.log.store), by_key=self.pipeline.source.dedup is Dedup.KEY)
        except (SemelError, OSError) as error:  # figures are missing then; the batch is in
            log.warning("what was received cannot be counted: %s", error)
        self.status.write()

    def _told(self, end: End) -> Report:
        if end.error is None:
            self.backlog.look()
        if end.error is not None:
            self.board.set_state(State.FAILED, end.error)
        elif end.unfinished:
            note = SemelError(
                "a batch was left unfinished; the next start runs it again, and nothing is lost or doubled"
            )
            self.board.set_state(State.STOPPED, note)
        else:
            self.board.set_state(State.STOPPED if end.stopped or not self.wanted.available_now else State.DONE)
        self.status.write()
        snapshot = self.board.snapshot()
        self.display.close(snapshot)
        return Report(snapshot, end.error, end.unfinished)
