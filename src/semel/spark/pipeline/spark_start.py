"""Spark for a pipeline, and the stream of its rows: the source, each key once if that is wanted, and parsed."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from semel.spark.pipeline import queues
from semel.spark.pipeline.config import Dedup, HandlerSpec, Pipeline
from semel.spark.pipeline.sink_factory import needs_validation, traces
from semel.spark.pipeline.stop import interruptible
from semel.spark.sinks.contract import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log: Final = logging.getLogger("semel.spark")
TASK_TRIES: Final = 4  # as on a cluster: on one machine Spark would give up at the first failure


def started(pipeline: Pipeline, master: str | None, cores: int | None) -> SparkSession:
    """A session of the pipeline's own. Ctrl-C while Spark starts is a KeyboardInterrupt."""
    from semel.spark.spark_session import session

    settings: dict[str, Any] = dict(pipeline.spark)
    if master is None and "spark.master" not in settings and "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings["spark.master"] = f"local[{cores or _cores()},{TASK_TRIES}]"
    with interruptible():  # Spark takes SIGINT for itself; afterwards it is ours again
        spark = session(f"semel {pipeline.name}", master=master, cores=cores, **settings).newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", str(pipeline.source.dedup_partitions))
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark.conf.set("spark.sql.streaming.stopTimeout", "30s")
    return spark


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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
