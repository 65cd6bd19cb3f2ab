"""Figures, times and foreign text as words for people, the same in every report.

The rule: whatever stood in a log comes out as one harmless line; no figure, however odd, is an error.
"""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from semel import durations
from semel.doctor.model import Cause

NONE: Final = "–"
_GLUE: Final = "\N{NO-BREAK SPACE}"
_WITH_UNIT: Final = re.compile(r"(\d) (%|ms|s|min|h|d|million)(?=\W|$)")  # a figure and its unit stay on one line
_SIGNS: Final = str.maketrans("→–−…×·✗✓≥", ">--~x|x+>")
CAUSES: Final = {
    Cause.VISIBILITY: ("visibility timeout ran out", "it was still worked on when its visibility timeout ended"),
    Cause.CRASH: ("worker died", "the worker that had it ended without a word"),
    Cause.LOST_DELETE: ("delete was lost", "its work was done, and SQS delivered it again"),
    Cause.PRODUCER: ("producer sent it twice", "the same key came as another message"),
    Cause.REDRIVE: ("redriven", "the same key came as another message, after the first had failed"),
    Cause.CONCURRENT: ("SQS delivered it twice", "SQS handed it out while it was hidden"),
    Cause.UNKNOWN: ("not in these logs", "SQS counts an earlier delivery that these logs do not hold"),
}


def number(value: float | None) -> str:
    """1,234,567; below ten with one decimal, if it has any; 12.3 million where it is long."""
    if value is None or not math.isfinite(value):
        return NONE
    for least, size, word in ((1e12, 1e12, "trillion"), (1e9, 1e9, "billion"), (1e7, 1e6, "million")):
        if abs(value) >= least:
            return f"{value / size:,.4g} {word}"
    return f"{value:,.1f}" if 0 < abs(value) < 10 and value != int(value) else f"{value:,.0f}"


def count(value: int, one: str, many: str | None = None) -> str:
    """ "1 queue", "3 queues"."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def percent(share: float | None) -> str:
    """3.2 %; never 0 % for something that is there."""
    if share is None or not math.isfinite(share):
        return NONE
    value = share * 100
    if value == 0:
        return "0 %"
    if value < 0.01:
        return "<0.01 %"
    return f"{value:.2f} %" if value < 0.1 else f"{value:.1f} %" if value < 100 else f"{number(round(value))} %"


def duration(seconds: float | None) -> str:
    """350 ms, 41.3 s, 1 h 30 min, 4 d; a dash where nothing is known."""
    return NONE if seconds is None or not math.isfinite(seconds) else durations.text(seconds)


def when(at: float | None, *, seconds: bool = True) -> str:
    """2026-11-15 14:03:22, UTC."""
    try:
        moment = datetime.fromtimestamp(at if at is not None else math.nan, UTC)
    except (ValueError, OverflowError, OSError):
        return NONE
    return moment.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def period(start: float | None, end: float | None) -> str:
    """The window of time that was looked at; the day is said once where it is one."""
    first, last = when(start, seconds=False), when(end, seconds=False)
    if first == NONE or last == NONE:
        return f"until {last}" if last != NONE else f"since {first}" if first != NONE else ""
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def clean(text: str, most: int = 2_000) -> str:
    """Text on one line, without characters that a terminal or a browser acts upon."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if char.isprintable() else " " for char in cut).strip()


def clean_lines(text: str, most: int = 8_000) -> str:
    """The same for text that may have lines, each with its indent."""
    return "\n".join(
        " " * (len(line) - len(line.lstrip(" "))) + clean(line, most) for line in text[:most].rstrip().split("\n")
    )


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese takes two each, an accent on a letter none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fit(text: str, width: int) -> str:
    """The text, cut to `width` columns."""
    if cells(text) <= width:
        return text
    kept = text[: max(width, 0)]
    while kept and cells(kept) > width - 1:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken between words; inside one only where it is longer than a line."""
    lines, line = [], ""
    for word in (part.replace(_GLUE, " ") for part in _WITH_UNIT.sub(rf"\1{_GLUE}\2", text).split(" ") if part):
        joined = f"{line} {word}" if line else word
        if cells(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *full, line = _broken(word, width)
        lines.extend(full)
    return [*lines, line] if line else lines


def _broken(word: str, width: int) -> list[str]:
    parts = []
    while cells(word) > width:
        head = word[:width]
        while len(head) > 1 and cells(head) > width:
            head = head[:-1]
        parts.append(head)
        word = word[len(head) :]
    return [*parts, word]


def ascii_only(text: str) -> str:
    """For a terminal that knows ASCII only; as wide as before."""
    return text.translate(_SIGNS).encode("ascii", "replace").decode("ascii")
