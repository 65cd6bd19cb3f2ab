"""Follows logs as they grow, for `--watch`: continues where it stopped, as `tail -F` does.

A file is identified by its inode: a rotated one (app.log, now app.log.1) is not read again, and a truncated one is read
from its start. A line counts when its line break is there, or when the file has not grown between two looks.
The attempt log's open file is followed too, and is the same file after it is renamed.
Compressed and Parquet files are read once, when they appear. At the start only what may belong to the window is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import duckdb

from semel.doctor.errors import DoctorError
from semel.doctor.logs.discovery import Days, Kind, LogFile, LogFiles, find, is_local, is_open
from semel.doctor.logs.line_sql import lines_query
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.reader import LogReader
from semel.doctor.logs.streams import LONGEST_LINE, Text, split

BLOCK: Final = 64 * 1024
KEPT: Final = 1_000_000
SEARCHED: Final = 32 * 1024 * 1024  # bytes: in larger files, the beginning of the window is searched for


@dataclass(slots=True)
class _Position:
    size: int = 0  # at the last look
    read: int = 0
    lines: int = 0
    is_first_look: bool = True


class LogFollower:
    """Reads what is new into `log_lines`, and removes what is older than the window."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        paths: Sequence[str],
        mapping: LogMapping,
        *,
        window: float,
        any_name: bool = False,
        threads: int | None = None,
    ) -> None:
        for path in paths:
            if not is_local(path):
                raise DoctorError(f"--watch cannot follow {path}: it follows folders and files of this machine")
        self._connection, self._paths, self.mapping, self._window = connection, paths, mapping, window
        self._any_name = any_name
        self._reader = LogReader(connection, mapping, threads=threads)
        self._positions: dict[tuple[int, int], _Position] = {}
        self._oldest = 0.0
        self.names: list[str] = []  # of the files, in the order of their numbers in `log_lines`
        self.logs = LogFiles()

    def look(self, now: float) -> bool:
        """Read what is new. Returns whether anything has changed."""
        self._oldest = now - self._window
        self.logs = self._find()
        before = self._count()
        whole = [file for file in self.logs.files if not _is_followed(file) and self._has_appeared(file)]
        for file in whole:
            self._reader.read([file], self._number(file))
        self._reader.read_texts(self._new_texts())
        added = self._count() > before or bool(whole)
        return self._remove_old(self._oldest) or added

    def problems(self) -> tuple[str, ...]:
        return (*self.logs.unreadable, *self._reader.problems)

    def _find(self) -> LogFiles:
        try:
            days = Days.of(self._oldest, None)
            return find(self._paths, any_name=self._any_name, days=days, open_files=True)
        except DoctorError:  # gone, or empty; it may come back
            return LogFiles()

    def _count(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM log_lines").fetchone()
        return int(row[0]) if row else 0

    def _remove_old(self, oldest: float) -> bool:
        """Removes old events. Of lines that are not events, the latest million are kept."""
        unneeded = f"problem <> 0 AND rowid < (SELECT max(rowid) FROM log_lines) - {KEPT}"
        old = f"event_time < {round(oldest * 1e6)} OR ({unneeded})"
        row = self._connection.execute(f"DELETE FROM log_lines WHERE {old}").fetchone()
        if not row or not row[0]:
            return False
        self._connection.execute("CHECKPOINT logs")  # gives the space back
        return True

    def _number(self, file: LogFile) -> int:
        if file.address not in self.names:
            self.names.append(file.address)
        return self.names.index(file.address)

    def _has_appeared(self, file: LogFile) -> bool:
        """Whether a file has appeared since the last look, and may hold events of the window."""
        try:
            position = self._position(os.stat(file.path))
        except OSError:  # gone in this very moment
            return False
        is_first_look, position.is_first_look = position.is_first_look, False
        return is_first_look and not position.read

    def _position(self, about: os.stat_result) -> _Position:
        known = (about.st_dev, about.st_ino)
        if known not in self._positions:
            is_old = about.st_mtime < self._oldest  # then nothing in it is new enough
            self._positions[known] = _Position(*([about.st_size] * 2 if is_old else ()))
        return self._positions[known]

    def _new_texts(self) -> Iterator[tuple[int, Text]]:
        """What was added to the files since the last look. A file that is renamed meanwhile is read to its end."""
        for file in self.logs.files:
            if _is_followed(file):
                try:
                    with open(file.path, "rb") as stream:
                        for text in self._new_lines(stream, is_open=is_open(os.path.basename(file.path))):
                            yield self._number(file), text
                except OSError:  # gone in this very moment
                    continue

    def _new_lines(self, stream: BinaryIO, *, is_open: bool) -> Iterator[Text]:
        about = os.fstat(stream.fileno())
        size, position = about.st_size, self._position(about)
        if size < position.read:  # it was truncated, and begun again
            position.read, position.lines = 0, 0
        if position.is_first_look and size - position.read > SEARCHED:
            position.read = self._search(stream, size)
        is_complete = position.size == size and not is_open
        end = size if is_complete else _end_of_lines(stream, position.read, size)
        begin, position.read, position.size, position.is_first_look = position.read, end, size, False
        stream.seek(begin)
        for text in split(_Range(stream, end), position.lines + 1):
            position.lines += text.text.count("\n")
            yield text

    def _search(self, file: BinaryIO, size: int) -> int:
        """Where the window begins in a file that was written in the order of time: roughly, and rather too early."""
        low, high = 0, size
        while high - low > SEARCHED // 4:
            middle = (low + high) // 2
            at, start = self._time_at(file, middle)
            if at is None or at >= self._oldest:
                high = middle
            else:
                low = start
        return low

    def _time_at(self, file: BinaryIO, place: int) -> tuple[float | None, int]:
        """The time of the first event after a place, and where that line begins."""
        file.seek(place)
        file.readline(LONGEST_LINE)
        start = file.tell()
        text = b"".join(file.readline(LONGEST_LINE) for _ in range(100)).decode("utf-8", "replace")
        query = f"SELECT min(event_time) FROM ({lines_query(self.mapping)}) WHERE problem = 0"
        row = self._connection.execute(query, {"text": text, "file": 0, "first_line": 1}).fetchone()
        return (row[0] / 1e6 if row and row[0] is not None else None), start


class _Range:
    """A file up to a place."""

    def __init__(self, stream: BinaryIO, end: int) -> None:
        self._stream, self._end = stream, end

    def read1(self, size: int) -> bytes:
        left = self._end - self._stream.tell()
        return self._stream.read(min(size, left)) if left > 0 else b""


def _is_followed(file: LogFile) -> bool:
    return file.kind is Kind.LINES and not file.compression


def _end_of_lines(file: BinaryIO, begin: int, size: int) -> int:
    """Where the last whole line ends; `begin` if there is none."""
    place = size
    while place > begin:
        start = max(begin, place - BLOCK)
        file.seek(start)
        end = file.read(place - start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        place = start
    return begin
