"""Events in, one `Behaviour` for each queue out: runs the transformations and puts their small results together.

The rule: nothing that grows with the logs comes to the driver; every list in a Behaviour has a limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window as Order
from pyspark.storagelevel import StorageLevel

from semel.doctor import causes as judging
from semel.doctor import figures
from semel.doctor.deliveries import deliveries
from semel.doctor.model import (
    Behaviour,
    Cause,
    CauseSummary,
    Duplicate,
    ErrorGroup,
    Evidence,
    HandlerTimes,
    HistogramBar,
    LoopingMessage,
    TimeoutReplay,
    Times,
    Window,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

EVIDENCE: Final = ("at", "step", "message_id", "key", "receive_count", "worker", "seconds", "error")
MOST_WINDOWS: Final = 120
WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400)
LADDER: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200)
MOST_EVENTS: Final = 40  # of one example
BARS_PER_DECADE: Final = 8
SHORTEST_BAR: Final = 0.001
SPAN: Final = ((min, "first_at"), (max, "last_at"))
MOST_HANDLERS: Final = 50
MOST_WORKERS: Final = 20  # whose clocks are told of
LATE_CLOCK: Final = 0.5  # seconds before its sending that a message cannot have been received
LONGEST_STORY: Final = 3_600.0
AROUND: Final = 1.0  # seconds around a duplicate that belong to its story
LONGEST_TIMEOUT: Final = 43_200
# Questions that are asked at once: while one runs on the executors, the next is planned in the driver.
AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """The behaviours, and what was odd in the logs they came from."""

    behaviours: tuple[Behaviour, ...]
    disordered: int


def observe(
    events: DataFrame,
    *,
    exact: bool = True,
    batches: bool = True,
    visibility: Mapping[str, float] | None = None,
    timeouts: Callable[[Behaviour], Sequence[float]] = lambda _: (),
    say: Callable[[str], None] = lambda _: None,
) -> Seen:
    """What the events show, by queue. `exact`: they carry SQS' receive count. `batches`: messages that one receive
    brought have the same time. `timeouts`: visibility timeouts worth trying on a queue, beside the usual ones."""
    say("reading the logs")
    with _kept(judging.caused(deliveries(events, exact=exact, visibility=visibility), exact=exact)) as judged:
        rows = {row["queue"]: row for row in figures.totals(judged).collect()}  # all of the logs are read here
        if not rows:
            return Seen((), 0)
        say("looking for causes")
        with (
            ThreadPoolExecutor(AT_ONCE, thread_name_prefix="semel-doctor") as pool,
            _kept(judging.keys(judged)) as keys,
            _kept(judging.shared_keys(judged, keys)) as shared,
        ):
            whole = _Whole(events, judged, rows, keys, figures.duplicates(judged, shared), pool)
            found = whole.behaviours(batches=batches)
        say("trying other timeouts")
        found = _with_changes(found, judged, timeouts)
        return Seen(found, sum(row["disordered"] for row in rows.values()))


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


@dataclass(frozen=True, slots=True)
class _Whole:
    """All queues at once: each question is asked once, for all of them."""

    events: DataFrame
    judged: DataFrame
    rows: Mapping[str, Row]
    keys: DataFrame
    duplicates: DataFrame
    pool: ThreadPoolExecutor

    def _ask(self, question: Callable[[], DataFrame], *, needed: bool = True) -> Future[list[Row]]:
        return self.pool.submit(lambda: question().collect() if needed else [])

    def behaviours(self, *, batches: bool) -> tuple[Behaviour, ...]:
        # Those that others wait for, and the long ones, come first.
        asked_people = self._ask(lambda: figures.people(self.events))
        asked_causes = self.pool.submit(self._caused)
        asked_steps = self._ask(lambda: figures.durations(self.judged))
        asked_looping = self.pool.submit(self._looping)
        erred = any(row["erred"] for row in self.rows.values())
        asked_errors = self._ask(lambda: figures.errors(self.events), needed=erred)
        asked_fills = self._ask(lambda: figures.receives(self.judged), needed=batches)
        asked_doubled = self._ask(lambda: figures.doubled(self.keys))
        asked_groups = self.pool.submit(self._groups)
        people = _grouped(asked_people.result())
        first, last = (choose(one[name] for some in people.values() for one in some) for choose, name in SPAN)
        width = _width(last - first)
        windows = _grouped(self._ask(lambda: figures.over_time(self.judged, width, first)).result())
        fills = {row["queue"]: row["fill"] for row in asked_fills.result()}
        doubled = {row["queue"]: row["doubled"] for row in asked_doubled.result()}
        errors = _grouped(asked_errors.result())
        caused, looping, groups = asked_causes.result(), asked_looping.result(), asked_groups.result()
        steps = asked_steps.result()
        work, wait, hold = (
            _grouped(row for row in steps if row["name"] == place) for place in range(len(figures.DURATIONS))
        )
        found = []
        for queue, row in sorted(self.rows.items()):
            writers = people[queue]
            found.append(
                Behaviour(
                    queue=queue,
                    first_at=min(one["first_at"] for one in writers),
                    last_at=max(one["last_at"] for one in writers),
                    events=sum(one["events"] for one in writers),
                    deliveries=row["deliveries"],
                    attempts=row["attempts"],
                    messages=row["messages"],
                    effects=row["effects"],
                    doubled=doubled.get(queue, 0),
                    retries=row["retries"],
                    causes=caused.get(queue, ()),
                    work=times(work.get(queue, ())),
                    wait=times(wait.get(queue, ())),
                    hold=times(hold.get(queue, ())),
                    handlers=_handlers(writers, work.get(queue, ()), wait.get(queue, ())),
                    histogram=bars(hold.get(queue, ())),
                    visibility=row["timeout"],
                    heartbeats=row["beats"],
                    heartbeat_every=row["beat_every"],
                    batch_fill=fills.get(queue),
                    workers=len({one["worker"] for one in writers} - {None}),
                    groups=groups.get(queue, 0),
                    looping=looping.get(queue, ()),
                    loops=row["loops"],
                    failures=row["failures"],
                    errors=tuple(map(_error_group, errors.get(queue, ()))),
                    window=width,
                    windows=_windows(windows.get(queue, ()), first, last, width),
                    skew=_skew(writers),
                )
            )
        return tuple(found)

    def _groups(self) -> dict[str, int]:
        if not any(row["grouped"] for row in self.rows.values()):
            return {}
        return {row["queue"]: row["groups"] for row in figures.groups(self.judged).collect()}

    def _caused(self) -> dict[str, tuple[CauseSummary, ...]]:
        rows = _grouped(figures.causes(self.duplicates).collect())
        examples = self._examples() if rows else {}
        return {queue: _by_weight(some, examples.get(queue, {})) for queue, some in rows.items()}

    def _examples(self) -> dict[str, dict[int, list[Duplicate]]]:
        """A few duplicates of each cause, each with the events around it."""
        chosen = figures.examples(self.duplicates).collect()
        names, stories = self._stories(chosen)
        found: dict[str, dict[int, list[Duplicate]]] = defaultdict(lambda: defaultdict(list))
        for row in sorted(chosen, key=lambda row: row["nth"]):
            cause = judging.NAMES.get(row["cause"], Cause.UNKNOWN)
            told = tuple(sorted(stories[row["queue"], row["cause"], row["nth"]], key=lambda one: one.at))
            what = (names[row["slot"]], row["begun_at"], row["receive_count"], row["over"], told)
            found[row["queue"]][row["cause"]].append(Duplicate(cause, *what))
        return found

    def _stories(self, chosen: Sequence[Row]) -> tuple[dict[int, str], dict[tuple[str, int, int], list[Evidence]]]:
        """The ids of the messages in question, and of each example the events that are nearest to it, from the
        delivery before to the end of this one."""
        rows = []
        for one in chosen:
            since, until = one["earlier_at"] or one["begun_at"], min(one["story_ends"], one["begun_at"] + LONGEST_STORY)
            span = (one["begun_at"], since - AROUND, max(one["begun_at"], until) + AROUND)
            slots = {one["slot"], one["earlier_slot"]}
            rows += [(one["queue"], one["cause"], one["nth"], slot, *span) for slot in slots]
        schema = "queue STRING, cause INT, nth INT, slot BIGINT, begun DOUBLE, since DOUBLE, until DOUBLE"
        wanted = self.events.sparkSession.createDataFrame(rows, schema)
        events = self.events.select(*EVIDENCE, "queue", F.xxhash64("message_id").alias("slot"))
        within = F.col("at").between(F.col("since"), F.col("until"))
        each = Order.partitionBy("queue", "cause", "nth").orderBy(F.abs(F.col("at") - F.col("begun")))
        told = (
            events.join(F.broadcast(wanted), ["queue", "slot"])
            .where(within)
            .withColumn("far", F.row_number().over(each))
        )
        names: dict[int, str] = {}
        found: dict[tuple[str, int, int], list[Evidence]] = defaultdict(list)
        for row in told.where(F.col("far") <= MOST_EVENTS).collect():
            names[row["slot"]] = row["message_id"]
            found[row["queue"], row["cause"], row["nth"]].append(Evidence(**{name: row[name] for name in EVIDENCE}))
        return names, found

    def _looping(self) -> dict[str, tuple[LoopingMessage, ...]]:
        if not any(row["loops"] for row in self.rows.values()):
            return {}
        rows = figures.looping(self.judged).collect()
        told = self._messages([(row["queue"], row["slot"]) for row in rows])
        found: dict[str, list[LoopingMessage]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["nth"]):
            one = told[row["queue"], row["slot"]]
            seen = (row["deliveries"], row["receive_count"], one["first_at"], row["last_at"])
            found[row["queue"]].append(LoopingMessage(one["message_id"], one["key"], *seen, one["error"]))
        return {queue: tuple(some) for queue, some in found.items()}

    def _messages(self, slots: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Row]:
        """The id, the key, the latest error and the first event of each of these messages."""
        wanted = F.broadcast(self.events.sparkSession.createDataFrame(list(slots), "queue STRING, slot BIGINT"))
        latest = F.when(F.col("error").isNotNull(), F.col("at"))
        rows = (
            self.events.withColumn("slot", F.xxhash64("message_id"))
            .join(wanted, ["queue", "slot"])
            .groupBy("queue", "slot", "message_id")
            .agg(F.max("key").alias("key"), F.max_by("error", latest).alias("error"), F.min("at").alias("first_at"))
            .collect()
        )
        return {(row["queue"], row["slot"]): row for row in rows}


def _handlers(writers: Sequence[Row], work: Sequence[Row], wait: Sequence[Row]) -> tuple[HandlerTimes, ...]:
    found = []
    for code, name in {one["code"]: one["handler"] for one in writers if one["handler"]}.items():
        worked = times([row for row in work if row["handler"] == code])
        if worked:
            found.append(HandlerTimes(name, worked, times([row for row in wait if row["handler"] == code])))
    return tuple(sorted(found, key=lambda one: -one.work.p99)[:MOST_HANDLERS])


def _by_weight(rows: Sequence[Row], examples: Mapping[int, Sequence[Duplicate]]) -> tuple[CauseSummary, ...]:
    """Deliveries that no log tells of are put down to a crash where workers of the same queue died: what these had
    received last was not written yet. Else nobody knows."""
    died = any(row["cause"] == judging.CODES[Cause.CRASH] for row in rows)
    found: dict[Cause, CauseSummary] = {}
    for row in rows:
        unlogged = row["cause"] == judging.UNLOGGED
        cause = (Cause.CRASH if died else Cause.UNKNOWN) if unlogged else judging.NAMES[row["cause"]]
        before = found.get(cause, CauseSummary(cause, 0, 0, 0.0))
        shown = tuple(replace(one, cause=cause) for one in examples.get(row["cause"], ()))
        found[cause] = CauseSummary(
            cause,
            before.duplicates + row["duplicates"],
            before.ran + row["ran"],
            before.wasted + (row["wasted"] or 0.0),
            before.overrun or _over(row),
            (*before.examples, *shown)[: figures.EXAMPLES],
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.duplicates, one.cause)))


def _with_changes(
    found: tuple[Behaviour, ...], judged: DataFrame, timeouts: Callable[[Behaviour], Sequence[float]]
) -> tuple[Behaviour, ...]:
    """What each timeout would have done to the same work: whoever holds a message for longer has it delivered again.

    With a heartbeat the timeout changes nothing of the kind, and there is nothing to replay."""
    tried = {
        one.queue: sorted(
            {float(seconds) for seconds in (*_usual(one), *timeouts(one)) if 0 < seconds <= LONGEST_TIMEOUT}
        )
        for one in found
        if one.hold is not None and not one.has_heartbeat
    }
    if not tried:
        return found
    timeouts_ = sorted({timeout for some in tried.values() for timeout in some})
    rows = {row["queue"]: row for row in figures.redelivered(judged, timeouts_).collect()}
    changed = []
    for one in found:
        wanted = [(place, timeout) for place, timeout in enumerate(timeouts_) if timeout in tried.get(one.queue, ())]
        again = {timeout: rows[one.queue][f"t{place}"] or 0 for place, timeout in wanted if one.queue in rows}
        changed.append(_changed(one, again) if again else one)
    return tuple(changed)


def _changed(one: Behaviour, again: Mapping[float, int]) -> Behaviour:
    by_timeout = one.caused_by(Cause.VISIBILITY)
    others = one.duplicates - (by_timeout.duplicates if by_timeout else 0)
    return replace(one, replays=tuple(TimeoutReplay(timeout, others + more) for timeout, more in sorted(again.items())))


def _usual(one: Behaviour) -> list[float]:
    """The ladder's steps around what was seen, and the timeout in force."""
    assert one.hold is not None
    low, high = one.hold.p50, one.hold.most * 2
    steps = [float(step) for step in LADDER if low <= step <= high]
    return [*steps, *([one.visibility] if one.visibility else [])]


