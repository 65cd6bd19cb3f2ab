"""The parts of a drawing: a frame, scales, axes and text, as SVG that needs nothing but the page's own style.

The rule: every text is made harmless here, every coordinate is a finite number inside the frame.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from semel.doctor.report.words import clean, duration, number, when

WIDTH: Final = 460
LEFT: Final = 50.0
RIGHT: Final = 446.0
LABEL: Final = 6.6  # about the width of a letter
_ROUND_TIMES: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 43_200.0, 864_000.0)
_CLOCK: Final = (60, 300, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)


def text(value: str, most: int = 2_000) -> str:
    """Foreign text for HTML and SVG: harmless, on one line."""
    return html.escape(clean(value, most))


@dataclass(frozen=True, slots=True)
class Scale:
    """From values between `low` and `high` to places from `start` to `end`; what lies outside is put at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if not math.isfinite(value):
            return self.end if value > 0 else self.start
        low, high, at = self._at(self.low), self._at(self.high), self._at(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def _at(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.log else value


def drawing(height: float, title: str, description: str, parts: Iterable[str], *, name: str) -> str:
    """One picture. `name` is unique on the page; title and description are what a screen reader says."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{text(title)}</title><desc id="{name}-d">{text(description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def box(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> str:
    inside = f"<title>{text(tip)}</title>" if tip else ""
    size = f'width="{max(width, 0.0):.1f}" height="{max(height, 0.0):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} class="{style}">{inside}</rect>'


def label(x: float, y: float, value: str, style: str = "tick", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{text(value)}</text>'


def beside(x: float, y: float, value: str, style: str) -> str:
    """A label next to an upright line at x: on the right of it, or on the left where there is no room."""
    if x + 5 + len(value) * LABEL > RIGHT:
        return label(x - 5, y, value, style, "end")
    return label(x + 5, y, value, style)


def path(points: Sequence[tuple[float, float] | None], style: str) -> str:
    """A line through the points; None is a gap, and a point between two gaps a dot."""
    parts, begun = [], False
    for index, point in enumerate(points):
        if point is None:
            begun = False
            continue
        alone = not begun and (index + 1 == len(points) or points[index + 1] is None)
        parts.append(f"{'L' if begun else 'M'}{point[0]:.1f} {point[1]:.1f}" + ("h0.1" if alone else ""))
        begun = True
    return f'<path d="{"".join(parts)}" class="{style}"/>'


def round_steps(high: float, most: int = 4) -> list[float]:
    """0 and round values up to the first that is not below `high`."""
    if not 0 < high < math.inf:
        return [0.0, 1.0]
    step = 10 ** math.floor(math.log10(high / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if high / (step * factor) <= most)
    return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]


def round_times(high: float, most: int = 4) -> list[float]:
    """The same for durations: in steps that clocks have."""
    if not 60 < high < math.inf:
        return round_steps(high, most)
    step = next((step for step in _CLOCK if high / step <= most), None)
    if step is None:
        return [value * 86_400 for value in round_steps(high / 86_400, most)]
    return [float(step * index) for index in range(math.ceil(high / step) + 1)]


def short(value: float) -> str:
    """A figure for an axis: 950, 12k, 1.5M."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}"
    return number(value)


def upright(scale: Scale, steps: Sequence[float], write: Callable[[float], str] = short) -> str:
    """The axis at the left, with a fine line across for each step."""
    parts = []
    for value in steps:
        y = scale(value)
        parts.append(line(LEFT, y, RIGHT, y, "grid") + label(LEFT - 6, y + 4, write(value), anchor="end"))
    return "".join(parts)


def durations(scale: Scale, bottom: float) -> str:
    """A level axis of durations, by tens."""
    shown = [value for value in _ROUND_TIMES if scale.low <= value <= scale.high]
    parts, last = [line(LEFT, bottom, RIGHT, bottom, "axis")], -math.inf
    for value in shown:
        x, words = scale(value), duration(value)
        parts.append(line(x, bottom, x, bottom + 4, "axis"))
        if x - last > (len(words) + 3) * LABEL:
            parts.append(label(x, bottom + 17, words, anchor="middle"))
            last = x
    return "".join(parts)


def clock(scale: Scale, bottom: float, most: int = 5) -> str:
    """A level axis of time (UTC): hours within a day or two, days beyond."""
    span = scale.high - scale.low
    step = next((step for step in _CLOCK if span / step <= most), _CLOCK[-1] * math.ceil(span / _CLOCK[-1] / most))
    parts = [line(LEFT, bottom, RIGHT, bottom, "axis")]
    at = math.ceil(scale.low / step) * step
    while at <= scale.high:
        x = scale(at)
        words = when(at)[5:10] if step >= 86_400 else when(at)[11:16]
        anchor = "start" if x < LEFT + 8 else "end" if x > RIGHT - 14 else "middle"
        parts.append(line(x, bottom, x, bottom + 4, "axis") + label(x, bottom + 17, words, anchor=anchor))
        at += step
    return "".join(parts)


def legend(items: Sequence[tuple[str, str]], y: float) -> str:
    """(style of the line, word) in a row."""
    parts, x = [], LEFT
    for style, word in items:
        parts.append(line(x, y - 4, x + 20, y - 4, style) + label(x + 25, y, word))
        x += 25 + len(word) * LABEL + 16
    return "".join(parts)
