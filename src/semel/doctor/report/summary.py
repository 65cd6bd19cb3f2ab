"""The sentences that every report begins and ends with: how bad it is, what was read, and what was not examined.

A report that is silent about what it did not see would look too good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from semel.doctor.model import Case, Diagnosis, Finding, Quality, Severity
from semel.doctor.text_format import clean, number, when
from semel.text import UNKNOWN, count

NOTHING_TO_EXAMINE: Final = "The input names no queue, or nothing happened in that time."


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not examined, the option that adds it, and what it would show."""

    what: str
    option: str
    shows: str


# By the fields of a case that the input fills.
_INPUTS: Final = {
    ("behaviour",): Gap("logs", "--log PATH", "duplicates, their causes and how long the work takes"),
    ("state",): Gap("queue settings", "--queue URL", "timeouts, dead-letter queue and retention as they are set"),
    ("series",): Gap(
        "metrics", "--metrics FILE", "messages received but not deleted, messages in flight, the oldest message"
    ),
    ("ledger",): Gap("ledger", "--ledger URL", "whether it keeps keys for long enough"),
    ("alarmed", "dlq_alarmed"): Gap("alarms", "--alarms FILE", "dead-letter queues without an alarm"),
}


def gaps(diagnosis: Diagnosis) -> tuple[Gap, ...]:
    """The inputs that are missing for all queues."""
    return tuple(
        gap
        for fields, gap in _INPUTS.items()
        if all(getattr(case, field) is None for case in diagnosis.cases for field in fields)
    )


def worst(case: Case, findings: Sequence[Finding]) -> Severity | None:
    return max((finding.severity for finding in findings if finding.queue == case.queue), default=None)


def worst_first(diagnosis: Diagnosis) -> list[Case]:
    def level(case: Case) -> int:
        severity = worst(case, diagnosis.findings)
        return -1 if severity is None else severity

    return sorted(diagnosis.cases, key=level, reverse=True)


def verdict(findings: Sequence[Finding]) -> str:
    """2 critical, 3 warnings, 1 note."""
    names = ((Severity.CRITICAL, ""), (Severity.WARNING, "warning"), (Severity.INFO, "note"))
    counts = ((sum(finding.severity is level for finding in findings), name) for level, name in names)
    parts = [count(many, name) if name else f"{many} critical" for many, name in counts if many]
    return ", ".join(parts) or "no findings"


def without_findings(diagnosis: Diagnosis) -> str:
    """The sentence for a diagnosis without findings."""
    known = [case.behaviour for case in diagnosis.cases if case.behaviour is not None]
    messages = count(sum(behaviour.messages for behaviour in known), "message")
    if not diagnosis.cases:
        return NOTHING_TO_EXAMINE
    if not known:
        return "All is well, as far as settings and metrics show."
    if any(behaviour.duplicates or behaviour.doubled for behaviour in known):
        return f"All is well: {messages}, and too few duplicates for a finding."
    return f"All is well: {messages}, each delivered once."


def scope(diagnosis: Diagnosis) -> list[str]:
    """What was examined: the period, the events, and the engine."""
    known = [case.behaviour for case in diagnosis.cases if case.behaviour is not None]
    start = diagnosis.since or min((behaviour.first_at for behaviour in known), default=None)
    end = diagnosis.until or max((behaviour.last_at for behaviour in known), default=None)
    events = count(sum(behaviour.events for behaviour in known), "event") if known else ""
    if events and diagnosis.quality is not None and diagnosis.quality.files:
        events += f" in {count(diagnosis.quality.files, 'file')}"
    return [part for part in (period(start, end), events, clean(diagnosis.engine, 200)) if part]


def period(start: float | None, end: float | None) -> str:
    """From start to end; if both are on the same day, the day is written once."""
    first, last = when(start, seconds=False), when(end, seconds=False)
    if first == UNKNOWN or last == UNKNOWN:
        return f"until {last} UTC" if last != UNKNOWN else f"since {first} UTC" if first != UNKNOWN else ""
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def skipped(quality: Quality | None) -> str:
    """One sentence on the parts of the logs that could not be used; empty if all could."""
    if quality is None:
        return ""
    known = (
        (quality.malformed, "line is not JSON", "lines are not JSON"),
        (quality.incomplete, "line has no id or time", "lines have no id or time"),
        (quality.unknown_events, "line has an unknown event", "lines have an unknown event"),
        (quality.out_of_order, "delivery ends before it begins", "deliveries end before they begin"),
        (len(quality.unreadable), "file is unreadable", "files are unreadable"),
        (quality.dropped, "event was dropped by its worker", "events were dropped by their workers"),
    )
    problems = ", ".join(f"{number(many)} {plural if many > 1 else single}" for many, single, plural in known if many)
    lines = f" (of {count(quality.lines, 'line')})" if quality.lines else ""
    words = ", ".join(clean(word, 40) for word in quality.unknown_words)
    more = f"; add --events to say what these mean: {words}" if words else ""
    return f"{problems}{lines}{more}" if problems else ""


def limits(diagnosis: Diagnosis) -> list[str]:
    """How the log was read, and all that this diagnosis does not cover, in sentences."""
    quality = diagnosis.quality or Quality()
    problems = skipped(quality)
    return [
        *(clean(text, 2_000) for text in diagnosis.log_fields),
        *([f"Skipped: {problems}"] if problems else []),
        *(f"Unreadable file: {clean(file, 600)}" for file in quality.unreadable),
        *(f"Skipped line, for example: {clean(sample, 600)}" for sample in quality.samples),
        *(f"Could not be examined: {clean(note, 600)}" for note in diagnosis.notes),
        *(f"Not examined: {gap.what}. Add {gap.option} to see {gap.shows}." for gap in gaps(diagnosis)),
    ]
