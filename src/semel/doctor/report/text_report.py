"""A diagnosis for a terminal: the worst first, and on one screen.

The rule: only commands may be wider than the terminal, and no text from a log can move the cursor, change a colour or
begin a line of its own. rich passes escape sequences on, so all foreign text is cleaned first.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from semel.doctor.model import Case, Diagnosis, Finding, Recommendation, Severity
from semel.doctor.report import summary, tables
from semel.doctor.text_format import clean, clean_lines, listed
from semel.text import count

NARROWEST: Final = 40
_WIDEST: Final = 120  # longer lines are hard to read
_LABEL: Final = 10  # "critical" and two spaces
STYLES: Final = {None: "green", Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
# The sign says the same, for those who do not see the colour.
_SIGNS: Final = {None: "✓", Severity.INFO: "i", Severity.WARNING: "!", Severity.CRITICAL: "✗"}
_KEPT_TOGETHER: Final = re.compile(r"(?<=\d) (?=(?:%|ms|s|min|h|d|million)(?:\W|$))| (?=(?:FILE|PATH|URL)\b)")
_TRAILING: Final = re.compile(r" +(\x1b\[0m)?$")
_GLUE: Final = "\ue000"  # stands for a space at which a line must not end

Lines = list[str]


def render(diagnosis: Diagnosis, *, width: int, colour: bool, verbose: bool = False, height: int | None = 24) -> str:
    """`height`: lines of the screen, one of which is left for the prompt; None, or verbose: as many lines as needed."""
    printer = Printer(width, colour=colour)
    if verbose:
        parts = _verbose(diagnosis, printer)
    elif height is None:
        parts = _in_full(diagnosis, printer)
    else:
        parts = _on_one_screen(diagnosis, printer, height)
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class Printer:
    """Makes lines of text out of what rich can show."""

    def __init__(self, width: int, *, colour: bool) -> None:
        self.width = min(max(width, NARROWEST), _WIDEST)
        self._console = Console(
            file=io.StringIO(), width=self.width, height=100, force_terminal=colour, no_color=not colour,
            color_system="standard" if colour else None, markup=False, emoji=False, highlight=False,
        )  # fmt: skip

    def lines(self, *items: RenderableType, wrap: bool = True) -> Lines:
        with self._console.capture() as capture:
            for item in items:
                self._console.print(item, soft_wrap=not wrap)
        return [_TRAILING.sub(r"\1", line) for line in capture.get().replace(_GLUE, " ").splitlines()]

    def wrap(self, text: Text) -> list[Text]:
        """The lines that a text takes beside a label."""
        return list(text.wrap(self._console, self.width - _LABEL, overflow="fold"))


def sentence(text: str, style: str = "") -> Text:
    """Foreign text, harmless; a figure and its unit, an option and its value stay on one line."""
    return Text(_KEPT_TOGETHER.sub(_GLUE, clean(text)), style)


def labelled(label: Text, *items: Text, width: int = _LABEL) -> Table:
    """The label at the left of the first item, the others below it."""
    grid = Table.grid()
    grid.add_column(width=width)
    grid.add_column(overflow="fold")
    for index, item in enumerate(items):
        grid.add_row("" if index else label, item)
    return grid


def _in_full(diagnosis: Diagnosis, printer: Printer) -> list[Lines]:
    findings = [line for finding in diagnosis.findings for line in _finding(finding, printer)]
    recommended = _recommended(diagnosis.recommendations, printer) + _reasons(diagnosis.recommendations, printer)
    tail = recommended + _limits(diagnosis, printer)
    return [_head(diagnosis, printer), findings or _no_findings(diagnosis, printer), tail]


def _on_one_screen(diagnosis: Diagnosis, printer: Printer, height: int) -> list[Lines]:
    head = _head(diagnosis, printer, most=max(3, height // 5))
    tail = _recommended(diagnosis.recommendations, printer, most=3)
    tail.extend(_limits(diagnosis, printer, short=bool(diagnosis.findings)))
    if diagnosis.cases:
        tail += printer.lines(Text("details: --verbose, or --output html --report report.html", "dim"))
    room = max(4, height - 1 - len(head) - len(tail) - 2)  # two empty lines between
    return [head, _fitting(diagnosis.findings, printer, room) or _no_findings(diagnosis, printer), tail]


def _verbose(diagnosis: Diagnosis, printer: Printer) -> list[Lines]:
    """Every finding with its evidence and commands, and each queue's figures."""
    parts = [_head(diagnosis, printer)]
    parts += [_evidence(finding, printer) for finding in diagnosis.findings] or [_no_findings(diagnosis, printer)]
    parts += [_queue(case, diagnosis.recommendations, printer) for case in diagnosis.cases]
    parts.append(_recommended(diagnosis.recommendations, printer))
    limits = [labelled(Text("-"), sentence(limit), width=2) for limit in summary.limits(diagnosis)]
    return [*parts, printer.lines(*limits)]


