"""A snapshot in words and figures for people. Pure: no terminal, no clock.

The rule: no name, reason or error can move the cursor or begin a line of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from semel import durations
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.text import count

BARS: Final = "▁▂▃▄▅▆▇█"


def headline(snapshot: Snapshot) -> tuple[str, str]:
    uptime = durations.text(int(snapshot.uptime))
    return f"{clean(snapshot.pipeline)} · {snapshot.state} · {uptime}", f"→ {clean(snapshot.sink)}"


def rows(snapshot: Snapshot, bars: int) -> list[tuple[str, str, str]]:
    """Label, figure and details of each line. `bars`: the width of the sparkline."""
    totals = snapshot.totals
    duplicates = {"redelivered": totals.redelivered, "same key": totals.same_key, "in the ledger": totals.in_ledger}
    rejects = dict(sorted(totals.rejects.items(), key=lambda reason: -reason[1]))
    received = f"{number(totals.received)} received; {number(snapshot.run.rows)} rows in this run"
    return [
        ("rate", f"{number(snapshot.rate)} rows/s", sparkline(snapshot.rates, bars)),
        ("waiting", "–" if snapshot.lag is None else number(snapshot.lag), _backlog(snapshot)),
        ("rows", number(totals.rows), received),
        ("duplicates", number(totals.duplicates), _counts(duplicates) or "none were dropped"),
        ("rejected", number(totals.rejected), _counts(rejects) or "none"),
        ("batch", f"#{snapshot.batch.number}" if snapshot.batch else "–", _batch(snapshot)),
    ]


def note(snapshot: Snapshot) -> str:
    """Why it waits, failed or stopped early; "" if there is nothing to say."""
    if snapshot.outage:
        return f"waiting: {clean(snapshot.outage)}"
    kind = "error" if snapshot.state is State.FAILED else "note"
    return f"{kind}: {clean(snapshot.error)}" if snapshot.error else ""


def summary(snapshot: Snapshot) -> str:
    """One line, for a log."""
    totals = snapshot.totals
    waiting = "" if snapshot.lag is None else f"{number(snapshot.lag)} waiting, "
    batch = f", batch {snapshot.batch.number} in {durations.text(snapshot.batch.seconds)}" if snapshot.batch else ""
    text = (
        f"{clean(snapshot.pipeline)} {snapshot.state}: {number(snapshot.rate)} rows/s, {waiting}"
        f"{count(totals.rows, 'row')}, {count(totals.duplicates, 'duplicate')} dropped, "
        f"{number(totals.rejected)} rejected{batch}"
    )
    reason = clean(snapshot.outage or snapshot.error)
    return f"{text}; {reason}" if reason else text


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values as bars; the highest of them is a full bar."""
    shown = values[-width:] if width > 0 else []
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] for value in shown)


def number(value: float) -> str:
    """1,234,567; below ten with one decimal, if it has any."""
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def clean(text: str) -> str:
    """Text on one line, without characters that a terminal acts upon."""
    return "".join(char if char.isprintable() else " " for char in text)


def _backlog(snapshot: Snapshot) -> str:
    lag = snapshot.lag
    if lag is None:
        return "not counted yet"
    by_queue = _counts(snapshot.backlog) if len(snapshot.backlog) > 1 else ""
    if not lag or snapshot.rate < 1 or snapshot.state is not State.RUNNING:
        return by_queue or ("in the queue" if lag else "the queue is empty")
    left = f"about {durations.text(int(lag / snapshot.rate))} at this rate"
    return f"{left}; {by_queue}" if by_queue else left


def _batch(snapshot: Snapshot) -> str:
    batch = snapshot.batch
    if batch is None:
        return "none yet"
    ago = durations.text(int(max(0.0, snapshot.updated - batch.at)))
    return f"{number(batch.rows)} rows in {durations.text(batch.seconds)}, {ago} ago"


def _counts(counts: Mapping[str, int]) -> str:
    return " · ".join(f"{number(count)} {clean(name)}" for name, count in counts.items() if count)
