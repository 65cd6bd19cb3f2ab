"""Why a message came again: each delivery is compared with the one before it of the same message, each message with
the one before it of the same key.

The rules, in the order in which they are asked. `t` is when the delivery began; the earlier one's deadline is when its
visibility ended, heartbeats included. SQS shows a message to others only after that, unless it was put back.
1. SQS counts a delivery in between that no log tells of: UNLOGGED (a crash if workers of the queue died, else unknown).
2. The earlier one had put it back before t: no duplicate, a retry.
3. The earlier one was deleted before t: LOST_DELETE; but a delete in the very moment of t says nothing, see 4.
4. t lies before the deadline: CONCURRENT.
5. The earlier one gave a sign of life after t, or noticed itself that it was too late: VISIBILITY.
6. The earlier one had its outcome: LOST_DELETE. It had none, and was silent: CRASH.
Of a message with the key of an earlier one: REDRIVE if that one had failed and was done with before, else PRODUCER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from semel.doctor.deliveries import LOST, PUT_BACK, SETTLED, has
from semel.doctor.model import Cause
from semel.telemetry.attempt_log import Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A delivery's `cause` is a number, as all that is kept of it: 0 is a retry, 1 a predecessor that no log tells of.
RETRY: Final = 0
UNLOGGED: Final = 1
CODES: Final = {cause: code for code, cause in enumerate(Cause, 2)}
NAMES: Final = {code: cause for cause, code in CODES.items()}
# Two workers' clocks, and the way of an answer, differ by less than this.
SLACK: Final = 0.25
# A worker sees its deadline later than SQS does, by the way of the answer; and SQS' seconds are whole ones.
EARLY: Final = 0.1  # of the timeout, and at most a second

_EARLIER: Final = ("begun_at", "last_at", "outcome_at", "deleted_at", "flags")


def caused(deliveries: DataFrame, *, exact: bool = True) -> DataFrame:
    """Deliveries with
    - `cause`: null for the first of a message, RETRY, UNLOGGED, or the code of a Cause;
    - `over`: how long the earlier one worked on after its visibility had ended;
    - `place`: the how-manieth of its message it is in the log, `before`: SQS' count of the one before.

    `exact`: `number` is SQS' own count."""
    # The slot comes first because a sort compares 8 bytes of its first column, and looks further only if they agree.
    order = Window.partitionBy("slot", "queue").orderBy("begun_at", "number")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    # A worker that is handed what it has in hand goes on with it: what comes next is judged by the one in hand.
    holder = F.when(~has(F.col("flags"), Step.HELD), F.struct(*_EARLIER))
    with_earlier = deliveries.withColumns(
        {
            "earlier": F.last(holder, ignorenulls=True).over(before),
            "hidden_until": F.max("deadline").over(before),
            "before": F.lag("number").over(order),
            "place": F.row_number().over(order),
        }
    )
    early = F.least(F.col("timeout") * EARLY, F.lit(1.0))
    ended = F.coalesce("earlier.deleted_at", "earlier.outcome_at", "earlier.last_at")
    past = F.greatest(ended - F.col("hidden_until"), F.lit(0.0))
    return (
        with_earlier.withColumn("cause", _cause(early, exact))
        .withColumns(
            {
                "over": F.when(F.col("cause") == CODES[Cause.VISIBILITY], past),
                "earlier_at": F.col("earlier.begun_at"),
                "story_ends": F.greatest("last_at", "earlier.last_at"),
            }
        )
        .drop("earlier", "hidden_until", "outcome_at", "deadline")
    )


def is_duplicate() -> Column:
    return F.col("cause").isNotNull() & (F.col("cause") != RETRY)


def ran() -> Column:
    return has(F.col("flags"), Step.STARTED)


def took_effect() -> Column:
    return has(F.col("flags"), Step.RECORDED)


