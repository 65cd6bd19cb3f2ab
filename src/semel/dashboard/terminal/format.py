"""What the terminal's tables show, cell by cell. Pure: values in, texts out.

The rule: no text of a message, a key or an error reaches the terminal as it is. Control characters would move the
cursor or rename the window, and marks of direction would turn the line around: each is shown as a sign instead.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from semel import durations
from semel.dashboard.views.model import (
    InProgress,
    Level,
    MessageDetails,
    QueuePage,
    QueueRow,
    WorkerQueue,
    WorkerRow,
)
from semel.dlq.jobs import Job, State
from semel.dlq.messages import DeadLetterMessage, ErrorGroup

NOT_KNOWN: Final = "–"
BARS: Final = "▁▂▃▄▅▆▇█"
LONGEST_BODY: Final = 64 * 1024  # characters
STYLES: Final = {Level.OK: "green", Level.INFO: "cyan", Level.WARNING: "yellow", Level.CRITICAL: "bold red"}
JOB_STYLES: Final = {
    State.DONE: "green",
    State.FAILED: "bold red",
    State.STOPPED: "bold red",
    State.CANCELLED: "yellow",
    State.INTERRUPTED: "yellow",
    State.PAUSED: "yellow",
}
_HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
Cells = Sequence[Text]
Row = tuple[str, Cells]


def plain(text: str) -> str:
    """Without anything that a terminal would act on; lines and tabs stay."""
    return _HARMFUL.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "·"


def cell(value: object, style: str = "") -> Text:
    return Text(plain(str(value)).replace("\n", "⏎").replace("\t", " "), style=style, no_wrap=True, overflow="ellipsis")


def right(value: object, style: str = "") -> Text:
    text = cell(value, style)
    text.justify = "right"
    return text


def count(number: int | None) -> Text:
    return right(NOT_KNOWN if number is None else f"{number:,}", "" if number else "dim")


def many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def rate(number: float | None) -> Text:
    if number is None:
        return right(NOT_KNOWN, "dim")
    return right(f"{number:,.0f}" if number >= 10 else f"{number:.1f}", "" if number else "dim")


def span(seconds: float | None) -> str:
    return NOT_KNOWN if seconds is None else durations.text(round(seconds))


def bars(values: Sequence[float | None], most: int = 20) -> str:
    """The past as a row of bars; what is not known is a gap."""
    shown = list(values)[-most:]
    top = max((value for value in shown if value is not None), default=0.0)
    if not top:
        return "".join(" " if value is None else BARS[0] for value in shown)
    return "".join(
        " " if value is None else BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in shown
    )


# Queues.

QUEUES: Final = (
    *("Queue", "Visible", "In flight", "Delayed", "Oldest", "In/s", "Out/s", "Deleted/s", "Past", "Alarm"),
    *("Dead letters", "Workers"),
)


def queue(row: QueueRow) -> Row:
    raised = [alarm for alarm in row.alarms if alarm.level in _RAISED]
    quiet = NOT_KNOWN if row.level is Level.UNKNOWN else "ok"
    alarm = row.error or (f"{raised[0].level.value}: {raised[0].name}" if raised else quiet)
    style = STYLES[raised[0].level] if raised else "green" if quiet == "ok" else "dim"
    return row.name, (
        cell(row.name, "bold"),
        count(row.visible),
        count(row.in_flight),
        count(row.delayed),
        right(span(row.oldest_age if row.depth else None), "" if row.depth else "dim"),
        rate(row.rates.sent),
        rate(row.rates.received),
        rate(row.rates.deleted),
        cell(bars(row.history.visible), "cyan"),
        cell(alarm, "bold red" if row.error else style),
        count(row.dead_letters) if row.dead_letter_queue else right(NOT_KNOWN, "dim"),
        count(row.workers),
    )


_RAISED: Final = (Level.WARNING, Level.CRITICAL)

# Dead letters.

DEAD: Final = ("Dead-letter queue", "Letters", "In flight", "Oldest", "First expires in", "From")
OTHERS: Final = "others"  # the key of the group that has no filter
GROUPS: Final = ("Count", "Error", "First", "Last", "From")
LETTERS: Final = ("Message", "Age", "Receives", "Key", "From", "Why")


def dead_letter_queue(row: QueueRow, now: float) -> Row:
    left = None if row.first_expires is None else row.first_expires - now
    soon = left is not None and left < 86_400
    about = "~" if row.estimated else ""
    return row.name, (
        cell(row.name, "bold"),
        count(row.depth),
        count(row.in_flight),
        right(about + span(row.oldest_age)),
        right(about + span(left), "bold red" if soon else ""),
        cell(", ".join(row.sources) or NOT_KNOWN),
    )


def group(found: ErrorGroup, now: float) -> Row:
    return found.where or OTHERS, (
        count(found.count),
        cell(found.shape or found.sample),
        right(f"{span(now - found.first)} ago"),
        right(f"{span(now - found.last)} ago"),
        cell(", ".join(found.sources)),
    )


def message(row: DeadLetterMessage, now: float) -> Row:
    return row.id, (
        cell(row.id),
        right(span(now - row.sent)),
        count(row.receives),
        cell(row.key or NOT_KNOWN),
        cell(row.source or NOT_KNOWN),
        cell(row.why),
    )


# Workers.

WORKERS: Final = ("Worker", "App", "Queue", "State", "At a time", "In hand", "Longest", "Heartbeat", "Up")
HELD: Final = ("Message", "Key", "State", "For", "Attempt", "Fence", "Heartbeat", "Visible for", "Lease for", "Group")


def worker_key(row: WorkerRow, taken: WorkerQueue | None) -> str:
    return f"{row.id}\n{taken.name if taken else ''}"


def worker(row: WorkerRow, taken: WorkerQueue | None, now: float) -> Row:
    """One line for each queue that it takes from."""
    state, style = _state(row, taken)
    held = taken.in_progress if taken else ()
    oldest = max((one.heartbeat_age or 0.0 for one in held), default=None)
    place = f"{row.host}:{row.pid}" if row.pid else row.url
    each = f" ×{row.processes}" if row.processes > 1 else ""
    return worker_key(row, taken), (
        cell(place, "bold"),
        cell(row.app or NOT_KNOWN),
        cell(taken.name if taken else NOT_KNOWN),
        cell(state, style),
        right(NOT_KNOWN if taken is None or taken.concurrency is None else f"{taken.concurrency}{each}"),
        count(taken.in_flight if taken else None),
        right(span(held[0].since) if held else NOT_KNOWN),
        right(span(oldest)),
        right(span(None if row.started is None else now - row.started)),
    )


def _state(row: WorkerRow, taken: WorkerQueue | None) -> tuple[str, str]:
    if row.error:
        return row.error, "bold red"
    if taken is not None and taken.paused:
        return "paused", "yellow"
    if not row.live:
        return "not live", "bold red"
    return ("at work", "green") if row.ready else ("not ready", "yellow")


def held(one: InProgress) -> Row:
    late = one.visible_for is not None and one.visible_for < 5
    return one.message_id, (
        cell(one.message_id),
        cell(one.key or NOT_KNOWN),
        cell(one.state),
        right(span(one.since)),
        count(one.attempt),
        count(one.fence),
        right(span(one.heartbeat_age)),
        right(span(one.visible_for), "bold red" if late else ""),
        right(span(one.lease_for)),
        cell(one.group or NOT_KNOWN),
    )


# Jobs.

JOBS: Final = (
    "Job",
    "What",
    "Queue",
    "State",
    "Done",
    "Of",
    "Failed",
    "Came back",
    "Per second",
    "To go",
    "Who",
    "Reason",
)


def job(found: Job) -> Row:
    state = "pausing" if found.pausing and found.state is not State.PAUSED else found.state.value
    counts = found.counts
    return found.id, (
        cell(found.id),
        cell(found.kind),
        cell(found.queue),
        cell(
            "cancelling" if found.cancelling and not found.state.ended else state, JOB_STYLES.get(found.state, "cyan")
        ),
        count(max(counts.deleted, counts.sent)),
        count(found.total),
        count(counts.failed),
        count(counts.returned),
        rate(found.rate),
        right(span(found.eta)),
        cell(found.who),
        cell(found.reason),
    )


# One thing in full.


def moment(at: float | None) -> str:
    return NOT_KNOWN if not at else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def body(text: str) -> str:
    """JSON indented; what is no JSON, or long, as it is."""
    if len(text) <= LONGEST_BODY:
        try:
            return plain(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
        except (ValueError, RecursionError):
            return plain(text)
    return f"{plain(text[:LONGEST_BODY])}\n… {len(text) - LONGEST_BODY:,} characters more"


def queue_in_full(page: QueuePage) -> Text:
    row, text = page.row, Text()
    _heading(text, row.name)
    _line(text, "visible", f"{row.visible:,}", "in flight", f"{row.in_flight:,}", "delayed", f"{row.delayed:,}")
    _line(text, "oldest", span(row.oldest_age), "dead letters to", row.dead_letter_queue or NOT_KNOWN)
    for name, series in (
        ("visible", page.series.visible),
        ("sent/s", page.series.sent),
        ("deleted/s", page.series.deleted),
    ):
        text.append(f"{name:>12}  ", "dim").append(f"{bars(series, 60)}\n", "cyan")
    if row.alarms:
        _heading(text, "Alarms")
        for alarm in row.alarms:
            text.append(f"{alarm.level.value:>12}  ", STYLES.get(alarm.level, "dim")).append(f"{plain(alarm.text)}\n")
    _heading(text, "Attributes")
    for attribute in page.attributes:
        text.append(f"{plain(attribute.name)} ", "bold").append(f"{plain(attribute.shown)}\n")
        text.append(f"    {plain(attribute.meaning)}\n", "dim")
    return text


def message_in_full(page: MessageDetails) -> Text:
    message, text = page.message, Text()
    _heading(text, message.id)
    _line(text, "queue", message.queue, "sent", moment(message.sent), "receives", str(message.receives))
    _line(
        text, "key", message.key or NOT_KNOWN, "from", message.source or NOT_KNOWN, "group", message.group or NOT_KNOWN
    )
    if message.reason or message.error:
        text.append(f"{plain(message.reason)}: {plain(message.error)}\n", "red")
    if page.stuck:
        _heading(text, "Why it is where it is")
        for sentence in page.stuck:
            text.append(f"· {plain(sentence)}\n")
    _heading(text, "Ledger")
    if page.ledger is None:
        text.append(f"{plain(page.ledger_note)}\n", "dim")
    else:
        known = page.ledger
        _line(text, "status", known.status, "attempt", str(known.attempt), "fence", str(known.fence))
    _heading(text, "Attempts")
    for event in page.trail:
        text.append(f"{moment(event.at)}  ", "dim").append(f"{plain(event.step):<12} ")
        text.append(f"{plain(event.error)}\n", "red")
    if page.trail_note:
        text.append(f"{plain(page.trail_note)}\n", "dim")
    _heading(text, f"Body, {message.body_bytes:,} bytes")
    return text.append(f"{body(message.body)}\n")


def job_in_full(found: Job) -> Text:
    text = Text()
    _heading(text, f"{found.kind} of {found.queue}: {found.state.value}")
    if found.reason:
        text.append(f"{plain(found.reason)}\n", JOB_STYLES.get(found.state, ""))
    for name, value in found.plan.items():
        if value not in (None, "", [], 0, False):
            text.append(f"{name:>20}  ", "dim").append(f"{plain(str(value))}\n")
    _heading(text, "What it said")
    for line in found.messages:
        text.append(f"{moment(line.at)}  ", "dim").append(f"{plain(line.text)}\n")
    return text


def _heading(text: Text, words: str) -> None:
    text.append(f"{chr(10) if len(text) else ''}{plain(words)}\n", "bold underline")


def _line(text: Text, *pairs: str) -> None:
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        text.append(f"{name} ", "dim").append(f"{plain(value)}   ")
    text.append("\n")
