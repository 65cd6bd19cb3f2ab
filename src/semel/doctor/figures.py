"""Deliveries to figures: each function is one small aggregation over one frame, and gives a frame.

All have the column `queue`; what is collected from them is small whatever the logs' size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from semel.consumer.attempts import Step
from semel.doctor.causes import RETRY
from semel.doctor.deliveries import FAILED, has

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
ACCURACY: Final = 2_000  # a percentile is off by 1/2000 of the ranks at most
BARS_PER_DECADE: Final = 8
SHORTEST: Final = 0.001
EXAMPLES: Final = 5  # for each cause
LOOP: Final = 3  # receives from which on a message loops, and SQS leaves it out of the age of the oldest
WORST: Final = 20
FINGERPRINT_FROM: Final = 300  # characters of an error's text
# What differs between errors of one kind, in this order: quoted text, ids, numbers.
VOLATILE: Final = (
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'…'"),
    (r"(?i)\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<id>"),
    (r"\d+", "<n>"),
)


def people(events: DataFrame) -> DataFrame:
    """Who wrote: by queue, handler and worker, with the hash that a delivery knows the handler by."""
    first = (F.col("step") == Step.RECEIVED.value) & (F.coalesce("receive_count", F.lit(1)) == 1)
    return events.groupBy("queue", "handler", "worker").agg(
        F.count("*").alias("events"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.min(F.when(first, F.col("at") - F.col("sent_at"))).alias("after_sent"),
        F.when(F.col("handler").isNotNull(), F.xxhash64("handler")).alias("code"),
    )


def totals(judged: DataFrame) -> DataFrame:
    """By queue and handler: counts and distributions of durations."""
    return judged.groupBy("queue", "handler").agg(*_totals())


def rollup(judged: DataFrame) -> DataFrame:
    return judged.groupBy("queue").agg(*_totals())


def _totals() -> list[Column]:
    flags = F.col("flags")
    between_beats = (F.col("last_beat") - F.col("first_beat")) / (F.col("beats") - 1)
    return [
        F.count("*").alias("deliveries"),
        F.count(F.when(F.col("ran"), 1)).alias("attempts"),
        F.count(F.when(F.col("effect"), 1)).alias("effects"),
        F.count(F.when(F.col("cause") == RETRY, 1)).alias("retries"),
        F.count(F.when(has(flags, *FAILED), 1)).alias("failures"),
        F.count(F.when(F.col("disordered"), 1)).alias("disordered"),
        F.sum("beats").alias("beats"),
        F.percentile_approx(F.when(F.col("beats") > 1, between_beats), 0.5, ACCURACY).alias("beat_every"),
        F.approx_count_distinct("group").alias("groups"),
        F.count(F.when(has(flags, Step.RECEIVED), 1)).alias("received"),
        F.approx_count_distinct(F.when(has(flags, Step.RECEIVED), F.col("begun_at"))).alias("receives"),
        F.max_by("timeout", F.when(F.col("timeout").isNotNull(), F.col("begun_at"))).alias("timeout"),
        *(column for name in ("work", "wait", "hold") for column in _distribution(name)),
    ]


def _distribution(name: str) -> tuple[Column, ...]:
    # A worker's clock that was set back makes no duration negative.
    values = F.when(~F.col("disordered") | F.col("disordered").isNull(), F.greatest(F.col(name), F.lit(0.0)))
    return (
        F.count(values).alias(f"{name}_count"),
        F.percentile_approx(values, list(PERCENTILES), ACCURACY).alias(name),
        F.max(values).alias(f"{name}_most"),
    )


def causes(judged: DataFrame, shared: DataFrame) -> DataFrame:
    """By queue and cause: duplicates, how many ran, what they cost, and how far over the timeout work went."""
    columns = ("queue", "cause", "ran", "work", "over")
    ours = judged.where(F.col("cause").isNotNull() & (F.col("cause") != RETRY)).select(*columns)
    theirs = shared.withColumn("over", F.lit(None).cast("double")).select(*columns)
    return (
        ours.unionAll(theirs)
        .groupBy("queue", "cause")
        .agg(
            F.count("*").alias("duplicates"),
            F.count(F.when(F.col("ran"), 1)).alias("ran"),
            F.sum(F.when(F.col("ran"), F.col("work"))).alias("wasted"),
            F.count("over").alias("over_count"),
            F.percentile_approx("over", list(PERCENTILES), ACCURACY).alias("over"),
            F.max("over").alias("over_most"),
        )
    )


def examples(judged: DataFrame, shared: DataFrame) -> DataFrame:
    """The first few duplicates of each queue and cause, with the span of time in which their evidence lies."""
    ours = judged.where(F.col("cause").isNotNull() & (F.col("cause") != RETRY)).select(
        "queue", "message_id", "cause", F.col("begun_at").alias("at"), "receive_count", "over", "earlier_at", "last_at",
        F.lit(None).cast("long").alias("key"),
    )  # fmt: skip
    theirs = shared.select(
        "queue", "message_id", "cause", F.col("first_at").alias("at"), "receive_count",
        F.lit(None).cast("double").alias("over"), "earlier_at", "last_at", "key",
    )  # fmt: skip
    place = F.row_number().over(Window.partitionBy("queue", "cause").orderBy("at", "message_id"))
    return ours.unionAll(theirs).withColumn("place", place).where(F.col("place") <= EXAMPLES)


def by_message(messages: DataFrame) -> DataFrame:
    """By queue: distinct messages, those that loop, message groups."""
    return messages.groupBy("queue").agg(
        F.count("*").alias("messages"),
        F.count(F.when(_loops(), 1)).alias("loops"),
    )


def _loops() -> Column:
    return F.greatest(F.col("deliveries"), F.col("receive_count")) >= LOOP


def doubled(messages: DataFrame) -> DataFrame:
    """By queue: keys with more than one effect; a message without a key stands for itself."""
    identity = F.coalesce("key", F.xxhash64("message_id"))
    effects = (
        messages.where("effects > 0").groupBy("queue", identity.alias("identity")).agg(F.sum("effects").alias("n"))
    )
    return effects.where("n > 1").groupBy("queue").agg(F.count("*").alias("doubled"))


def looping(messages: DataFrame) -> DataFrame:
    worst = F.row_number().over(
        Window.partitionBy("queue").orderBy(F.desc(F.greatest("deliveries", "receive_count")), "first_at", "message_id")
    )
    return messages.where(_loops()).withColumn("place", worst).where(F.col("place") <= WORST)


def histogram(judged: DataFrame) -> DataFrame:
    """By queue: how many deliveries were held for how long, in bars of equal width on a logarithmic scale."""
    held = judged.where(F.col("hold").isNotNull() & (F.col("hold") >= 0))
    bar = F.floor(F.log10(F.greatest("hold", F.lit(SHORTEST))) * BARS_PER_DECADE)
    return held.groupBy("queue", bar.alias("bar")).agg(F.count("*").alias("count"))


def over_time(judged: DataFrame, messages: DataFrame, width: float) -> DataFrame:
    """By queue and window of `width` seconds: messages sent, deliveries, deletes, duplicates."""
    is_duplicate = F.col("cause").isNotNull() & (F.col("cause") != RETRY)
    nothing = F.lit(0).cast("long")

    def counted(frame: DataFrame, at: str, name: str) -> DataFrame:
        cells = dict.fromkeys(("sent", "received", "deleted", "duplicates"), nothing)
        cells[name] = F.count("*")
        if name == "received":
            cells["duplicates"] = F.count(F.when(is_duplicate, 1))
        window = (F.floor(F.col(at) / width) * width).alias("start")
        figures = [column.alias(one) for one, column in cells.items()]
        return frame.where(F.col(at).isNotNull()).groupBy("queue", window).agg(*figures)

    return (
        counted(judged, "begun_at", "received")
        .unionAll(counted(judged, "deleted_at", "deleted"))
        .unionAll(counted(messages, "sent_at", "sent"))
        .groupBy("queue", "start")
        .agg(*(F.sum(name).alias(name) for name in ("sent", "received", "deleted", "duplicates")))
    )


def held_longer(judged: DataFrame, timeouts: Mapping[str, Sequence[float]]) -> DataFrame:
    """By queue and timeout: deliveries that held their message for longer than that."""
    rows = [(queue, float(timeout)) for queue, some in timeouts.items() for timeout in some]
    candidates = judged.sparkSession.createDataFrame(rows, "queue STRING, timeout DOUBLE")
    longer = judged.select("queue", "hold").join(F.broadcast(candidates), "queue")
    return longer.groupBy("queue", "timeout").agg(F.count(F.when(F.col("hold") > F.col("timeout"), 1)).alias("longer"))


def errors(events: DataFrame) -> DataFrame:
    """By queue and fingerprint: the largest groups of errors."""
    text = F.substring(F.coalesce("error", F.lit("")), 1, FINGERPRINT_FROM)
    failures = events.where(F.col("error").isNotNull() & F.col("step").isin([step.value for step in ERRED])).select(
        "queue", "message_id", "at", text.alias("error")
    )
    print_ = F.col("error")
    for pattern, stand_in in VOLATILE:
        print_ = F.regexp_replace(print_, F.lit(pattern), F.lit(stand_in))
    groups = (
        failures.withColumn("fingerprint", print_)
        .groupBy("queue", "fingerprint")
        .agg(
            F.count("*").alias("count"),
            F.approx_count_distinct("message_id").alias("messages"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.min_by("error", "at").alias("sample"),
            F.min("message_id").alias("one"),
            F.max("message_id").alias("other"),
        )
    )
    place = F.row_number().over(Window.partitionBy("queue").orderBy(F.desc("count"), "fingerprint"))
    return groups.withColumn("place", place).where(F.col("place") <= WORST)


ERRED: Final = (*FAILED, Step.FENCED, Step.CONFLICT, Step.LEDGER_DOWN, Step.DELETE_FAILED, Step.LOST)