# The head: how bad it is, and a line for each queue.


def _head(diagnosis: Diagnosis, printer: Printer, most: int | None = None) -> Lines:
    cases = summary.worst_first(diagnosis)
    if not cases:
        return printer.lines(Text("semel doctor: nothing to examine", "bold"))
    verdict = f"semel doctor: {summary.verdict(diagnosis.findings)} in {count(len(cases), 'queue')}"
    lines = printer.lines(Text(verdict, STYLES[diagnosis.worst]))
    if scope := summary.scope(diagnosis):
        lines += printer.lines(sentence(" · ".join(scope), "dim"))
    lines += _table(tables.overview(cases[:most]), printer, [summary.worst(case, diagnosis.findings) for case in cases])
    if hidden := cases[most:] if most else []:
        healthy = sum(summary.worst(case, diagnosis.findings) is None for case in hidden)
        lines += printer.lines(Text(f"  and {len(hidden)} more, {healthy} of them without findings", "dim"))
    return lines


def _table(
    content: tables.Table, printer: Printer, levels: Sequence[Severity | None] = (), *, indent: int = 0
) -> Lines:
    """If it is too wide, columns that can be spared are left out, the last first. `levels` put signs before rows."""
    columns = list(enumerate(content.columns))
    for column in reversed(columns):
        if "spare" in column[1][1] and _natural_width(content, columns) + indent + 2 * bool(levels) > printer.width:
            columns = [other for other in columns if other != column]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, (title, style) in columns:
        wraps = "words" in style
        table.add_column(
            title,
            justify="right" if style[:1] == "n" else "left",
            no_wrap=not wraps and not (levels and not index),  # a name is cut before any figure is
            overflow="fold" if wraps else "ellipsis",
        )
    for number, row in enumerate(content.rows):
        cells = [sentence(row[index]) for index, _ in columns]
        if levels:
            level = levels[number]
            cells[0] = Text.assemble((_SIGNS[level] + _GLUE, STYLES[level]), row[0].replace(" ", _GLUE))
        table.add_row(*cells)
    return printer.lines(Padding(table, (0, 0, 0, indent)))


def _natural_width(content: tables.Table, columns: Sequence[tuple[int, tuple[str, str]]]) -> int:
    """The width that the table needs. Text that may wrap, and a name at the left, need at most 24 columns."""
    width = 2 * (len(columns) - 1)
    for index, (title, style) in columns:
        widest = max(cell_len(text) for text in (title, *(row[index] for row in content.rows)))
        width += min(widest, 24) if "words" in style or not (index or style) else widest
    return width


# Findings.


def _fitting(findings: Sequence[Finding], printer: Printer, room: int) -> Lines:
    """The worst finding with its full observation and a line of its remedy, the others with a line of each. If there is
    room, the worst get more lines, observations before remedies. Findings that do not fit are counted."""
    if not findings:
        return []
    first = min(len(_observation(findings[0], printer)) + 1, room - (len(findings) > 1))
    left = room - first
    others = len(findings) - 1 if 2 * (len(findings) - 1) <= left else (left - 1) // 2
    shown, hidden = findings[: others + 1], findings[others + 1 :]
    spare = left - 2 * others - bool(hidden)
    kept = {part: [1] * len(shown) for part in (_observation, _remedy)}
    kept[_observation][0] = first - 1
    for part, sizes in kept.items():
        for index, finding in enumerate(shown):
            growth = min(spare, len(part(finding, printer)) - sizes[index])
            sizes[index] += growth
            spare -= growth
    lines = []
    for finding, *sizes in zip(shown, *kept.values(), strict=True):
        lines += _finding(finding, printer, *sizes)
    if hidden:
        rules = listed(list(dict.fromkeys(clean(finding.rule, 40) for finding in hidden)))
        more = Text(f"and {summary.verdict(hidden)} more: {rules}", "dim", no_wrap=True, overflow="ellipsis")
        lines += printer.lines(labelled(Text(""), more))
    return lines


def _observation(finding: Finding, printer: Printer) -> list[Text]:
    queue, rule = clean(finding.queue, 30), f"[{clean(finding.rule, 30)}]"
    text = sentence(f"{queue} {rule}: {clean(finding.observed)}")
    text.stylize("dim", len(queue) + 1, len(queue) + 1 + len(rule))
    return printer.wrap(text)


def _remedy(finding: Finding, printer: Printer) -> list[Text]:
    return printer.wrap(sentence(f"→ {clean(finding.remedy.text)}"))


