"""Reads histories: JSON lines (also .gz, or standard input), Semel's attempt log, and Parquet; files and folders.

The rules: lines that cannot be read are counted and shown with their file and line, and reading goes on. A path that
does not exist, or a file that is plainly something else, is an error.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, BinaryIO, Final

import msgspec

from semel.extras import require
from semel.verify.file_parser import FileParser, HistoryError, record_of
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.mapping import HistoryMapping, OtherEvent, UnreadableLine

PARQUET: Final = (".parquet", ".parq", ".pq")
LINES: Final = (".jsonl", ".json", ".ndjson", ".log")
STANDARD_INPUT: Final = "-"
MOST_SHOWN: Final = 100  # lines that cannot be read
_STEP: Final = 10_000  # lines or rows between two reports of progress


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """`kind`: the kind of all of its lines, if it was given. `once`: a pipe, which cannot be read again."""

    path: str
    kind: EventKind | None = None
    size: int = 0
    once: bool = False

    @property
    def is_parquet(self) -> bool:
        return self.path.lower().endswith(PARQUET)


@dataclass(frozen=True, slots=True)
class BrokenLine:
    file: str
    line: int  # 0: the file as a whole
    reason: str


def find_files(paths: Sequence[str]) -> list[HistoryFile]:
    """The files at these paths, each once. `effect=PATH` says that all lines there are effects."""
    files: dict[str, HistoryFile] = {}
    for path in paths:
        word, mark, rest = path.partition("=")
        kind = EventKind(word) if mark and word in tuple(EventKind) else None
        for file in _files(rest if kind else path, kind):
            files.setdefault(file.path if file.path == STANDARD_INPUT else os.path.realpath(file.path), file)
    if any(file.is_parquet for file in files.values()):
        require("a history in Parquet", "pyarrow", extra="parquet")
    return list(files.values())


def _files(path: str, kind: EventKind | None) -> Iterator[HistoryFile]:
    if path == STANDARD_INPUT:
        yield HistoryFile(path, kind, once=True)
    elif os.path.isfile(path):
        yield HistoryFile(path, kind, os.path.getsize(path))
    elif not os.path.isdir(path):
        if os.path.exists(path):  # a pipe
            yield HistoryFile(path, kind, once=True)
            return
        raise HistoryError(f"{path}: no such file or folder")
    elif not (names := sorted(_walk(path))):
        raise HistoryError(f"{path}: no history is there; looked for {', '.join((*LINES, '.gz of these', PARQUET[0]))}")
    else:
        yield from (HistoryFile(file, kind, os.path.getsize(file)) for file in names)


def _walk(folder: str) -> Iterator[str]:
    def refused(error: OSError) -> None:
        raise HistoryError(f"{error.filename}: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            lower = name.lower()
            is_open = lower.startswith(".attempts-") and lower.endswith(".open")  # the attempt log is writing it
            if is_open or (lower.removesuffix(".gz").endswith((*LINES, *PARQUET)) and not name.startswith((".", "_"))):
                yield os.path.join(place, name)


@dataclass(slots=True)
class FileReport:
    """What to report about a file besides its events."""

    events: int = 0
    unreadable: int = 0
    broken: list[BrokenLine] = field(default_factory=list)  # the first ones
    others: Counter[str] = field(default_factory=Counter)  # words of events that do not matter here
    missing: set[str] | None = None  # mapped fields that no line has; None: the mapping is not for this file
    notes: list[str] = field(default_factory=list)

    def broke(self, path: str, line: int, reason: str) -> None:
        self.unreadable += 1
        if len(self.broken) < MOST_SHOWN:
            self.broken.append(BrokenLine(path, line, reason))


class HistoryReader:
    """Reads files, each as often as asked; `reports` has the report on each, from the last time. `mapped`: the mapping
    says where fields are, not only what words mean. `on_progress` gets the number of lines read, and the percentage of
    bytes read if the total is known."""

    def __init__(
        self,
        files: Sequence[HistoryFile],
        mapping: HistoryMapping,
        *,
        mapped: bool,
        on_progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self.reports: dict[str, FileReport] = {}
        self._mapping, self._mapped = mapping, mapped
        self._on_progress = on_progress
        self._total = sum(file.size for file in files)
        self._places: dict[str, tuple[int, int]] = {}  # how many lines and bytes of each file were read
        self._texts: dict[str, str] = {}  # one string for all events that have the same text
        self._kept: dict[str, list[HistoryEvent]] = {}  # events of files that can be read only once

    def read(self, file: HistoryFile) -> Iterator[HistoryEvent]:
        """The events of a file, in the file's order."""
        if not file.once:
            return self._read(file)
        if file.path not in self._kept:
            self._kept[file.path] = list(self._read(file))
        return iter(self._kept[file.path])

    def _read(self, file: HistoryFile) -> Iterator[HistoryEvent]:
        report = self.reports[file.path] = FileReport()
        parser: FileParser | None = None
        for number, content in self._contents(file, report):
            try:
                if parser is None:
                    parser = FileParser(file.path, file.kind, self._mapping, self._mapped, record_of(content))
                event = parser.parse(content)
            except (UnreadableLine, msgspec.DecodeError, UnicodeDecodeError) as error:
                report.broke(file.path, number, str(error))
            except RecursionError:
                report.broke(file.path, number, "it is nested too deeply")
            except OtherEvent as other:
                report.others[str(other)] += 1
            else:
                if event is not None:
                    report.events += 1
                    yield self._placed(event, file.path, number)
        if parser is not None:
            report.notes += parser.notes()
            report.missing = parser.missing

    def _placed(self, event: HistoryEvent, path: str, number: int) -> HistoryEvent:
        set_field = msgspec.structs.force_setattr  # nobody else has the event yet
        set_field(event, "file", path)
        set_field(event, "line", number)
        for name in ("queue", "group", "worker"):
            if text := getattr(event, name):
                set_field(event, name, self._texts.setdefault(text, text))
        return event

    def _contents(self, file: HistoryFile, report: FileReport) -> Iterator[tuple[int, Any]]:
        """Lines that are not blank, or rows of Parquet, with their numbers."""
        number = 0
        try:
            for number, content in enumerate(self._rows(file) if file.is_parquet else self._lines(file), 1):
                if not isinstance(content, bytes) or not content.isspace():
                    yield number, content
        except (OSError, EOFError, zlib.error, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
            report.broke(file.path, number, f"the rest cannot be read: {reason}" if number else str(reason))

    def _lines(self, file: HistoryFile) -> Iterator[bytes]:
        being_written = file.path.endswith(".open")
        with _opened(file) as (raw, stream):
            for number, line in enumerate(stream):
                if number % _STEP == _STEP - 1:
                    self._progress(file, number + 1, 0 if file.once else raw.tell())
                if being_written and not line.endswith(b"\n"):
                    break
                yield line if number else line.removeprefix(codecs.BOM_UTF8)

    def _rows(self, file: HistoryFile) -> Iterator[Mapping[str, Any]]:
        parquet: Any = import_module("pyarrow.parquet")
        with parquet.ParquetFile(file.path) as content:
            lines, total = 0, content.metadata.num_rows
            for batch in content.iter_batches(_STEP):
                yield from batch.to_pylist()
                lines += batch.num_rows
                self._progress(file, lines, file.size * lines // max(1, total))

    def _progress(self, file: HistoryFile, lines: int, place: int) -> None:
        self._places[file.path] = lines, place
        if self._on_progress is not None:
            all_lines, all_bytes = (sum(numbers) for numbers in zip(*self._places.values(), strict=True))
            self._on_progress(all_lines, all_bytes * 100 // self._total if self._total else None)


@contextmanager
def _opened(file: HistoryFile) -> Iterator[tuple[BinaryIO, Any]]:
    if file.path == STANDARD_INPUT:
        yield io.BytesIO(), sys.stdin.buffer
        return
    with open(file.path, "rb") as raw:
        if file.path.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield raw, io.BufferedReader(unpacked)
        else:
            yield raw, raw
