"""What is new since the last look, for `--watch`: findings that became true, changed, or are gone."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass

from semel.doctor.model import Diagnosis, Finding, Severity
from semel.doctor.report.json import VERSION
from semel.doctor.report.json import finding as as_json
from semel.doctor.report.paint import Paint
from semel.doctor.report.words import cells, clean, fit, when, wrap

Open = Mapping[tuple[str, str], Finding]  # by queue and rule: what is true now


class Kind(enum.StrEnum):
    NEW = "new"
    CHANGED = "changed"  # better or worse than it was
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class News:
    at: float
    kind: Kind
    finding: Finding


def opened(diagnosis: Diagnosis) -> Open:
    return {(finding.queue, finding.rule): finding for finding in diagnosis.findings}


def news(before: Open, diagnosis: Diagnosis) -> list[News]:
    """In the order of the diagnosis, the worst first; then what is gone."""
    now = opened(diagnosis)
    found = []
    for place, finding in now.items():
        earlier = before.get(place)
        if earlier is None:
            found.append(News(diagnosis.made_at, Kind.NEW, finding))
        elif earlier.severity is not finding.severity:
            found.append(News(diagnosis.made_at, Kind.CHANGED, finding))
    found += [News(diagnosis.made_at, Kind.GONE, finding) for place, finding in before.items() if place not in now]
    return found


def worst(findings: Open) -> Severity | None:
    return max((finding.severity for finding in findings.values()), default=None)


def as_line(one: News) -> str:
    """One line of JSON."""
    return json.dumps(
        {"version": VERSION, "at": one.at, "change": one.kind.value, "finding": as_json(one.finding)}, allow_nan=False
    )


def as_text(one: News, *, width: int, colour: bool) -> str:
    paint, finding = Paint(colour), one.finding
    time, rule = when(one.at)[11:], f"[{fit(clean(finding.rule, 40), 30)}]"
    label = f"{one.kind:<8}"
    start = cells(time) + 2 + len(label)
    if one.kind is Kind.GONE:
        text = f"{fit(clean(finding.queue, 200), 40)} {rule}"
        return f"{paint.dim(time)}  {paint.good(label)}{fit(text, width - start)}"
    text = f"{finding.severity.word} {fit(clean(finding.queue, 200), 40)}: {clean(finding.observed)} {rule}"
    first, *more = [*wrap(text, width - start), *wrap(f"→ {clean(finding.remedy.text)}", width - start)]
    lines = [f"{paint.dim(time)}  {paint.severity(label, finding.severity)}{first}"]
    return "\n".join([*lines, *(" " * start + line for line in more)])
