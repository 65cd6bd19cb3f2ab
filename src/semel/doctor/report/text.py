"""A diagnosis for a terminal: the worst first, and on one screen.

The rule: no line is wider than it is told, and nothing that stood in a log can move the cursor, change a colour or
begin a line of its own. With a height, what does not fit is counted instead of shown.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from semel.doctor.model import Case, Diagnosis, Finding, Quality, Recommendation, Severity
from semel.doctor.report import text_details
from semel.doctor.report.gaps import gaps
from semel.doctor.report.paint import MARKS, Paint
from semel.doctor.report.words import NONE, cells, clean, count, duration, fit, number, percent, period, wrap

NARROWEST: Final = 40
_LABEL: Final = 10  # "critical" and two spaces
_WIDEST: Final = 120  # longer lines are hard to read
_TITLES: Final = ("messages", "attempts", "duplicates", "", "wasted", "doubled")
_FIRST_TO_GO: Final = ("wasted", "attempts", "", "messages", "duplicates")  # where the screen is narrow


def render(diagnosis: Diagnosis, *, width: int, colour: bool, verbose: bool = False, height: int | None = 24) -> str:
    """`height`: lines of the screen, one of which is left to the prompt; None, or verbose: as many as it takes."""
    width = min(max(width, NARROWEST), _WIDEST)
    paint = Paint(colour)
    if height is not None and not verbose:
        return _on_one_screen(diagnosis, width, height, paint)
    table = _table(diagnosis, width, paint, most=len(diagnosis.cases))
    tail = [*_advice(diagnosis.recommendations, width, paint), *_trust(diagnosis, width, paint, short=False)]
    if verbose:
        body = text_details.findings(diagnosis.findings, width, paint)
        tail = [*text_details.queues(diagnosis.cases, width, paint), *text_details.rest(diagnosis, width, paint), *tail]
    else:
        body = [line for finding in diagnosis.findings for line in _finding(finding, width, paint, _Size.FULL)]
    return _joined([*_head(diagnosis, width, paint), *table], body or _nothing(diagnosis, width, paint), tail)


def _on_one_screen(diagnosis: Diagnosis, width: int, height: int, paint: Paint) -> str:
    head = [*_head(diagnosis, width, paint), *_table(diagnosis, width, paint, most=max(3, height // 4))]
    tail = [*_advice(diagnosis.recommendations, width, paint, short=True), *_trust(diagnosis, width, paint, short=True)]
    if diagnosis.cases:
        tail.append(paint.dim(fit(f"{'more':<{_LABEL}}--verbose, or --format html --output report.html", width)))
    room = max(4, height - 1 - len(head) - len(tail) - 2)  # two empty lines between
    body = _fitting(diagnosis.findings, width, room, paint) or _nothing(diagnosis, width, paint)
    return _joined(head, body, tail)


def _joined(*parts: Sequence[str]) -> str:
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


# The head: how bad it is, and a line for each queue.


def verdict(findings: Sequence[Finding]) -> str:
    """2 critical, 3 warnings, 1 note."""
    names = (
        (Severity.CRITICAL, "critical", "critical"),
        (Severity.WARNING, "warning", None),
        (Severity.INFO, "note", None),
    )
    counts = ((sum(finding.severity is level for finding in findings), one, many) for level, one, many in names)
    return ", ".join(count(found, one, many) for found, one, many in counts if found) or "nothing found"


def _head(diagnosis: Diagnosis, width: int, paint: Paint) -> list[str]:
    if not diagnosis.cases:
        return [paint.bold("semel doctor: nothing to look at")]
    first = f"semel doctor: {verdict(diagnosis.findings)} in {count(len(diagnosis.cases), 'queue')}"
    seen = [case.behaviour for case in diagnosis.cases if case.behaviour is not None]
    start = diagnosis.since or min((behaviour.first_at for behaviour in seen), default=None)
    end = diagnosis.until or max((behaviour.last_at for behaviour in seen), default=None)
    parts = [period(start, end)]
    if seen:
        parts.append(count(sum(behaviour.events for behaviour in seen), "event"))
    if diagnosis.quality is not None and diagnosis.quality.files:
        parts.append(count(diagnosis.quality.files, "file"))
    second = " · ".join(part for part in parts if part)
    worst = diagnosis.worst
    lines = [paint.severity(fit(first, width), worst) if worst is not None else paint.good(fit(first, width))]
    return [*lines, paint.dim(fit(second, width))] if second else lines


def _table(diagnosis: Diagnosis, width: int, paint: Paint, *, most: int) -> list[str]:
    cases = sorted(diagnosis.cases, key=lambda case: -_level(case, diagnosis.findings))
    if not cases:
        return []
    names = [clean(case.queue, 200) for case in cases[:most]]
    rows = [_figures(case) for case in cases[:most]]
    sizes = {title: max(len(title), *(cells(row[title]) for row in rows)) + 2 for title in _TITLES}
    longest = max(map(cells, names))
    for title in _FIRST_TO_GO:
        if min(longest, 24) + 2 + sum(sizes.values()) > width:
            del sizes[title]
    name = max(1, min(longest, width - 2 - sum(sizes.values())))
    lines = [paint.dim(" " * (name + 2) + "".join(f"{title:>{size}}" for title, size in sizes.items()))]
    for case, full, row in zip(cases, names, rows, strict=False):
        level, shown = _level(case, diagnosis.findings), fit(full, name)
        mark = paint.severity(MARKS[level], Severity(level)) if level >= 0 else paint.good(MARKS[level])
        figures = "".join(f"{row[title]:>{size}}" for title, size in sizes.items())
        lines.append(f"{mark} {shown}{' ' * (name - cells(shown))}{figures}")
    if len(cases) > most:
        healthy = sum(_level(case, diagnosis.findings) < 0 for case in cases[most:])
        lines.append(paint.dim(fit(f"  and {len(cases) - most} more, {healthy} of them without findings", width)))
    return lines


def _figures(case: Case) -> dict[str, str]:
    seen = case.behaviour
    if seen is None:
        return dict.fromkeys(_TITLES, NONE)
    return {
        "messages": number(seen.messages),
        "attempts": number(seen.attempts),
        "duplicates": number(seen.duplicates),
        "": percent(seen.duplicate_share),
        "wasted": duration(round(seen.wasted)) if seen.wasted else NONE,
        "doubled": number(seen.doubled),
    }


def _level(case: Case, findings: Iterable[Finding]) -> int:
    return max((int(finding.severity) for finding in findings if finding.queue == case.queue), default=-1)


# Findings.


class _Size(enum.IntEnum):
    """How much of a finding is shown: a line each of what was seen and of the remedy, all that was seen, or all."""

    SHORT = 0
    SEEN = 1
    FULL = 2


def _fitting(findings: Sequence[Finding], width: int, room: int, paint: Paint) -> list[str]:
    """What was seen of the worst in full, the others in two lines each, and in full where there is room; of the rest,
    the count."""
    if not findings:
        return []
    blocks = [_finding(findings[0], width, paint, _Size.SEEN)]
    blocks += [_finding(finding, width, paint, _Size.SHORT) for finding in findings[1:]]
    while len(blocks) > 1 and sum(map(len, blocks)) + (len(blocks) < len(findings)) > room:
        blocks.pop()
    if len(blocks[0]) + (len(findings) > 1) > room:
        blocks[0] = _finding(findings[0], width, paint, _Size.SHORT)
    left = findings[len(blocks) :]
    spare = room - sum(map(len, blocks)) - bool(left)
    for size in (_Size.SEEN, _Size.FULL):
        for index, finding in enumerate(findings[: len(blocks)]):
            larger = _finding(finding, width, paint, size)
            if 0 <= len(larger) - len(blocks[index]) <= spare:
                spare -= len(larger) - len(blocks[index])
                blocks[index] = larger
    lines = [line for block in blocks for line in block]
    if left:
        rules = ", ".join(dict.fromkeys(clean(finding.rule, 40) for finding in left))
        lines.append(paint.dim(fit(f"{'':<{_LABEL}}and {verdict(left)} more: {rules}", width)))
    return lines


def _finding(finding: Finding, width: int, paint: Paint, size: _Size) -> list[str]:
    space = width - _LABEL
    seen = f"{fit(clean(finding.queue, 200), 30)}: {clean(finding.observed)}"
    remedy = f"→ {clean(finding.remedy.text)}"
    rule = f"[{fit(clean(finding.rule, 40), min(30, space // 2))}]"
    if size is _Size.FULL:
        ways = ((f"{seen} {rule}", remedy), (seen, f"{remedy} {rule}"))
        first, *more = min(([*wrap(up, space), *wrap(down, space)] for up, down in ways), key=len)
    else:
        first, *more = [fit(seen, space)] if size is _Size.SHORT else wrap(seen, space)
        more.append(f"{fit(remedy, space - cells(rule) - 1)} {rule}")
    label = paint.severity(f"{finding.severity.word:<{_LABEL}}", finding.severity)
    lines = [f"{label}{first}", *(f"{'':<{_LABEL}}{line}" for line in more)]
    return [line.replace(rule, paint.dim(rule)) if line.endswith(rule) else line for line in lines]


def _nothing(diagnosis: Diagnosis, width: int, paint: Paint) -> list[str]:
    if not diagnosis.cases:
        return wrap("What was given names no queue, or nothing happened in that time.", width)
    return [paint.good(line) for line in wrap(all_is_well(diagnosis), width)]


def all_is_well(diagnosis: Diagnosis) -> str:
    seen = [case.behaviour for case in diagnosis.cases if case.behaviour is not None]
    messages = count(sum(behaviour.messages for behaviour in seen), "message")
    if not seen:
        return "All is well, as far as settings and metrics show."
    if any(behaviour.duplicates or behaviour.doubled for behaviour in seen):
        return f"All is well: {messages}, and no duplicates worth a finding."
    return f"All is well: {messages}, each delivered once."


# What to change, and how far all this can be trusted.


def _advice(advice: Sequence[Recommendation], width: int, paint: Paint, *, short: bool = False) -> list[str]:
    """What should change, queue by queue; `short`: a line each, at most three."""
    by_queue: dict[str, list[str]] = {}
    for one in advice:
        if one.changes:
            before = f"{clean(one.now, 40)} → " if one.now else ""
            by_queue.setdefault(one.queue, []).append(f"{clean(one.setting, 40)} {before}{clean(one.value, 40)}")
    lines = []
    for queue, settings in by_queue.items():
        text = f"{fit(clean(queue, 200), 30)}: {', '.join(settings)}"
        lines += [fit(text, width - _LABEL)] if short else wrap(text, width - _LABEL)
    if short and len(lines) > 3:
        lines = [*lines[:2], f"and of {len(lines) - 2} more queues"]
    return [paint.bold(f"{'advice' if not index else '':<{_LABEL}}") + line for index, line in enumerate(lines)]


def _trust(diagnosis: Diagnosis, width: int, paint: Paint, *, short: bool) -> list[str]:
    """What quality says, what could not be looked at, and what was not given; `short`: a line each."""
    told = [("input", trouble)] if (trouble := troubles(diagnosis.quality)) else []
    if diagnosis.notes and short:
        more = f"({len(diagnosis.notes)} of these) " if len(diagnosis.notes) > 1 else ""
        told.append(("note", more + clean(diagnosis.notes[0], 300)))
    missing = gaps(diagnosis)
    if missing and diagnosis.findings:
        told.append(("not seen", ", ".join(f"{gap.what} ({gap.option})" for gap in missing)))
    elif missing:
        told += [("not seen" if not nth else "", f"{gap.option}: {gap.shows}") for nth, gap in enumerate(missing)]
    lines = []
    for label, text in told:
        parts = [fit(text, width - _LABEL)] if short else wrap(text, width - _LABEL)
        lines += [paint.dim(f"{label if not index else '':<{_LABEL}}{line}") for index, line in enumerate(parts)]
    return lines


def troubles(quality: Quality | None) -> str:
    """One sentence on what was wrong with the logs; empty if nothing was."""
    if quality is None:
        return ""
    known = (
        (quality.malformed, "line that is no JSON", "lines that are no JSON"),
        (quality.incomplete, "line without id or time", "lines without id or time"),
        (quality.unknown_events, "line whose event is not known", "lines whose event is not known"),
        (quality.out_of_order, "delivery that ends before it begins", "deliveries that end before they begin"),
        (len(quality.unreadable), "unreadable file", "unreadable files"),
        (quality.dropped, "event that a worker could not write", "events that workers could not write"),
    )
    found = [count(amount, one, many) for amount, one, many in known if amount]
    lines = f"of {count(quality.lines, 'line')}, " if quality.lines else ""
    words = ", ".join(clean(word, 40) for word in quality.unknown_words)
    more = f"; --events says what these mean: {words}" if words else ""
    return f"{lines}left out: {', '.join(found)}{more}" if found else ""
