"""Hears from Spark how the query does, and passes it on to the board, the metrics and whoever waits for a batch's end.

The rule: hearing costs next to nothing. PySpark turns each event into a tree of Python objects, with a call to Java for
each field: 0.2 s of driver time a batch. This asks an event for its JSON, in one call.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from semel.spark.pipeline.progress.metrics import Metrics
from semel.spark.pipeline.progress.totals import Progress

log: Final = logging.getLogger("semel.spark")


class Listener(StreamingQueryListener):
    """Of one query; others of the same session are not its business. `run_id` is set once the query is started. `base`:
    the number of its batch 0 for the board."""

    def __init__(self, board: Progress, metrics: Metrics, base: int = 0) -> None:
        self._board, self._metrics, self._base = board, metrics, base
        self._changed = threading.Condition()
        self._batch = -1
        self._heard = time.monotonic()
        self._wrapped: Any = None
        self.run_id: str | None = None

    @property
    def silence(self) -> float:
        """Seconds since the query was last heard of. An idle one is heard of every few seconds."""
        return time.monotonic() - self._heard

    def wait_for(self, batch: int, timeout: float) -> bool:
        """Until Spark has written down that this batch is done."""
        with self._changed:
            return self._changed.wait_for(lambda: self._batch >= batch, timeout)

    # What Spark calls.

    @property
    def _jlistener(self) -> Any:
        if self._wrapped is None:
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.PythonStreamingQueryListenerWrapper(_Raw(self))
        return self._wrapped

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.heard(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:
        self.idle(str(event.runId))

    def onQueryTerminated(self, event: Any) -> None: ...

    # What it makes of that.

    def heard(self, progress: dict[str, Any]) -> None:
        if progress["runId"] != self.run_id:
            return
        self._heard = time.monotonic()
        seconds = progress.get("durationMs", {}).get("triggerExecution", 0) / 1_000
        if "addBatch" in progress.get("durationMs", {}):  # else nothing was done: it only says that it is there
            self._board.took(self._base + progress["batchId"], seconds)
            self._metrics.batch_seconds.observe(seconds)
            with self._changed:
                self._batch = progress["batchId"]
                self._changed.notify_all()

    def idle(self, run_id: str) -> None:
        if run_id == self.run_id:
            self._heard = time.monotonic()


class _Raw:
    """What Java calls. An error here would be printed as a stack trace by Spark, so there is none."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        try:
            self._listener.heard(json.loads(event.progress().json()))
        except Exception:  # a figure is missing then; the query is not to suffer
            log.debug("progress that cannot be read", exc_info=True)

    def onQueryIdle(self, event: Any) -> None:
        try:
            self._listener.idle(event.runId().toString())
        except Exception:
            log.debug("an idle event that cannot be read", exc_info=True)

    def onQueryTerminated(self, event: Any) -> None: ...

    class Java:
        implements: Final = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
