"""Numbers, times, states and message bodies as the templates write them.

The rules: nothing in foreign text is ever markup; unprintable characters are shown as symbols; a large body is cut
before any work is done on it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

from semel import durations
from semel.dashboard.views.model import Caught, DeadLetterPage, DeliveriesPage, InProgress, QueueRow, WorkerRow
from semel.dashboard.web import charts
from semel.dlq.messages import ErrorGroup
from semel.doctor.report.html_report import prose
from semel.doctor.text_format import clean, duration, number
from semel.sqs.client.messages import Attribute
from semel.text import UNKNOWN, UNPRINTABLE, indented_json, is_json, json_tokens, moment, symbol

MAX_INDENTED: Final = 256 * 1024  # characters of JSON that are indented
MAX_COLOURED: Final = 24 * 1024  # characters of JSON that are also coloured, which takes an element for each token
MAX_SHOWN: Final = 64 * 1024  # characters of anything else
MAX_EDITABLE: Final = 256 * 1024
_SAMPLE: Final = 4096
_STEPS: Final = {
    "taken_over": "taken over from an earlier worker",
    "duplicate": "duplicate of finished work: deleted, not run",
    "bounced": "returned to the queue: claimed by another worker",
    "held": "redelivered while it was in progress",
    "conflict": "refused: the key is recorded with another payload",
    "lost": "lost: its visibility timeout or lease expired",
    "recorded": "recorded as done",
    "fenced": "fenced: its record was refused, a newer claim exists",
    "delete_failed": "delete failed",
    "retried": "failed, will be retried",
    "ledger_down": "the ledger was unavailable",
}
_GOOD: Final = frozenset({"recorded", "deleted", "sent"})
_BAD: Final = frozenset({"retried", "rejected", "lost", "delete_failed", "ledger_down", "conflict"})
_GUARDED: Final = frozenset({"duplicate", "bounced", "held", "fenced", "taken_over"})
_CHIPS: Final = {
    "done": "ok",
    "running": "info",
    "canary": "info",
    "planned": "",
    "begun": "info",
    "asked": "info",
    "acknowledged;": "ok",
    "paused": "warning",
    "stopped": "bad",
    "failed": "bad",
    "refused": "bad",
    "interrupted": "warning",
    "cancelled": "warning",
}


# Message bodies and other foreign text.


@dataclass(frozen=True, slots=True)
class Body:
    """`kind`: json, text or binary; `note` says what is not shown, "" if all is."""

    html: Markup
    kind: str
    note: str = ""


def body(text: str, size: int) -> Body:
    """A body for a page; `size` is its whole length in bytes."""
    if len(text) <= MAX_INDENTED and is_json(text):
        return Body(_coloured(text) if len(text) <= MAX_COLOURED else visible(indented_json(text)), "json")
    sample = text[:_SAMPLE]
    odd = len(UNPRINTABLE.findall(sample))
    kind = "binary" if odd > 16 and odd > len(sample) * 0.05 else "text"
    if len(text) <= MAX_SHOWN:
        return Body(visible(text), kind)
    note = f"The first {number(MAX_SHOWN // 1024)} KiB of {number(size / 1024)} KiB."
    return Body(visible(text[:MAX_SHOWN]), kind, note)


def visible(text: str) -> Markup:
    """The text without markup, line by line; unprintable characters are shown as symbols."""
    return Markup(UNPRINTABLE.sub(lambda match: f'<span class="symbol">{symbol(match[0])}</span>', str(escape(text))))


def foreign(text: str, limit: int) -> Markup:
    """Foreign text on one line, cut, and isolated from the direction of the text around it."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return Markup("<bdi>{}</bdi>").format(visible(cut.replace("\n", " ").replace("\t", " ")))


def foreign_lines(text: str, limit: int) -> Markup:
    return visible(text if len(text) <= limit else f"{text[:limit]}…")


def attribute_text(attribute: Attribute) -> str:
    """Base64 if it is binary."""
    value = attribute.value
    return b64encode(value).decode() if isinstance(value, bytes) else value


