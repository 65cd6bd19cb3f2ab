"""Spark's events about the query: the duration of each batch, and that the query is alive.

The rule: listening costs next to nothing. PySpark turns each event into a tree of Python objects, with a call to Java
for each field: 0.2 s of driver time per batch. This listener asks an event for its JSON, in one call.
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
    """Listens to one query: set `run_id` once it is started. `base` is added to Spark's batch numbers."""

    def __init__(self, progress: Progress, metrics: Metrics, base: int = 0) -> None:
        self._progress, self._metrics, self._base = progress, metrics, base
        self._changed = threading.Condition()
        self._batch = -1
        self._last_event = time.monotonic()
        self._wrapped: Any = None
        self.run_id: str | None = None

    @property
    def silence(self) -> float:
        """Seconds since the query's last event. An idle query has one every few seconds."""
        return time.monotonic() - self._last_event

    def wait_for(self, batch: int, timeout: float) -> bool:
        """Wait until Spark has recorded this batch as done; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._batch >= batch, timeout)

    # What Spark calls.

    @property
    def _jlistener(self) -> Any:
        if self._wrapped is None:
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.PythonStreamingQueryListenerWrapper(_JavaListener(self))
        return self._wrapped

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.on_progress(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:
        self.on_idle(str(event.runId))

    def onQueryTerminated(self, event: Any) -> None: ...

    # What it keeps of these events.

    def on_progress(self, progress: dict[str, Any]) -> None:
        if progress["runId"] != self.run_id:
            return
        self._last_event = time.monotonic()
        seconds = progress.get("durationMs", {}).get("triggerExecution", 0) / 1_000
        if "addBatch" in progress.get("durationMs", {}):  # otherwise there was no batch
            self._progress.set_batch_seconds(self._base + progress["batchId"], seconds)
            self._metrics.batch_seconds.observe(seconds)
            with self._changed:
                self._batch = progress["batchId"]
                self._changed.notify_all()

    def on_idle(self, run_id: str) -> None:
        if run_id == self.run_id:
            self._last_event = time.monotonic()


class _JavaListener:
    """What Java calls. Spark would print an error raised here as a stack trace, so none is raised."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        try:
            self._listener.on_progress(json.loads(event.progress().json()))
        except Exception:  # one figure is missing; the query goes on
            log.debug("progress that cannot be read", exc_info=True)

    def onQueryIdle(self, event: Any) -> None:
        try:
            self._listener.on_idle(event.runId().toString())
        except Exception:
            log.debug("an idle event that cannot be read", exc_info=True)

    def onQueryTerminated(self, event: Any) -> None: ...

    class Java:
        implements: Final = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
