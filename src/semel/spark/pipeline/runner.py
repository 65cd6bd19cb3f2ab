"""Runs pipelines on one Spark until they end or are asked to stop, and waits for the end of outages.

The rule: an outage (SQS, the sink, the ledger or the store does not answer) does not end a pipeline that has run. Its
query is started again, with growing pauses, until it works. An error that waiting cannot fix ends all pipelines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.errors import SemelError
from semel.spark.interpreter import running_spark
from semel.spark.pipeline import queues, spark_start
from semel.spark.pipeline.checkpoint import Checkpoint
from semel.spark.pipeline.config import Pipeline
from semel.spark.pipeline.progress.display import Show, display_for, logging_above, repeatedly
from semel.spark.pipeline.progress.metrics import health, serve
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.spark.pipeline.query_failures import explained, kind_of
from semel.spark.pipeline.sink_factory import rejects_of, sink_of
from semel.spark.pipeline.stop_request import Stop, interruptible, on_signals
from semel.spark.pipeline.stream import TICK, End, Stream, Trigger, quietly
from semel.spark.pipeline.streaming_query import Options, PipelineQuery, recorded
from semel.spark.spark_session import end_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("semel.spark")
DRAIN: Final = 60.0  # seconds for the batch in progress after SIGTERM
PAUSE: Final = (1.0, 30.0)  # seconds before a query is started again after an outage: shortest, longest
STEADY: Final = 60.0  # an outage is over after a committed batch, or this many seconds without an error
GIVE_UP: Final = 900.0  # seconds of an outage after which a run that is to end (`exit_when_empty`) fails


@dataclass(slots=True)
class _Watched:
    """A query, and its outage if there is one: since when, how long it pauses, and when it is started again."""

    query: PipelineQuery
    end: End | None = None
    since: float | None = None
    pause: float = PAUSE[0]
    retry_at: float | None = None
    started_at: float = 0.0

    @property
    def stream(self) -> Stream:
        assert self.query.stream is not None
        return self.query.stream


class Runner:
    """`tick` is called a few times a second. `end_spark` ends a Spark that was started for these pipelines alone."""

    def __init__(
        self,
        pipelines: Sequence[PipelineQuery],
        stop: Stop,
        *,
        drain: float = DRAIN,
        tick: Callable[[], None] = lambda: None,
        end_spark: Callable[[], None] | None = None,
        exit_when_empty: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._all = [_Watched(query) for query in pipelines]
        self._stop, self._drain, self._tick, self._end_spark = stop, drain, tick, end_spark
        self._exit_when_empty = exit_when_empty
        self._monotonic = monotonic

    def run(self, spark: SparkSession) -> list[End]:
        """Run pipelines that are open. Returns how each has ended, in their order."""
        try:
            for watched in self._all:
                self._start(watched, spark)
            while not self._stop.asked and not self._has_ended:
                for watched in self._all:
                    self._look_after(watched, spark)
                self._tick()
                self._stop.wait(TICK)
        finally:
            self._stop_all()
            for watched in self._all:
                if watched.query.stream is not None:
                    watched.stream.close()
        return [watched.end or End(stopped=True) for watched in self._all]

    @property
    def _has_ended(self) -> bool:
        """Whether all pipelines have ended, or one with an error that waiting cannot fix."""
        ends = [watched.end for watched in self._all]
        return all(end is not None for end in ends) or any(end is not None and end.error for end in ends)

    def _look_after(self, watched: _Watched, spark: SparkSession) -> None:
        stream = watched.query.stream
        if watched.end is not None or stream is None:
            return
        if watched.retry_at is not None:
            if self._monotonic() >= watched.retry_at:
                self._start_again(watched, spark)
        elif not stream.active:
            self._ended(watched, stream.end(self._stop))
        elif watched.since is not None and (
            stream.batches.last is not None or self._monotonic() - watched.started_at >= STEADY
        ):
            log.warning("%s: goes on after %.0f s", watched.query.name, self._monotonic() - watched.since)
            watched.since, watched.pause = None, PAUSE[0]

    def _start(self, watched: _Watched, spark: SparkSession) -> None:
        watched.started_at = self._monotonic()
        try:
            watched.query.start(spark)
        except Exception as error:  # noqa: BLE001  whatever PySpark and Py4J raise, the user gets one line
            stream = watched.query.stream
            self._ended(watched, End(error=explained(error)) if stream is None else stream.failed(error, self._stop))

    def _start_again(self, watched: _Watched, spark: SparkSession) -> None:
        watched.retry_at = None
        if watched.query.stream is not None:
            watched.stream.close()
        try:
            watched.query.open()
        except Exception as error:  # noqa: BLE001
            self._ended(watched, End(error=explained(error)))
        else:
            self._start(watched, spark)

    def _ended(self, watched: _Watched, end: End) -> None:
        """Ends a pipeline, or plans its next start after a pause."""
        now = self._monotonic()
        since = now if watched.since is None else watched.since
        given_up = self._exit_when_empty and now - since > GIVE_UP
        if end.error is None or self._stop.asked or given_up or kind_of(end.error) != "outage":
            watched.end = end
            return
        watched.since, watched.retry_at = since, now + watched.pause
        reason = str(end.error).removesuffix(".")
        log.warning("%s: %s; next try in %.0f s", watched.query.name, reason, watched.pause)
        watched.query.wait_for(end.error, watched.pause)
        watched.pause = min(PAUSE[1], watched.pause * 2)

    def _stop_all(self) -> None:
        """Batches in progress are finished, up to the drain limit; then the queries are stopped."""
        open_ = [watched for watched in self._all if watched.end is None and watched.query.stream is not None]
        for watched in open_:
            watched.query.set_state(State.STOPPING)
            watched.stream.batches.stop()
        until = time.monotonic() + self._stop.drain(self._drain)
        for watched in open_:
            if watched.retry_at is None:
                watched.stream.wait_for_batch(until, self._stop, self._tick)
        if any(watched.stream.batches.busy for watched in open_) and self._end_spark is not None:
            # Within a batch, Spark would stop slowly, and print the tracebacks of its workers.
            for watched in open_:
                watched.end = End(stopped=True, unfinished=watched.stream.batches.busy)
            quietly(self._end_spark)
            return
        for watched in open_:
            waiting = watched.retry_at is not None
            watched.end = End(stopped=True) if waiting else watched.stream.halt(self._stop)


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended. `unfinished`: it was stopped within a batch."""

    snapshot: Snapshot
    error: SemelError | None = None
    unfinished: bool = False

    @property
    def clean(self) -> bool:
        return self.error is None and not self.unfinished and not self.all_rejected

    @property
    def all_rejected(self) -> bool:
        """Whether there were rejects, and neither rows nor duplicates: then the schema is more likely to be wrong than
        every message."""
        run = self.snapshot.run
        return run.rejected > 0 and run.rows == 0 and run.duplicates == 0


