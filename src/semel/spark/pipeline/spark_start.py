"""Starts Spark for pipelines.

The rule: Spark may start while the rest is still being checked, but it receives nothing before its session is asked
for; if the start is abandoned, its Java ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from semel.spark.interpreter import running_spark
from semel.spark.pipeline.config import Pipeline
from semel.spark.pipeline.stop_request import interruptible
from semel.spark.spark_session import abandon_start, end_java, query_settings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("semel.spark")
POLL: Final = 0.1


class SparkStart:
    """Starts Spark in a thread of its own. At the end of the context, a Spark that nobody has asked for is ended."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self.owns_spark = running_spark() is None
        self._start = start
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._handed_over = False
        self._thread = threading.Thread(target=self._run, name="semel-spark-start", daemon=True)
        self._thread.start()

    def __enter__(self) -> SparkStart:
        return self

    def __exit__(self, *_: object) -> None:
        if self.owns_spark and not self._handed_over:
            self._abandon()

    def session(self) -> SparkSession:
        """Waits for the session and hands it over to the caller. Ctrl-C meanwhile raises KeyboardInterrupt."""
        while self._thread.is_alive():  # a signal would not interrupt a join without a limit
            self._thread.join(POLL)
        if self._error is not None:
            raise self._error
        assert self._session is not None
        self._handed_over = True
        return self._session

    def _run(self) -> None:
        try:
            self._session = self._start()
        except BaseException as error:  # noqa: BLE001  `session` raises it
            self._error = error

    def _abandon(self) -> None:
        abandon_start(self._thread)
        if self._session is not None:
            stop_quietly(self._session)
            end_java()


def begin(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkStart:
    """Starts Spark for a pipeline, and returns at once."""
    return SparkStart(lambda: _session_of(pipeline, master, cores))


def started(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkSession:
    """A session for a pipeline. Ctrl-C while Spark starts raises KeyboardInterrupt."""
    with interruptible():  # Spark sets its own handler of SIGINT; afterwards ours is set again
        return _session_of(pipeline, master, cores)


def started_for_app(app: str, master: str | None, cores: int | None) -> SparkSession:
    """A session for the handlers of an app. Ctrl-C while Spark starts raises KeyboardInterrupt."""
    with interruptible():
        return session(f"semel {app}", master=master, cores=cores, **query_settings())


def _session_of(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkSession:
    settings: dict[str, str] = {**pipeline.spark, **query_settings(pipeline.source.dedup_partitions)}
    return session(f"semel {pipeline.name}", master=master, cores=cores, **settings)


def stop_quietly(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:  # its Java has ended already
        log.debug("while Spark was stopped", exc_info=True)