def _over(row: Row) -> Times | None:
    if not row["over_count"]:
        return None
    p50, p90, p99, p999 = row["over"]
    return Times(row["over_count"], p50, p90, p99, p999, row["over_most"])


def times(steps: Iterable[Row]) -> Times | None:
    """The distribution that the counts of steps stand for; see figures.durations."""
    counts: dict[int, int] = defaultdict(int)
    longest: dict[int, float] = defaultdict(float)
    for row in steps:
        counts[row["step"]] += row["count"]
        longest[row["step"]] = max(longest[row["step"]], row["most"])
    total = sum(counts.values())
    if not total:
        return None

    def percentile(share: float) -> float:
        left = math.ceil(share * total)
        for step in sorted(counts):
            left -= counts[step]
            if left <= 0:
                return longest[step]
        raise AssertionError("a share above 1")

    p50, p90, p99, p999 = map(percentile, figures.PERCENTILES)
    return Times(total, p50, p90, p99, p999, max(longest.values()))


def bars(steps: Iterable[Row]) -> tuple[HistogramBar, ...]:
    """Wider bars for a chart, the empty ones in between included."""
    counts: dict[int, int] = defaultdict(int)
    for row in steps:
        seconds = figures.STEP ** (row["step"] + 0.5)
        counts[math.floor(math.log10(max(seconds, SHORTEST_BAR)) * BARS_PER_DECADE)] += row["count"]
    if not counts:
        return ()
    places = range(min(counts), max(counts) + 1)
    return tuple(HistogramBar(_edge(place), _edge(place + 1), counts.get(place, 0)) for place in places)


