"""Spark for a pipeline."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from semel.spark.pipeline.config import Pipeline
from semel.spark.pipeline.stop import interruptible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("semel.spark")
TASK_TRIES: Final = 4  # as on a cluster: on one machine Spark would give up at the first failure


def started(pipeline: Pipeline, master: str | None, cores: int | None, *, name: str | None = None) -> SparkSession:
    """A session of the pipeline's own. Ctrl-C while Spark starts is a KeyboardInterrupt."""
    from semel.spark.spark_session import session

    settings: dict[str, Any] = dict(pipeline.spark)
    if master is None and "spark.master" not in settings and "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings["spark.master"] = f"local[{cores or usable_cores()},{TASK_TRIES}]"
    with interruptible():  # Spark takes SIGINT for itself; afterwards it is ours again
        spark = session(name or f"semel {pipeline.name}", master=master, cores=cores, **settings).newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", str(pipeline.source.dedup_partitions))
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark.conf.set("spark.sql.streaming.stopTimeout", "30s")
    return spark


def stop_quietly(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:  # its Java has ended already
        log.debug("while Spark was stopped", exc_info=True)


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
