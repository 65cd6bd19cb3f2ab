"""Deliveries to figures: each function is one small aggregation over one frame, and gives a frame.

All have the column `queue`; what is collected from them is small whatever the logs' size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from semel.doctor.causes import CODES, RETRY, is_duplicate, ran, took_effect
from semel.doctor.deliveries import FAILED, has
from semel.doctor.model import Cause
from semel.messages.fingerprint import FINGERPRINT_FROM, VOLATILE
from semel.telemetry.attempt_log import Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DURATIONS: Final = ("work", "wait", "hold")
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
ACCURACY: Final = 2_000  # a percentile is off by 1/2000 of the ranks at most
STEP: Final = 1.01  # of the scale of durations: each step is 1 % longer than the one before
SHORTEST: Final = 0.0001
SAMPLE: Final = 16  # of as many receives, one is looked at
EXAMPLES: Final = 5  # for each cause
LOOP: Final = 3  # receives from which on a message loops, and SQS leaves it out of the age of the oldest
WORST: Final = 20
MOST_AGAIN: Final = 100  # deliveries of one message that another timeout is held responsible for
ERRED: Final = (*FAILED, Step.FENCED, Step.CONFLICT, Step.LEDGER_DOWN, Step.DELETE_FAILED, Step.LOST)


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
    """By queue: counts."""
    flags = F.col("flags")
    return judged.groupBy("queue").agg(
        F.count("*").alias("deliveries"),
        F.count(F.when(F.col("place") == 1, 1)).alias("messages"),
        F.count(F.when(_begins_to_loop(), 1)).alias("loops"),
        F.count(F.when(ran(), 1)).alias("attempts"),
        F.count(F.when(took_effect(), 1)).alias("effects"),
        F.count(F.when(F.col("cause") == RETRY, 1)).alias("retries"),
        F.count(F.when(has(flags, *FAILED), 1)).alias("failures"),
        F.count(F.when(F.col("disordered"), 1)).alias("disordered"),
        F.count(F.when(has(flags, *ERRED), 1)).alias("erred"),
        F.count("group").alias("grouped"),
        F.sum("beats").alias("beats"),
        F.avg("beat_every").alias("beat_every"),
        F.max_by("timeout", F.when(F.col("timeout").isNotNull(), F.col("begun_at"))).alias("timeout"),
    )


def _times_seen() -> Column:
    return F.greatest("place", F.coalesce("receive_count", F.lit(0).cast("long")))


def _begins_to_loop() -> Column:
    """Of each message that loops, the first delivery that shows it."""
    return (_times_seen() >= LOOP) & (
        F.greatest(F.col("place") - 1, F.coalesce("before", F.lit(0).cast("long"))) < LOOP
    )


def durations(judged: DataFrame) -> DataFrame:
    """By queue, handler and `name` (a place in DURATIONS): how many durations lie in each step of a logarithmic scale,
    and the longest of each step.

    Counts of steps can be added up, over handlers too, and a percentile is read from them: the longest duration of the
    step in which it lies, which is off by one step (1 %) at most. Spark's own percentiles take twice as long."""
    all_ = F.array(
        *(F.struct(F.lit(place).alias("name"), F.col(name).alias("value")) for place, name in enumerate(DURATIONS))
    )
    values = judged.where(~F.col("disordered")).select("queue", "handler", F.inline(all_)).where("value >= 0")
    step = F.floor(F.log(F.greatest("value", F.lit(SHORTEST))) * (1 / math.log(STEP))).cast("int")
    return values.groupBy("queue", "handler", "name", step.alias("step")).agg(
        F.count("*").alias("count"), F.max("value").alias("most")
    )


def receives(judged: DataFrame) -> DataFrame:
    """By queue: messages per receive, of a sample of the receives. What one receive brought has one time."""
    at = F.col("begun_at")
    sample = judged.where(has(F.col("flags"), Step.RECEIVED) & (F.pmod(F.xxhash64(at), F.lit(SAMPLE)) == 0))
    each = sample.groupBy("queue", at).agg(F.count("*").alias("fill"))
    return each.groupBy("queue").agg(F.avg("fill").alias("fill"))


