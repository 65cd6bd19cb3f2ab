"""Dead letters on a terminal: tables and one letter. Whatever is in a letter, nothing of it steers the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from semel.text import moment as moment
from semel.text import one_line

if TYPE_CHECKING:
    from semel.dlq.audit import AuditEntry
    from semel.dlq.jobs import Job
    from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue, ErrorGroup

plain = one_line
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_ENDLESS: Final = 1_000_000  # columns, where nobody looks at a terminal: a pipe gets all of it


def span(seconds: float | None) -> str:
    """`3d 4h`, `12m 5s`; the two largest units."""
    if seconds is None:
        return "?"
    left, parts = int(max(0.0, seconds)), []
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2]) or "0s"


def size(count: int) -> str:
    if count < 1_024:
        return f"{count} B"
    return f"{count / 1_024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns as wide as they need to be; the last one is cut where the terminal ends."""
    lines = [list(heads), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    room = width()
    shown = []
    for line in lines:
        cells = [
            cell.rjust(widths[place]) if place in right else cell.ljust(widths[place])
            for place, cell in enumerate(line)
        ]
        text = "  ".join(cells).rstrip()
        shown.append(text if len(text) <= room else f"{text[: room - 1]}…")
    return "\n".join(shown)


def width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS


# What there is to see.


def queues(found: Sequence[DeadLetterQueue], now: float) -> str:
    if not found:
        return (
            "there are no dead-letter queues here; give a queue one with a RedrivePolicy, "
            "or run its app once with: semel run APP --create-dlq"
        )
    rows = []
    for info in found:
        about = "~" if info.estimated else ""
        known = info.first_expires is not None
        rows.append(
            (
                info.name,
                f"{info.depth:,}",
                f"{info.in_flight:,}",
                f"{about}{span(info.oldest_age)}" if info.oldest_age is not None else "-" if not info.depth else "?",
                f"{about}{span((info.first_expires or 0) - now)}" if known else "-" if not info.depth else "?",
                ", ".join(info.sources) or "(none)",
            )
        )
    return table(("QUEUE", "LETTERS", "IN FLIGHT", "OLDEST", "FIRST EXPIRES IN", "SOURCES"), rows, right=(1, 2, 3, 4))


def messages(found: Sequence[DeadLetterMessage], now: float) -> str:
    rows = [
        (
            one.id,
            span(now - one.sent) if one.sent else "?",
            str(one.receives),
            one.key or "-",
            one.source or "?",
            one.why[:300],
        )
        for one in found
    ]
    return table(("ID", "AGE", "RECEIVES", "KEY", "SOURCE", "WHY"), rows, right=(1, 2))


def groups(found: Sequence[ErrorGroup], now: float) -> str:
    rows = [
        (f"{one.count:,}", f"{span(now - one.first)} ago", f"{span(now - one.last)} ago", one.fingerprint, one.shape)
        for one in found
    ]
    return table(("COUNT", "FIRST", "LAST", "FINGERPRINT", "ERROR"), rows, right=(0, 1, 2))


def message(one: DeadLetterMessage, now: float) -> str:
    """All of one letter; a body of JSON is unfolded."""
    from semel.dlq import fingerprints

    known: list[tuple[str, str]] = [
        ("message", one.id),
        ("in", one.queue),
        ("from", one.source or "not known"),
        ("why", one.why),
        ("key", one.key or "none: SQS moved it, and its handler's key is not known here"),
        ("sent", f"{moment(one.sent)} UTC, {span(now - one.sent)} ago" if one.sent else "?"),
        ("received", f"{one.receives} times" + (f", first {moment(one.first_received)}" if one.first_received else "")),
    ]
    if one.attempts:
        known.append(("attempts", str(one.attempts)))
    if one.redrives:
        known.append(("sent back", f"{one.redrives} times before"))
    if one.original_id != one.id:
        known.append(("was", one.original_id))
    if one.group:
        known.append(("group", one.group))
    if one.state:
        visible = f" until {moment(one.visible_at)}" if one.visible_at else ""
        known.append(("state", one.state.replace("_", " ") + visible))
    if one.expires:
        known.append(("expires", f"{moment(one.expires)} UTC, in {span(one.expires - now)}"))
    known.append(("fingerprint", fingerprints.of(one)))
    for name, value in sorted(one.attributes.items()):
        text = f"{len(value.value)} bytes" if isinstance(value.value, bytes) else value.value
        known.append((f"  {name}", f"{text}  ({value.type})"))
    widest = max(len(name) for name, _ in known)
    head = "\n".join(f"{name:<{widest}}  {plain(value)}" for name, value in known)
    return f"{head}\n\n{body(one.body)}  ({size(one.body_bytes)})" if one.body else f"{head}\n\n(no body)"


def body(text: str) -> str:
    try:
        parsed: Any = json.loads(text)
        shown = json.dumps(parsed, indent=2, ensure_ascii=False) if isinstance(parsed, dict | list) else text
    except (ValueError, RecursionError):
        shown = text
    return "\n".join(plain(line) for line in shown.split("\n"))


def jobs(found: Sequence[Job]) -> str:
    if not found:
        return "there are no jobs; a redrive, a drop or a restore makes one"
    rows = [
        (
            job.id,
            job.kind,
            job.queue,
            str(job.state),
            f"{job.counts.sent:,}",
            f"{job.counts.deleted:,}",
            f"{job.counts.failed:,}",
            job.reason,
        )
        for job in found
    ]
    return table(("JOB", "KIND", "QUEUE", "STATE", "SENT", "DELETED", "FAILED", "WHY"), rows, right=(4, 5, 6))


def audit(found: Sequence[AuditEntry]) -> str:
    if not found:
        return "the audit log has nothing like that"
    rows = []
    for entry in found:
        details = [f"{name}={value}" for name, value in entry.details.items()]
        count = "" if entry.count is None else f"{entry.count:,}"
        where = [f"where {entry.where}"] if entry.where else []
        rows.append(
            (
                moment(entry.at),
                entry.who,
                entry.action,
                entry.queue,
                count,
                "; ".join([entry.outcome, *where, *details]),
            )
        )
    return table(("WHEN (UTC)", "WHO", "WHAT", "QUEUE", "COUNT", "OUTCOME"), rows, right=(4,))
