"""Turns the lines of the logs into one `Behaviour` for each queue: runs the SQL and puts its small results together.

The rule: nothing that grows with the logs comes into Python; every list in a Behaviour has a limit.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from semel.doctor import sql
from semel.doctor.distributions import bars, times
from semel.doctor.engine.contract import Engine, Row
from semel.doctor.events import FLAGS, MICROSECONDS, STEPS
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.model import (
    Behaviour,
    Cause,
    CauseSummary,
    Duplicate,
    ErrorGroup,
    Evidence,
    HandlerTimes,
    LoopingMessage,
    Quality,
    TimeoutReplay,
    Times,
    Window,
)
from semel.messages.fingerprint import fingerprint_of_shape

MOST_WINDOWS: Final = 120
WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400)
TIMEOUTS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200)
LONGEST_TIMEOUT: Final = 43_200
MOST_HANDLERS: Final = 50
MOST_WORKERS: Final = 20  # whose clocks are reported
MOST_WORDS: Final = 3
LATE_CLOCK: Final = 0.5  # seconds: if a message is received this long before it is sent, a clock is wrong
LONGEST_TIMELINE: Final = 3_600 * MICROSECONDS
MARGIN: Final = 1 * MICROSECONDS  # around a duplicate, for its timeline


@dataclass(frozen=True, slots=True)
class Analysis:
    behaviours: tuple[Behaviour, ...]
    quality: Quality


def analyse(
    engine: Engine,
    mapping: LogMapping,
    *,
    files: Sequence[str] = (),
    visibility: Mapping[str, float] | None = None,
    timeouts: Callable[[Behaviour], Sequence[float]] = lambda _: (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Analysis:
    """What `log_lines` shows, by queue. `visibility`: the timeout by queue ("" for all others), for lines that do not
    have it. `timeouts`: visibility timeouts worth trying on a queue, besides the usual ones."""
    on_progress("finding the causes")
    logged = engine.rows(sql.figure("queues_and_words"))
    unknown_words = _make_small_tables(engine, mapping, logged, visibility or {})
    _make_tables(engine, mapping)
    quality = _quality(engine, unknown_words, files)
    totals = {row["queue_id"]: row for row in engine.rows(sql.figure("totals"))}
    if not totals:
        return Analysis((), quality)
    on_progress("counting")
    behaviours = _Figures(engine, totals, own=mapping.is_own).behaviours()
    on_progress("trying other timeouts")
    queue_ids = {row["queue"]: row["queue_id"] for row in logged}
    behaviours = _with_replays(engine, behaviours, queue_ids, timeouts)
    out_of_order = sum(row["out_of_order"] for row in totals.values())
    return Analysis(behaviours, replace(quality, out_of_order=out_of_order))


def _make_small_tables(
    engine: Engine, mapping: LogMapping, logged: Sequence[Row], visibility: Mapping[str, float]
) -> tuple[str, ...]:
    """Makes `words` and `timeouts`; returns a few of the words that are not known, the most frequent first."""
    lines: Counter[str] = Counter()
    for row in logged:
        lines[row["word"]] += row["lines"]
    steps = {word: mapping.step_of(word) for word in lines}
    flags = [(word, FLAGS[step]) for word, step in steps.items() if step is not None and step in FLAGS]
    engine.values("words", {"word": "STRING", "flag": "INTEGER"}, flags)
    queues = {row["queue_id"]: visibility.get(row["queue"], visibility.get("")) for row in logged}
    known = [(queue, _microseconds(seconds)) for queue, seconds in queues.items() if seconds is not None]
    engine.values("timeouts", {"queue_id": "BIGINT", "visibility": "BIGINT"}, known)
    unknown = sorted((word for word in lines if steps[word] is None), key=lambda word: (-lines[word], word))
    return tuple(unknown[:MOST_WORDS])


def _make_tables(engine: Engine, mapping: LogMapping) -> None:
    events = sql.table("events", own_log=mapping.is_own)
    if mapping.is_own or mapping.duration is None:
        engine.view("events", events)
    else:
        engine.view("logged_events", events)
        engine.view("events", sql.table("events_with_starts"))
    exact = mapping.has_receives
    engine.view("numbered_events", sql.table("numbered_by_count" if exact else "numbered_by_order"))
    engine.table("deliveries", sql.table("deliveries"))
    engine.table("redeliveries", sql.table("redeliveries", exact=exact))
    engine.table("keys", sql.table("keys"))
    engine.table("shared_keys", sql.table("shared_keys"))
    engine.view("duplicates", sql.table("duplicates"))


def _quality(engine: Engine, unknown_words: tuple[str, ...], files: Sequence[str]) -> Quality:
    (row,) = engine.rows(sql.figure("quality"))
    broken = engine.rows(sql.figure("broken_lines")) if row["malformed"] else []
    return Quality(
        lines=row["lines"],
        events=row["events"],
        malformed=row["malformed"],
        incomplete=row["incomplete"],
        out_of_range=row["out_of_range"],
        dropped=int(row["dropped"]),
        samples=tuple(f"{files[line['file']]}:{line['line_number']}: {line['sample']}" for line in broken),
        unknown_events=row["unknown_events"],
        unknown_words=unknown_words,
    )


class _Figures:
    """All queues at once: each question is asked once, for all of them."""

    def __init__(self, engine: Engine, totals: Mapping[int, Row], *, own: bool) -> None:
        self._engine, self._totals, self._own = engine, totals, own

    def _ask(self, name: str, **parameters: int) -> list[Row]:
        return self._engine.rows(sql.figure(name, **parameters))

    def _by_queue(self, name: str, **parameters: int) -> dict[int, list[Row]]:
        return _grouped(self._ask(name, **parameters))

    def behaviours(self) -> tuple[Behaviour, ...]:
        writers = self._by_queue("writers")
        first = min(row["first_time"] for rows in writers.values() for row in rows)
        last = max(row["last_time"] for rows in writers.values() for row in rows)
        width = _width((last - first) / MICROSECONDS)
        windows = self._windows(first, last, width)
        repeated = {row["queue_id"]: row for row in self._ask("repeated")}
        timeouts = {row["queue_id"]: row["timeout"] for row in self._ask("timeouts_in_force")}
        durations = self._by_queue("durations")
        causes = self._causes(durations)
        looping = self._looping() if any(row["loops"] for row in repeated.values()) else {}
        doubled = {row["queue_id"]: row["doubled"] for row in self._ask("doubled")}
        with_error = any(row["with_error"] for row in self._totals.values())
        errors = self._by_queue("errors") if with_error else {}
        grouped = any(row["grouped"] for row in self._totals.values())
        groups = {row["queue_id"]: row["groups"] for row in self._ask("groups")} if grouped else {}
        # Only the attempt log gives the messages of one receive the same time.
        receives = {row["queue_id"]: row for row in self._ask("receives")} if self._own else {}
        behaviours = []
        for queue_id, total in self._totals.items():
            mine = durations.get(queue_id, ())
            work, wait, hold = ([row for row in mine if row["name"] == name] for name in ("work", "wait", "hold"))
            again = repeated.get(queue_id, {"later": 0, "retries": 0, "loops": 0})
            fill = receives.get(queue_id)
            behaviours.append(
                Behaviour(
                    queue=writers[queue_id][0]["queue"],
                    first_at=_seconds(min(row["first_time"] for row in writers[queue_id])),
                    last_at=_seconds(max(row["last_time"] for row in writers[queue_id])),
                    events=sum(row["events"] for row in writers[queue_id]),
                    deliveries=total["deliveries"],
                    attempts=total["attempts"],
                    messages=total["deliveries"] - again["later"],
                    effects=total["effects"],
                    doubled=doubled.get(queue_id, 0),
                    retries=again["retries"],
                    causes=causes.get(queue_id, ()),
                    work=times(work),
                    wait=times(wait),
                    hold=times(hold),
                    handlers=_handlers(writers[queue_id], work, wait),
                    histogram=bars(hold),
                    visibility=_optional_seconds(timeouts.get(queue_id)),
                    heartbeats=int(total["heartbeats"]),
                    heartbeat_every=_mean_seconds(total["heartbeat_span"], total["heartbeat_intervals"]),
                    batch_fill=fill["messages"] / fill["receives"] if fill else None,
                    workers=len({row["worker"] for row in writers[queue_id]} - {None}),
                    groups=groups.get(queue_id, 0),
                    looping=looping.get(queue_id, ()),
                    loops=again["loops"],
                    failures=total["failures"],
                    errors=tuple(_error_group(row) for row in _ranked(errors.get(queue_id, ()))),
                    window=width,
                    windows=windows.get(queue_id, ()),
                    skew=_skew(writers[queue_id]),
                )
            )
        return tuple(sorted(behaviours, key=lambda behaviour: behaviour.queue))

    # Causes.

    def _causes(self, durations: Mapping[int, Sequence[Row]]) -> dict[int, tuple[CauseSummary, ...]]:
        rows = self._by_queue("causes")
        examples = self._examples() if rows else {}
        return {
            queue_id: _by_weight(
                causes, examples, times([row for row in durations.get(queue_id, ()) if row["name"] == "overrun"])
            )
            for queue_id, causes in rows.items()
        }

    def _examples(self) -> dict[tuple[int, int], list[Duplicate]]:
        """A few duplicates of each queue and cause, each with the events around it."""
        chosen = sorted(self._ask("examples"), key=lambda row: (row["queue_id"], row["cause"], row["nth"]))
        self._engine.values("example_messages", _EXAMPLE_COLUMNS, _example_messages(chosen))
        timelines: dict[int, list[Row]] = defaultdict(list)
        for row in self._ask("timelines"):
            timelines[row["example"]].append(row)
        examples: dict[tuple[int, int], list[Duplicate]] = defaultdict(list)
        for number, row in enumerate(chosen):
            timeline = sorted(
                timelines[number], key=lambda event: (event["event_time"], event["flag"], event["distance"])
            )
            message_id = next((event["message_id"] for event in timeline if event["slot"] == row["slot"]), "")
            examples[row["queue_id"], row["cause"]].append(
                Duplicate(
                    cause=sql.CAUSE_OF.get(row["cause"], Cause.UNKNOWN),
                    message_id=message_id,
                    at=_seconds(row["begin_time"]),
                    receive_count=row["receive_count"],
                    overrun=_optional_seconds(row["overrun"]),
                    events=tuple(map(_evidence, timeline)),
                )
            )
        return examples

    # The rest.

    def _looping(self) -> dict[int, tuple[LoopingMessage, ...]]:
        rows = self._ask("looping")
        self._engine.values("wanted_messages", {"slot": "BIGINT"}, [(row["slot"],) for row in rows])
        messages = {row["slot"]: row for row in self._ask("messages")}
        return {
            queue_id: tuple(
                LoopingMessage(
                    message_id=messages[row["slot"]]["message_id"],
                    key=messages[row["slot"]]["key"],
                    deliveries=row["deliveries"],
                    receive_count=row["receive_count"],
                    first_at=_seconds(messages[row["slot"]]["first_time"]),
                    last_at=_seconds(row["last_time"]),
                    error=messages[row["slot"]]["error"],
                )
                for row in _ranked(mine)
            )
            for queue_id, mine in _grouped(rows).items()
        }

    def _windows(self, first: int, last: int, width: float) -> dict[int, tuple[Window, ...]]:
        """The windows from the first event to the last, including the empty ones."""
        size = round(width * MICROSECONDS)
        counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        for row in self._ask("over_time", WIDTH=size, FIRST=first):
            for name in ("sent", "received", "deleted"):
                if row[name] is not None:
                    counts[row["queue_id"], row[name]][name] += row["count"]
        for row in self._ask("repeated_over_time", WIDTH=size, FIRST=first):
            counts[row["queue_id"], row["received"]]["duplicates"] += row["duplicates"]
            if row["sent"] is not None:
                counts[row["queue_id"], row["sent"]]["sent"] -= row["count"]
        starts = range(first - first % size, last + 1, size)
        names = ("sent", "received", "deleted", "duplicates")
        return {
            queue_id: tuple(
                Window(_seconds(start), *(counts[queue_id, start][name] for name in names)) for start in starts
            )
            for queue_id in self._totals
        }


_EXAMPLE_COLUMNS: Final = {
    "example": "INTEGER", "slot": "BIGINT", "begin_time": "BIGINT", "since": "BIGINT", "until": "BIGINT",
}  # fmt: skip


def _example_messages(chosen: Sequence[Row]) -> list[tuple[int, int, int, int, int]]:
    """For each example its message, and also the earlier message if that is another one; each with the time span from
    the earlier delivery to the end."""
    rows = []
    for number, row in enumerate(chosen):
        begin = row["begin_time"]
        since = begin if row["earlier_time"] is None else row["earlier_time"]
        until = max(begin, min(row["timeline_end"], begin + LONGEST_TIMELINE))
        for slot in {row["slot"], row["earlier_slot"]}:
            rows.append((number, slot, begin, since - MARGIN, until + MARGIN))
    return rows


def _evidence(row: Row) -> Evidence:
    return Evidence(
        at=_seconds(row["event_time"]),
        step=STEPS[row["flag"]].value,
        message_id=row["message_id"],
        key=row["key"],
        receive_count=row["receive_count"],
        worker=row["worker"],
        seconds=_optional_seconds(row["duration"]),
        error=row["error"],
    )


def _by_weight(
    rows: Sequence[Row], examples: Mapping[tuple[int, int], Sequence[Duplicate]], overrun: Times | None
) -> tuple[CauseSummary, ...]:
    """Duplicates by cause, the most frequent first. A delivery that no log has counts as a crash if workers of the same
    queue crashed, as the last receives of these were not written yet; otherwise its cause is unknown."""
    died = any(row["cause"] == sql.CAUSES[Cause.CRASH] for row in rows)
    summaries: dict[Cause, CauseSummary] = {}
    for row in sorted(rows, key=lambda row: -row["cause"]):  # known causes before those that are concluded
        unlogged = row["cause"] == sql.UNLOGGED
        cause = (Cause.CRASH if died else Cause.UNKNOWN) if unlogged else sql.CAUSE_OF[row["cause"]]
        before = summaries.get(cause, CauseSummary(cause, 0, 0, 0.0))
        shown = tuple(replace(example, cause=cause) for example in examples.get((row["queue_id"], row["cause"]), ()))
        summaries[cause] = CauseSummary(
            cause,
            before.duplicates + row["duplicates"],
            before.ran + row["ran"],
            before.wasted + _seconds(int(row["wasted"] or 0)),
            overrun if cause is Cause.VISIBILITY else None,
            (*before.examples, *shown)[: sql.EXAMPLES],
        )
    return tuple(sorted(summaries.values(), key=lambda summary: (-summary.duplicates, summary.cause)))


def _with_replays(
    engine: Engine,
    behaviours: tuple[Behaviour, ...],
    queue_ids: Mapping[str, int],
    timeouts: Callable[[Behaviour], Sequence[float]],
) -> tuple[Behaviour, ...]:
    """Adds what each timeout would have done to the same work: a message that is held for longer is delivered again.

    With a heartbeat, the timeout makes no such difference, and there is nothing to replay."""
    tried: dict[str, list[float]] = {}
    for behaviour in behaviours:
        if behaviour.hold is not None and not behaviour.has_heartbeat:
            candidates = {float(seconds) for seconds in (*_usual(behaviour), *timeouts(behaviour))}
            tried[behaviour.queue] = sorted(seconds for seconds in candidates if 0 < seconds <= LONGEST_TIMEOUT)
    rows = [(queue_ids[queue], _microseconds(seconds)) for queue, candidates in tried.items() for seconds in candidates]
    if not rows:
        return behaviours
    engine.values("tried_timeouts", {"queue_id": "BIGINT", "timeout": "BIGINT"}, rows)
    shortest = min(timeout for _, timeout in rows)
    again = {
        (row["queue_id"], row["timeout"]): int(row["redeliveries"] or 0)
        for row in engine.rows(sql.figure("replays", SHORTEST=shortest))
    }
    replayed = []
    for behaviour in behaviours:
        by_timeout = behaviour.caused_by(Cause.VISIBILITY)
        others = behaviour.duplicates - (by_timeout.duplicates if by_timeout else 0)
        queue_id = queue_ids[behaviour.queue]
        replays = tuple(
            TimeoutReplay(seconds, others + again.get((queue_id, _microseconds(seconds)), 0))
            for seconds in tried.get(behaviour.queue, ())
        )
        replayed.append(replace(behaviour, replays=replays))
    return tuple(replayed)


def _usual(behaviour: Behaviour) -> list[float]:
    """The usual timeouts around the observed durations, and the timeout in force."""
    assert behaviour.hold is not None
    low, high = behaviour.hold.p50, behaviour.hold.most * 2
    usual = [float(timeout) for timeout in TIMEOUTS if low <= timeout <= high]
    return [*usual, *([behaviour.visibility] if behaviour.visibility else [])]


def _handlers(writers: Sequence[Row], work: Sequence[Row], wait: Sequence[Row]) -> tuple[HandlerTimes, ...]:
    handlers = []
    for handler_id, name in sorted({(row["handler_id"], row["handler"]) for row in writers if row["handler"]}):
        worked = times(row for row in work if row["handler_id"] == handler_id)
        if worked:
            handlers.append(HandlerTimes(name, worked, times(row for row in wait if row["handler_id"] == handler_id)))
    return tuple(sorted(handlers, key=lambda handler: (-handler.work.p99, handler.handler))[:MOST_HANDLERS])


def _width(span: float) -> float:
    return float(next((width for width in WIDTHS if span / width <= MOST_WINDOWS), math.ceil(span / MOST_WINDOWS)))


def _error_group(row: Row) -> ErrorGroup:
    return ErrorGroup(
        fingerprint=fingerprint_of_shape(row["error_kind"]),
        sample=row["sample"],
        count=row["count"],
        messages=row["messages"],
        first_at=_seconds(row["first_time"]),
        last_at=_seconds(row["last_time"]),
        message_ids=tuple(sorted({row["first_id"], row["last_id"]})),
    )


def _skew(writers: Iterable[Row]) -> dict[str, float]:
    """Seconds that the clock of a worker is behind that of SQS: it received messages before they were sent."""
    behind: dict[str, float] = {}
    for row in writers:
        if row["since_sent"] is not None and (early := -_seconds(row["since_sent"])) > LATE_CLOCK:
            name = row["worker"] or "?"
            behind[name] = max(behind.get(name, 0.0), early)
    return dict(sorted(behind.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORKERS])


def _ranked(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["nth"])


def _grouped(rows: Iterable[Row]) -> dict[int, list[Any]]:
    by_queue: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        by_queue[row["queue_id"]].append(row)
    return by_queue


def _mean_seconds(total: int | None, count: int | None) -> float | None:
    return _seconds(int(total) / int(count)) if total is not None and count else None


def _optional_seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else _seconds(microseconds)


def _seconds(microseconds: float) -> float:
    return microseconds / MICROSECONDS


def _microseconds(seconds: float) -> int:
    return math.floor(seconds * MICROSECONDS + 0.5)
