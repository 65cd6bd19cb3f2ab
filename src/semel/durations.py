"""Durations as people write and read them.

Every duration can be written in all of these ways: 30, "30s", "500ms", "2h", "1h30m". Every output shows it as `text`.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from semel.errors import SemelError

Duration = float | str | timedelta

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SHOWN: Final = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_PART: Final = re.compile(rf"({_NUMBER.pattern})\s*(ms|[smhd])\s*")


def seconds(duration: Duration) -> float:
    """A duration in seconds, from a number, a timedelta, or a text such as "30", "30s", "500ms", "2h", "1h30m"."""
    match duration:
        case timedelta():
            value = duration.total_seconds()
        case str():
            value = _parse(duration)
        case bool():
            raise SemelError(f"{duration} is not a duration")
        case int() | float():
            value = float(duration)
        case _:
            raise SemelError(f"{duration!r} is not a duration: give seconds, or a text such as '30s' or '2h'")
    if not 0 <= value < math.inf:
        raise SemelError(f"a duration of {duration} is not possible: it must be 0 or more, and finite")
    return value


def _parse(text: str) -> float:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    total, end = 0.0, 0
    while part := _PART.match(text, end):
        total += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    if not end or end != len(text):
        raise SemelError(f"{text!r} is not a duration; durations are written as 30, 500ms, 30s, 5m, 2h, 1d or 1h30m")
    return total


def text(value: float) -> str:
    """Seconds for people: 350 ms, 41.3 s, 2 min 14 s, 1 h 30 min, 4 d. Pass whole seconds for a figure that ticks."""
    value = max(0.0, value)
    if 0 < value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 119.95:
        return f"{value:.1f}".removesuffix(".0") + " s"
    for unit, size, small_unit, small in _SHOWN:
        whole, rest = divmod(round(value / small), size // small)
        if whole:
            return f"{whole} {unit} {rest} {small_unit}" if rest else f"{whole} {unit}"
    raise AssertionError("every duration of two minutes or more has a unit")
