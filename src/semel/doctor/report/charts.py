"""The charts of one queue, each with its message in a sentence, drawn as SVG without a chart library.

The rule: a chart is there only if it has something to show, and all that it shows is also said in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from semel.doctor.model import Behaviour, Duplicate, HistogramBar, Point, Series, TimeoutReplay
from semel.doctor.report.svg import (
    LABEL,
    LEFT,
    RIGHT,
    Scale,
    beside,
    box,
    clock,
    drawing,
    durations,
    label,
    legend,
    line,
    path,
    round_steps,
    round_times,
    short,
    upright,
)
from semel.doctor.report.words import CAUSES, clean, count, duration, number, percent, when

_MOST_POINTS: Final = 180  # on a line; more cannot be told apart
_MOST_CHANGES: Final = 9


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    says: str
    svg: str


def charts(
    seen: Behaviour | None, series: Series | None, timeout: float | None, advised: float | None, *, name: str
) -> list[Chart]:
    """All that can be drawn of one queue. `name` is unique on the page."""
    found: list[Chart | None] = []
    if seen is not None:
        found.append(histogram(seen.histogram, timeout, advised, name=f"{name}-durations"))
        found.append(causes(seen, name=f"{name}-causes"))
        found.append(what_if(seen, timeout, advised, name=f"{name}-changes"))
    points = series.points if series is not None else ()
    found.append(flow(seen, series, name=f"{name}-flow"))
    found.append(level(points, "in_flight", name=f"{name}-in-flight"))
    found.append(level(points, "oldest", name=f"{name}-oldest"))
    return [chart for chart in found if chart is not None]


def histogram(bars: Sequence[HistogramBar], timeout: float | None, advised: float | None, *, name: str) -> Chart | None:
    """How long messages are held, with the timeout drawn in. The scale is by tens: short and long work both show."""
    known = [bar for bar in bars if bar.count > 0 and math.isfinite(bar.high)]
    if not known:
        return None
    marks = [mark for mark in (timeout, advised) if mark]
    low = max(0.001, min(max(known[0].low, 0.001), *marks) if marks else known[0].low)
    high = max(known[-1].high, *(mark * 2 for mark in marks)) if marks else known[-1].high
    top, bottom, tallest = 42.0, 196.0, max(bar.count for bar in known)
    across, steps = Scale(low, max(high, low * 10), LEFT, RIGHT, log=True), round_steps(tallest)
    up = Scale(0, steps[-1], bottom, top)
    parts = [upright(up, steps)]
    for bar in known:
        y = min(up(bar.count), bottom - 1.5)
        tip = f"{duration(bar.low)} to {duration(bar.high)}: {number(bar.count)}"
        for low, high, style in _halves(bar, timeout):
            wide = max(across(high) - across(low) - (0.8 if high == bar.high else 0.0), 1.0)
            parts.append(box(across(low), y, wide, bottom - y, style, tip))
    parts.append(durations(across, bottom))
    if timeout:
        x = across(timeout)
        parts.append(line(x, 14, x, bottom, "mark") + beside(x, 22, f"timeout {duration(timeout)}", "marked"))
    if advised and advised != timeout:
        x = across(advised)
        parts.append(line(x, 30, x, bottom, "hint") + beside(x, 37, f"better {duration(advised)}", "hinted"))
    parts.append(label((LEFT + RIGHT) / 2, 230, "from the receive to the delete (scale by tens)", anchor="middle"))
    says = _late(known, timeout)
    return Chart("How long messages are held", says, drawing(236, "How long messages are held", says, parts, name=name))


def _late(bars: Sequence[HistogramBar], timeout: float | None) -> str:
    total = sum(bar.count for bar in bars)
    if timeout is None:
        return f"{count(total, 'delivery', 'deliveries')}; the visibility timeout is not known."
    late = sum(bar.count * _beyond(bar, timeout) for bar in bars)
    if not late:
        return f"All of {count(total, 'delivery', 'deliveries')} ended within the timeout of {duration(timeout)}."
    about = "About " if any(0 < _beyond(bar, timeout) < 1 for bar in bars) else ""
    return (
        f"{about}{percent(late / total)} of {count(total, 'delivery', 'deliveries')} took longer than the timeout of "
        f"{duration(timeout)}."
    )


def _halves(bar: HistogramBar, timeout: float | None) -> list[tuple[float, float, str]]:
    """A bar before the timeout, after it, or cut in two by it."""
    if timeout is None or bar.high <= timeout:
        return [(bar.low, bar.high, "good")]
    if bar.low >= timeout:
        return [(bar.low, bar.high, "bad")]
    return [(bar.low, timeout, "good"), (timeout, bar.high, "bad")]


def _beyond(bar: HistogramBar, timeout: float) -> float:
    """The share of a bar beyond the timeout, as if its durations were spread evenly on the scale."""
    if bar.low >= timeout or bar.high <= timeout:
        return float(bar.low >= timeout)
    return math.log(bar.high / timeout) / math.log(bar.high / max(bar.low, 1e-4))


def causes(seen: Behaviour, *, name: str) -> Chart | None:
    """Duplicates by cause, the most frequent first."""
    known = sorted((caused for caused in seen.causes if caused.duplicates), key=lambda caused: -caused.duplicates)
    if not known:
        return None
    most, y, parts = known[0].duplicates, 16.0, []
    for caused in known:
        share = percent(caused.duplicates / seen.duplicates)
        wide = (RIGHT - 12) * caused.duplicates / most
        again = (RIGHT - 12) * min(caused.ran, caused.duplicates) / most
        parts.append(label(12, y, CAUSES[caused.cause][0], "name"))
        parts.append(label(RIGHT, y, f"{number(caused.duplicates)} ({share})", "name", "end"))
        parts.append(box(12, y + 6, max(wide, 2), 10, "soft", f"{number(caused.duplicates)} duplicates"))
        if caused.ran:
            parts.append(box(12, y + 6, max(again, 2), 10, "bad", f"the handler ran again for {number(caused.ran)}"))
        y += 38
    parts.append(box(12, y - 4, 10, 10, "bad") + label(27, y + 5, "the handler ran again"))
    parts.append(box(190, y - 4, 10, 10, "soft") + label(205, y + 5, "it did not: recognised"))
    says = (
        f"{CAUSES[known[0].cause][0].capitalize()}: {percent(known[0].duplicates / seen.duplicates)} of "
        f"{count(seen.duplicates, 'duplicate')}. The handler ran again for {number(sum(one.ran for one in known))}."
    ).replace("Sqs ", "SQS ")
    return Chart("Duplicates by cause", says, drawing(y + 14, "Duplicates by cause", says, parts, name=name))


def what_if(seen: Behaviour, timeout: float | None, advised: float | None, *, name: str) -> Chart | None:
    """What another timeout would have done to the very same work."""
    if not seen.messages or len({change.duplicates for change in seen.replays}) < 2:
        return None
    shown = _chosen(seen.replays, timeout, advised)
    steps = round_steps(max(change.share(seen.messages) for change in shown) * 100)
    top, bottom = 26.0, 172.0
    up, wide = Scale(0, steps[-1], bottom, top), (RIGHT - LEFT) / len(shown)
    parts = [upright(up, steps, lambda value: f"{value:g} %")]
    for index, change in enumerate(shown):
        share = change.share(seen.messages)
        x, y = LEFT + index * wide, min(up(share * 100), bottom - 1.5)
        style = "bad" if change.visibility == timeout else "better" if change.visibility == advised else "soft"
        tip = f"{duration(change.visibility)}: {number(change.duplicates)} duplicates"
        parts.append(box(x + 4, y, wide - 8, bottom - y, style, tip))
        parts.append(label(x + wide / 2, y - 5, percent(share).replace(" ", ""), "tick", "middle"))
        parts.append(label(x + wide / 2, bottom + 17, duration(change.visibility), anchor="middle"))
        word = "now" if change.visibility == timeout else "better" if change.visibility == advised else ""
        parts.append(label(x + wide / 2, bottom + 32, word, "marked" if word == "now" else "hinted", "middle"))
    parts.append(line(LEFT, bottom, RIGHT, bottom, "axis"))
    says = _difference(seen, shown, timeout, advised)
    title = "What another timeout would have done"
    return Chart(title, says, drawing(210, title, says, parts, name=name))


def _chosen(changes: Sequence[TimeoutReplay], timeout: float | None, advised: float | None) -> list[TimeoutReplay]:
    """Not more than fit side by side; the one in force and the advised one always."""
    if len(changes) <= _MOST_CHANGES:
        return list(changes)
    must = [change for change in changes if change.visibility in (timeout, advised)]
    others = [change for change in changes if change not in must]
    step = len(others) / (_MOST_CHANGES - len(must))
    some = [others[int(index * step)] for index in range(_MOST_CHANGES - len(must))]
    return sorted([*must, *some], key=lambda change: change.visibility)


def _difference(seen: Behaviour, shown: Sequence[TimeoutReplay], timeout: float | None, advised: float | None) -> str:
    now = next((change for change in shown if change.visibility == timeout), None)
    then = next((change for change in shown if change.visibility == advised), None)
    if now is not None and then is not None and now != then:
        before, after = percent(now.share(seen.messages)), percent(then.share(seen.messages))
        return f"With {duration(advised)} instead of {duration(timeout)}: {before} → {after} duplicates."
    first, last = shown[0], shown[-1]
    return (
        f"From {percent(first.share(seen.messages))} at {duration(first.visibility)} "
        f"to {percent(last.share(seen.messages))} at {duration(last.visibility)}."
    )


def flow(seen: Behaviour | None, series: Series | None, *, name: str) -> Chart | None:
    """Sent, received and deleted over time; by the logs, or where there are none, by the metrics."""
    rows: list[tuple[float, float | None, float | None, float | None]]
    if seen is not None and len(seen.windows) > 1:
        rows = [(window.start, window.sent, window.received, window.deleted) for window in seen.windows]
        source, size = "the logs", seen.window
    elif series is not None and len(series.points) > 1:
        rows = [(point.at, point.sent, point.received, point.deleted) for point in series.points]
        source, size = "the metrics", series.period
    else:
        return None
    group = math.ceil(len(rows) / _MOST_POINTS)
    rows = [_summed(rows[index : index + group]) for index in range(0, len(rows), group)]
    top, bottom = 30.0, 186.0
    steps = round_steps(max((value for row in rows for value in row[1:] if value is not None), default=0.0))
    across, up = Scale(rows[0][0], rows[-1][0], LEFT, RIGHT), Scale(0, steps[-1], bottom, top)
    parts = [upright(up, steps), clock(across, bottom)]
    styles = (("line received", 2), ("line sent", 1), ("line deleted", 3))
    for style, column in styles:
        parts.append(path([_place(across, up, row[0], row[column]) for row in rows], style))
    parts.append(legend([(style, style.split()[1]) for style, _ in styles], 14))
    parts.append(label(LEFT, 218, f"messages in {duration(size * group)}, by {source}; times are UTC"))
    says = _drift(rows)
    title = "Sent, received, deleted"
    return Chart(title, says, drawing(224, title, says, parts, name=name))


def _summed(
    rows: Sequence[tuple[float, float | None, float | None, float | None]],
) -> tuple[float, float | None, float | None, float | None]:
    def total(column: int) -> float | None:
        known = [value for row in rows if (value := row[column]) is not None and math.isfinite(value)]
        return sum(known) if known else None

    return rows[0][0], total(1), total(2), total(3)


def _place(across: Scale, up: Scale, at: float, value: float | None) -> tuple[float, float] | None:
    return None if value is None or not math.isfinite(value) else (across(at), up(value))


def _drift(rows: Sequence[tuple[float, float | None, float | None, float | None]]) -> str:
    sent, received, deleted = (sum(row[column] or 0 for row in rows) for column in (1, 2, 3))
    text = f"{number(sent)} sent, {number(received)} received, {number(deleted)} deleted"
    if received > deleted:
        left = received - deleted
        return f"{text}: {number(left)} deliveries ({percent(left / received)}) ended in no delete."
    return f"{text}."


def level(points: Sequence[Point], what: str, *, name: str) -> Chart | None:
    """Messages in flight, or the age of the oldest, as the metrics have it."""
    group = max(1, math.ceil(len(points) / _MOST_POINTS))
    rows = [_highest(points[index : index + group], what) for index in range(0, len(points), group)]
    known = [value for _, value in rows if value is not None]
    if len(known) < 2 or not max(known):
        return None
    title = "In flight" if what == "in_flight" else "Age of the oldest message"
    write = number if what == "in_flight" else duration
    steps = round_steps(max(known), 3) if what == "in_flight" else round_times(max(known), 3)
    top, bottom = 14.0, 130.0
    across, up = Scale(rows[0][0], rows[-1][0], LEFT, RIGHT), Scale(0, steps[-1], bottom, top)
    style = "line received" if what == "in_flight" else "line oldest"
    parts = [upright(up, steps, short if what == "in_flight" else duration), clock(across, bottom)]
    parts.append(path([_place(across, up, at, value) for at, value in rows], style))
    at, highest = max(((at, value) for at, value in rows if value is not None), key=lambda row: row[1])
    says = f"At most {write(highest)}, at {when(at, seconds=False)} UTC."
    if what == "oldest":
        says += " A message that was received three times or more does not count in this metric."
    return Chart(title, says, drawing(154, title, says, parts, name=name))


def _highest(points: Sequence[Point], what: str) -> tuple[float, float | None]:
    values = (getattr(point, what) for point in points)
    return points[0].at, max((value for value in values if value is not None and math.isfinite(value)), default=None)


def life(duplicate: Duplicate, timeout: float | None, *, name: str) -> str:
    """The life of one message: a lane for each delivery, and where its visibility ended."""
    lanes: dict[tuple[int | None, str | None], list[tuple[float, str]]] = {}
    for event in duplicate.events:
        if math.isfinite(event.at):
            lanes.setdefault((event.receive_count, event.worker), []).append((event.at, event.step))
    times = [at for lane in lanes.values() for at, _ in lane]
    if len(times) < 2 or max(times) <= min(times) or len(lanes) > 6:
        return ""
    start, ends = min(times), max(times)
    across, y = Scale(start, ends, 12, RIGHT), 34.0
    bottom = y + len(lanes) * 40 - 6
    parts = []
    if timeout and start + timeout < ends:
        x = across(start + timeout)
        parts.append(
            line(x, 14, x, bottom, "mark") + beside(x, 12, f"visible again after {duration(timeout)}", "marked")
        )
    for (receive, worker), lane in lanes.items():
        first, last = across(min(at for at, _ in lane)), across(max(at for at, _ in lane))
        words = f"receive {receive}" if receive is not None else "delivery"
        words += f", {clean(worker, 24)}" if worker else ""
        end = clean(max(lane)[1], 20)
        size = (len(end) + 1) * LABEL
        parts.append(label(max(0, min(first, RIGHT - len(words) * LABEL)), y, words))
        parts.append(box(first, y + 6, max(last - first, 3), 14, "good" if receive in (None, 1) else "bad"))
        if last + 6 + size < RIGHT:
            parts.append(label(last + 5, y + 17, end))
        elif last - first > size + 6:
            parts.append(label(last - 4, y + 17, end, "onbar", "end"))
        else:
            parts.append(label(first - 5, y + 17, end, "tick", "end"))
        y += 40
    deliveries = count(len(lanes), "delivery", "deliveries")
    says = f"{deliveries} of message {duplicate.message_id} within {duration(ends - start)}."
    return drawing(bottom + 6, "The life of one message", says, parts, name=name)
