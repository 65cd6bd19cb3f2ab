"""Spark for a pipeline, and the stream of its rows: the source, each key once if that is wanted, and parsed.

The rule: Spark may start while the rest is still being checked, but it receives nothing before its session is asked
for; if the start is abandoned, its Java ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from semel.spark.interpreter import running_spark
from semel.spark.pipeline import queues
from semel.spark.pipeline.config import Dedup, HandlerSpec, Pipeline
from semel.spark.pipeline.sink_factory import needs_validation, traces
from semel.spark.pipeline.stop import interruptible
from semel.spark.sinks.contract import Sink
from semel.spark.spark_session import end_java, query_settings, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log: Final = logging.getLogger("semel.spark")
POLL: Final = 0.1


class SparkStart:
    """A Spark that starts in a thread of its own. A context: what nobody has asked for is ended with it."""

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
        """Waits for it; from then on it is the caller's. Ctrl-C meanwhile is a KeyboardInterrupt."""
        while self._thread.is_alive():  # a join without a limit would not hear of a signal
            self._thread.join(POLL)
        if self._error is not None:
            raise self._error
        assert self._session is not None
        self._handed_over = True
        return self._session

    def _run(self) -> None:
        try:
            self._session = self._start()
        except BaseException as error:  # noqa: BLE001  it is raised where the session is asked for
            self._error = error

    def _abandon(self) -> None:
        while self._thread.is_alive():  # its Java may not even be there yet
            end_java()
            self._thread.join(POLL)
        if self._session is not None:
            stop_quietly(self._session)
            end_java()


def begin(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkStart:
    """Starts Spark for a pipeline, and returns at once."""
    return SparkStart(lambda: _session_of(pipeline, master, cores))


def started(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkSession:
    """A session of the pipeline's own. Ctrl-C while Spark starts is a KeyboardInterrupt."""
    with interruptible():  # Spark takes SIGINT for itself; afterwards it is ours again
        return _session_of(pipeline, master, cores)


def started_for_app(app: str, master: str | None, cores: int | None) -> SparkSession:
    """A session for the handlers of an app. Ctrl-C while Spark starts is a KeyboardInterrupt."""
    with interruptible():
        return session(f"semel {app}", master=master, cores=cores, **query_settings())


def _session_of(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkSession:
    settings: dict[str, str] = {**pipeline.spark, **query_settings(pipeline.source.dedup_partitions)}
    return session(f"semel {pipeline.name}", master=master, cores=cores, **settings)


def source_rows(spark: SparkSession, pipeline: Pipeline, checkpoint: str, sink: Sink, query: str | None) -> DataFrame:
    """The source, each key once if that is wanted, and parsed."""
    from semel.spark.pipeline import body_sql
    from semel.spark.source import datasource, deduplication

    datasource.register(spark)
    options = pipeline.source.options(checkpoint)
    if query is not None:
        options["owner"] = query
    folder = traces(pipeline)
    if folder is not None:
        options["attemptLog"] = folder
    rows = spark.readStream.format("sqs").options(**options).load()
    by_key = pipeline.source.dedup is Dedup.KEY
    within = int(pipeline.source.remember or queues.retention(pipeline.source)) if by_key else 0
    if isinstance(pipeline.sink, HandlerSpec):
        from semel.spark.pipeline import handler_retries

        # Nothing may come between the order of groups and the tasks.
        rows = handler_retries.arranged(deduplication.once(rows, within) if by_key else rows, sink, pipeline)
        by_key = False
    found = body_sql.parsed(
        rows, pipeline, with_message=needs_validation(pipeline), traced=folder is not None, identified=by_key
    )
    return deduplication.once_by(found, body_sql.IDENTITY, within) if by_key else found


def stop_quietly(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:  # its Java has ended already
        log.debug("while Spark was stopped", exc_info=True)
