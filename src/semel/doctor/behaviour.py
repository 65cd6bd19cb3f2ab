"""Events in, one `Behaviour` for each queue out: runs the transformations and puts their small results together.

The rule: nothing that grows with the logs comes to the driver; every list in a Behaviour has a limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from semel.doctor import causes as judging
from semel.doctor import figures
from semel.doctor.deliveries import deliveries
from semel.doctor.model import (
    Bar,
    Behaviour,
    Cause,
    Caused,
    Change,
    Duplicate,
    ErrorGroup,
    Evidence,
    HandlerTimes,
    Looping,
    Times,
    Window,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

MOST_WINDOWS: Final = 120
WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400)
LADDER: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200)
MOST_EVENTS: Final = 40  # of one example
MOST_WORKERS: Final = 20  # whose clocks are told of
LATE_CLOCK: Final = 0.5  # seconds before its sending that a message cannot have been received
LONGEST_STORY: Final = 3_600.0
AROUND: Final = 1.0  # seconds around a duplicate that belong to its story
LONGEST_TIMEOUT: Final = 43_200


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
        rows = figures.rollup(judged).collect()  # the first action: all of the logs are read here
        if not rows:
            return Seen((), 0)
        say("looking for causes")
        whole = _Whole(events, judged, {row["queue"]: row for row in rows}, batches)
        found = whole.behaviours()
        say("trying other timeouts")
        found = _with_changes(found, judged, timeouts)
        return Seen(found, sum(row["disordered"] for row in rows))


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


class _Whole:
    """All queues at once: each question is asked once, for all of them."""

    def __init__(self, events: DataFrame, judged: DataFrame, rows: Mapping[str, Row], batches: bool) -> None:
        self._events, self._judged, self._rows, self._batches = events, judged, rows, batches
        self._messages = judging.messages(judged)
        self._shared = judging.shared_keys(self._messages)

    def behaviours(self) -> tuple[Behaviour, ...]:
        people = _grouped(figures.people(self._events).collect())
        span = {queue: (min(r["first_at"] for r in p), max(r["last_at"] for r in p)) for queue, p in people.items()}
        width = _width(max(last - first for first, last in span.values()))
        caused = self._caused()
        by_message = {row["queue"]: row for row in figures.by_message(self._messages).collect()}
        doubled = {row["queue"]: row["doubled"] for row in figures.doubled(self._messages).collect()}
        bars = _grouped(figures.histogram(self._judged).collect())
        windows = _grouped(figures.over_time(self._judged, self._messages, width).collect())
        errors = _grouped(figures.errors(self._events).collect())
        looping = self._looping()
        handlers = self._handlers(people)
        found = []
        for queue, row in sorted(self._rows.items()):
            writers, counts = people[queue], by_message[queue]
            found.append(
                Behaviour(
                    queue=queue,
                    first_at=span[queue][0],
                    last_at=span[queue][1],
                    events=sum(one["events"] for one in writers),
                    deliveries=row["deliveries"],
                    attempts=row["attempts"],
                    messages=counts["messages"],
                    effects=row["effects"],
                    doubled=doubled.get(queue, 0),
                    retries=row["retries"],
                    causes=caused.get(queue, ()),
                    work=_times(row, "work"),
                    wait=_times(row, "wait"),
                    hold=_times(row, "hold"),
                    handlers=handlers.get(queue, ()),
                    histogram=_bars(bars.get(queue, ())),
                    visibility=row["timeout"],
                    heartbeats=row["beats"],
                    heartbeat_every=row["beat_every"],
                    batch_fill=row["received"] / row["receives"] if self._batches and row["receives"] else None,
                    workers=len({one["worker"] for one in writers} - {None}),
                    groups=row["groups"],
                    looping=looping.get(queue, ()),
                    loops=counts["loops"],
                    failures=row["failures"],
                    errors=tuple(map(_error_group, errors.get(queue, ()))),
                    window=width,
                    windows=_windows(windows.get(queue, ()), span[queue], width),
                    skew=_skew(writers),
                )
            )
        return tuple(found)

    def _handlers(self, people: Mapping[str, Sequence[Row]]) -> dict[str, tuple[HandlerTimes, ...]]:
        names = {(queue, one["code"]): one["handler"] for queue, rows in people.items() for one in rows}
        if not any(names.values()):
            return {}
        found: dict[str, list[HandlerTimes]] = defaultdict(list)
        for row in figures.totals(self._judged).collect():
            name, work = names.get((row["queue"], row["handler"])), _times(row, "work")
            if name and work:
                found[row["queue"]].append(HandlerTimes(name, work, _times(row, "wait")))
        return {queue: tuple(sorted(some, key=lambda one: -one.work.p99)) for queue, some in found.items()}

    def _caused(self) -> dict[str, tuple[Caused, ...]]:
        rows = _grouped(figures.causes(self._judged, self._shared).collect())
        examples = self._examples() if rows else {}
        return {queue: _by_weight(some, examples.get(queue, {})) for queue, some in rows.items()}

    def _examples(self) -> dict[str, dict[str, list[Duplicate]]]:
        """A few duplicates of each cause, each with the events around it."""
        chosen = figures.examples(self._judged, self._shared).collect()
        stories = self._stories(chosen)
        found: dict[str, dict[str, list[Duplicate]]] = defaultdict(lambda: defaultdict(list))
        for row in sorted(chosen, key=lambda row: row["place"]):
            cause = Cause.CRASH if row["cause"] == judging.UNLOGGED else Cause(row["cause"])
            found[row["queue"]][row["cause"]].append(
                Duplicate(
                    cause,
                    row["message_id"],
                    row["at"],
                    row["receive_count"],
                    row["over"],
                    stories.get((row["queue"], row["message_id"], row["cause"], row["at"]), ()),
                )
            )
        return found

    def _stories(self, chosen: Sequence[Row]) -> dict[tuple[str, str, str, float], tuple[Evidence, ...]]:
        """The events of the messages in question, from the delivery before to the end of this one."""
        if not chosen:
            return {}
        rows = []
        for one in chosen:
            since, until = one["earlier_at"] or one["at"], min(one["last_at"], one["at"] + LONGEST_STORY)
            which = (one["queue"], one["message_id"], one["cause"], one["at"], one["key"])
            rows.append((*which, since - AROUND, max(one["at"], until) + AROUND))
        schema = "queue STRING, id STRING, cause STRING, began DOUBLE, code BIGINT, since DOUBLE, until DOUBLE"
        wanted = F.broadcast(self._events.sparkSession.createDataFrame(rows, schema).alias("wanted"))
        events = self._events.alias("event")
        ours = (F.col("event.message_id") == F.col("id")) & F.col("code").isNull()
        theirs = F.xxhash64("event.key") == F.col("code")
        found: dict[tuple[str, str, str, float], list[Evidence]] = defaultdict(list)
        same = (F.col("event.queue") == F.col("wanted.queue")) & F.col("at").between(F.col("since"), F.col("until"))
        by_id = events.join(wanted.where("code IS NULL"), same & ours)
        both = by_id
        if any(one["key"] is not None for one in chosen):
            both = by_id.unionAll(events.join(wanted.where("code IS NOT NULL"), same & theirs))
        columns = ("at", "step", "message_id", "key", "receive_count", "worker", "seconds", "error")
        told = both.select("wanted.queue", "id", "cause", "began", *(f"event.{name}" for name in columns))
        for row in told.limit(len(chosen) * MOST_EVENTS * 4).collect():
            fields = {name: row[name] for name in columns}
            found[row["queue"], row["id"], row["cause"], row["began"]].append(Evidence(**fields))
        return {which: tuple(sorted(some, key=lambda one: one.at)[:MOST_EVENTS]) for which, some in found.items()}

    def _looping(self) -> dict[str, tuple[Looping, ...]]:
        rows = figures.looping(self._messages).collect()
        if not rows:
            return {}
        told = self._last_words([(row["queue"], row["message_id"]) for row in rows])
        found: dict[str, list[Looping]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["place"]):
            key, error = told.get((row["queue"], row["message_id"]), (None, None))
            found[row["queue"]].append(
                Looping(
                    row["message_id"],
                    key,
                    row["deliveries"],
                    row["receive_count"],
                    row["first_at"],
                    row["last_at"],
                    error,
                )
            )
        return {queue: tuple(some) for queue, some in found.items()}

    def _last_words(self, ids: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str | None, str | None]]:
        """The key and the latest error of each of these messages."""
        wanted = F.broadcast(self._events.sparkSession.createDataFrame(list(ids), "queue STRING, message_id STRING"))
        latest = F.when(F.col("error").isNotNull(), F.col("at"))
        rows = (
            self._events.join(wanted, ["queue", "message_id"])
            .groupBy("queue", "message_id")
            .agg(F.max("key").alias("key"), F.max_by("error", latest).alias("error"))
            .collect()
        )
        return {(row["queue"], row["message_id"]): (row["key"], row["error"]) for row in rows}


def _by_weight(rows: Sequence[Row], examples: Mapping[str, Sequence[Duplicate]]) -> tuple[Caused, ...]:
    """Deliveries that no log tells of are put down to a crash where workers of the same queue died: what these had
    received last was not written yet. Else nobody knows."""
    died = any(row["cause"] == Cause.CRASH.value for row in rows)
    found: dict[Cause, Caused] = {}
    for row in rows:
        unlogged = row["cause"] == judging.UNLOGGED
        cause = (Cause.CRASH if died else Cause.UNKNOWN) if unlogged else Cause(row["cause"])
        before = found.get(cause, Caused(cause, 0, 0, 0.0))
        shown = tuple(replace(one, cause=cause) for one in examples.get(row["cause"], ()))
        found[cause] = Caused(
            cause,
            before.duplicates + row["duplicates"],
            before.ran + row["ran"],
            before.wasted + (row["wasted"] or 0.0),
            before.over or _times(row, "over"),
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
    longer: dict[str, dict[float, int]] = defaultdict(dict)
    for row in figures.held_longer(judged, tried).collect():
        longer[row["queue"]][row["timeout"]] = row["longer"]
    return tuple(_changed(one, longer[one.queue]) if one.queue in tried else one for one in found)


def _changed(one: Behaviour, longer: Mapping[float, int]) -> Behaviour:
    by_timeout = one.caused_by(Cause.VISIBILITY)
    others = one.duplicates - (by_timeout.duplicates if by_timeout else 0)
    return replace(one, changes=tuple(Change(timeout, others + more) for timeout, more in sorted(longer.items())))


def _usual(one: Behaviour) -> list[float]:
    """The ladder's steps around what was seen, and the timeout in force."""
    assert one.hold is not None
    low, high = one.hold.p50, one.hold.most * 2
    steps = [float(step) for step in LADDER if low <= step <= high]
    return [*steps, *([one.visibility] if one.visibility else [])]


