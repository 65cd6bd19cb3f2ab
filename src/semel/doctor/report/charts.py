"""The charts of one queue, each with its message in a sentence, drawn as SVG without a chart library.

The rule: a chart is there only if it has something to show, and all that it shows is also said in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from semel.doctor.model import CAUSES, Behaviour, Duplicate, HistogramBar, Series, TimeoutReplay
from semel.doctor.report import svg
from semel.doctor.report.svg import Scale, Value, box, label, line, round_steps, short
from semel.doctor.text_format import clean, duration, number, share, when
from semel.text import count

WIDTH: Final = 460
LEFT: Final = 50.0
RIGHT: Final = 446.0
CHARACTER: Final = 6.6  # about the width of one
_MOST_REPLAYS: Final = 9
_ROUND_TIMES: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 43_200.0, 864_000.0)


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    sentence: str
    svg: Markup


def charts(
    behaviour: Behaviour | None, series: Series | None, timeout: float | None, recommended: float | None
) -> list[Chart]:
    """All that can be drawn of one queue."""
    drawn = [flow(behaviour, series)]
    if behaviour is not None:
        bars = histogram(behaviour.histogram, timeout, recommended)
        drawn = [bars, causes(behaviour), replays(behaviour, timeout, recommended), *drawn]
    points = series.points if series is not None else ()
    drawn.append(level("In flight", [(point.at, point.in_flight) for point in points], number))
    drawn.append(level("Age of the oldest message", [(point.at, point.oldest) for point in points], duration))
    return [chart for chart in drawn if chart is not None]


def _chart(height: float, title: str, sentence: str, parts: Iterable[Markup]) -> Chart:
    """Title and sentence are what a screen reader says."""
    frame = Markup('<svg viewBox="0 0 {} {:g}" role="img" aria-label="{}">{}</svg>')
    return Chart(title, sentence, frame.format(WIDTH, height, clean(f"{title}. {sentence}"), Markup().join(parts)))


# Axes.


def _upright(scale: Scale, steps: Sequence[float], write: Callable[[float], str] = short) -> Markup:
    """The axis at the left, with a fine line across for each step."""
    parts = []
    for value in steps:
        y = scale(value)
        parts += [line(LEFT, y, RIGHT, y, "grid"), label(LEFT - 6, y + 4, write(value), anchor="end")]
    return Markup().join(parts)


def _durations(scale: Scale, bottom: float) -> Markup:
    """A level axis of durations, by tens."""
    parts, last = [line(LEFT, bottom, RIGHT, bottom, "axis")], -math.inf
    for value in _ROUND_TIMES:
        if scale.low <= value <= scale.high:
            x, words = scale(value), duration(value)
            parts.append(line(x, bottom, x, bottom + 4, "axis"))
            if x - last > (len(words) + 3) * CHARACTER:
                parts.append(label(x, bottom + 17, words, anchor="middle"))
                last = x
    return Markup().join(parts)


def _clock(scale: Scale, bottom: float) -> Markup:
    """A level axis of time."""
    parts = [line(LEFT, bottom, RIGHT, bottom, "axis")]
    for at, words in svg.time_ticks(scale.low, scale.high):
        x = scale(at)
        anchor = "start" if x < LEFT + 8 else "end" if x > RIGHT - 14 else "middle"
        parts += [line(x, bottom, x, bottom + 4, "axis"), label(x, bottom + 17, words, anchor=anchor)]
    return Markup().join(parts)


def _legend(items: Sequence[tuple[str, str]], y: float) -> Markup:
    """(style of the line, word) in a row."""
    parts, x = [], LEFT
    for style, word in items:
        parts += [line(x, y - 4, x + 20, y - 4, style), label(x + 25, y, word)]
        x += 25 + len(word) * CHARACTER + 16
    return Markup().join(parts)


def _marker(x: float, top: float, bottom: float, y: float, words: str, styles: tuple[str, str]) -> Markup:
    """An upright line with its words on the right, or on the left where there is no room."""
    right = x + 5 + len(words) * CHARACTER <= RIGHT
    text = label(x + 5 if right else x - 5, y, words, styles[1], "start" if right else "end")
    return line(x, top, x, bottom, styles[0]) + text


# Durations against the timeout.


def histogram(bars: Sequence[HistogramBar], timeout: float | None, recommended: float | None) -> Chart | None:
    """How long messages are held, with the timeout drawn in. The scale is by tens: short and long work both show."""
    known = [bar for bar in bars if bar.count > 0 and math.isfinite(bar.high)]
    if not known:
        return None
    markers = [marker for marker in (timeout, recommended) if marker]
    low = max(0.001, min([max(known[0].low, 0.001), *markers]))
    high = max([known[-1].high, *(marker * 2 for marker in markers)])
    across = Scale(low, max(high, low * 10), LEFT, RIGHT, log=True)
    top, bottom, steps = 42.0, 196.0, round_steps(max(bar.count for bar in known))
    up = Scale(0, steps[-1], bottom, top)
    parts = [_upright(up, steps)]
    for bar in known:
        y = min(up(bar.count), bottom - 1.5)
        tip = f"{duration(bar.low)} to {duration(bar.high)}: {number(bar.count)}"
        for start, end, style in _cut(bar, timeout):
            width = max(across(end) - across(start) - (0.8 if end == bar.high else 0.0), 1.0)
            parts.append(box(across(start), y, width, bottom - y, style, tip))
    parts.append(_durations(across, bottom))
    if timeout:
        parts.append(_marker(across(timeout), 14, bottom, 22, f"timeout {duration(timeout)}", ("mark", "marked")))
    if recommended and recommended != timeout:
        words = f"better {duration(recommended)}"
        parts.append(_marker(across(recommended), 30, bottom, 37, words, ("hint", "hinted")))
    parts.append(label((LEFT + RIGHT) / 2, 230, "from receive to delete (logarithmic scale)", anchor="middle"))
    return _chart(236, "How long messages are held", _late(known, timeout), parts)


def _late(bars: Sequence[HistogramBar], timeout: float | None) -> str:
    total = sum(bar.count for bar in bars)
    deliveries = count(total, "delivery")
    if timeout is None:
        return f"{deliveries}; the visibility timeout is not known."
    late = sum(bar.count * _beyond(bar, timeout) for bar in bars)
    if not late:
        return f"All of {deliveries} ended within the timeout of {duration(timeout)}."
    about = "About " if any(0 < _beyond(bar, timeout) < 1 for bar in bars) else ""
    return f"{about}{share(late, total)} of {deliveries} took longer than the timeout of {duration(timeout)}."


def _cut(bar: HistogramBar, timeout: float | None) -> list[tuple[float, float, str]]:
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


def causes(behaviour: Behaviour) -> Chart | None:
    """Duplicates by cause, the most frequent first."""
    known = sorted((cause for cause in behaviour.causes if cause.duplicates), key=lambda cause: -cause.duplicates)
    if not known:
        return None
    y, parts = 16.0, []
    scale = Scale(0, known[0].duplicates, 0, RIGHT - 12)
    for cause in known:
        part = f"{number(cause.duplicates)} ({share(cause.duplicates, behaviour.duplicates)})"
        parts += [label(12, y, CAUSES[cause.cause][0], "name"), label(RIGHT, y, part, "name", "end")]
        parts.append(box(12, y + 6, max(scale(cause.duplicates), 2), 10, "soft", count(cause.duplicates, "duplicate")))
        if cause.ran:
            tip = f"the handler ran again for {number(cause.ran)}"
            parts.append(box(12, y + 6, max(scale(cause.ran), 2), 10, "bad", tip))
        y += 38
    parts += [box(12, y - 4, 10, 10, "bad"), label(27, y + 5, "the handler ran again")]
    parts += [box(190, y - 4, 10, 10, "soft"), label(205, y + 5, "recognised: it did not run again")]
    first, ran = CAUSES[known[0].cause][0], number(sum(cause.ran for cause in known))
    sentence = (
        f"{first[0].upper()}{first[1:]}: {share(known[0].duplicates, behaviour.duplicates)} of "
        f"{count(behaviour.duplicates, 'duplicate')}. The handler ran again for {ran}."
    )
    return _chart(y + 14, "Duplicates by cause", sentence, parts)


def replays(behaviour: Behaviour, timeout: float | None, recommended: float | None) -> Chart | None:
    """What another timeout would have changed for the same work."""
    if not behaviour.messages or len({replay.duplicates for replay in behaviour.replays}) < 2:
        return None
    shown = _chosen(behaviour.replays, timeout, recommended)
    steps = round_steps(max(replay.share(behaviour.messages) for replay in shown) * 100)
    top, bottom = 26.0, 172.0
    up, width = Scale(0, steps[-1], bottom, top), (RIGHT - LEFT) / len(shown)
    parts = [_upright(up, steps, lambda value: f"{value:g} %")]
    for index, replay in enumerate(shown):
        x, y = LEFT + index * width, min(up(replay.share(behaviour.messages) * 100), bottom - 1.5)
        bar, words, text = ("soft", "", "hinted")
        if replay.visibility == timeout:
            bar, words, text = ("bad", "now", "marked")
        elif replay.visibility == recommended:
            bar, words = ("better", "better")
        tip = f"{duration(replay.visibility)}: {count(replay.duplicates, 'duplicate')}"
        percent = share(replay.duplicates, behaviour.messages).replace(" ", "").replace("under", "<")
        parts += [
            box(x + 4, y, width - 8, bottom - y, bar, tip),
            label(x + width / 2, y - 5, percent, "tick", "middle"),
            label(x + width / 2, bottom + 17, duration(replay.visibility), anchor="middle"),
            label(x + width / 2, bottom + 32, words, text, "middle"),
        ]
    parts.append(line(LEFT, bottom, RIGHT, bottom, "axis"))
    sentence = _difference(behaviour, shown, timeout, recommended)
    return _chart(210, "The same work with another timeout", sentence, parts)


def _chosen(replays: Sequence[TimeoutReplay], timeout: float | None, recommended: float | None) -> list[TimeoutReplay]:
    """At most as many as fit side by side, always with the timeout in force and the recommended one."""
    if len(replays) <= _MOST_REPLAYS:
        return list(replays)
    kept = [replay for replay in replays if replay.visibility in (timeout, recommended)]
    others = [replay for replay in replays if replay not in kept]
    step = len(others) / (_MOST_REPLAYS - len(kept))
    kept += [others[int(index * step)] for index in range(_MOST_REPLAYS - len(kept))]
    return sorted(kept, key=lambda replay: replay.visibility)


def _difference(
    behaviour: Behaviour, shown: Sequence[TimeoutReplay], timeout: float | None, recommended: float | None
) -> str:
    by_timeout = {replay.visibility: share(replay.duplicates, behaviour.messages) for replay in shown}
    now, then = by_timeout.get(timeout or 0.0), by_timeout.get(recommended or 0.0)
    if now is not None and then is not None and timeout != recommended:
        return f"With {duration(recommended)} instead of {duration(timeout)}: {now} → {then} duplicates."
    (first, before), *_, (last, after) = by_timeout.items()
    return f"From {before} at {duration(first)} to {after} at {duration(last)}."


# Over time.

FlowRow = tuple[float, Value, Value, Value]  # time, sent, received, deleted


def flow(behaviour: Behaviour | None, series: Series | None) -> Chart | None:
    """Sent, received and deleted over time; from the logs, or where there are none, from the metrics."""
    rows: list[FlowRow]
    if behaviour is not None and len(behaviour.windows) > 1:
        rows = [(window.start, window.sent, window.received, window.deleted) for window in behaviour.windows]
        source, size = "the logs", behaviour.window
    elif series is not None and len(series.points) > 1:
        rows = [(point.at, point.sent, point.received, point.deleted) for point in series.points]
        source, size = "the metrics", series.period
    else:
        return None
    size *= math.ceil(len(rows) / svg.MOST_POINTS)
    rows = svg.thinned(rows, _summed)
    at, sent, received, deleted = (list(column) for column in zip(*rows, strict=True))
    lines = {"received": received, "sent": sent, "deleted": deleted}
    steps = round_steps(svg.highest(value for values in lines.values() for value in values) or 0.0)
    parts = _lines(at, lines, steps, 30, 186)
    parts.append(_legend([(f"line {word}", word) for word in lines], 14))
    parts.append(label(LEFT, 218, f"messages per {duration(size)}, from {source}; times are UTC"))
    totals = {word: sum(svg.finite(values)) for word, values in lines.items()}
    sentence = ", ".join(f"{number(totals[word])} {word}" for word in ("sent", "received", "deleted"))
    left = totals["received"] - totals["deleted"]
    if left > 0:
        sentence += f": {number(left)} deliveries ({share(left, totals['received'])}) were not followed by a delete"
    return _chart(224, "Sent, received, deleted", f"{sentence}.", parts)


def _summed(rows: Sequence[FlowRow]) -> FlowRow:
    sent, received, deleted = (
        sum(known) if (known := svg.finite(values)) else None for values in list(zip(*rows, strict=True))[1:]
    )
    return rows[0][0], sent, received, deleted


def level(title: str, points: Sequence[tuple[float, Value]], write: Callable[[float | None], str]) -> Chart | None:
    """The highest values of a metric over time: a number, or a duration."""
    rows = svg.thinned(points, lambda group: (group[0][0], svg.highest(value for _, value in group)))
    known = [(value, at) for at, value in rows if value is not None]
    if len(known) < 2 or not max(known)[0]:
        return None
    highest, at = max(known)
    sentence = f"At most {write(highest)}, at {when(at, seconds=False)} UTC."
    times, values = [at for at, _ in rows], [value for _, value in rows]
    if write is duration:
        sentence += " SQS leaves out messages that were received three times or more."
        parts = _lines(times, {"oldest": values}, svg.round_times(highest, 3), 14, 130, duration)
    else:
        parts = _lines(times, {"received": values}, round_steps(highest, 3), 14, 130)
    return _chart(154, title, sentence, parts)


def _lines(
    at: Sequence[float], lines: Mapping[str, Sequence[Value]], steps: Sequence[float], top: float, bottom: float,
    write: Callable[[float], str] = short,
) -> list[Markup]:  # fmt: skip
    """Axes, and a line for each style."""
    across, up = Scale(at[0], at[-1], LEFT, RIGHT), Scale(0, steps[-1], bottom, top)
    parts = [_upright(up, steps, write), _clock(across, bottom)]
    for style, values in lines.items():
        places = [None if value is None else (across(x), up(value)) for x, value in zip(at, values, strict=True)]
        parts.append(svg.path(svg.path_data(places), f"line {style}"))
    return parts


def timeline(duplicate: Duplicate, timeout: float | None) -> Markup:
    """The deliveries of one message, each on a line of its own, and where the visibility of the first ended."""
    deliveries: dict[tuple[int | None, str | None], list[tuple[float, str]]] = {}
    for event in duplicate.events:
        if math.isfinite(event.at):
            deliveries.setdefault((event.receive_count, event.worker), []).append((event.at, event.step))
    times = [at for steps in deliveries.values() for at, _ in steps]
    if len(times) < 2 or max(times) <= min(times) or len(deliveries) > 6:
        return Markup()
    start, end = min(times), max(times)
    across, y = Scale(start, end, 12, RIGHT), 34.0
    bottom = y + len(deliveries) * 40 - 6
    parts = []
    if timeout and start + timeout < end:
        words = f"visible again after {duration(timeout)}"
        parts.append(_marker(across(start + timeout), 14, bottom, 12, words, ("mark", "marked")))
    for (receive, worker), steps in deliveries.items():
        first, last = across(min(steps)[0]), across(max(steps)[0])
        words = f"receive {receive}" if receive is not None else "delivery"
        words += f", {clean(worker, 24)}" if worker else ""
        outcome = clean(max(steps)[1], 20)
        size = (len(outcome) + 1) * CHARACTER
        parts.append(label(max(0, min(first, RIGHT - len(words) * CHARACTER)), y, words))
        parts.append(box(first, y + 6, max(last - first, 3), 14, "good" if receive in (None, 1) else "bad"))
        if last + 6 + size < RIGHT:
            parts.append(label(last + 5, y + 17, outcome))
        elif last - first > size + 6:
            parts.append(label(last - 4, y + 17, outcome, "onbar", "end"))
        else:
            parts.append(label(first - 5, y + 17, outcome, "tick", "end"))
        y += 40
    sentence = f"{count(len(deliveries), 'delivery')} of message {duplicate.message_id} within {duration(end - start)}."
    return _chart(bottom + 6, "The deliveries of one message", sentence, parts).svg
