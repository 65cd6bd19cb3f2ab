"""A report for people: the verdict, the first findings with their evidence, counts, and what was not checked."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from semel.text import count, moment, one_line
from semel.verify.history import HistoryEvent
from semel.verify.report import HistoryReport
from semel.verify.verdict import Finding, FindingKind, Verdict

_WIDTH: Final = 80
_IS_TIME: Final = 1e9  # seconds: since 1970, not since the start of something
_KIND: Final = 11  # columns of the longest kind
_MOST_BROKEN: Final = 5
_WORDS: Final = {kind: kind.value.replace("-", " ") for kind in FindingKind}


def report_text(report: HistoryReport, *, limit: int, width: int) -> str:
    """At most `limit` findings of each kind. Evidence that is wider than `width` continues on the next line."""
    verdict = report.verdict
    lines = [*_wrapped(_headline(report))]
    for kind in FindingKind:
        findings = [finding for finding in verdict.findings if finding.kind is kind]
        lines += _findings(kind.value, findings[:limit], verdict.found.get(kind, 0), width)
    lines += _findings("repeated (allowed)", list(verdict.repeats[:limit]), verdict.repeated, width)
    lines += ["", *_wrapped(_counts(verdict))]
    lines += _unreadable(report)
    if report.ignored:
        ignored = ", ".join(f"{count:,} {one_line(word) or 'without a word'}" for word, count in report.ignored.items())
        lines += _wrapped(f"ignored events: {ignored}")
    if verdict.unchecked:
        lines += _wrapped(f"not checked: {'; '.join(_unchecked(verdict))}")
    for note in (*report.notes, *verdict.notes):
        lines += _wrapped(f"note: {note}")
    return "\n".join(lines)


def _headline(report: HistoryReport) -> str:
    verdict = report.verdict
    of = f"{count(verdict.counts.events, 'event')} of {count(verdict.counts.keys, 'key')}"
    if verdict.found:
        problems = ", ".join(f"{count:,} {_WORDS[kind]}" for kind, count in verdict.found.items())
        return f"PROBLEMS in {of}: {problems}"
    if report.unreadable:
        return f"INCOMPLETE: nothing found in {of}, but {count(report.unreadable, 'line')} could not be read"
    nowhere = {unchecked.check for unchecked in verdict.unchecked if not unchecked.queue}
    checked = [_WORDS[kind] for kind in FindingKind if kind not in nowhere]
    if verdict.repeats and "doubled" in checked:
        checked.remove("doubled")
    return f"OK: {of}, none {', '.join(checked)}" if checked else f"NOTHING CHECKED in {of}"


def _findings(title: str, findings: list[Finding], count: int, width: int) -> Iterator[str]:
    if not findings:
        return
    yield ""
    more = f" (the first {len(findings)} of {count:,})" if count > len(findings) else ""
    yield f"{title.upper()}{more}"
    for finding in findings:
        yield from _wrapped(f"{finding.text} (queue {finding.queue})" if finding.queue else finding.text, "  ")
        for event in finding.evidence:
            yield from _packed([one_line(part) for part in _event(event, finding) if part], width)


def _packed(parts: list[str], width: int) -> Iterator[str]:
    """Parts of one event, on as many lines as they need."""
    line = f"    {parts[0]:<{_KIND}}"
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width and line.strip():
            yield line.rstrip()
            line = " " * (4 + _KIND)
        line += f"  {part}"
    yield line.rstrip()


def _event(event: HistoryEvent, finding: Finding) -> list[str]:
    parts = [event.kind.value, _time(event.time)]
    if event.file:
        parts.append(f"{event.file}:{event.line}")
    parts.append(event.worker)
    if event.fence is not None:
        parts.append(f"fence {event.fence}")
    if event.key not in ("", finding.key):
        parts.append(event.key)
    if event.message not in ("", finding.key):
        parts.append(event.message)
    if event.sequence is not None:
        parts.append(f"sequence {event.sequence}")
    return [*parts, event.queue if event.queue != finding.queue else "", event.detail]


def _time(time: float | None) -> str:
    if time is None:
        return ""
    if time < _IS_TIME:
        return f"{time:g}"
    return f"{moment(time)}.{int(time % 1 * 1_000):03}"


def _counts(verdict: Verdict) -> str:
    counts = verdict.counts
    parts = [
        count(counts.sends, "send"),
        count(counts.deliveries, "delivery")
        + (f" ({counts.duplicate_deliveries:,} of a key again)" if counts.duplicate_deliveries else ""),
        count(counts.effects, "effect"),
        *([count(counts.records, "record")] if counts.records else []),
        count(counts.deletes, "delete"),
        *([count(counts.dead_letters, "dead letter")] if counts.dead_letters else []),
        *([count(counts.refusals, "refusal")] if counts.refusals else []),
        *([f"{counts.present:,} in a queue at the end"] if counts.present else []),
        *([f"{counts.pending:,} sent too late to be judged"] if counts.pending else []),
    ]
    return ", ".join(parts)


def _unchecked(verdict: Verdict) -> Iterator[str]:
    """By reason: `lost, unknown (no send events)`."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for unchecked in verdict.unchecked:
        by_reason.setdefault((unchecked.reason, unchecked.queue), []).append(_WORDS[unchecked.check])
    for (reason, queue), checks in by_reason.items():
        yield f"{', '.join(checks)} ({reason}{f' of queue {queue}' if queue else ''})"


def _unreadable(report: HistoryReport) -> Iterator[str]:
    if not report.unreadable:
        return
    yield f"{count(report.unreadable, 'line')} could not be read:"
    for line in report.broken[:_MOST_BROKEN]:
        yield from _wrapped(f"{line.file}:{line.line}: {line.reason}", "  ")
    if report.unreadable > _MOST_BROKEN:
        yield f"  and {report.unreadable - _MOST_BROKEN:,} more"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        one_line(text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