def groups(judged: DataFrame) -> DataFrame:
    return judged.groupBy("queue").agg(F.approx_count_distinct("group").alias("groups"))


_DUPLICATE: Final = (
    *("queue", "slot", "cause", "begun_at", "receive_count"),
    *("over", "ran", "work", "earlier_slot", "earlier_at", "story_ends"),
)


def duplicates(judged: DataFrame, shared: DataFrame) -> DataFrame:
    """One row for each duplicate, whatever its cause; `earlier_slot`: the message before, if it is another one."""
    ours = judged.where(is_duplicate()).withColumn("ran", ran()).withColumn("earlier_slot", F.col("slot"))
    theirs = shared.withColumn("over", F.lit(None).cast("double"))
    ours, theirs = ours.select(*_DUPLICATE), theirs.select(*_DUPLICATE)
    return ours.unionAll(theirs)


def causes(duplicates_: DataFrame) -> DataFrame:
    """By queue and cause: duplicates, how many ran, what they cost, and how far over the timeout work went."""
    return duplicates_.groupBy("queue", "cause").agg(
        F.count("*").alias("duplicates"),
        F.count(F.when(F.col("ran"), 1)).alias("ran"),
        F.sum(F.when(F.col("ran"), F.col("work"))).alias("wasted"),
        F.count("over").alias("over_count"),
        F.percentile_approx("over", list(PERCENTILES), ACCURACY).alias("over"),
        F.max("over").alias("over_most"),
    )


def examples(duplicates_: DataFrame) -> DataFrame:
    """The first few duplicates of each queue and cause."""
    nth = F.row_number().over(Window.partitionBy("queue", "cause").orderBy("begun_at", "slot"))
    return duplicates_.withColumn("nth", nth).where(F.col("nth") <= EXAMPLES)


def doubled(keys: DataFrame) -> DataFrame:
    """By queue: keys with more than one effect."""
    return keys.where("effects > 1").groupBy("queue").agg(F.count("*").alias("doubled"))


def looping(judged: DataFrame) -> DataFrame:
    """The messages that came most often."""
    again = judged.where(_times_seen() >= LOOP).groupBy("queue", "slot")
    messages = again.agg(
        F.max("place").cast("long").alias("deliveries"),
        F.max(_times_seen()).alias("receive_count"),
        F.max("last_at").alias("last_at"),
    )
    nth = F.row_number().over(Window.partitionBy("queue").orderBy(F.desc("receive_count"), "slot"))
    return messages.withColumn("nth", nth).where(F.col("nth") <= WORST)


def over_time(judged: DataFrame, width: float, since: float) -> DataFrame:
    """By the windows of `width` seconds in which deliveries began, were deleted and their messages sent: how many.

    Nearly all have the three close together, so that these are few rows; they are added up one by one elsewhere. When
    a message was sent before `since` does not matter."""

    def window(at: Column) -> Column:
        return F.floor(at / width)

    sent = F.when((F.col("place") == 1) & (F.col("sent_at") >= since), F.col("sent_at"))
    return judged.groupBy(
        "queue",
        window(F.col("begun_at")).alias("received"),
        window(F.col("deleted_at")).alias("deleted"),
        window(sent).alias("sent"),
    ).agg(F.count("*").alias("count"), F.count(F.when(is_duplicate(), 1)).alias("duplicates"))


def redelivered(judged: DataFrame, timeouts: Sequence[float]) -> DataFrame:
    """By queue, for each timeout: how often messages would have been delivered again while they were worked on.

    The work of deliveries that are there only because the timeout in force was too short is not replayed."""
    needed = F.col("cause").isNull() | (F.col("cause") != CODES[Cause.VISIBILITY])
    again = [
        F.sum(F.least(F.floor(F.col("hold") / timeout), F.lit(MOST_AGAIN))).alias(f"t{place}")
        for place, timeout in enumerate(timeouts)
    ]
    return judged.where(needed & (F.col("hold") >= 0)).groupBy("queue").agg(*again)


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
