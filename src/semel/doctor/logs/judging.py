"""Lines and rows of a log, each with a verdict: an event in the normal form, or what is wrong with it.

One pass does it all: Spark counts the verdicts while it hands the events on (`Tally`). Batches and streams share this.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, Observation
from pyspark.sql import functions as F

from semel.doctor.events import COLUMNS, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BAD: Final = "_semel_unreadable"
PERMISSIVE: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
SAMPLE: Final = 200  # characters of a malformed line
LAST: Final = 1e11  # seconds: what is beyond, in the year 5138, is no time
PATIENCE: Final = 10.0  # seconds until Spark has told the figures of an action that is over


class Flaw(enum.IntEnum):
    """What a line is. Only NONE is an event."""

    NONE = 0
    MALFORMED = 1
    INCOMPLETE = 2
    DROPPED = 3  # the log's own note that events are missing
    UNKNOWN = 4  # its word for what happened says nothing to us
    NOTHING = 5  # an empty line, a message that the outbox sent, or a file's problem: not to be counted


# A line of the attempt log, as Spark parses it; the last column has the whole line if it cannot.
LINE: Final = f"{SCHEMA}, count BIGINT, {BAD} STRING"


def from_json(parsed: DataFrame) -> DataFrame:
    """Judge what Spark's own JSON reader makes of an attempt log, with `LINE` and PERMISSIVE: its fastest way."""
    flaw = F.when(F.col(BAD).isNotNull(), Flaw.MALFORMED).otherwise(_flaw())
    return _judged(parsed.withColumn("line", F.col(BAD)).withColumn("problem", F.lit(None).cast("string")), flaw)


def from_lines(lines: DataFrame) -> DataFrame:
    """Judge lines of Semel's attempt log; `lines` has the columns line and problem."""
    parsed = lines.select("line", "problem", F.inline(F.array(F.from_json("line", LINE, PERMISSIVE))))
    blank = F.col("line").isNull() | (F.trim(F.col("line")).isin("", "\n", "\r\n"))
    flaw = F.when(F.col(BAD).isNotNull(), Flaw.MALFORMED).otherwise(_flaw())
    empty = F.col("step").isNull() & F.col("at").isNull() & blank
    return _judged(parsed, F.when(empty, Flaw.NOTHING).otherwise(flaw))


def from_rows(rows: DataFrame) -> DataFrame:
    """Judge rows of Semel's attempt log in Parquet; `rows` has the columns of the normal form, count and problem."""
    flaw = F.when(F.col("problem").isNotNull(), Flaw.NOTHING).otherwise(_flaw())
    return _judged(rows.withColumn("line", F.lit(None).cast("string")), flaw)


def _flaw() -> Column:
    at, message, step = F.col("at"), F.col("message_id"), F.col("step")
    has_time = at.isNotNull() & (at > 0) & (at < LAST)
    has_id = message.isNotNull() & (message != "")
    return (
        F.when(has_time & has_id & step.isNotNull() & (step != "dropped"), Flaw.NONE)
        .when(step == "dropped", Flaw.DROPPED)
        .when(has_time & (step == "sent"), Flaw.NOTHING)  # the outbox knows no id when it sends
        .otherwise(Flaw.INCOMPLETE)
    )


def _judged(parsed: DataFrame, flaw: Column) -> DataFrame:
    dropped = F.when(F.col("step") == "dropped", F.greatest(F.col("count"), F.lit(0)))
    return parsed.select(
        *COLUMNS,
        flaw.alias("flaw"),
        F.when(flaw == Flaw.MALFORMED, F.substring("line", 1, SAMPLE)).alias("sample"),
        dropped.alias("dropped"),
        "problem",
    )


def within(judged: DataFrame, since: float | None, until: float | None) -> DataFrame:
    """Only what is of this time, its beginning included, its end not; and all that has no time."""
    at = F.col("at")
    for limit in ([at >= since] if since is not None else []) + ([at < until] if until is not None else []):
        judged = judged.where(at.isNull() | limit)
    return judged


@dataclass(frozen=True, slots=True)
class Counts:
    lines: int = 0
    events: int = 0
    malformed: int = 0
    incomplete: int = 0
    unknown: int = 0
    dropped: int = 0
    samples: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.lines + other.lines,
            self.events + other.events,
            self.malformed + other.malformed,
            self.incomplete + other.incomplete,
            self.unknown + other.unknown,
            self.dropped + other.dropped,
            tuple(dict.fromkeys(self.samples + other.samples))[:3],
            tuple(dict.fromkeys(self.words + other.words))[:3],
            tuple(dict.fromkeys(self.problems + other.problems)),
        )


class Tally:
    """Counts verdicts while the first action on `events` runs."""

    def __init__(self, judged: DataFrame) -> None:
        self._observation = Observation()
        self._context: Any = judged.sparkSession.sparkContext
        self._judged = judged
        observed = judged.observe(self._observation, *_figures())
        self.events: DataFrame = observed.where(F.col("flaw") == Flaw.NONE).select(*COLUMNS)

    def counts(self) -> Counts | None:
        """What the first action has counted; None if none has run."""
        if not self._told():
            return None
        observed: Any = self._observation._jo
        if observed.getRow().schema() is None:  # without a single event, Spark leaves the observation out of its plan
            return counted(self._judged)
        return _counts(self._observation.get)

    def _told(self) -> bool:
        """Spark tells the figures a moment after the action is over; and never, if there was none."""
        observed: Any = self._observation._jo
        until = time.monotonic() + PATIENCE
        with suppress(Exception):  # it ends at once where nothing is under way; not there in another Spark: wait
            self._context._jsc.sc().listenerBus().waitUntilEmpty(int(PATIENCE * 1_000))
            return bool(observed.future().isCompleted())
        while not observed.future().isCompleted():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True


def counted(judged: DataFrame) -> Counts:
    """The verdicts, counted by a pass of their own."""
    row = judged.agg(*_figures()).first()
    assert row is not None
    return _counts(row.asDict())


_KINDS: Final = ("min", "any", "max")


def _figures() -> tuple[Column, ...]:
    flaw = F.col("flaw")
    return (
        F.count_if(flaw != Flaw.NOTHING).alias("lines"),
        F.count_if(flaw == Flaw.NONE).alias("events"),
        F.count_if(flaw == Flaw.MALFORMED).alias("malformed"),
        F.count_if(flaw == Flaw.INCOMPLETE).alias("incomplete"),
        F.count_if(flaw == Flaw.UNKNOWN).alias("unknown"),
        F.sum("dropped").alias("dropped"),
        *_some("samples", F.when(flaw == Flaw.MALFORMED, F.col("sample"))),
        *_some("words", F.when(flaw == Flaw.UNKNOWN, F.col("sample"))),
        F.collect_set("problem").alias("problems"),
    )


def _counts(figures: Mapping[str, Any]) -> Counts:
    some = {
        name: tuple(dict.fromkeys(text for kind in _KINDS if (text := (figures[f"{name}_{kind}"] or "").strip())))
        for name in ("samples", "words")
    }
    return Counts(
        figures["lines"],
        figures["events"],
        figures["malformed"],
        figures["incomplete"],
        figures["unknown"],
        figures["dropped"] or 0,
        **some,
        problems=tuple(sorted(figures["problems"])),
    )


def _some(name: str, text: Column) -> tuple[Column, Column, Column]:
    """Up to three of many texts, in no more memory than three take."""
    return (
        F.min(text).alias(f"{name}_min"),
        F.min_by(text, F.when(text.isNotNull(), F.xxhash64(text))).alias(f"{name}_any"),
        F.max(text).alias(f"{name}_max"),
    )