def run(
    pipeline: Pipeline,
    *,
    exit_when_empty: bool = False,
    master: str | None = None,
    cores: int | None = None,
    show: Show = "auto",
    drain: float = DRAIN,
    create_dlq: bool = False,
    adopt: bool = False,
    stop: Stop | None = None,
) -> Report:
    """Runs a pipeline until it fails, is stopped (by a signal or `stop.ask()`) or, with `exit_when_empty`, until its
    backlog is done.

    Errors before the start are raised; later ones are in the report and in status.json. A signal that comes before the
    query runs ends the run at once, and Spark with it.

    `create_dlq`: create missing dead-letter queues. `adopt`: write to a table that another pipeline, or this one with
    another checkpoint, has written to.
    """
    stop = Stop() if stop is None else stop
    checkpoint = Checkpoint(pipeline.checkpoint)
    with interruptible(), checkpoint.held(), ExitStack() as stack:
        options = Options(Trigger(pipeline.trigger.every, exit_when_empty), create_dlq, adopt)
        query = PipelineQuery(
            pipeline,
            sink_of(pipeline),
            rejects_of(pipeline),
            recorded(pipeline, checkpoint),
            options,
            lambda _: backlog.wake(),
        )
        backlog = queues.Backlog(pipeline.source, query.progress.set_backlog)
        display = display_for(show)
        stack.callback(query.close)
        stack.enter_context(logging_above(display))
        stack.enter_context(backlog.watched())
        query.status.write()

        def tick() -> None:
            query.tick()
            display.draw(query.snapshot)

        with repeatedly(tick):
            end = _run_one(query, stop, stack, master, cores, drain, exit_when_empty)
        if end.error is None and backlog.is_known:  # if SQS has never answered, it is not waited for
            backlog.look()
        record_end(query, end, exit_when_empty)
        display.close(query.snapshot)
        return Report(query.snapshot, end.error, end.unfinished)


def _run_one(
    query: PipelineQuery,
    stop: Stop,
    stack: ExitStack,
    master: str | None,
    cores: int | None,
    drain: float,
    exit_when_empty: bool,
) -> End:
    owns_spark = running_spark() is None
    try:
        start = stack.enter_context(spark_start.begin(query.pipeline, master, cores))  # while the rest is checked
        query.open()
        if stop.asked:
            return End(stopped=True)
        spark = start.session()
        if owns_spark:
            stack.callback(spark_start.stop_quietly, spark)
        address = query.pipeline.metrics.health
        if address is not None:
            server = serve(address, lambda: health(query.snapshot, query.silence), query.metrics)
            stack.callback(server.close)
            query.progress.set_health_url(server.url)
        runner = Runner(
            [query], stop, drain=drain, end_spark=end_java if owns_spark else None, exit_when_empty=exit_when_empty
        )
        with on_signals(stop):
            return runner.run(spark)[0]
    except SemelError as error:
        return End(error=error)
    except KeyboardInterrupt:
        if owns_spark:
            end_java()
        return End(stopped=True)
    except Exception as error:  # a mistake of ours or of a library: one line, and the rest in status.json
        log.debug("the pipeline ended with an error", exc_info=True)
        return End(error=explained(error))


def record_end(query: PipelineQuery, end: End, exit_when_empty: bool) -> None:
    """Record the last totals and the last state of a run, for status.json and the display."""
    query.count_last()
    if end.error is not None:
        query.set_state(State.FAILED, end.error)
    elif end.unfinished:
        text = "a batch was left unfinished; the next start runs it again, and nothing is lost or doubled"
        query.set_state(State.STOPPED, SemelError(text))
    else:
        query.set_state(State.STOPPED if end.stopped or not exit_when_empty else State.DONE)
