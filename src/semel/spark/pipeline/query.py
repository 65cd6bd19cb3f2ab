"""A query from its start to its end: it is watched, asked to stop, and its end is told in words.

The rule: it ends in order. A batch in hand is finished and Spark has written that down before the query is stopped,
unless that takes too long or somebody insists; then the next start runs the batch again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.errors import SemelError
from semel.spark.pipeline.batch import Batches, StopAsked
from semel.spark.pipeline.errors import SparkGone, explained
from semel.spark.pipeline.stop import Stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from semel.spark.pipeline.progress.listener import Listener

log: Final = logging.getLogger("semel.spark")
TICK: Final = 0.25
_SHUT_DOWN: Final = "SparkContext was shut down"
WRITTEN_DOWN: Final = 5.0  # seconds for Spark to write down that a batch is done


@dataclass(frozen=True, slots=True)
class Trigger:
    """`every` in seconds; without it a batch follows the other. `available_now`: what is waiting at the start."""

    every: float | None = None
    available_now: bool = False

    @property
    def options(self) -> dict[str, Any]:
        if self.available_now:
            return {"availableNow": True}
        return {} if self.every is None else {"processingTime": f"{int(self.every * 1_000)} milliseconds"}


@dataclass(frozen=True, slots=True)
class End:
    """`unfinished`: it was stopped in the middle of a batch, which the next start runs again."""

    error: SemelError | None = None
    stopped: bool = False
    unfinished: bool = False


class Running:
    """One run of a query. `tick` is called a few times a second; `stopping` once, when it is asked to stop. `end_spark`
    ends a Spark that was started for this query; None: others use it, too."""

    def __init__(
        self,
        batches: Batches,
        listener: Listener,
        stop: Stop,
        *,
        drain: float,
        tick: Callable[[], None],
        stopping: Callable[[], None],
        end_spark: Callable[[], None] | None = None,
    ) -> None:
        self._batches, self._listener, self._stop = batches, listener, stop
        self._drain, self._tick, self._stopping = drain, tick, stopping
        self._end_spark = end_spark

    def run(self, df: DataFrame, name: str, checkpoint: str, trigger: Trigger, started: Callable[[str], None]) -> End:
        streams = df.sparkSession.streams
        try:
            streams.addListener(self._listener)
            writer = df.writeStream.queryName(name).option("checkpointLocation", checkpoint).foreachBatch(self._batches)
            query = (writer.trigger(**trigger.options) if trigger.options else writer).start()
        except Exception as error:  # noqa: BLE001  whatever PySpark and Py4J raise, the user gets one line
            return self._ended(error)
        try:
            self._listener.run_id = str(query.runId)
            started(str(query.id))
            return self._watched(query)
        except Exception as error:  # noqa: BLE001
            self._quietly(query.stop)
            return self._ended(error)
        finally:
            self._quietly(lambda: streams.removeListener(self._listener))

    def _watched(self, query: StreamingQuery) -> End:
        while query.isActive:
            self._tick()
            if self._stop.wait(TICK):
                return self._stopped(query)
        end = self._ended(query.exception())
        self._written_down()  # the last figures arrive a moment later
        return end

    def _ended(self, error: BaseException | None) -> End:
        """What a query's own end means. The error of a batch is known better from the batch than from Spark's text."""
        inner = self._batches.error
        if error is None:
            return End(stopped=self._stop.asked)
        if isinstance(inner, StopAsked):
            return End(stopped=True)
        found = explained(error if inner is None else inner)
        if self._stop.asked and (isinstance(found, SparkGone) or _SHUT_DOWN in str(error)):
            return End(stopped=True, unfinished=True)  # the same signal has ended Java, too
        return End(error=found)

    def _stopped(self, query: StreamingQuery) -> End:
        self._stopping()
        self._batches.stop()
        until = time.monotonic() + self._stop.drain(self._drain)
        while self._batches.busy and time.monotonic() < until and not self._stop.at_once and query.isActive:
            self._tick()
            self._batches.wait(TICK)
        unfinished = self._batches.busy
        if not unfinished:
            self._written_down()
        if not query.isActive:  # it ended by itself meanwhile, with StopAsked or an error of its own
            return self._ended(query.exception())
        # Within a batch, Spark would take its time, and print the tracebacks of its workers.
        self._quietly(self._end_spark if unfinished and self._end_spark is not None else query.stop)
        failed = self._batches.error
        if not unfinished and failed is not None and not isinstance(failed, StopAsked):
            return End(error=explained(failed))
        return End(stopped=True, unfinished=unfinished)

    def _written_down(self) -> None:
        last, until = self._batches.last, time.monotonic() + WRITTEN_DOWN
        while last is not None and time.monotonic() < until and not self._stop.at_once:
            if self._listener.wait_for(last, TICK):
                return

    @staticmethod
    def _quietly(act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception:  # it is over anyway; the next start goes on from what is on disk
            log.debug("while the query was stopped", exc_info=True)
