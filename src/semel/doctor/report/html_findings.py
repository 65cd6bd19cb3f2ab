"""One finding as a card: what was seen, why it matters, the cure to copy, and the evidence."""

from __future__ import annotations

import html
from typing import Final

from semel.doctor.model import Duplicate, Evidence, Finding, Remedy
from semel.doctor.report.charts import life
from semel.doctor.report.html_parts import chip, paragraph, prose, table
from semel.doctor.report.svg import text
from semel.doctor.report.words import CAUSES, NONE, clean_lines, duration, when

_MOST_EXAMPLES: Final = 3
_MOST_EVENTS: Final = 40


def card(finding: Finding, timeout: float | None, queue_name: str | None, *, name: str) -> str:
    queue = text(finding.queue, 120)
    link = f'<a href="#{queue_name}">{queue}</a>' if queue_name else queue
    examples = "".join(
        _example(example, timeout, name=f"{name}-{index}")
        for index, example in enumerate(finding.examples[:_MOST_EXAMPLES])
    )
    return (
        f'<article class="card finding {finding.severity.word}" aria-labelledby="{name}">'
        f'<h3 id="{name}">{chip(finding.severity)}{link} <span class="rule">{text(finding.rule, 80)}</span></h3>'
        f"{paragraph(finding.observed, 'seen')}{paragraph(finding.why, 'muted')}{remedy(finding.remedy)}"
        f"{f'<details><summary>Evidence</summary>{examples}</details>' if examples else ''}</article>"
    )


def remedy(wanted: Remedy) -> str:
    parts = [f"<p><strong>Cure.</strong> {prose(wanted.text)}</p>" if wanted.text else ""]
    if wanted.cli:
        commands = "\n".join(clean_lines(command) for command in wanted.cli)
        parts.append(f'<pre aria-label="AWS CLI"><code>{html.escape(commands)}</code></pre>')
    if wanted.terraform:
        parts.append(
            "<details><summary>as Terraform</summary>"
            f'<pre aria-label="Terraform"><code>{html.escape(clean_lines(wanted.terraform))}</code></pre></details>'
        )
    return f'<div class="cure">{"".join(parts)}</div>' if any(parts) else ""


def _example(duplicate: Duplicate, timeout: float | None, *, name: str) -> str:
    over = f", {duration(duplicate.overrun)} past its timeout" if duplicate.overrun is not None else ""
    title = f"Message {duplicate.message_id}: {CAUSES[duplicate.cause][1]}{over}."
    start = duplicate.events[0].at if duplicate.events else 0.0
    titles = (("time", "n"), ("after", "n"), ("step", ""), ("receive", "n spare"), ("worker", "words"), ("", "words"))
    rows = [_row(event, start) for event in duplicate.events[:_MOST_EVENTS]]
    inside = table("What happened to it", titles, rows) if rows else ""
    return f"<div>{paragraph(title, 'small')}{life(duplicate, timeout, name=f'{name}-life')}{inside}</div>"


def _row(event: Evidence, start: float) -> list[str]:
    took = f"after {duration(event.seconds)}" if event.seconds is not None else ""
    more = ", ".join(part for part in (took, event.error or "") if part)
    return [
        when(event.at)[11:] or NONE,
        f"+{duration(event.at - start if event.at - start >= 0.001 else 0.0)}",
        text(event.step, 40),
        str(event.receive_count) if event.receive_count is not None else NONE,
        text(event.worker or NONE, 60),
        text(more, 300),
    ]
