"""Figures as people read them: seconds, shares, counts. One way for rules, advice and alarms."""

from __future__ import annotations

from typing import Final

MINUTE: Final = 60.0
HOUR: Final = 3_600.0
DAY: Final = 86_400.0


def seconds(value: float) -> str:
    """`0.4 s`, `62 s`, `90 min`, `4 days`: the largest unit that needs no more than one decimal."""
    if value >= 2 * DAY or (value >= DAY and value % DAY == 0):
        return _counted(value / DAY, "day")
    if value >= 3 * HOUR:
        return f"{_plain(value / HOUR)} h"
    if value >= 10 * MINUTE:
        return f"{_plain(value / MINUTE)} min"
    if value >= 100 or value == int(value):
        return f"{value:.0f} s"
    return f"{value:.1f} s" if value >= 0.95 else f"{value:.2g} s"


def share(part: float, whole: float) -> str:
    """`3.2 %`; never `0 %` of something that is there."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if percent >= 10 or percent == 0:
        return f"{percent:.0f} %"
    if percent >= 0.05:
        return f"{percent:.1f} %"
    return "under 0.1 %"


def count(value: float, thing: str = "") -> str:
    """`1 message`, `1,204 messages`."""
    return f"{value:,.0f} {thing if round(value) == 1 else _plural(thing)}".strip()


def listed(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _plural(thing: str) -> str:
    if thing.endswith("y") and thing[-2:-1] not in ("a", "e", "o", "u"):
        return f"{thing[:-1]}ies"
    return f"{thing}s" if thing else ""


def _counted(value: float, unit: str) -> str:
    text = _plain(value)
    return f"{text} {unit}{'' if text == '1' else 's'}"


def _plain(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