def _finding(finding: Finding, printer: Printer, *sizes: int) -> Lines:
    """`sizes`: the lines that its observation and its remedy may take."""
    items: list[Text] = []
    for lines, most in zip_longest((_observation(finding, printer), _remedy(finding, printer)), sizes):
        if most is not None and len(lines) > most:
            lines[most - 1].truncate(printer.width - _LABEL - 1)
            lines[most - 1].append("…")
        items += lines[:most]
    return printer.lines(labelled(Text(finding.severity.word, STYLES[finding.severity]), *items))


def _no_findings(diagnosis: Diagnosis, printer: Printer) -> Lines:
    return printer.lines(Text(summary.without_findings(diagnosis), "green" if diagnosis.cases else ""))


def _evidence(finding: Finding, printer: Printer) -> Lines:
    title = f"{finding.severity.word}  {clean(finding.queue, 40)}  {clean(finding.rule, 60)}"
    lines = printer.lines(Text(title, STYLES[finding.severity]))
    texts = (finding.observed, finding.why, f"→ {clean(finding.remedy.text)}")
    lines += printer.lines(*(Padding(sentence(text), (0, 0, 0, 2)) for text in texts))
    # A command is not wrapped: it is there to be copied.
    copied = [f"    $ {clean(command, 8_000)}" for command in finding.remedy.cli]
    copied += [f"    {line}" for line in clean_lines(finding.remedy.terraform or "").splitlines()]
    lines += printer.lines(*map(Text, copied), wrap=False)
    return lines + [line for duplicate in finding.examples for line in _captioned(tables.events(duplicate), printer)]


def _queue(case: Case, recommendations: Sequence[Recommendation], printer: Printer) -> Lines:
    lines = printer.lines(Text(clean(case.queue, 200), "bold"))
    return lines + [line for content in tables.of_queue(case, recommendations) for line in _captioned(content, printer)]


def _captioned(content: tables.Table, printer: Printer) -> Lines:
    caption = Padding(sentence(content.caption, "italic"), (0, 0, 0, 2))
    return [*printer.lines(caption), *_table(content, printer, indent=4)]


# What to change, and what this report does not cover.


def _recommended(recommendations: Sequence[Recommendation], printer: Printer, most: int | None = None) -> Lines:
    """The settings that should change, queue by queue; at most `most` lines."""
    settings: dict[str, list[str]] = {}
    for advice in recommendations:
        if advice.changes:
            change = f"{clean(advice.now, 40)} → {clean(advice.value, 40)}" if advice.now else clean(advice.value, 40)
            settings.setdefault(advice.queue, []).append(f"{clean(advice.setting, 40)} {change}")
    lines: Lines = []
    for index, (queue, changes) in enumerate(settings.items()):
        block = printer.lines(sentence(f"recommended settings for {clean(queue, 30)}: {', '.join(changes)}"))
        if most is not None and len(lines) + len(block) + (index + 1 < len(settings)) > most:
            start = "and for" if lines else "recommended settings for"
            return [*lines, f"{start} {count(len(settings) - index, 'more queue' if lines else 'queue')}"]
        lines += block
    return lines


def _reasons(recommendations: Sequence[Recommendation], printer: Printer) -> Lines:
    """Why each setting should change."""
    items = [
        labelled(Text("-"), sentence(f"{clean(change.queue, 30)}, {clean(change.setting, 40)}: {reason}"), width=2)
        for change in recommendations
        if change.changes
        for reason in change.reasons
    ]
    return printer.lines(*items)


def _limits(diagnosis: Diagnosis, printer: Printer, *, short: bool = False) -> Lines:
    """How the log was read and what could not be used, in a line each if `short`; and what was not examined."""
    problems = [sentence(text, "dim") for text in diagnosis.log_fields[: 1 if short else None]]
    if skipped := summary.skipped(diagnosis.quality):
        problems.append(sentence(f"skipped: {skipped}", "dim"))
    if diagnosis.notes:
        more = f"({len(diagnosis.notes)} notes) " if len(diagnosis.notes) > 1 else ""
        problems.append(sentence(f"could not examine: {more}{clean(diagnosis.notes[0], 300)}", "dim"))
    for problem in problems if short else ():
        problem.truncate(printer.width, overflow="ellipsis")
    gaps = summary.gaps(diagnosis)
    missing = [f"not examined: {gap.what}. Add {gap.option} to see {gap.shows}." for gap in gaps]
    if gaps and diagnosis.findings:
        missing = ["not examined: " + ", ".join(f"{gap.what} (add {gap.option})" for gap in gaps)]
    return printer.lines(*problems, *(sentence(line, "dim") for line in missing))
