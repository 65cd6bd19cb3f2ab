"""One start of a streaming query: it is started, watched, asked to stop, and its end is explained in one line.

The rule: the query ends in order. Before it is stopped, the batch in progress is finished and Spark has recorded that,
unless that takes too long or the user insists. In that case, the next start runs the batch again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.errors import SemelError
from semel.spark.pipeline.micro_batch import Batches, StopAsked
from semel.spark.pipeline.query_failures import SparkGone, explained
from semel.spark.pipeline.stop_request import Stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from semel.spark.pipeline.progress.listener import Listener

log: Final = logging.getLogger("semel.spark")
TICK: Final = 0.25
WRITTEN_DOWN: Final = 5.0  # seconds for Spark to record that a batch is done
_SHUT_DOWN: Final = "SparkContext was shut down"


@dataclass(frozen=True, slots=True)
class Trigger:
    """`every`: in seconds; without it, each batch follows at once. `available_now`: process the backlog, then end."""

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


class Stream:
    def __init__(self, batches: Batches, listener: Listener) -> None:
        self.batches, self._listener = batches, listener
        self._query: StreamingQuery | None = None
        self._streams: Any = None

    def start(self, rows: DataFrame, name: str, checkpoint: str, trigger: Trigger) -> str:
        """Starts the query, and returns its id."""
        self._streams = rows.sparkSession.streams
        self._streams.addListener(self._listener)
        writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint).foreachBatch(self.batches)
        self._query = (writer.trigger(**trigger.options) if trigger.options else writer).start()
        self._listener.run_id = str(self._query.runId)
        return str(self._query.id)

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def end(self, stop: Stop) -> End:
        """How a query that is not active any more has ended."""
        assert self._query is not None
        error = self._query.exception()
        if error is None:
            self._wait_until_written(stop)  # the last figures arrive a moment later
            return End(stopped=stop.asked)
        return self.failed(error, stop)

    def failed(self, error: BaseException, stop: Stop) -> End:
        """Explains an error. If a batch has failed, its own error says more than Spark's text."""
        inner = self.batches.error
        if isinstance(inner, StopAsked):
            return End(stopped=True)
        explanation = explained(error if inner is None else inner)
        if stop.asked and (isinstance(explanation, SparkGone) or _SHUT_DOWN in str(error)):
            return End(stopped=True, unfinished=True)  # the same signal has ended Java, too
        return End(error=explanation)

    def wait_for_batch(self, until: float, stop: Stop, tick: Callable[[], None]) -> None:
        """Wait until the batch in progress is committed and Spark has recorded that, or until the time is up."""
        while self.batches.busy and time.monotonic() < until and not stop.at_once and self.active:
            tick()
            self.batches.wait(TICK)
        if not self.batches.busy:
            self._wait_until_written(stop)

    def halt(self, stop: Stop) -> End:
        """Stop the query now. `wait_for_batch` comes first."""
        unfinished = self.batches.busy
        if not self.active:  # it ended by itself meanwhile, with StopAsked or an error of its own
            return self.end(stop)
        assert self._query is not None
        quietly(self._query.stop)
        failed = self.batches.error
        if not unfinished and failed is not None and not isinstance(failed, StopAsked):
            return End(error=explained(failed))
        return End(stopped=True, unfinished=unfinished)

    def close(self) -> None:
        if self._streams is not None:
            quietly(lambda: self._streams.removeListener(self._listener))

    def _wait_until_written(self, stop: Stop) -> None:
        last, until = self.batches.last, time.monotonic() + WRITTEN_DOWN
        while last is not None and time.monotonic() < until and not stop.at_once:
            if self._listener.wait_for(last, TICK):
                return


def quietly(act: Callable[[], Any]) -> None:
    try:
        act()
    except Exception:  # it has ended anyway; the next start continues from what is on disk
        log.debug("while the query was stopped", exc_info=True)
