"""Shares, counts and lists as people read them: one way for rules, alarms and reports. Durations: `semel.durations`."""

from __future__ import annotations

from collections.abc import Sequence


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


def listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _plural(thing: str) -> str:
    if thing.endswith("y") and thing[-2:-1] not in ("a", "e", "o", "u"):
        return f"{thing[:-1]}ies"
    return f"{thing}s" if thing else ""
