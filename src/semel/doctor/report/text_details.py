"""What `--verbose` adds: every finding with its evidence and commands, and each queue's figures in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from semel.doctor.model import Behaviour, Case, Diagnosis, Duplicate, Evidence, Finding, Recommendation, Times
from semel.doctor.report.paint import Paint
from semel.doctor.report.words import (
    CAUSES,
    NONE,
    cells,
    clean,
    clean_lines,
    count,
    duration,
    fit,
    number,
    percent,
    when,
    wrap,
)

_SHIFT: Final = "  "


def findings(found: Sequence[Finding], width: int, paint: Paint) -> list[str]:
    return [line for finding in found for line in (*_finding(finding, width, paint), "")][:-1]


def _finding(finding: Finding, width: int, paint: Paint) -> Iterator[str]:
    title = f"{finding.severity.word}  {fit(clean(finding.queue, 200), 40)}  {clean(finding.rule, 60)}"
    yield paint.severity(fit(title, width), finding.severity)
    for text in (finding.observed, finding.why, f"→ {finding.remedy.text}"):
        yield from _shifted(wrap(clean(text), width - 2))
    # A command is not wrapped: it is there to be copied.
    yield from (f"{_SHIFT}  $ {clean(command, 8_000)}" for command in finding.remedy.cli)
    if finding.remedy.terraform:
        yield from _shifted(f"  {line}" for line in clean_lines(finding.remedy.terraform).split("\n"))
    for example in finding.examples:
        yield from _example(example, width, paint)


def _example(duplicate: Duplicate, width: int, paint: Paint) -> Iterator[str]:
    over = f", {duration(duplicate.overrun)} past its timeout" if duplicate.overrun is not None else ""
    label = f"for example message {clean(duplicate.message_id, 60)}: {CAUSES[duplicate.cause][0]}{over}"
    yield from _shifted(wrap(label, width - 2))
    start = duplicate.events[0].at if duplicate.events else 0.0
    for event in duplicate.events:
        yield paint.dim(fit(f"{_SHIFT}  {_event(event, start)}", width))


def _event(event: Evidence, start: float) -> str:
    took = f" after {duration(event.seconds)}" if event.seconds is not None else ""
    received = f" (receive {event.receive_count})" if event.receive_count is not None else ""
    worker = f" {clean(event.worker, 40)}" if event.worker else ""
    error = f": {clean(event.error, 200)}" if event.error else ""
    time = when(event.at)[11:] or NONE
    return f"{time} +{event.at - start:7.1f} s {clean(event.step, 20):<13}{worker}{received}{took}{error}"


def queues(cases: Iterable[Case], width: int, paint: Paint) -> list[str]:
    lines: list[str] = []
    for case in cases:
        if case.behaviour is not None:
            title = fit(clean(case.queue, 200), width)
            wrapped = (part for line in _behaviour(case.behaviour) for part in _wrapped(line, width - 2))
            lines += [paint.bold(title), *_shifted(wrapped), ""]
    return lines


def _wrapped(line: str, width: int) -> list[str]:
    if cells(line) <= width:
        return [line]
    first, *more = wrap(line, width - 4)
    return [first, *(f"    {part}" for part in more)]


def _behaviour(seen: Behaviour) -> Iterator[str]:
    yield (
        f"{number(seen.deliveries)} deliveries of {count(seen.messages, 'message')}, "
        f"{count(seen.attempts, 'attempt')}, {count(seen.effects, 'effect')}, "
        f"{number(seen.retries)} put back by workers"
    )
    for caused in seen.causes:
        ran = (
            f"ran again {number(caused.ran)} times, {duration(caused.wasted)}" if caused.ran else "no handler ran again"
        )
        share = percent(caused.duplicates / seen.messages if seen.messages else None)
        yield f"{CAUSES[caused.cause][0]:<27}{number(caused.duplicates):>9}  {share:>7}  {ran}"
        if caused.overrun:
            yield f"  too late by {duration(caused.overrun.p50)} (P50), {duration(caused.overrun.most)} at most"
    yield from _times(seen)
    for change in seen.replays if seen.duplicates else ():
        share = percent(change.share(seen.messages))
        yield f"with a timeout of {duration(change.visibility):<9}{number(change.duplicates):>10} duplicates  {share}"
    for loop in seen.looping:
        yield (
            f"comes back: {clean(loop.message_id, 60)} {loop.deliveries} deliveries, "
            f"{when(loop.first_at)} to {when(loop.last_at)}: {clean(loop.error or NONE, 200)}"
        )
    for group in seen.errors:
        yield (
            f"{number(group.count)} × {clean(group.sample, 200)} ({count(group.messages, 'message')}, "
            f"{when(group.first_at)} to {when(group.last_at)})"
        )
    for worker, behind in seen.skew.items():
        side = "behind" if behind > 0 else "ahead of"
        yield f"the clock of {clean(worker, 60)} is {duration(abs(behind))} {side} SQS'"


def _times(seen: Behaviour) -> Iterator[str]:
    rows = [("in the handler", seen.work), ("receive to start", seen.wait), ("receive to delete", seen.hold)]
    rows += [(clean(handler.handler, 24), handler.work) for handler in seen.handlers]
    known = [(label, times) for label, times in rows if times is not None]
    if known:
        yield f"{'':<20}" + "".join(f"{title:>11}" for title in ("P50", "P90", "P99", "P99.9", "longest"))
    yield from (f"{fit(label, 20):<20}" + "".join(f"{text:>11}" for text in _five(times)) for label, times in known)


def _five(times: Times) -> tuple[str, ...]:
    return tuple(duration(value) for value in (times.p50, times.p90, times.p99, times.p999, times.most))


def rest(diagnosis: Diagnosis, width: int, paint: Paint) -> list[str]:
    """The reasons of the advice, all notes, and what was wrong with the logs."""
    lines = [paint.bold("reasons of the advice")] if diagnosis.recommendations else []
    for one in diagnosis.recommendations:
        lines += _shifted(wrap(_reason(one), width - 2))
    if diagnosis.notes:
        lines += [paint.bold("could not be looked at")]
        lines += [line for note in diagnosis.notes for line in _shifted(wrap(clean(note, 600), width - 2))]
    quality = diagnosis.quality
    if quality is not None and (quality.unreadable or quality.samples):
        lines += [paint.bold("left out")]
        left_out = (clean(text, 400) for text in (*quality.unreadable, *quality.samples))
        lines += [line for text in left_out for line in _shifted(wrap(text, width - 2))]
    return [*lines, ""] if lines else []


def _reason(one: Recommendation) -> str:
    now = "" if not one.now else f" (now {clean(one.now, 40)})" if one.changes else " (as it is)"
    why = clean("; ".join(one.reasons))
    return f"{clean(one.queue, 200)}: {clean(one.setting, 60)} {clean(one.value, 60)}{now}: {why}"


def _shifted(lines: Iterable[str]) -> list[str]:
    return [f"{_SHIFT}{line}" for line in lines]
