"""What changed since the last examination, for `--watch`: findings that are new, better or worse, or gone."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass

from semel.doctor.model import Diagnosis, Finding, Severity
from semel.doctor.report.json_report import VERSION, value
from semel.doctor.text_format import clean, when

Open = Mapping[tuple[str, str], Finding]  # by queue and rule: what is true now


class Kind(enum.StrEnum):
    NEW = "new"
    CHANGED = "changed"  # better or worse than it was
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Change:
    at: float
    kind: Kind
    finding: Finding


def opened(diagnosis: Diagnosis) -> Open:
    return {(finding.queue, finding.rule): finding for finding in diagnosis.findings}


def since(before: Open, diagnosis: Diagnosis) -> list[Change]:
    """In the order of the diagnosis, the worst first; then what is gone."""
    now, at = opened(diagnosis), diagnosis.made_at
    result = []
    for key, finding in now.items():
        earlier = before.get(key)
        if earlier is None:
            result.append(Change(at, Kind.NEW, finding))
        elif earlier.severity is not finding.severity:
            result.append(Change(at, Kind.CHANGED, finding))
    return result + [Change(at, Kind.GONE, finding) for key, finding in before.items() if key not in now]


def worst(findings: Open) -> Severity | None:
    return max((finding.severity for finding in findings.values()), default=None)


def as_line(change: Change) -> str:
    """One line of JSON."""
    return json.dumps(
        {"version": VERSION, "at": change.at, "change": change.kind.value, "finding": value(change.finding)},
        allow_nan=False,
    )


def as_text(change: Change, *, width: int, colour: bool) -> str:
    from rich.text import Text  # here, because JSON needs no rich

    from semel.doctor.report import text_report

    finding, style = change.finding, text_report.STYLES[None if change.kind is Kind.GONE else change.finding.severity]
    label = Text.assemble((when(change.at)[11:], "dim"), "  ", (change.kind.value, style))
    rule, queue = f"[{clean(finding.rule, 30)}]", clean(finding.queue, 40)
    if change.kind is Kind.GONE:
        items = [text_report.sentence(f"{queue} {rule}")]
    else:
        items = [
            text_report.sentence(f"{finding.severity.word} {queue} {rule}: {clean(finding.observed)}"),
            text_report.sentence(f"→ {clean(finding.remedy.text)}"),
        ]
    return "\n".join(text_report.Printer(width, colour=colour).lines(text_report.labelled(label, *items, width=18)))
