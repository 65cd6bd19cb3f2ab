"""`semel verify` from paths to a report: read, put in order, check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from semel.telemetry.field_mapping import written
from semel.verify import mapping
from semel.verify.file_parser import HistoryError
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import DeleteAfter, Effects, check
from semel.verify.mapping import HistoryMapping
from semel.verify.merge import OutOfOrder, Source, in_order, sorted_events
from semel.verify.readers import BrokenLine, FileReport, HistoryReader, find_files
from semel.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """What to verify; the fields are the options of `semel verify`. docs/reference/verify.md explains them."""

    paths: tuple[str, ...]
    fields: str | None = None  # --map
    words: str | None = None  # --events
    effects: Effects = "exactly-once"
    delete_after: DeleteAfter = "effect"
    logged: tuple[EventKind, ...] | None = None
    grace: float = 0.0
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """The verdict, and what could not be read."""

    verdict: Verdict
    files: tuple[str, ...]
    unreadable: int = 0  # lines
    broken: tuple[BrokenLine, ...] = ()  # the first of them
    ignored: dict[str, int] = field(default_factory=dict)  # events of other kinds, by their word
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything could be read and nothing was found."""
        return self.verdict.ok and not self.unreadable

    def to_json(self) -> dict[str, Any]:
        return {
            **self.verdict.to_json(),
            "ok": self.ok,
            "files": list(self.files),
            "unreadable": self.unreadable,
            "broken": [asdict(line) for line in self.broken],
            "ignored": self.ignored,
            "notes": [*self.notes, *self.verdict.notes],
        }


def verify(request: HistoryRequest, on_progress: Callable[[int, int | None], None] | None = None) -> HistoryReport:
    """Reads and checks a history. Raises HistoryError if it has no events. `on_progress` is HistoryReader's."""
    words = mapping.parse(request.fields, request.words)
    files = find_files(request.paths)
    reader = HistoryReader(files, words, mapped=request.fields is not None, on_progress=on_progress)
    sources: list[Source] = [partial(reader.read, file) for file in files]
    try:
        verdict = _check(in_order(sources), request)
    except OutOfOrder:
        verdict = _check(sorted_events(sources), request)
    reports = [reader.reports[file.path] for file in files if file.path in reader.reports]
    report = _report(verdict, reports, tuple(file.path for file in files), words)
    if not verdict.counts.events:
        raise HistoryError(_nothing(report))
    return report


def _check(events: Iterable[HistoryEvent], request: HistoryRequest) -> Verdict:
    return check(
        events,
        effects=request.effects,
        delete_after=request.delete_after,
        logged=request.logged,
        grace=request.grace,
        limit=request.limit,
    )


def _report(
    verdict: Verdict, reports: Sequence[FileReport], files: tuple[str, ...], words: HistoryMapping
) -> HistoryReport:
    missing = [report.missing for report in reports if report.missing is not None]
    nowhere = set.intersection(*missing) if missing else set()
    notes = [f"no line has a value at {name}={written(words.paths[name])}" for name in sorted(nowhere)]
    ignored: dict[str, int] = {}
    for report in reports:
        for word, count in report.others.items():
            ignored[word] = ignored.get(word, 0) + count
    return HistoryReport(
        verdict,
        files,
        unreadable=sum(report.unreadable for report in reports),
        broken=tuple(line for report in reports for line in report.broken),
        ignored=ignored,
        notes=(*notes, *(note for report in reports for note in report.notes)),
    )


def _nothing(report: HistoryReport) -> str:
    """Why there is no event, and what to do."""
    where = ", ".join(report.files[:3]) + (" …" if len(report.files) > 3 else "")
    if report.broken:
        first = report.broken[0]
        return f"no event in {where}: {first.file}:{first.line}: {first.reason}"
    if report.ignored:
        words = ", ".join(list(report.ignored)[:8])
        return f"no event in {where}: say what its words mean, as in --events send=…,effect=…; they are {words}"
    return f"no event in {where}"
