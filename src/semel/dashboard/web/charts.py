"""Charts for the pages, as inline SVG: sparklines, lines over time, and the outcomes of deliveries.

The rules: a chart takes its width from the page and its text keeps its size, so it is readable on a phone; it has no
style and no script of its own; its label describes it in words; every coordinate is a finite number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup

from semel.doctor.report import svg
from semel.doctor.report.svg import Scale, Value
from semel.doctor.report.svg import short as short
from semel.doctor.text_format import clean, number, when
from semel.telemetry.annotation_log import Annotation
from semel.text import UNKNOWN

SPAN: Final = 1000.0  # the width of a plot in its own units; the page stretches it
_HEIGHT: Final = 126.0
_TOP: Final = 16.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `tone` is its colour, `dash` distinguishes it without one."""

    name: str
    tone: str
    values: Sequence[Value]
    dash: str = ""
    area: bool = False


def sparkline(values: Sequence[Value], label: str, tone: str = "blue") -> Markup:
    """A line without axes; `label` is for screen readers."""
    known = svg.finite(values)
    if len(known) < 2:
        return Markup()
    up, across = Scale(0, max(*known, 1.0), 24, 2), Scale(0, max(len(values) - 1, 1), 0, 112)
    points = [None if value is None else (across(place), up(value)) for place, value in enumerate(values)]
    drawn = svg.path(svg.area_data(points, 24), "area") + svg.path(svg.path_data(points), "line")
    return Markup(
        '<svg class="spark tone-{}" viewBox="0 0 112 26" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(tone, clean(label), drawn)


def bar(share: float, tone: str = "blue") -> Markup:
    """A part of a whole, as a thin bar."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>'
    ).format(svg.box(0, 0, 100, 6, "rest"), svg.box(0, 0, Scale(0, 1, 0, 100)(share), 6, f"fill tone-{tone}"))


def timeline(
    title: str,
    at: Sequence[float],
    lines: Sequence[Line],
    *,
    annotations: Sequence[Annotation] = (),
    write: Callable[[float], str] = short,
    since: float | None = None,
    until: float | None = None,
    times: bool = False,
) -> Markup:
    """Values over time, the newest in the legend; "" where there is nothing to draw."""
    padding = [None] * len(at)
    lines = [replace(line, values=svg.thinned([*line.values, *padding][: len(at)], svg.highest)) for line in lines]
    at = svg.thinned(at, lambda group: group[-1])
    if len(at) < 2:
        return Markup()
    low, high = since or at[0], until or at[-1]
    across = Scale(low, max(high, low + 1), 0, SPAN)
    most = svg.highest(value for line in lines for value in line.values) or 0.0
    steps = (svg.round_times if times else svg.round_steps)(max(most, 1.0), 3)
    up = Scale(0, steps[-1], _HEIGHT, _TOP)
    levels = [svg.line(0, up(value), "100%", up(value), "grid" if value else "axis") for value in steps]
    # Drawn above the lines, so that they can be read
    figures = [svg.label(0, up(value) - 3, write(value), "halo") for value in steps if value]
    plot = Markup(
        '<svg y="0" width="100%" height="{height:g}" viewBox="0 0 {:g} {height:g}" preserveAspectRatio="none">{}</svg>'
    ).format(SPAN, Markup().join(_drawn(at, line, across, up) for line in lines), height=_HEIGHT + 2)
    cross = svg.line(0, _TOP - 8, 0, _HEIGHT, "cross")
    parts = Markup().join([*levels, *_clock(across), *_annotations(across, annotations), plot, *figures, cross])
    return Markup(
        '<figure class="chart card" data-chart="{}"><figcaption><h2>{}</h2><div class="legend">{}</div></figcaption>'
        '<div class="plot"><svg class="plot-area" height="{:g}" role="img" aria-label="{}">{}</svg></div></figure>'
    ).format(
        _data(at, lines, write, low, high),
        clean(title),
        Markup().join(_legend(line, write) for line in lines),
        _HEIGHT + 22,
        clean(_label(title, at, lines, write)),
        parts,
    )


def _drawn(at: Sequence[float], line: Line, across: Scale, up: Scale) -> Markup:
    values = zip(at, line.values, strict=False)
    points = [None if value is None else (across(x), up(value)) for x, value in values]
    area = svg.path(svg.area_data(points, _HEIGHT), f"area tone-{line.tone}") if line.area else Markup()
    return area + svg.path(svg.path_data(points), f"line tone-{line.tone} {line.dash}")


def _clock(across: Scale) -> list[Markup]:
    parts = []
    for at, words in svg.time_ticks(across.low, across.high):
        share = across(at) / SPAN * 100
        x = f"{share:.2f}%"
        parts.append(svg.line(x, _HEIGHT, x, _HEIGHT + 4, "axis"))
        if 4 <= share <= 96:  # at the edges there is no room for it
            parts.append(svg.label(x, _HEIGHT + 16, words, anchor="middle"))
    return parts


def _annotations(across: Scale, annotations: Sequence[Annotation]) -> list[Markup]:
    parts = []
    for annotation in annotations:
        if across.low <= annotation.at <= across.high:
            share = across(annotation.at) / SPAN * 100
            x, tip = f"{share:.2f}%", f"{annotation.text}, {when(annotation.at)} UTC, {annotation.who}"
            anchor, dx = ("end", -4) if share > 75 else ("start", 4)
            parts.append(svg.line(x, 2, x, _HEIGHT, "marker"))
            parts.append(svg.label(x, 9, clean(annotation.text, 40), "marker-word halo", anchor, dx=dx, tip=tip))
    return parts


def _legend(line: Line, write: Callable[[float], str]) -> Markup:
    newest = svg.finite(line.values)[-1:]
    swatch = svg.line(2, 4, 12, 4, f"swatch {line.dash}")
    shown = Markup('<b data-line="{}">{}</b>').format(line.name, write(newest[0])) if newest else ""
    return Markup('<span><svg class="tone-{}" viewBox="0 0 14 8" aria-hidden="true">{}</svg>{} {}</span>').format(
        line.tone, swatch, clean(line.name), shown
    )


def _label(title: str, at: Sequence[float], lines: Sequence[Line], write: Callable[[float], str]) -> str:
    known = ((line.name, svg.finite(line.values)) for line in lines)
    parts = [
        f"{name}: now {write(values[-1])}, highest {write(max(values))}, lowest {write(min(values))}"
        for name, values in known
        if values
    ]
    return f"{title}, {when(at[0])} to {when(at[-1])} UTC. {'; '.join(parts)}."


def _data(at: Sequence[float], lines: Sequence[Line], write: Callable[[float], str], low: float, high: float) -> str:
    """What is shown under the pointer: positions from 0 to 1, the time, and each line's value as text."""
    span = max(high - low, 1.0)
    data = {
        "x": [round((time - low) / span, 4) for time in at],
        "t": [when(time)[11:19] for time in at],
        "y": {line.name: [UNKNOWN if value is None else write(value) for value in line.values] for line in lines},
    }
    return json.dumps(data, separators=(",", ":"))


# Outcomes of deliveries.


@dataclass(frozen=True, slots=True)
class Stream:
    """Deliveries with the same outcome."""

    name: str
    text: str
    tone: str
    count: int
    main: bool = False


ROW: Final = 52.0  # height of a stream, as in style.css
MAIN: Final = 136.0  # of the main one


def ribbons(streams: Sequence[Stream]) -> Markup:
    """From one block on the left to one for each stream on the right, each as thick as its share."""
    total = sum(stream.count for stream in streams)
    if not total:
        return Markup()
    heights = [MAIN if stream.main else ROW for stream in streams]
    height, room = sum(heights), MAIN - 6
    sizes = [max(stream.count / total * room, 2.4) if stream.count else 0.0 for stream in streams]
    at = (height - sum(sizes)) / 2
    parts = [svg.box(0, at, 12, sum(sizes), "fill solid tone-soft")]
    half, right = SPAN / 2, SPAN - 12
    for place, (stream, size) in enumerate(zip(streams, sizes, strict=True)):
        if not size:
            continue
        end = sum(heights[:place]) + (heights[place] - size) / 2
        upper = f"M12 {at:.1f}C{half:g} {at:.1f} {half:g} {end:.1f} {right:g} {end:.1f}"
        lower = f"V{end + size:.1f}C{half:g} {end + size:.1f} {half:g} {at + size:.1f} 12 {at + size:.1f}Z"
        shapes = svg.path(upper + lower, "") + svg.box(right, end, 12, size, "fill solid")
        parts.append(Markup('<g class="tone-{}">{}</g>').format(stream.tone, shapes))
        at += size
    label = "; ".join(f"{number(stream.count)} {stream.name}" for stream in streams if stream.count)
    return Markup(
        '<svg class="ribbons" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(SPAN, height, clean(f"Of {number(total)} deliveries: {label}"), Markup().join(parts))


def per_second(value: float) -> str:
    """A rate: 0, 0.2, 12, 1,200."""
    return "<0.1" if 0 < value < 0.05 else number(round(value, 1) if value < 10 else round(value))
