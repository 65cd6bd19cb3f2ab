"""The parts of a drawing, as SVG without style or script: scales, axes, lines, text. Reports and dashboard share them.

The rule: text from elsewhere is cleaned and escaped here, and a scale turns any figure into a place inside the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeVar

from markupsafe import Markup

from semel.doctor.text_format import clean, number, when

MOST_POINTS: Final = 180  # on a line; more cannot be told apart
_STEPS: Final = (60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)

Value = float | None
Place = tuple[float, float]
Coordinate = float | str  # a text is a share of the width: "50%"
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Scale:
    """From values between `low` and `high` to places from `start` to `end`; values outside are put at the edge."""

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


# Figures of an axis.


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
    step = next((step for step in _STEPS if high / step <= most), None)
    if step is None:
        return [value * 86_400 for value in round_steps(high / 86_400, most)]
    return [float(step * index) for index in range(math.ceil(high / step) + 1)]


def time_ticks(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
    """Times between two others, with their text (UTC): hours within a day or two, days beyond."""
    span = high - low
    step = next((step for step in _STEPS if span / step <= most), _STEPS[-1] * math.ceil(span / _STEPS[-1] / most))
    times = (float(step * index) for index in range(math.ceil(low / step), math.floor(high / step) + 1))
    return [(at, when(at)[5:10] if step >= 86_400 else when(at)[11:16]) for at in times]


def short(value: float) -> str:
    """A figure for an axis: 950, 12k, 1.5M."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}"
    return number(value)


# Points of a line.


def thinned(values: Sequence[T], combine: Callable[[Sequence[T]], U]) -> list[U]:
    """No more values than can be told apart; those that fall together are combined."""
    size = max(1, math.ceil(len(values) / MOST_POINTS))
    return [combine(values[index : index + size]) for index in range(0, len(values), size)]


def finite(values: Iterable[Value]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def highest(values: Iterable[Value]) -> Value:
    return max(finite(values), default=None)


def path_data(points: Sequence[Place | None]) -> str:
    """A line through the points; None is a gap, and a point between two gaps a dot."""
    return "".join(f"{_through(piece)}{'h0.1' if len(piece) == 1 else ''}" for piece in _pieces(points))


def area_data(points: Sequence[Place | None], bottom: float) -> str:
    """The area below such a line."""
    return "".join(f"{_through([*piece, (piece[-1][0], bottom), (piece[0][0], bottom)])}Z" for piece in _pieces(points))


def _pieces(points: Sequence[Place | None]) -> list[list[Place]]:
    groups = groupby(points, key=lambda point: point is None)
    return [[point for point in group if point is not None] for is_gap, group in groups if not is_gap]


def _through(piece: Sequence[Place]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in piece)


# Elements.


def _coordinate(value: Coordinate) -> str:
    return value if isinstance(value, str) else f"{value:.1f}"


def line(x1: Coordinate, y1: float, x2: Coordinate, y2: float, style: str) -> Markup:
    places = map(_coordinate, (x1, y1, x2, y2))
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(*places, style)


def box(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> Markup:
    places = map(_coordinate, (x, y, max(width, 0.0), max(height, 0.0)))
    inside = Markup("<title>{}</title>").format(clean(tip)) if tip else ""
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>').format(*places, style, inside)


def label(
    x: Coordinate, y: float, value: str, style: str = "tick", anchor: str = "start", *, dx: float = 0, tip: str = ""
) -> Markup:
    inside = Markup("<title>{}</title>").format(clean(tip)) if tip else ""
    return Markup('<text x="{}" y="{}" dx="{:g}" class="{}" text-anchor="{}">{}{}</text>').format(
        _coordinate(x), _coordinate(y), dx, style, anchor, clean(value), inside
    )


def path(data: str, style: str) -> Markup:
    return Markup('<path d="{}" class="{}"/>').format(data, style)
