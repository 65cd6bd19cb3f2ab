"""Figures, times and foreign text for people, the same in every report and on the dashboard.

The rule: text from a log comes out as one line without characters that a terminal or a browser acts upon; no figure,
however odd, is an error.
"""

from __future__ import annotations

import math
from typing import Final

from semel import durations
from semel.doctor.model import Cause
from semel.text import moment

NONE: Final = "–"
CAUSES: Final = {
    Cause.VISIBILITY: ("visibility timeout expired", "it was still being processed when its visibility timeout ended"),
    Cause.CRASH: ("worker stopped", "its worker stopped without recording an outcome"),
    Cause.LOST_DELETE: ("delete was lost", "its outcome was recorded, and SQS delivered it again"),
    Cause.PRODUCER: ("sent twice", "the producer sent the same key in another message"),
    Cause.REDRIVE: ("redriven", "the same key came in another message after the first had failed"),
    Cause.CONCURRENT: ("delivered twice by SQS", "SQS delivered it again while it was hidden"),
    Cause.UNKNOWN: ("not in these logs", "SQS counts an earlier delivery that these logs do not hold"),
}
_ASCII: Final = str.maketrans("→–−…×·✗✓≥", ">--~x|x+>")


def number(value: float | None) -> str:
    """1,234,567; below ten with one decimal, if it has any; 12.3 million where it is long."""
    if value is None or not math.isfinite(value):
        return NONE
    for least, size, word in ((1e12, 1e12, "trillion"), (1e9, 1e9, "billion"), (1e7, 1e6, "million")):
        if abs(value) >= least:
            return f"{value / size:,.4g} {word}"
    return f"{value:,.1f}" if 0 < abs(value) < 10 and value != int(value) else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """350 ms, 41.3 s, 1 h 30 min, 4 d; a dash where nothing is known."""
    return NONE if seconds is None or not math.isfinite(seconds) else durations.text(seconds)


def when(at: float | None, *, seconds: bool = True) -> str:
    """2026-11-15 14:03:22, UTC."""
    text = moment(at)
    return text if seconds else text.removesuffix(text[16:])


def clean(text: str, most: int = 2_000) -> str:
    """Text on one line, without characters that a terminal or a browser acts upon."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if char.isprintable() else " " for char in cut).strip()


def clean_lines(text: str, most: int = 8_000) -> str:
    """The same for text that may have lines, each with its indent."""
    return "\n".join(
        " " * (len(line) - len(line.lstrip(" "))) + clean(line, most) for line in text[:most].rstrip().split("\n")
    )


def ascii_only(text: str) -> str:
    """For a terminal that knows ASCII only; as wide as before."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