def field_text(text: str) -> str:
    """The text as a form field has it: a browser turns every line end into a newline."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _coloured(text: str) -> Markup:
    return Markup().join(
        Markup('<span class="{}">{}</span>').format(kind, visible(token)) if kind else Markup(token)
        for kind, token in json_tokens(text)
    )


# Numbers and times.


def iso(at: float | None) -> str:
    try:
        return datetime.fromtimestamp(at or 0.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


def ago(at: float | None, now: float) -> str:
    """ "4 min ago"."""
    if at is None:
        return UNKNOWN
    passed = now - at
    if passed < -1:
        return f"in {durations.text(round(-passed))}"
    return f"{durations.text(round(passed))} ago" if passed >= 1 else "now"


def clock(at: float) -> str:
    return moment(at)[11:] + f"{at % 1:.3f}"[1:] if at else UNKNOWN


def size(value: float) -> str:
    """1,234 B, 12 KiB, 1 MiB."""
    if value < 10_000:
        return f"{number(value)} B"
    return f"{number(value / 1024)} KiB" if value < 1024 * 1024 else f"{value / 1024 / 1024:.3g} MiB"


def messages(count: float) -> str:
    """1 message, 1,204 messages."""
    return f"{number(count)} {'message' if count == 1 else 'messages'}"


def pattern(text: str) -> str:
    """A regular expression for exactly this text, for the pattern attribute of an input."""
    return re.sub(r"([.\[\]{}()*+?^$|/\\])", r"\\\1", text)


# States.


def step_text(step: str) -> str:
    return _STEPS.get(step, step.replace("_", " "))


def step_tone(step: str) -> str:
    return "good" if step in _GOOD else "bad" if step in _BAD else "guard" if step in _GUARDED else ""


def chip(text: str, tone: str | None = None) -> Markup:
    first = text.split(":")[0].split(" ")[0].lower()
    return Markup('<span class="chip {}" title="{}">{}</span>').format(
        _CHIPS.get(first, "") if tone is None else tone, clean(text, 300), clean(text, 28)
    )


def outcome_chip(outcome: str) -> Markup:
    return chip(outcome) if outcome else Markup('<span class="muted">–</span>')


def job_chip(job: Mapping[str, Any]) -> Markup:
    state = job["state"]
    if job.get("cancelling"):
        state = "cancelling"
    elif job.get("pausing") and state != "paused":
        state = "pausing"
    return chip({"canary": "canary: waiting"}.get(state, state), _CHIPS.get(state, "warning"))


def job_done(job: Mapping[str, Any]) -> int:
    counts = job["counts"]
    done = max(counts["deleted"], counts["sent"])
    return int(done or counts["matched"] if job.get("plan", {}).get("dry_run") else done)


# Small charts in tables.


def depth_spark(row: QueueRow) -> Markup:
    columns = zip(row.history.visible, row.history.in_flight, row.history.delayed, strict=False)
    depths = [sum(value or 0 for value in values) for values in columns]
    if not depths:
        return Markup("")
    label = f"Depth: now {number(depths[-1])}, highest {number(max(depths))}, lowest {number(min(depths))}"
    return charts.sparkline(depths, label, "red" if row.sources and row.depth else "blue")


def group_share(group: ErrorGroup, page: DeadLetterPage) -> Markup:
    return charts.bar(group.count / max(page.matched, 1), "red")


def caught_share(caught: Caught, page: DeliveriesPage) -> Markup:
    return charts.bar(caught.count / max(max((other.count for other in page.caught), default=1), 1), "purple")


def in_progress(worker: WorkerRow) -> list[InProgress]:
    """The messages in progress of all its queues, the longest first."""
    return sorted(
        (message for queue in worker.queues for message in queue.in_progress), key=lambda message: -message.since
    )


FILTERS: Final = {
    "number": number,
    "rate": charts.per_second,
    "seconds": duration,
    "when": moment,
    "iso": iso,
    "ago": ago,
    "clock": clock,
    "bytes": size,
    "messages": messages,
    "prose": prose,
    "foreign": foreign,
    "foreign_lines": foreign_lines,
    "attribute_text": attribute_text,
    "pattern": pattern,
    "step_text": step_text,
    "step_tone": step_tone,
    "outcome_chip": outcome_chip,
    "job_chip": job_chip,
    "job_done": job_done,
    "depth_spark": depth_spark,
    "group_share": group_share,
    "caught_share": caught_share,
    "in_progress": in_progress,
    "handler": lambda name: name.rpartition(".")[2],
    "of": getattr,
}
