"""The cells of the terminal's tables, and all details of one item. Pure: values in, text out.

The rule: foreign text goes through `semel.text.printable`, so that nothing in it controls the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from semel import durations
from semel.dashboard.views.model import (
    RAISED,
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
from semel.text import UNKNOWN, indented_json, is_json, moment, printable

BARS: Final = "▁▂▃▄▅▆▇█"
MAX_BODY: Final = 64 * 1024  # characters
STYLES: Final = {Level.OK: "green", Level.INFO: "cyan", Level.WARNING: "yellow", Level.CRITICAL: "bold red"}
JOB_STYLES: Final = {
    State.DONE: "green",
    State.FAILED: "bold red",
    State.STOPPED: "bold red",
    State.CANCELLED: "yellow",
    State.INTERRUPTED: "yellow",
    State.PAUSED: "yellow",
}
Cells = Sequence[Text]
Row = tuple[str, Cells]


def cell(value: object, style: str = "") -> Text:
    return Text(
        printable(str(value)).replace("\n", "⏎").replace("\t", " "), style=style, no_wrap=True, overflow="ellipsis"
    )


def right(value: object, style: str = "") -> Text:
    text = cell(value, style)
    text.justify = "right"
    return text


def count(number: int | None) -> Text:
    return right(UNKNOWN if number is None else f"{number:,}", "" if number else "dim")


def rate(number: float | None) -> Text:
    if number is None:
        return right(UNKNOWN, "dim")
    return right(f"{number:,.0f}" if number >= 10 else f"{number:.1f}", "" if number else "dim")


def span(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else durations.text(round(seconds))


def bars(values: Sequence[float | None], most: int = 20) -> str:
    """Values over time as a row of bars; an unknown one is a gap."""
    shown = list(values)[-most:]
    top = max((value for value in shown if value is not None), default=0.0)
    if not top:
        return "".join(" " if value is None else BARS[0] for value in shown)
    return "".join(
        " " if value is None else BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in shown
    )


# Queues.

QUEUES: Final = (
    *("Queue", "Visible", "In flight", "Delayed", "Oldest", "Sent/s", "Received/s", "Deleted/s", "Depth", "Alarm"),
    *("In DLQ", "Workers"),
)


def queue(row: QueueRow) -> Row:
    raised = [alarm for alarm in row.alarms if alarm.level in RAISED]
    quiet = UNKNOWN if row.level is Level.UNKNOWN else "ok"
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
        count(row.dead_letters) if row.dead_letter_queue else right(UNKNOWN, "dim"),
        count(row.workers),
    )


# Dead-letter queues.

DEAD_LETTER_QUEUES: Final = (
    "Dead-letter queue",
    "Messages",
    "In flight",
    "Oldest",
    "First expires in",
    "Source queues",
)
OTHERS: Final = "others"  # the key of the group that has no filter
GROUPS: Final = ("Messages", "Error", "First", "Last", "Source queues")
MESSAGES: Final = ("Message", "Age", "Receives", "Key", "Source queue", "Error")


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
        cell(", ".join(row.sources) or UNKNOWN),
    )


def group(row: ErrorGroup, now: float) -> Row:
    return row.where or OTHERS, (
        count(row.count),
        cell(row.shape or row.sample),
        right(f"{span(now - row.first)} ago"),
        right(f"{span(now - row.last)} ago"),
        cell(", ".join(row.sources)),
    )


def message(row: DeadLetterMessage, now: float) -> Row:
    return row.id, (
        cell(row.id),
        right(span(now - row.sent)),
        count(row.receives),
        cell(row.key or UNKNOWN),
        cell(row.source or UNKNOWN),
        cell(row.why),
    )


# Workers.

WORKERS: Final = ("Worker", "App", "Queue", "State", "Concurrency", "In progress", "Longest", "Heartbeat", "Uptime")
IN_PROGRESS: Final = (
    *("Message", "Key", "State", "Duration", "Attempt", "Fence", "Heartbeat", "Hidden for", "Lease for", "Group"),
)


def worker_key(row: WorkerRow, queue: WorkerQueue | None) -> str:
    return f"{row.id}\n{queue.name if queue else ''}"


def worker(row: WorkerRow, queue: WorkerQueue | None, now: float) -> Row:
    """A worker has a row for each of its queues."""
    state, style = _state(row, queue)
    messages = queue.in_progress if queue else ()
    oldest = max((message.heartbeat_age or 0.0 for message in messages), default=None)
    processes = f" ×{row.processes}" if row.processes > 1 else ""
    return worker_key(row, queue), (
        cell(f"{row.host}:{row.pid}" if row.pid else row.url, "bold"),
        cell(row.app or UNKNOWN),
        cell(queue.name if queue else UNKNOWN),
        cell(state, style),
        right(UNKNOWN if queue is None or queue.concurrency is None else f"{queue.concurrency}{processes}"),
        count(queue.in_flight if queue else None),
        right(span(messages[0].since) if messages else UNKNOWN),
        right(span(oldest)),
        right(span(None if row.started is None else now - row.started)),
    )


def _state(row: WorkerRow, queue: WorkerQueue | None) -> tuple[str, str]:
    if row.error:
        return row.error, "bold red"
    if queue is not None and queue.paused:
        return "paused", "yellow"
    if not row.live:
        return "not healthy", "bold red"
    return ("running", "green") if row.ready else ("not ready", "yellow")


def in_progress(message: InProgress) -> Row:
    late = message.visible_for is not None and message.visible_for < 5
    return message.message_id, (
        cell(message.message_id),
        cell(message.key or UNKNOWN),
        cell(message.state),
        right(span(message.since)),
        count(message.attempt),
        count(message.fence),
        right(span(message.heartbeat_age)),
        right(span(message.visible_for), "bold red" if late else ""),
        right(span(message.lease_for)),
        cell(message.group or UNKNOWN),
    )


# Jobs.

JOBS: Final = (
    *("Job", "Kind", "Queue", "State", "Done", "Total", "Failed", "Came back", "Rate/s", "Time left", "Who", "Reason"),
)


def job(job: Job) -> Row:
    state, counts = job.state.value, job.counts
    if job.cancelling and not job.state.ended:
        state = "cancelling"
    elif job.pausing and job.state is not State.PAUSED:
        state = "pausing"
    return job.id, (
        cell(job.id),
        cell(job.kind),
        cell(job.queue),
        cell(state, JOB_STYLES.get(job.state, "cyan")),
        count(max(counts.deleted, counts.sent)),
        count(job.total),
        count(counts.failed),
        count(counts.returned),
        rate(job.rate),
        right(span(job.eta)),
        cell(job.who),
        cell(job.reason),
    )


# All details of one item.


def body(text: str) -> str:
    """JSON is indented; a long body is cut."""
    if len(text) > MAX_BODY:
        return f"{printable(text[:MAX_BODY])}\n… {len(text) - MAX_BODY:,} more characters"
    return printable(indented_json(text) if is_json(text) else text)


def queue_in_full(page: QueuePage) -> Text:
    row, text = page.row, Text()
    _heading(text, row.name)
    _line(text, "visible", f"{row.visible:,}", "in flight", f"{row.in_flight:,}", "delayed", f"{row.delayed:,}")
    _line(text, "oldest", span(row.oldest_age), "dead-letter queue", row.dead_letter_queue or UNKNOWN)
    for name, series in (
        ("visible", page.series.visible),
        ("sent/s", page.series.sent),
        ("deleted/s", page.series.deleted),
    ):
        text.append(f"{name:>12}  ", "dim").append(f"{bars(series, 60)}\n", "cyan")
    if row.alarms:
        _heading(text, "Alarms")
        for alarm in row.alarms:
            text.append(f"{alarm.level.value:>12}  ", STYLES.get(alarm.level, "dim")).append(
                f"{printable(alarm.text)}\n"
            )
    _heading(text, "Attributes")
    for attribute in page.attributes:
        text.append(f"{printable(attribute.name)} ", "bold").append(f"{printable(attribute.shown)}\n")
        text.append(f"    {printable(attribute.meaning)}\n", "dim")
    return text


def message_in_full(page: MessageDetails) -> Text:
    message, text = page.message, Text()
    _heading(text, message.id)
    _line(text, "queue", message.queue, "sent", f"{moment(message.sent)} UTC", "receives", str(message.receives))
    _line(
        text,
        "key",
        message.key or UNKNOWN,
        "source queue",
        message.source or UNKNOWN,
        "group",
        message.group or UNKNOWN,
    )
    if message.reason or message.error:
        text.append(f"{printable(message.reason)}: {printable(message.error)}\n", "red")
    if page.stuck:
        _heading(text, "State")
        for sentence in page.stuck:
            text.append(f"· {printable(sentence)}\n")
    _heading(text, "Ledger")
    if page.ledger is None:
        text.append(f"{printable(page.ledger_note)}\n", "dim")
    else:
        entry = page.ledger
        _line(text, "status", entry.status, "attempt", str(entry.attempt), "fence", str(entry.fence))
    _heading(text, "Attempts")
    for event in page.trail:
        text.append(f"{moment(event.at)} UTC  ", "dim").append(f"{printable(event.step):<12} ")
        text.append(f"{printable(event.error)}\n", "red")
    if page.trail_note:
        text.append(f"{printable(page.trail_note)}\n", "dim")
    _heading(text, f"Body, {message.body_bytes:,} bytes")
    return text.append(f"{body(message.body)}\n")


def job_in_full(job: Job) -> Text:
    text = Text()
    _heading(text, f"{job.kind} of {job.queue}: {job.state.value}")
    if job.reason:
        text.append(f"{printable(job.reason)}\n", JOB_STYLES.get(job.state, ""))
    for name, value in job.plan.items():
        if value not in (None, "", [], 0, False):
            text.append(f"{name:>20}  ", "dim").append(f"{printable(str(value))}\n")
    _heading(text, "Log")
    for line in job.messages:
        text.append(f"{moment(line.at)} UTC  ", "dim").append(f"{printable(line.text)}\n")
    return text


def _heading(text: Text, title: str) -> None:
    text.append(f"{chr(10) if len(text) else ''}{printable(title)}\n", "bold underline")


def _line(text: Text, *pairs: str) -> None:
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        text.append(f"{name} ", "dim").append(f"{printable(value)}   ")
    text.append("\n")
