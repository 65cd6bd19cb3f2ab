"""Events to deliveries: one row for each time that a message was handed out, with what became of it.

The rule: one hash aggregation over the events, of numbers only, so that ten million events are a matter of seconds and
one message with a hundred thousand events is like any other. What is text stays with the events: a message is known by
its `slot`, the 64-bit hash of its id, and so are key, handler and group. Whoever needs the text looks there for the few
messages in question. Among a hundred million messages of a queue, two share a slot with a chance of 1 in 3,700.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from semel.telemetry.attempt_log import Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A delivery's `flags` has the bit of every step that was seen. The steps are ordered by how often they happen.
CODES: Final = {
    step: code
    for code, step in enumerate(
        (
            Step.RECEIVED,
            Step.STARTED,
            Step.RECORDED,
            Step.DELETED,
            Step.CLAIMED,
            Step.HEARTBEAT,
            Step.RETRIED,
            Step.DUPLICATE,
            Step.BOUNCED,
            Step.TAKEN_OVER,
            Step.RELEASED,
            Step.LOST,
            Step.FENCED,
            Step.REJECTED,
            Step.SKIPPED,
            Step.DELETE_FAILED,
            Step.CONFLICT,
            Step.LEDGER_DOWN,
            Step.HELD,
        )
    )
}
SETTLED: Final = (
    Step.RECORDED,
    Step.SKIPPED,
    Step.REJECTED,
    Step.DUPLICATE,
)  # nothing is left to be done but the delete
PUT_BACK: Final = (Step.RETRIED, Step.RELEASED, Step.LEDGER_DOWN, Step.BOUNCED, Step.CONFLICT)
LOST: Final = (Step.LOST, Step.FENCED)
OUTCOMES: Final = (*SETTLED, *PUT_BACK, *LOST)
PASSED_ON: Final = (Step.DUPLICATE, Step.BOUNCED, Step.HELD, Step.CONFLICT, Step.LEDGER_DOWN, Step.RELEASED)
FAILED: Final = (Step.RETRIED, Step.REJECTED)
# Steps whose `seconds` are the time in the handler.
WORKED: Final = (Step.RECORDED, Step.FENCED, Step.RETRIED, Step.REJECTED, Step.SKIPPED, Step.RELEASED)


def mask(steps: tuple[Step, ...]) -> int:
    return reduce(or_, (1 << CODES[step] for step in steps))


def has(flags: Column, *steps: Step) -> Column:
    """Whether one of these steps was seen."""
    return flags.bitwiseAND(F.lit(mask(steps)).cast("long")) != 0


def deliveries(events: DataFrame, *, exact: bool = True, visibility: Mapping[str, float] | None = None) -> DataFrame:
    """One row for each delivery. `exact`: events carry SQS' receive count, which tells deliveries apart; else their
    order does. `visibility`: the timeout by queue ("" for all others), where an event does not tell it."""
    slotted = events.withColumn("slot", F.xxhash64("message_id"))
    numbered = _by_count(slotted) if exact else _by_order(slotted)
    code = _code(F.col("step"))
    timeout = F.coalesce("visibility", _given(visibility or {}))
    coded = numbered.withColumns({"code": code, "timeout": timeout}).where(F.col("code").isNotNull())
    grouped = coded.groupBy("queue", "slot", "number", "by").agg(*_figures())
    ended_first = F.col("outcome_at") < F.col("started_at")
    ended_too_soon = F.coalesce("deleted_at", "outcome_at") < F.col("begun_at")
    # What came and went without any work says nothing of how long work takes.
    passed_on = has(F.col("flags"), *PASSED_ON) & ~has(F.col("flags"), Step.STARTED)
    between_beats = (F.col("last_beat") - F.col("first_beat")) / (F.col("beats") - 1)
    begun = F.coalesce("received_at", F.col("started_at") - F.coalesce("wait", F.lit(0.0)), "first_at")
    # Few steps with many columns: Spark goes over the whole plan at each step.
    return (
        grouped.withColumn("begun_at", begun)
        .withColumns(
            {
                "deadline": F.coalesce("deadline", F.col("begun_at") + F.col("timeout")),
                "work": F.coalesce("work", F.col("outcome_at") - F.col("started_at")),
                "wait": F.coalesce("wait", F.col("started_at") - F.col("received_at")),
                "hold": F.when(~passed_on, F.coalesce("deleted_at", "outcome_at") - F.col("begun_at")),
                "beat_every": F.when(F.col("beats") > 1, between_beats),
            }
        )
        .withColumn("disordered", F.coalesce(ended_first | ended_too_soon, F.lit(False)))
        .drop("first_at", "started_at", "received_at", "first_beat", "last_beat", "by")
    )


def _figures() -> list[Column]:
    at, seconds = F.col("at"), F.col("seconds")
    return [
        F.bit_or(F.expr("shiftleft(1L, code)")).alias("flags"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.min(F.when(_is(Step.RECEIVED), at)).alias("received_at"),
        F.min(F.when(_is(Step.STARTED), at)).alias("started_at"),
        F.min(F.when(_is(Step.STARTED), seconds)).alias("wait"),
        F.max(F.when(_is(*OUTCOMES), at)).alias("outcome_at"),
        F.min(F.when(_is(Step.DELETED), at)).alias("deleted_at"),
        F.max(F.when(_is(*WORKED) & (seconds > 0), seconds)).alias("work"),
        F.max(F.when(_is(Step.RECEIVED, Step.HEARTBEAT), at + F.col("timeout"))).alias("deadline"),
        F.max(F.when(_is(Step.RECEIVED, Step.STARTED), F.col("timeout"))).alias("timeout"),
        F.count(F.when(_is(Step.HEARTBEAT), 1)).alias("beats"),
        F.min(F.when(_is(Step.HEARTBEAT), at)).alias("first_beat"),
        F.max(F.when(_is(Step.HEARTBEAT), at)).alias("last_beat"),
        F.max("receive_count").alias("receive_count"),
        F.min("sent_at").alias("sent_at"),
        F.max(_hash("key")).alias("key"),
        F.max(_hash("handler")).alias("handler"),
        F.max(_hash("group")).alias("group"),
    ]


def _is(*steps: Step) -> Column:
    codes = [CODES[step] for step in steps]
    return F.col("code") == codes[0] if len(codes) == 1 else F.col("code").isin(codes)


def _hash(name: str) -> Column:
    return F.when(F.col(name).isNotNull(), F.xxhash64(name))


def _code(step: Column) -> Column:
    first, *others = CODES.items()
    found = F.when(step == first[0].value, first[1])
    for name, code in others:
        found = found.when(step == name.value, code)
    return found


def _given(visibility: Mapping[str, float]) -> Column:
    found = F.lit(visibility.get("")).cast("double")
    for queue, seconds in visibility.items():
        if queue:
            found = F.when(F.col("queue") == queue, F.lit(float(seconds))).otherwise(found)
    return found


def _by_count(events: DataFrame) -> DataFrame:
    nothing = F.lit(0).cast("long")
    return events.withColumns({"number": F.coalesce("receive_count", nothing), "by": nothing})


def _by_order(events: DataFrame) -> DataFrame:
    """Deliveries told apart by the order of their events, for each worker: what follows a receive (or a start, where
    receives are not logged) belongs to it. Where every beginning has its end, the first end is the first one's: two
    deliveries at once, in one worker. Where ends are missing, an end is the latest beginning's: the others crashed."""
    ours = Window.partitionBy("slot", "queue", "by")
    so_far = ours.orderBy("at", "place").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    step = F.col("step")
    received, started = step == Step.RECEIVED.value, step == Step.STARTED.value
    outcome, deleted = step.isin([one.value for one in OUTCOMES]), step == Step.DELETED.value

    def counted(what: Column, within: object) -> Column:
        return F.sum(what.cast("long")).over(within)  # type: ignore[arg-type]

    # At one and the same time: a beginning, then its start, then its end.
    place = F.when(received, 0).when(started, 1).when(deleted, 3).otherwise(2)
    frame = events.withColumn("by", F.coalesce(_hash("worker"), F.lit(0).cast("long"))).withColumn("place", place)
    frame = frame.withColumn("begins", F.when(counted(received, ours) > 0, received).otherwise(started))
    begins = F.col("begins")
    frame = (
        frame.withColumn("all_begun", counted(begins, ours))
        .withColumn("begun", F.greatest(counted(begins, so_far), F.lit(1).cast("long")))
        .withColumn("all_ended", counted(outcome, ours))
        .withColumn("ended", counted(outcome, so_far))
        .withColumn("all_deleted", counted(deleted, ours))
        .withColumn("gone", counted(deleted, so_far))
        .withColumn("starts", counted(started, so_far))
        .withColumn("all_started", counted(started, ours))
    )
    number = (
        F.when(outcome & (F.col("all_ended") == F.col("all_begun")), F.col("ended"))
        .when(deleted & (F.col("all_deleted") == F.col("all_begun")), F.col("gone"))
        .when(started & (F.col("all_started") == F.col("all_begun")), F.col("starts"))
        .otherwise(F.col("begun"))
    )
    return frame.withColumn("number", number).drop(
        "place", "begins", "all_begun", "begun", "all_ended", "ended", "all_deleted", "gone", "starts", "all_started"
    )