def _times(row: Row, name: str) -> Times | None:
    if not row[f"{name}_count"]:
        return None
    p50, p90, p99, p999 = row[name]
    return Times(row[f"{name}_count"], p50, p90, p99, p999, row[f"{name}_most"])


def _bars(rows: Iterable[Row]) -> tuple[Bar, ...]:
    """With the empty ones in between, so that a chart has no gaps."""
    counts = {row["bar"]: row["count"] for row in rows}
    if not counts:
        return ()
    places = range(min(counts), max(counts) + 1)
    return tuple(Bar(_edge(place), _edge(place + 1), counts.get(place, 0)) for place in places)


def _edge(place: int) -> float:
    return float(10 ** (place / figures.BARS_PER_DECADE))


def _windows(rows: Iterable[Row], span: tuple[float, float], width: float) -> tuple[Window, ...]:
    """From the first event to the last; what was sent before is left out."""
    by_start = {row["start"]: row for row in rows}
    first, last = (math.floor(at / width) for at in span)
    found = []
    for place in range(max(first, last - MOST_WINDOWS), last + 1):
        row = by_start.get(place * width)
        counts = [row[name] if row else 0 for name in ("sent", "received", "deleted", "duplicates")]
        found.append(Window(place * width, *counts))
    return tuple(found)


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
