"""The tables of a report, as text: the same in the terminal and in HTML.

Styles of a column: `n` is a figure, `time` a time, `words` is text that may wrap, `id` is to be copied, `spare` can be
left out if there is no room. Every cell is cleaned here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from semel.doctor.model import CAUSES, Behaviour, Case, Duplicate, Evidence, Recommendation, Times
from semel.doctor.text_format import clean, duration, number, share, when
from semel.text import UNKNOWN, count

_MOST_EVENTS: Final = 40

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    columns: tuple[tuple[str, str], ...]  # title and style
    rows: Sequence[Row]


def overview(cases: Sequence[Case]) -> Table:
    """A row for each queue; without logs, only its name."""
    columns = (
        ("queue", ""), ("messages", "n spare"), ("attempts", "n spare"), ("duplicates", "n"),
        ("wasted time", "n spare"), ("double effects", "n"),
    )  # fmt: skip
    shown = len(columns) if any(case.behaviour is not None for case in cases) else 1
    rows = [(clean(case.queue, 120), *_totals(case.behaviour))[:shown] for case in cases]
    return Table("Queues", columns[:shown], rows)


def _totals(behaviour: Behaviour | None) -> Row:
    if behaviour is None:
        return (UNKNOWN,) * 5
    duplicates = number(behaviour.duplicates)
    if behaviour.duplicates:
        duplicates += f" ({share(behaviour.duplicates, behaviour.messages)})"
    return (number(behaviour.messages), number(behaviour.attempts), duplicates, _wasted(behaviour.wasted),
            number(behaviour.doubled))  # fmt: skip


def _wasted(seconds: float) -> str:
    return duration(round(seconds, 1) if seconds < 10 else round(seconds)) if seconds else UNKNOWN


def of_queue(case: Case, recommendations: Sequence[Recommendation]) -> list[Table]:
    """All tables about one queue that have anything to show."""
    tables = [settings([advice for advice in recommendations if advice.queue == case.queue])]
    if case.behaviour is not None:
        make = (causes, times, replays, looping, errors, clocks)
        tables += [table(case.behaviour) for table in make]
    return [table for table in tables if table.rows]


def settings(recommendations: Iterable[Recommendation]) -> Table:
    columns = (("setting", ""), ("now", ""), ("recommended", ""), ("", ""), ("why", "words"))
    rows = [
        (clean(advice.setting, 80), clean(advice.now or UNKNOWN, 80), clean(advice.value, 80),
         "change" if advice.changes else "fine" if advice.now else "",
         clean(" ".join(map(_sentence, advice.reasons)), 1_000))
        for advice in recommendations
    ]  # fmt: skip
    return Table("Settings", columns, rows)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def causes(behaviour: Behaviour) -> Table:
    columns = (
        ("cause", ""), ("duplicates", "n"), ("of messages", "n"), ("ran again", "n"), ("wasted time", "n spare"),
        ("late, P50", "n spare"), ("latest", "n spare"), ("what happened", "words spare"),
    )  # fmt: skip
    rows = [
        (CAUSES[cause.cause][0], number(cause.duplicates), share(cause.duplicates, behaviour.messages),
         number(cause.ran), _wasted(cause.wasted), duration(cause.overrun.p50 if cause.overrun else None),
         duration(cause.overrun.most if cause.overrun else None), CAUSES[cause.cause][1])
        for cause in behaviour.causes
    ]  # fmt: skip
    return Table("Duplicates by cause", columns, rows)


def times(behaviour: Behaviour) -> Table:
    named: list[tuple[str, Times | None]] = [
        ("in the handler", behaviour.work),
        ("receive to start", behaviour.wait),
        ("receive to delete", behaviour.hold),
    ]
    if len(behaviour.handlers) > 1:
        for handler in behaviour.handlers:
            named += [(f"in {handler.handler}", handler.work), (f"until {handler.handler} starts", handler.wait)]
    columns = (("", ""), ("count", "n spare"), *((title, "n") for title in ("P50", "P90", "P99", "P99.9", "longest")))
    rows = [
        (clean(name, 40), number(known.count),
         *map(duration, (known.p50, known.p90, known.p99, known.p999, known.most)))
        for name, known in named
        if known is not None
    ]  # fmt: skip
    return Table("Durations", columns, rows)


def replays(behaviour: Behaviour) -> Table:
    columns = (("visibility timeout", "n"), ("duplicates", "n"), ("of messages", "n"))
    rows = [
        (duration(replay.visibility), number(replay.duplicates), share(replay.duplicates, behaviour.messages))
        for replay in behaviour.replays
    ]
    return Table("The same work with another visibility timeout", columns, rows if behaviour.duplicates else [])


def looping(behaviour: Behaviour) -> Table:
    columns = (
        ("message", "id"), ("key", "words spare"), ("receives", "n"), ("first", "time spare"),
        ("last", "time spare"), ("last error", "words"),
    )  # fmt: skip
    rows = [
        (clean(loop.message_id, 80), clean(loop.key or UNKNOWN, 80), number(loop.receive_count), when(loop.first_at),
         when(loop.last_at), clean(loop.error or UNKNOWN, 300))
        for loop in behaviour.looping
    ]  # fmt: skip
    more = f", the worst {len(rows)}" if behaviour.loops > len(rows) else ""
    return Table(f"{count(behaviour.loops, 'message')} received three times or more{more}", columns, rows)


def errors(behaviour: Behaviour) -> Table:
    columns = (("error", "words"), ("count", "n"), ("messages", "n"), ("first", "time spare"), ("last", "time spare"))
    rows = [
        (clean(group.sample, 400), number(group.count), number(group.messages), when(group.first_at),
         when(group.last_at))
        for group in behaviour.errors
    ]  # fmt: skip
    return Table("Errors, similar ones together", columns, rows)


def clocks(behaviour: Behaviour) -> Table:
    rows = [
        (clean(worker, 80), f"{duration(abs(behind))} {'behind' if behind > 0 else 'ahead'}")
        for worker, behind in behaviour.skew.items()
    ]
    return Table("Clocks that differ from the clock of SQS", (("worker", ""), ("its clock is", "n")), rows)


def events(duplicate: Duplicate) -> Table:
    start = duplicate.events[0].at if duplicate.events else 0.0
    late = f", and for {duration(duplicate.overrun)} more" if duplicate.overrun is not None else ""
    caption = f"For example message {clean(duplicate.message_id, 60)}: {CAUSES[duplicate.cause][1]}{late}"
    columns = (("time", "n"), ("after", "n"), ("step", ""), ("receive", "n spare"), ("worker", "words"), ("", "words"))
    return Table(caption, columns, [_event(event, start) for event in duplicate.events[:_MOST_EVENTS]])


def _event(event: Evidence, start: float) -> Row:
    took = f"after {duration(event.seconds)}" if event.seconds is not None else ""
    more = ", ".join(part for part in (took, clean(event.error or "", 300)) if part)
    receive = str(event.receive_count) if event.receive_count is not None else UNKNOWN
    after = duration(round(event.at - start, 3))
    return (
        when(event.at)[11:] or UNKNOWN,
        f"+{after}",
        clean(event.step, 40),
        receive,
        clean(event.worker or UNKNOWN, 60),
        more,
    )
