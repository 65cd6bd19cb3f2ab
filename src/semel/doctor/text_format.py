"""Figures, times, lists and foreign text for people, the same in rules, alarms, reports and on the dashboard.

The rule: text from a log comes out as one line without characters that a terminal or a browser acts upon, and no
figure, however odd, raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from semel import durations
from semel.text import UNKNOWN, moment

_ASCII: Final = str.maketrans("→–−…×·✗✓≥", ">--~x|x+>")


def number(value: float | None) -> str:
    """1,234,567; below ten with one decimal, unless it is whole; 12.3 million from ten million on."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for least, size, word in ((1e12, 1e12, "trillion"), (1e9, 1e9, "billion"), (1e7, 1e6, "million")):
        if abs(value) >= least:
            return f"{value / size:,.4g} {word}"
    return f"{value:,.1f}" if 0 < abs(value) < 10 and value != int(value) else f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """`3.2 %`; never `0 %` if the part is not zero."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if percent >= 10 or percent == 0:
        return f"{percent:.0f} %"
    if percent >= 0.05:
        return f"{percent:.1f} %"
    return "under 0.1 %"


def listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def duration(seconds: float | None) -> str:
    """350 ms, 41.3 s, 1 h 30 min, 4 d; a dash where nothing is known."""
    return UNKNOWN if seconds is None or not math.isfinite(seconds) else durations.text(seconds)


def when(at: float | None, *, seconds: bool = True) -> str:
    """2026-11-15 14:03:22, UTC."""
    text = moment(at)
    return text if seconds else text[:16]


def clean(text: str, most: int = 2_000) -> str:
    """Text on one line, without characters that a terminal or a browser acts upon."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if char.isprintable() else " " for char in cut).strip()


def clean_lines(text: str, most: int = 8_000) -> str:
    """The same for text of several lines, which keep their indents."""
    return "\n".join(
        " " * (len(line) - len(line.lstrip(" "))) + clean(line, most) for line in text[:most].rstrip().split("\n")
    )


def ascii_only(text: str) -> str:
    """For a terminal that knows ASCII only; as wide as before."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