def _edge(place: int) -> float:
    return float(10 ** (place / BARS_PER_DECADE))


def _windows(rows: Iterable[Row], first: float, last: float, width: float) -> tuple[Window, ...]:
    """From the first event to the last, the empty ones included."""
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for what in ("sent", "received", "deleted"):
            if row[what] is not None:
                counts[row[what]][what] += row["count"]
        counts[row["received"]]["duplicates"] += row["duplicates"]
    places = range(math.floor(first / width), math.floor(last / width) + 1)
    return tuple(
        Window(place * width, *(counts[place][name] for name in ("sent", "received", "deleted", "duplicates")))
        for place in places
    )


def _width(span: float) -> float:
    return float(next((width for width in WIDTHS if span / width <= MOST_WINDOWS), math.ceil(span / MOST_WINDOWS)))


def _error_group(row: Row) -> ErrorGroup:
    return ErrorGroup(
        fingerprint=blake2b(row["fingerprint"].encode(), digest_size=6).hexdigest(),
        sample=row["sample"],
        count=row["count"],
        messages=min(row["messages"], row["count"]),
        first_at=row["first_at"],
        last_at=row["last_at"],
        message_ids=tuple(sorted({row["one"], row["other"]})),
    )


def _skew(writers: Iterable[Row]) -> dict[str, float]:
    behind: dict[str, float] = {}
    for one in writers:
        if one["after_sent"] is not None and one["after_sent"] < -LATE_CLOCK:
            name = one["worker"] or "?"
            behind[name] = max(behind.get(name, 0.0), -one["after_sent"])
    return dict(sorted(behind.items(), key=lambda item: -item[1])[:MOST_WORKERS])


def _grouped(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[row["queue"]].append(row)
    return found