def _cause(early: Column, exact: bool) -> Column:
    at, flags = F.col("begun_at"), F.col("earlier.flags")
    too_soon = F.coalesce(at < F.col("hidden_until") - early, F.lit(False))
    deleted = F.col("earlier.deleted_at") <= at
    # A delete that was lost is followed by silence until the visibility ends. Just after a delete, without that
    # silence, is a delivery that was under way when the delete arrived.
    just_deleted = too_soon & (F.col("earlier.deleted_at") > at - SLACK)
    put_back = has(flags, *PUT_BACK) & ~has(flags, *SETTLED) & (F.col("earlier.outcome_at") <= at + SLACK)
    alive = F.col("earlier.last_at") > at
    is_first = F.col("earlier").isNull()
    skipped = F.lit(exact) & (F.col("number") > F.coalesce("before", F.lit(0).cast("long")) + 1)
    return (
        F.when(skipped & (F.col("number") > 1), F.lit(UNLOGGED))
        .when(is_first, F.lit(None).cast("int"))
        .when(put_back, F.lit(RETRY))
        .when(deleted & ~just_deleted, F.lit(CODES[Cause.LOST_DELETE]))
        .when(too_soon, F.lit(CODES[Cause.CONCURRENT]))
        .when(alive | (has(flags, *LOST) & ~has(flags, *SETTLED)), F.lit(CODES[Cause.VISIBILITY]))
        .when(has(flags, *SETTLED), F.lit(CODES[Cause.LOST_DELETE]))
        .otherwise(F.lit(CODES[Cause.CRASH]))
    )


def keys(judged: DataFrame) -> DataFrame:
    """The keys that more than one message has, or that took effect more than once; few, as a rule. A message without a
    key stands for itself."""
    return (
        judged.groupBy("queue", F.coalesce("key", "slot").alias("identity"))
        .agg(
            (F.min("slot") != F.max("slot")).alias("shared"),
            F.count(F.when(took_effect(), 1)).alias("effects"),
        )
        .where("shared OR effects > 1")
    )


def shared_keys(judged: DataFrame, keys_: DataFrame) -> DataFrame:
    """The messages whose key an earlier message had, one row each, with their cause: `redrive` or `producer`."""
    several = keys_.where("shared").select("queue", F.col("identity").alias("key"))
    messages = (
        judged.join(several, ["queue", "key"])
        .groupBy("queue", "key", "slot")
        .agg(
            F.max(F.coalesce("receive_count", "number")).alias("receive_count"),
            F.count(F.when(took_effect(), 1)).alias("effects"),
            F.max(ran()).alias("ran"),
            F.min("begun_at").alias("begun_at"),
            F.max("last_at").alias("last_at"),
            F.sum(F.when(~is_duplicate(), F.col("work"))).alias("work"),
            F.max(has(F.col("flags"), Step.DUPLICATE)).alias("was_duplicate"),
        )
    )
    order = Window.partitionBy("queue", "key").orderBy("begun_at", "slot")
    earlier = F.lag(F.struct("slot", "last_at", "effects", "begun_at", "was_duplicate")).over(order)
    # It ran again only if one before it had run: of two that came at once, the ledger lets either be the one.
    ran_before = F.coalesce(F.max("ran").over(order.rowsBetween(Window.unboundedPreceding, -1)), F.lit(False))
    shared = messages.withColumns({"earlier": earlier, "ran": F.col("ran") & ran_before})
    shared = shared.where(F.col("earlier").isNotNull())
    ended_before = F.col("earlier.last_at") <= F.col("begun_at") + SLACK
    # Of two that came at once the duplicate may stand first: it had no effect either, and did not fail.
    failed = (F.col("earlier.effects") == 0) & ~F.col("earlier.was_duplicate") & ended_before
    cause = F.when(failed, CODES[Cause.REDRIVE]).otherwise(CODES[Cause.PRODUCER])
    return (
        shared.withColumn("cause", cause)
        .withColumn("earlier_slot", F.col("earlier.slot"))
        .withColumn("earlier_at", F.col("earlier.begun_at"))
        .withColumn("story_ends", F.greatest("last_at", "earlier.last_at"))
        .drop("earlier", "was_duplicate")
    )
