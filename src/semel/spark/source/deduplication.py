"""`dedup=key`: each key once, for as long as SQS can deliver it again. The keys are in Spark's own state store.

A key stays in the state store for the queue's retention after it was received. The event time is `planned_at`, which
the driver sets for all rows of a batch and which never goes back. So no row is late: neither one that waited in the
queue for days, nor one from an executor whose clock is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semel.spark.source.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RETENTION: Final = 14 * 86_400  # seconds: the longest retention in SQS
_NEEDED: Final = ("queue", "key", "message_id", "planned_at")
_KEY: Final = "_once"


def once(df: DataFrame, within: int = RETENTION) -> DataFrame:
    """Drops rows of the source whose key was seen before. `within`: the queue's retention in seconds, or longer.

    This removes redeliveries, redriven messages that carry their key, and messages that were sent twice, if the
    producer sets the key. A row without a key is identified by its message id. The same key in two queues is two keys.
    Of several rows with one key, one stays, even if the rows differ.

    >>> from semel.spark import once, session
    >>> source = session("orders").readStream.format("sqs").option("queue", "orders")  # doctest: +SKIP
    >>> orders = once(source.option("segments", "checkpoint/segments").load())  # doctest: +SKIP
    """
    from pyspark.sql import functions as f

    missing = [name for name in _NEEDED if name not in df.columns]
    if missing:
        raise OptionError(f"once() needs the source's columns {', '.join(_NEEDED)}; there is no {', '.join(missing)}")
    if within < 60:
        raise OptionError(f"once(within={within}): the retention in seconds, at least 60")
    acked = df.withColumn(
        _KEY, f.concat_ws("/", f.col("queue"), f.coalesce(f.col("key"), f.concat(f.lit("\x00"), f.col("message_id"))))
    )
    return once_by(acked, _KEY, within)


def once_by(df: DataFrame, column: str, within: int) -> DataFrame:
    """Drops rows whose value in `column` was seen before, then the column. `planned_at` is the time of a row."""
    unique = df.withWatermark("planned_at", f"{within} seconds").dropDuplicatesWithinWatermark([column])
    return unique.drop(column)


def late_rows(spark: SparkSession) -> int:
    """How many rows of the batch in progress Spark has dropped as late. Call it in `foreachBatch`, after the rows were
    read, with the session that the query was started in."""
    query: Any = spark.streams.get(str(spark.sparkContext.getLocalProperty("sql.streaming.queryId")))
    return _dropped(query._jsq.streamingQuery().lastExecution().executedPlan())


def _dropped(plan: Any) -> int:
    counted = plan.metrics().get("numRowsDroppedByWatermark")
    own = int(counted.get().value()) if counted.isDefined() else 0
    children = plan.children()
    return own + sum(_dropped(children.apply(place)) for place in range(children.size()))
