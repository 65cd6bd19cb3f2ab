"""Attempt files in a local folder: a hidden open file that grows each second, renamed when it is complete.

The rules: readers see only complete files (Spark does not read names that begin with a dot). A killed process loses
what it had not yet passed to the system, about a second. The next process that starts completes the file that a killed
one left open. An open file has JSON lines and is locked by its writer, so one that can be locked has lost its writer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from semel.errors import StartError
from semel.telemetry.attempt_log.parquet import to_parquet

# On systems without such locks nobody can tell which files are abandoned, so they are left as they are.
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

Format = Literal["jsonl", "parquet"]
DAY: Final = 86_400.0
CLEAN_EVERY: Final = 600.0  # seconds between two searches for old and abandoned files
_COMPLETE: Final = re.compile(r"attempts-.+\.(jsonl|parquet)")
_OURS: Final = re.compile(r"\.?attempts-.+\.(jsonl|parquet)(\.open|\.whole)?")
_OPEN: Final = re.compile(r"\.attempts-.+\.(jsonl|parquet)\.open")
_FOLDER: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


@dataclass(frozen=True, slots=True)
class Roll:
    """When a file is complete: at the first of these limits, and always at midnight (UTC)."""

    rows: int = 1_000_000
    bytes: int = 32 * 1024 * 1024
    seconds: float = 60.0

    def due(self, rows: int, size: int, begun: float, now: float) -> bool:
        if rows >= self.rows or size >= self.bytes or day(now) != day(begun):
            return True
        return not 0 <= now - begun < self.seconds  # also if the clock was set back


@dataclass(frozen=True, slots=True)
class Keep:
    """How much a local folder may hold of our own complete files; the oldest are removed first. None: no limit."""

    days: float | None = 28.0
    bytes: int | None = 10 * 1024**3


def day(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now))


@dataclass(slots=True)
class Names:
    """File names that no other process, and no other log of this process, uses."""

    format: Format
    worker: str = field(default_factory=lambda: f"{_host()}-{os.getpid()}")
    token: str = field(default_factory=lambda: secrets.token_hex(3))
    count: int = 0

    def next(self, now: float) -> str:
        """date=2026-11-16/attempts-web1-4711-9f3c2a-20261116T101500-000001.jsonl"""
        self.count += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        return f"date={day(now)}/attempts-{self.worker}-{self.token}-{stamp}-{self.count:06d}.{self.format}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", socket.gethostname())[:60] or "host"


class Sink(Protocol):
    """Where the lines go. One thread writes; any thread may read the numbers, wait and close."""

    written: int  # events that are in the folder
    dropped: int  # events that were accepted and could not be kept

    @property
    def full(self) -> bool: ...  # whether it accepts nothing more for now

    def append(self, lines: bytes, rows: int, now: float) -> None: ...  # if it raises, none of it was kept
    def tick(self, now: float, *, flush: bool) -> None: ...  # complete what is due
    def finish(self) -> None: ...  # complete what is open
    def wait(self, timeout: float) -> bool: ...  # until what it took is in the folder
    def close(self, timeout: float) -> None: ...


class _Part:
    """The file that is being written."""

    def __init__(self, path: Path, begun: float) -> None:
        self.path, self.begun = path, begun
        self.rows = self.size = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not _hold(self._file, path):
            os.close(self._file)
            raise OSError(f"{path} was adopted as an abandoned file")  # by a cleaning process: use a new one

    def append(self, lines: bytes, rows: int) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)  # the disk is full: leave no half line
            raise
        self.size += len(lines)
        self.rows += rows

    def close(self) -> None:
        os.close(self._file)


class LocalSink:
    def __init__(self, root: Path, format: Format, roll: Roll, keep: Keep) -> None:
        self._root, self._roll, self._keep = root, roll, keep
        self._names = Names(format)
        self._part: _Part | None = None
        self._cleaned = -CLEAN_EVERY
        self.written = self.dropped = 0
        _check(root)

    full = False

    def append(self, lines: bytes, rows: int, now: float) -> None:
        if self._part is None:
            final = self._root / self._names.next(now)
            self._part = _Part(final.with_name(f".{final.name}.open"), now)
        self._part.append(lines, rows)
        self.written += rows

    def tick(self, now: float, *, flush: bool) -> None:  # noqa: ARG002  each line was already passed to the system
        part = self._part
        if part is not None and self._roll.due(part.rows, part.size, part.begun, now):
            self.finish()
        if abs(now - self._cleaned) >= CLEAN_EVERY:
            self._cleaned = now
            adopt(self._root)
            clean(self._root, self._keep, now)

    def finish(self) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        try:
            _complete(part.path)
        except FileNotFoundError:  # somebody removed the folder meanwhile
            self.dropped += part.rows
            self.written -= part.rows
            raise
        finally:  # if this failed, the file stays, unlocked, as an abandoned one: cleaning up tries again
            part.close()

    def wait(self, timeout: float) -> bool:  # noqa: ARG002  lines are in the open file when `append` returns
        return True

    def close(self, timeout: float) -> None:
        """All is done when `finish` returns."""


def _check(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".probe-{os.getpid()}-{secrets.token_hex(3)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StartError(
            f"attempt log folder {root}: {error.strerror}; choose a folder that this process may write to"
        ) from None


def _hold(file: int, path: Path) -> bool:
    """Lock an open file; False if another process has it, or if `path` no longer names this file."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _complete(path: Path) -> None:
    """Give an open file its final name, as JSON lines or Parquet, as its name says."""
    final = path.with_name(path.name.removeprefix(".").removesuffix(".open"))
    if final.suffix == ".jsonl":
        path.rename(final)
        return
    whole = path.with_name(f".{final.name}.whole")
    whole.write_bytes(to_parquet(path.read_bytes()))
    whole.rename(final)
    path.unlink()  # after a crash before this line, the same file is made again under the same name


