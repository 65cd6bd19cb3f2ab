"""Small pictures for the pages, as inline SVG: sparklines, lines over time, and what became of the deliveries.

The rules: a picture takes its width from the page and its text keeps its size, so it reads on a phone; it holds no
style and no script of its own; what it shows is also said in words; every coordinate is a finite number.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from semel.dashboard.data.model import Mark
from semel.doctor.report.svg import Scale, round_steps, round_times
from semel.doctor.report.svg import short as short
from semel.doctor.report.words import clean, number, when

SPAN: Final = 1000.0  # across, in the plot's own units; the page stretches them
MOST_POINTS: Final = 180
_CLOCK: Final = (60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_HEIGHT: Final = 126.0
_TOP: Final = 16.0

Value = float | None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `tone` is its colour, `dash` tells it apart without one."""

    name: str
    tone: str
    values: Sequence[Value]
    dash: str = ""
    area: bool = False


def escaped(text: str, most: int = 400) -> str:
    return html.escape(clean(text, most))


def sparkline(values: Sequence[Value], words: str, tone: str = "blue") -> Markup:
    """A line without axes; `words` is what a screen reader says instead."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return Markup("")
    up = Scale(0, max(max(known), 1.0), 24, 2)
    across = Scale(0, max(len(values) - 1, 1), 0, 112)
    line = _path([None if value is None else (across(place), up(value)) for place, value in enumerate(values)])
    return Markup(
        f'<svg class="spark tone-{tone}" viewBox="0 0 112 26" preserveAspectRatio="none" role="img" '
        f'aria-label="{escaped(words)}"><path class="area" d="{_filled(line, 112, 24)}"/>'
        f'<path class="line" d="{line}"/></svg>'
    )


def bar(share: float, tone: str = "blue") -> Markup:
    """A part of a whole, as a thin bar."""
    wide = min(max(share, 0.0), 1.0) * 100 if math.isfinite(share) else 0.0
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rest" width="100" height="6"/>'
        f'<rect class="fill tone-{tone}" width="{wide:.2f}" height="6"/></svg>'
    )


def swatch(tone: str, dash: str = "") -> Markup:
    return Markup(
        f'<svg class="tone-{tone}" viewBox="0 0 14 8" aria-hidden="true">'
        f'<line class="swatch {dash}" x1="2" x2="12" y1="4" y2="4"/></svg>'
    )


def timeline(
    title: str,
    at: Sequence[float],
    lines: Sequence[Line],
    *,
    marks: Sequence[Mark] = (),
    write: Callable[[float], str] = short,
    since: float | None = None,
    until: float | None = None,
    times: bool = False,
) -> Markup:
    """Values over time with a legend that says the newest; "" where there is nothing to draw."""
    at, lines = _thinned(at, lines)
    if len(at) < 2:
        return Markup("")
    low, high = since or at[0], until or at[-1]
    across = Scale(low, max(high, low + 1), 0, SPAN)
    most = max((value for line in lines for value in line.values if value is not None and _known(value)), default=0.0)
    steps = (round_times if times else round_steps)(max(most, 1.0), 3)
    up = Scale(0, steps[-1], _HEIGHT, _TOP)
    parts = [_levels(up, steps), _hours(across), _marks(across, marks)]
    parts.append(
        f'<svg y="0" width="100%" height="{_HEIGHT + 2:g}" viewBox="0 0 {SPAN:g} {_HEIGHT + 2:g}" '
        'preserveAspectRatio="none">'
    )
    for line in lines:
        path = _path([(across(x), up(y)) if y is not None and _known(y) else None for x, y in _pairs(at, line)])
        if line.area:
            parts.append(f'<path class="area tone-{line.tone}" d="{_filled(path, across(at[-1]), _HEIGHT)}"/>')
        parts.append(f'<path class="line tone-{line.tone} {line.dash}" d="{path}"/>')
    parts.append(f'</svg>{_figures(up, steps, write)}<line class="cross" y1="{_TOP - 8:g}" y2="{_HEIGHT:g}"/>')
    return Markup(
        f'<figure class="chart card" data-chart="{_data(at, lines, write, low, high)}">'
        f"<figcaption><h2>{escaped(title)}</h2>{_legend(lines, write)}</figcaption>"
        f'<div class="plot"><svg class="plot-area" height="{_HEIGHT + 22:g}" role="img" '
        f'aria-label="{_said(title, at, lines, write)}">{"".join(parts)}</svg></div></figure>'
    )


def _pairs(at: Sequence[float], line: Line) -> list[tuple[float, Value]]:
    return list(zip(at, line.values, strict=False))


def _known(value: Value) -> bool:
    return value is not None and math.isfinite(value)


def _thinned(at: Sequence[float], lines: Sequence[Line]) -> tuple[Sequence[float], Sequence[Line]]:
    """Not more points than can be told apart; of those that fall together the highest stays."""
    group = math.ceil(len(at) / MOST_POINTS)
    if group <= 1:
        return at, lines
    places = range(0, len(at), group)

    def highest(values: Sequence[Value], place: int) -> Value:
        return max((value for value in values[place : place + group] if value is not None), default=None)

    return [at[min(place + group, len(at)) - 1] for place in places], [
        Line(line.name, line.tone, [highest(line.values, place) for place in places], line.dash, line.area)
        for line in lines
    ]


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    parts, begun = [], False
    for point in points:
        if point is None:
            begun = False
            continue
        parts.append(f"{'L' if begun else 'M'}{point[0]:.1f} {point[1]:.1f}")
        begun = True
    return "".join(parts)


def _filled(path: str, end: float, bottom: float) -> str:
    """The area below a line; of a line with gaps, below its last piece only."""
    last = path[path.rfind("M") :]
    start = last[1:].split(" ")[0] if last else "0"
    return f"{last}L{end:.1f} {bottom:.1f}L{start} {bottom:.1f}Z" if last else ""


def _levels(up: Scale, steps: Sequence[float]) -> str:
    return "".join(
        f'<line class="{"grid" if value else "axis"}" x1="0" x2="100%" y1="{up(value):.1f}" y2="{up(value):.1f}"/>'
        for value in steps
    )


def _figures(up: Scale, steps: Sequence[float], write: Callable[[float], str]) -> str:
    """What each level is; above the lines, so that it can be read."""
    return "".join(
        f'<text class="halo" x="0" y="{up(value) - 3:.1f}">{escaped(write(value))}</text>' for value in steps if value
    )


def _hours(across: Scale, most: int = 5) -> str:
    span = across.high - across.low
    step = next((step for step in _CLOCK if span / step <= most), 86_400 * math.ceil(span / 86_400 / most))
    parts, at = [], math.ceil(across.low / step) * step
    while at <= across.high:
        share = across(at) / SPAN * 100
        words = when(at)[5:10] if step >= 86_400 else when(at)[11:16]
        if 4 <= share <= 96:  # at the edges there is no room for it
            parts.append(f'<text x="{share:.2f}%" y="{_HEIGHT + 16:g}" text-anchor="middle">{words}</text>')
        parts.append(f'<line class="axis" x1="{share:.2f}%" x2="{share:.2f}%" y1="{_HEIGHT:g}" y2="{_HEIGHT + 4:g}"/>')
        at += step
    return "".join(parts)


def _marks(across: Scale, marks: Sequence[Mark]) -> str:
    parts = []
    for mark in marks:
        if not across.low <= mark.at <= across.high:
            continue
        share = across(mark.at) / SPAN * 100
        anchor, aside = ("end", -4) if share > 75 else ("start", 4)
        parts.append(
            f'<line class="marker" x1="{share:.2f}%" x2="{share:.2f}%" y1="2" y2="{_HEIGHT:g}"/>'
            f'<text class="marker-word halo" x="{share:.2f}%" dx="{aside}" y="9" text-anchor="{anchor}">'
            f"{escaped(mark.text, 40)}<title>{escaped(f'{mark.text}, {when(mark.at)} UTC {mark.who}')}</title></text>"
        )
    return "".join(parts)


def _newest(line: Line) -> Value:
    return next((value for value in reversed(line.values) if _known(value)), None)


def _legend(lines: Sequence[Line], write: Callable[[float], str]) -> str:
    parts = []
    for line in lines:
        newest = _newest(line)
        shown = f'<b data-line="{escaped(line.name)}">{escaped(write(newest))}</b>' if newest is not None else ""
        parts.append(f"<span>{swatch(line.tone, line.dash)}{escaped(line.name)} {shown}</span>")
    return f'<div class="legend">{"".join(parts)}</div>'


def _said(title: str, at: Sequence[float], lines: Sequence[Line], write: Callable[[float], str]) -> str:
    told = []
    for line in lines:
        known = [value for value in line.values if value is not None and math.isfinite(value)]
        if known:
            told.append(
                f"{line.name}: now {write(known[-1])}, at most {write(max(known))}, at least {write(min(known))}"
            )
    return escaped(f"{title}, {when(at[0])} to {when(at[-1])} UTC. {'; '.join(told)}.", 1_000)


def _data(at: Sequence[float], lines: Sequence[Line], write: Callable[[float], str], low: float, high: float) -> str:
    """What the pointer shows: places across in thousandths, the time, and each line's value as text."""
    span = max(high - low, 1.0)
    data = {
        "x": [round((one - low) / span, 4) for one in at],
        "t": [when(one)[11:19] for one in at],
        "y": {
            line.name: [write(value) if value is not None and math.isfinite(value) else "–" for value in line.values]
            for line in lines
        },
    }
    return html.escape(json.dumps(data, separators=(",", ":")))


