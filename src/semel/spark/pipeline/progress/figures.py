"""A snapshot as lines of text for people. Pure: no terminal, no clock.

The rule: no line is wider than it is told, whatever is in a name, a reason or an error; nothing in them can move the
cursor or begin a line of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from semel.spark.pipeline.progress.snapshot import Snapshot, State

_BARS: Final = "▁▂▃▄▅▆▇█"
_BARS_ASCII: Final = "_.-:=+*#"
_LABEL: Final = 11
_FIGURE: Final = 16
_NARROWEST: Final = 20
_ERROR_LINES: Final = 6


def render(snapshot: Snapshot, width: int, *, ascii_only: bool = False) -> list[str]:
    """What the live display shows, and `status` too."""
    width = max(width, _NARROWEST)
    lines = [_headline(snapshot, width), *figures(snapshot, width), *_error(snapshot, width)]
    lines = [cut(line, width) for line in lines]
    return [_in_ascii(line) for line in lines] if ascii_only else lines


def figures(snapshot: Snapshot, width: int) -> list[str]:
    totals, run = snapshot.totals, snapshot.run
    rate = _row("rate", f"{number(snapshot.rate)} rows/s", sparkline(snapshot.rates, width - _LABEL - _FIGURE - 2))
    kinds = {"redelivered": totals.redelivered, "same key": totals.same_key, "in the ledger": totals.in_ledger}
    return [
        rate,
        _row("waiting", "–" if snapshot.lag is None else number(snapshot.lag), _waiting(snapshot)),
        _row("rows", number(totals.rows), f"{number(totals.received)} received; {number(run.rows)} rows in this run"),
        _row("duplicates", number(totals.duplicates), _parts(kinds) or "none were dropped"),
        _row("rejected", number(totals.rejected), _parts(_largest(totals.rejects)) or "none"),
        _row("batch", f"#{snapshot.batch.number}" if snapshot.batch else "–", _batch(snapshot)),
    ]


def summary(snapshot: Snapshot) -> str:
    """One line, for a log."""
    totals = snapshot.totals
    waiting = "" if snapshot.lag is None else f"{number(snapshot.lag)} waiting, "
    batch = f", batch {snapshot.batch.number} in {seconds(snapshot.batch.seconds)}" if snapshot.batch else ""
    text = (
        f"{clean(snapshot.pipeline)} {snapshot.state}: {number(snapshot.rate)} rows/s, {waiting}"
        f"{number(totals.rows)} rows, {number(totals.duplicates)} duplicates dropped, "
        f"{number(totals.rejected)} rejected{batch}"
    )
    return f"{text}; {clean(snapshot.error)}" if snapshot.error else text


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values as bars; the highest of them is a full one."""
    shown = list(values)[-max(width, 0) :] if width > 0 else []
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in shown)


def number(value: float) -> str:
    """1,234,567; below ten with one decimal, if it has any."""
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 60 else duration(value)


def duration(value: float) -> str:
    """14s, 2m 14s, 3h 05m, 2d 04h."""
    whole = max(0, int(value))
    for size, unit, next_size, next_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // next_size:02d}{next_unit}"
    return f"{whole}s"


def clean(text: str) -> str:
    """Text on one line, without characters that a terminal acts upon."""
    return "".join(char if char.isprintable() else " " for char in text)


def cut(line: str, width: int) -> str:
    line = line.rstrip()
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _headline(snapshot: Snapshot, width: int) -> str:
    left = f"{clean(snapshot.pipeline)} · {snapshot.state} · {duration(snapshot.uptime)}"
    right = f"→ {clean(snapshot.sink)}"
    gap = width - len(left) - len(right)
    return f"{left}{' ' * gap}{right}" if gap >= 2 else f"{left}  {right}"


def _row(label: str, figure: str, rest: str) -> str:
    return f"  {label:<{_LABEL}}{figure:<{_FIGURE - 2}}  {rest}" if rest else f"  {label:<{_LABEL}}{figure}"


def _waiting(snapshot: Snapshot) -> str:
    lag = snapshot.lag
    if lag is None:
        return "not looked yet"
    by_queue = _parts(snapshot.backlog) if len(snapshot.backlog) > 1 else ""
    if not lag or snapshot.rate < 1 or snapshot.state.ended:
        return by_queue or ("in the queue" if lag else "the queue is empty")
    left = f"about {duration(lag / snapshot.rate)} at this rate"
    return f"{left}; {by_queue}" if by_queue else left


def _batch(snapshot: Snapshot) -> str:
    batch = snapshot.batch
    if batch is None:
        return "none yet"
    ago = duration(max(0.0, snapshot.updated - batch.at))
    return f"{number(batch.rows)} rows in {seconds(batch.seconds)}, {ago} ago"


def _parts(counts: Mapping[str, int]) -> str:
    return " · ".join(f"{number(count)} {clean(name)}" for name, count in counts.items() if count)


def _largest(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _error(snapshot: Snapshot, width: int) -> list[str]:
    if not snapshot.error:
        return []
    said = "error" if snapshot.state is State.FAILED else "note"
    lines = textwrap.wrap(f"{said}: {clean(snapshot.error)}", width - 2, max_lines=_ERROR_LINES, placeholder=" …")
    return [f"  {line}" for line in lines]


def _in_ascii(line: str) -> str:
    table = str.maketrans({**dict(zip(_BARS, _BARS_ASCII, strict=True)), "·": "|", "→": ">", "–": "-", "…": "~"})
    return line.translate(table).encode("ascii", "replace").decode()