def adopt(root: Path) -> int:
    """Complete the files that writers left open when they were killed; returns how many."""
    if fcntl is None:
        return 0
    return sum(_adopt(path) for folder in _folders(root) for path in _matching(folder, _OPEN))


def _adopt(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not _hold(file, path):
            return False
        size = os.fstat(file).st_size
        whole = _whole_lines(file, size)
        if not whole:
            path.unlink()
            return False
        if whole < size:
            os.ftruncate(file, whole)
        _complete(path)
        return True
    except (OSError, StartError):  # Parquet without pyarrow: the file waits for a process that has it
        return False
    finally:
        os.close(file)


def _whole_lines(file: int, size: int) -> int:
    """The size up to the end of the last whole line."""
    step = 64 * 1024
    for start in range((size - 1) // step * step if size else 0, -1, -step):
        newline = os.pread(file, step, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
    return 0


def clean(root: Path, keep: Keep, now: float) -> None:
    """Remove our own files that are too old, then the oldest complete ones until the rest fits."""
    limit = "" if keep.days is None else f"date={day(now - keep.days * DAY)}"
    files: list[tuple[float, int, Path]] = []
    for folder in _folders(root):
        if folder.name < limit:
            for path in _matching(folder, _OURS):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it has files that are not ours
                folder.rmdir()
        elif keep.bytes is not None:
            for path in _matching(folder, _COMPLETE):
                with contextlib.suppress(FileNotFoundError):  # another process cleans here too
                    status = path.stat()
                    files.append((status.st_mtime, status.st_size, path))
    excess = sum(size for _, size, _ in files) - (keep.bytes or 0)
    for _, size, path in sorted(files):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size


def _folders(root: Path) -> list[Path]:
    return [path for path in _inside(root) if _FOLDER.fullmatch(path.name) and path.is_dir()]


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    return [path for path in _inside(folder) if pattern.fullmatch(path.name)]


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
