"""Figures, times and states as the templates write them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup

from semel import durations
from semel.dashboard.views.model import (
    Caught,
    DeadLetterPage,
    DeliveriesPage,
    InProgress,
    QueueRow,
    WorkerRow,
)
from semel.dashboard.web import bodies, charts
from semel.dlq.messages import ErrorGroup
from semel.doctor.report.html import prose
from semel.doctor.report.words import clean, duration, number, when
from semel.sqs.client.messages import Attribute

_STEPS: Final = {
    "taken_over": "taken over from an earlier worker",
    "duplicate": "a duplicate: done before, deleted",
    "bounced": "bounced: another worker holds it",
    "held": "came again while it was held",
    "conflict": "refused: its key is known with another payload",
    "lost": "lost: its visibility or lease ran out",
    "recorded": "recorded as done",
    "fenced": "fenced: its record was refused, a newer claim exists",
    "delete_failed": "the delete failed",
    "retried": "failed, to be tried again",
    "ledger_down": "the ledger could not be reached",
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


def iso(at: float | None) -> str:
    try:
        return datetime.fromtimestamp(at or 0.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


def ago(at: float | None, now: float) -> str:
    """ "4 min ago"."""
    if at is None:
        return "–"
    passed = now - at
    if passed < -1:
        return f"in {durations.text(round(-passed))}"
    return f"{durations.text(round(passed))} ago" if passed >= 1 else "now"


def clock(at: float) -> str:
    return when(at)[11:] + f"{at % 1:.3f}"[1:] if at else "–"


def size(value: float) -> str:
    """1,234 B, 12 KiB, 1 MiB."""
    if value < 10_000:
        return f"{number(value)} B"
    return f"{number(value / 1024)} KiB" if value < 1024 * 1024 else f"{value / 1024 / 1024:.3g} MiB"


def foreign_lines(text: str, most: int) -> Markup:
    return bodies.visible(text if len(text) <= most else f"{text[:most]}…")


def pattern(text: str) -> str:
    """For the pattern attribute of an input: exactly this text."""
    return re.sub(r"([.\[\]{}()*+?^$|/\\])", r"\\\1", text)


def step_words(step: str) -> str:
    return _STEPS.get(step, step.replace("_", " "))


def step_tone(step: str) -> str:
    return "good" if step in _GOOD else "bad" if step in _BAD else "guard" if step in _GUARDED else ""


def chip(word: str, tone: str | None = None) -> Markup:
    first = word.split(":")[0].split(" ")[0].lower()
    return Markup('<span class="chip {}" title="{}">{}</span>').format(
        _CHIPS.get(first, "") if tone is None else tone, clean(word, 300), clean(word, 28)
    )


def outcome_chip(word: str) -> Markup:
    return chip(word) if word else Markup('<span class="muted">–</span>')


def job_chip(job: Mapping[str, Any]) -> Markup:
    word = job["state"]
    if job.get("cancelling"):
        word = "cancelling"
    elif job.get("pausing") and word != "paused":
        word = "pausing"
    return chip({"canary": "canary: waiting"}.get(word, word), _CHIPS.get(word, "warning"))


def job_done(job: Mapping[str, Any]) -> int:
    counts = job["counts"]
    return int(
        counts["deleted"] or counts["sent"] or counts["matched"]
        if job.get("plan", {}).get("dry_run")
        else _worked(counts)
    )


def _worked(counts: Mapping[str, int]) -> int:
    return max(counts["deleted"], counts["sent"])


def depth_spark(row: QueueRow) -> Markup:
    columns = zip(row.history.visible, row.history.in_flight, row.history.delayed, strict=False)
    depths = [sum(value or 0 for value in values) for values in columns]
    if not depths:
        return Markup("")
    words = f"Depth: now {number(depths[-1])}, at most {number(max(depths))}, at least {number(min(depths))}"
    return charts.sparkline(depths, words, "red" if row.sources and row.depth else "blue")


def group_share(group: ErrorGroup, page: DeadLetterPage) -> Markup:
    return charts.bar(group.count / max(page.matched, 1), "red")


def caught_share(one: Caught, page: DeliveriesPage) -> Markup:
    return charts.bar(one.count / max(max((other.count for other in page.caught), default=1), 1), "purple")


def held(worker: WorkerRow) -> list[InProgress]:
    """What all its queues have in hand, the longest first."""
    return sorted((one for queue in worker.queues for one in queue.in_progress), key=lambda one: -one.since)


def attribute_text(attribute: Attribute) -> str:
    """Base64 if it is binary."""
    value = attribute.value
    return b64encode(value).decode() if isinstance(value, bytes) else value


FILTERS: Final = {
    "number": number,
    "rate": charts.per_second,
    "seconds": duration,
    "when": when,
    "iso": iso,
    "ago": ago,
    "clock": clock,
    "bytes": size,
    "prose": prose,
    "foreign": bodies.line,
    "attribute_text": attribute_text,
    "foreign_lines": foreign_lines,
    "pattern": pattern,
    "step_words": step_words,
    "step_tone": step_tone,
    "outcome_chip": outcome_chip,
    "job_chip": job_chip,
    "job_done": job_done,
    "depth_spark": depth_spark,
    "group_share": group_share,
    "caught_share": caught_share,
    "held": held,
    "handler": lambda name: name.rpartition(".")[2],
    "of": getattr,
}
