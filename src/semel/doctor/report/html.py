"""A diagnosis as one HTML file: readable offline, without a script, on a phone, on paper and by a screen reader.

The rule: the page loads nothing and runs nothing (its own policy forbids it), and whatever stood in a log is text.
"""

from __future__ import annotations

from typing import Final

from semel.doctor import recommendations
from semel.doctor.model import Case, Diagnosis, Finding, Severity
from semel.doctor.report import html_findings, html_queue
from semel.doctor.report.gaps import gaps
from semel.doctor.report.html_parts import chip, paragraph, prose, table
from semel.doctor.report.style import CSS, POLICY
from semel.doctor.report.svg import text
from semel.doctor.report.text import all_is_well, troubles, verdict
from semel.doctor.report.words import NONE, count, duration, number, percent, period, when
from semel.version import __version__

_NOT_HERE: Final = "What was given names no queue, or nothing happened in that time."


def render(diagnosis: Diagnosis) -> str:
    cases = sorted(diagnosis.cases, key=lambda case: -_level(case, diagnosis))
    names = {case.queue: f"queue-{index}" for index, case in enumerate(cases, 1)}
    body = [_head(diagnosis), "<main>"]
    if cases:
        body.append(_glance(cases, diagnosis, names))
    body.append(_findings(diagnosis, names))
    for case in cases:
        mine = [one for one in diagnosis.recommendations if one.queue == case.queue]
        body.append(
            html_queue.section(
                case, mine, recommendations.visibility(case), worst=_worst(case, diagnosis), name=names[case.queue]
            )
        )
    body += [_trust(diagnosis), "</main>", _foot()]
    return _document(diagnosis, "\n".join(body))


def _findings(diagnosis: Diagnosis, names: dict[str, str]) -> str:
    """Notes are folded where there is worse to look at."""
    timeouts = {case.queue: case.visibility for case in diagnosis.cases}
    cards = [
        html_findings.card(finding, timeouts.get(finding.queue), names.get(finding.queue), name=f"finding-{index}")
        for index, finding in enumerate(diagnosis.findings, 1)
    ]
    worse = sum(finding.severity > Severity.INFO for finding in diagnosis.findings)
    shown, folded = (cards[:worse], cards[worse:]) if worse else (cards, [])
    if folded:
        shown.append(f"<details><summary>{count(len(folded), 'note')}</summary><div>{''.join(folded)}</div></details>")
    return "".join(["<h2>Findings</h2>", *shown]) if shown else ""


def _document(diagnosis: Diagnosis, body: str) -> str:
    title = f"SQS doctor: {verdict(diagnosis.findings)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<title>{text(title)}</title>\n<link rel="icon" href="data:,">\n<style>{CSS}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _level(case: Case, diagnosis: Diagnosis) -> int:
    worst = _worst(case, diagnosis)
    return -1 if worst is None else int(worst)


def _worst(case: Case, diagnosis: Diagnosis) -> Severity | None:
    return max((finding.severity for finding in diagnosis.findings if finding.queue == case.queue), default=None)


def _head(diagnosis: Diagnosis) -> str:
    seen = [case.behaviour for case in diagnosis.cases if case.behaviour is not None]
    start = diagnosis.since or min((one.first_at for one in seen), default=None)
    end = diagnosis.until or max((one.last_at for one in seen), default=None)
    parts = [period(start, end), f"{count(sum(one.events for one in seen), 'event')} in the logs" if seen else ""]
    parts.append(f"made {when(diagnosis.made_at, seconds=False)} UTC")
    return (
        f'<header><h1>SQS doctor’s report</h1><p class="muted">{text(" · ".join(part for part in parts if part))}</p>'
        f"{_verdict(diagnosis)}</header>"
    )


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.cases:
        return f'<div class="verdict info"><strong>Nothing to look at</strong>{paragraph(_NOT_HERE)}</div>'
    worst = diagnosis.worst
    if worst is None:
        return f'<div class="verdict"><strong>{text(all_is_well(diagnosis))}</strong></div>'
    first: Finding = diagnosis.findings[0]
    where = f"{verdict(diagnosis.findings)} in {count(len(diagnosis.cases), 'queue')}"
    return (
        f'<div class="verdict {worst.word}"><strong>{text(where[0].upper() + where[1:])}</strong>'
        f"<p>The worst, in {text(first.queue, 120)}: {prose(first.observed, 600)}</p></div>"
    )


def _glance(cases: list[Case], diagnosis: Diagnosis, names: dict[str, str]) -> str:
    titles = (
        ("queue", ""), ("messages", "n"), ("attempts", "n spare"), ("duplicates", "n spare"), ("duplicate share", "n"),
        ("time wasted", "n spare"), ("doubled", "n"),
    )  # fmt: skip
    rows = []
    for case in cases:
        seen = case.behaviour
        link = f'<a href="#{names[case.queue]}">{text(case.queue, 120)}</a> {chip(_worst(case, diagnosis))}'
        if seen is None:
            rows.append([link, *[NONE] * 6])
            continue
        figures = (number(seen.messages), number(seen.attempts), number(seen.duplicates), percent(seen.duplicate_share))
        rows.append([link, *figures, duration(round(seen.wasted)) if seen.wasted else NONE, number(seen.doubled)])
    return f'<h2>Queues</h2><div class="card">{table("Queues at a glance", titles, rows, unseen=True)}</div>'


def _trust(diagnosis: Diagnosis) -> str:
    told = [trouble] if (trouble := troubles(diagnosis.quality)) else []
    quality = diagnosis.quality
    if quality is not None:
        told += [f"Unreadable: {one}" for one in quality.unreadable]
        told += [f"No JSON, for example: {sample}" for sample in quality.samples]
    told += [f"Could not be looked at: {note}" for note in diagnosis.notes]
    told += [f"Not looked at: {gap.what}. {gap.option} would show {gap.shows}." for gap in gaps(diagnosis)]
    told = told or ["Everything that was given could be read."]
    items = "".join(f"<li>{text(one[0].upper() + one[1:], 600)}</li>" for one in told)
    return f'<h2>How far this can be trusted</h2><div class="card"><ul>{items}</ul></div>'


def _foot() -> str:
    return (
        f"<footer>Made by semel doctor {text(__version__)}. Times are UTC. A duplicate is a delivery that nobody had "
        "asked for; an effect is doubled if the outcome of one key was recorded more than once.</footer>"
    )