# What became of the deliveries.


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of the deliveries and where it ends."""

    name: str
    text: str
    tone: str
    count: int
    main: bool = False


ROW: Final = 52.0  # the height of one end, as the style has it
MAIN: Final = 136.0  # of the first


def ribbons(streams: Sequence[Stream]) -> Markup:
    """From one block at the left to an end for each stream at the right, as thick as it is large."""
    total = sum(stream.count for stream in streams)
    if not total:
        return Markup("")
    heights = [MAIN if stream.main else ROW for stream in streams]
    height, room = sum(heights), MAIN - 6
    sizes = [max(stream.count / total * room, 2.4) if stream.count else 0.0 for stream in streams]
    start = (height - sum(sizes)) / 2
    parts = [f'<rect class="fill solid tone-soft" x="0" y="{start:.1f}" width="12" height="{sum(sizes):.1f}"/>']
    at = start
    for place, (stream, size) in enumerate(zip(streams, sizes, strict=True)):
        if not size:
            continue
        end = sum(heights[:place]) + (heights[place] - size) / 2
        half, right = SPAN / 2, SPAN - 12
        upper = f"M12 {at:.1f}C{half:g} {at:.1f} {half:g} {end:.1f} {right:g} {end:.1f}"
        lower = f"V{end + size:.1f}C{half:g} {end + size:.1f} {half:g} {at + size:.1f} 12 {at + size:.1f}Z"
        parts.append(
            f'<g class="tone-{stream.tone}"><path d="{upper}{lower}"/>'
            f'<rect class="fill solid" x="{right:g}" y="{end:.1f}" width="12" height="{size:.1f}"/></g>'
        )
        at += size
    words = "; ".join(f"{number(stream.count)} {stream.name}" for stream in streams if stream.count)
    return Markup(
        f'<svg class="ribbons" viewBox="0 0 {SPAN:g} {height:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escaped(f"Of {number(total)} deliveries: {words}")}">{"".join(parts)}</svg>'
    )


def per_second(value: float) -> str:
    """A rate: 0, 0.2, 12, 1,200."""
    return "<0.1" if 0 < value < 0.05 else number(round(value, 1) if value < 10 else round(value))
