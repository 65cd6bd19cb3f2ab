"""Every attempt at one message, from the attempt log, without Spark and without an index.

The newest files are read first, and a line is parsed only if the bytes that are looked for are in it: so the trail of
one message out of gigabytes takes as long as reading them. What a page can wait for is bounded in bytes and in time; a
result says whether it was all there is. Lines that are no events are passed over, and what is missing is never guessed.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson

from semel.errors import SemelError

MOST_BYTES: Final = 1 << 30
MOST_SECONDS: Final = 3.0
MOST_EVENTS: Final = 1_000
LONGEST_LINE: Final = 1 << 20
WINDOW: Final = 16 << 20  # bytes of one file that are searched between two looks at the clock
# Complete files, and those that are being written: what happened last is in them. Packed ones are the doctor's matter.
_LINES: Final = re.compile(r"[^._].*\.(jsonl|ndjson)|\.attempts-.+\.(jsonl|parquet)\.open")
_PARQUET: Final = re.compile(r"[^._].*\.parquet")
_STAMP: Final = re.compile(r"-(\d{8}T\d{6})-\d+\.")
_DATE: Final = re.compile(r"date=(\d{4})-(\d{2})-(\d{2})")


class TrailError(SemelError):
    """The attempt log cannot be read at all."""


@dataclass(frozen=True, slots=True)
class TrailEvent:
    """One step of one message; docs/attempt-log.md says what each field means. 0 and "" are: not known."""

    at: float
    step: str
    queue: str = ""
    message_id: str = ""
    key: str = ""
    fence: int = 0
    attempt: int = 0
    receive_count: int = 0
    sent_at: float = 0.0
    group: str = ""
    seconds: float = 0.0
    visibility: float = 0.0
    error: str = ""
    worker: str = ""
    key_origin: str = ""
    handler: str = ""


@dataclass(frozen=True, slots=True)
class TrailResult:
    """`events`, oldest first. Not `complete`: there is more log than was read; `reasons` say why."""

    events: tuple[TrailEvent, ...]
    scanned_bytes: int
    complete: bool
    reasons: tuple[str, ...] = ()
    files: int = 0


_NUMBERS: Final = {"at", "sent_at", "seconds", "visibility"}
_WHOLE: Final = {"fence", "attempt", "receive_count"}
_FIELDS: Final = tuple(TrailEvent.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    ids: frozenset[str]
    keys: frozenset[str]
    queue: str | None

    def needles(self) -> list[bytes]:
        """How each of them looks in a line. A text with a quote or the like may be written in more than one way."""
        found = []
        for text in sorted(self.ids | self.keys):
            quoted = {orjson.dumps(text, default=str) if _is_whole(text) else b"", json.dumps(text).encode()}
            found += sorted(one for one in quoted if one)
        return found

    def has(self, fields: dict[str, Any]) -> bool:
        if self.queue is not None and fields.get("queue") not in (self.queue, None):
            return False
        return fields.get("message_id") in self.ids or fields.get("key") in self.keys


class _Limits:
    """What may still be read."""

    def __init__(self, most_bytes: int, most_seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends = clock() + most_seconds
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self.scanned = 0
        self.cut = ""  # why a file was not read to its end

    def over(self) -> str:
        """Why nothing more is read; "" if more may be."""
        if self.scanned >= self._most_bytes:
            return f"only the newest {self._most_bytes >> 20:,} MiB were read"
        if self._clock() >= self._ends:
            return f"only what could be read within {self._most_seconds:g} s was read"
        return ""


class Trail:
    """The attempt logs of some folders or files on this machine."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    @classmethod
    def of(cls, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Trail:
        """From paths and file:// addresses. A bucket is not read: its files are packed for machines, use the doctor."""
        several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        return cls([_local(os.fspath(path)) for path in several])

    def events(
        self,
        *,
        message_id: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        queue: str | None = None,
        limit: int = MOST_EVENTS,
        most_bytes: int = MOST_BYTES,
        most_seconds: float = MOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> TrailResult:
        """What happened to a message by its id, or to whatever had its key; the newest `limit` of it, oldest first."""
        wanted = _Wanted(_texts(message_id), _texts(key), queue)
        if not wanted.ids and not wanted.keys:
            raise TrailError("a trail is that of a message: give its id or its key")
        limits = _Limits(most_bytes, most_seconds, clock)
        found: list[TrailEvent] = []
        reasons: list[str] = []
        files = 0
        for file in self._files():
            if reason := limits.over() or ("only the newest of its steps are shown" if len(found) >= limit else ""):
                reasons.append(reason)
                break
            files += 1
            try:
                reader = _in_parquet if _PARQUET.fullmatch(file.name) else _in_lines
                here = [_event(fields) for fields in reader(file, wanted, limits) if wanted.has(fields)]
            except FileNotFoundError:
                continue  # completed or cleaned up just now: its events are in another file, or gone
            except (OSError, ImportError, ValueError) as error:
                reasons.append(f"{file.name} was not read: {error}")
                continue
            found = here + found  # what happened at the same time keeps the order in which it was written down
        found.sort(key=lambda event: event.at)
        if len(found) > limit:
            found = found[-limit:]
            reasons.append("only the newest of its steps are shown")
        if limits.cut:
            reasons.append(limits.cut)
        return TrailResult(tuple(found), limits.scanned, not reasons, tuple(dict.fromkeys(reasons)), files)

    def _files(self) -> list[Path]:
        """Newest first: by the day of the folder, then by the time in the name, else by the time of the last change."""
        found: dict[Path, tuple[str, float]] = {}
        for path in self._paths:
            if path.is_file():
                found[path] = _age(path)
                continue
            if not path.is_dir():
                raise TrailError(f"there is no attempt log at {path}: give the folder that --attempt-log names")
            for folder, folders, names in os.walk(path, onerror=_refused):
                folders[:] = [name for name in folders if not name.startswith((".", "_"))]
                for name in names:
                    if _LINES.fullmatch(name) or _PARQUET.fullmatch(name):
                        found[Path(folder, name)] = _age(Path(folder, name))
        return sorted(found, key=lambda file: found[file], reverse=True)


def _refused(error: OSError) -> None:
    raise TrailError(f"the attempt log cannot be read: {error}") from None


def _age(path: Path) -> tuple[str, float]:
    try:
        changed = path.stat().st_mtime
    except OSError:
        changed = 0.0
    if stamp := _STAMP.search(path.name):
        return stamp[1], changed
    if date := _DATE.search(path.parent.name):
        return f"{date[1]}{date[2]}{date[3]}", changed
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(changed)), changed


def _local(text: str) -> Path:
    scheme = urlsplit(text).scheme
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    if len(scheme) > 1:  # one letter is a drive
        raise TrailError(f"the trail of a message is read from this machine's own files, not from {text}")
    return Path(text).expanduser()


def _texts(given: str | Sequence[str] | None) -> frozenset[str]:
    if given is None:
        return frozenset()
    return frozenset([given] if isinstance(given, str) else given) - {""}


def _is_whole(text: str) -> bool:
    """Whether it is valid Unicode, without half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Lines.


def _in_lines(path: Path, wanted: _Wanted, limits: _Limits) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start, end in reversed(list(_lines_with(data, wanted.needles(), limits))):
                try:
                    fields = orjson.loads(data[start:end])
                except orjson.JSONDecodeError:
                    continue  # the last line of a file that is being written, or no line of ours
                if isinstance(fields, dict):
                    yield fields


def _lines_with(data: mmap.mmap, needles: Sequence[bytes], limits: _Limits) -> Iterator[tuple[int, int]]:
    """Where the lines are that hold one of the needles, each once, from the end of the file to its beginning."""
    end = len(data)
    while end > 0:
        if reason := limits.over():
            limits.cut = reason
            return
        start = max(0, end - WINDOW)
        if start:  # from the beginning of a line on; one that is longer than all of this is none of ours
            start = data.find(b"\n", start, end - 1) + 1 or start
        limits.scanned += end - start
        places: set[tuple[int, int]] = set()
        for needle in needles:
            at = data.find(needle, start, end)
            while at >= 0:
                stop = data.find(b"\n", at, end)
                stop = end if stop < 0 else stop
                begin = data.rfind(b"\n", start, at) + 1 or start
                if stop - begin <= LONGEST_LINE:
                    places.add((begin, stop))
                at = data.find(needle, stop, end)
        yield from sorted(places, reverse=True)
        end = start


# Parquet.


def _in_parquet(path: Path, wanted: _Wanted, limits: _Limits) -> Iterator[dict[str, Any]]:
    parquet: Any = _pyarrow("pyarrow.parquet")
    dataset: Any = _pyarrow("pyarrow.dataset")
    field = dataset.field
    limits.scanned += path.stat().st_size
    named = set(parquet.read_schema(path).names)
    condition = None
    for column, values in (("message_id", wanted.ids), ("key", wanted.keys)):
        if values and column in named:
            this = field(column).isin(sorted(filter(_is_whole, values)))
            condition = this if condition is None else condition | this
    if condition is None:
        return
    columns = [name for name in _FIELDS if name in named]
    table = parquet.read_table(path, columns=columns, filters=condition, use_threads=False, partitioning=None)
    yield from table.to_pylist()


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow") from None


def _event(fields: dict[str, Any]) -> TrailEvent:
    """What is of another type than it should be is left out."""
    values: dict[str, Any] = {"at": 0.0, "step": ""}
    for name in _FIELDS:
        value = fields.get(name)
        if name in _NUMBERS or name in _WHOLE:
            if isinstance(value, int | float) and not isinstance(value, bool):
                values[name] = int(value) if name in _WHOLE else float(value)
        elif isinstance(value, str):
            values[name] = value
    return TrailEvent(**values)
