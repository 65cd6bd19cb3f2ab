"""Every attempt at one message, read from the attempt log without Spark and without an index.

The newest files are read first, and a line is parsed only if it contains the id or key, so it takes as long as reading
the bytes. Bytes and time are limited, and the result says if it is complete. Lines that are not events are skipped.
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
MAX_LINE: Final = 1 << 20
WINDOW: Final = 16 << 20  # bytes that are searched between two checks of the limits
# Complete files, and those that are being written, which have the latest events. Compressed files are not read.
_LINES: Final = re.compile(r"[^._].*\.(jsonl|ndjson)|\.attempts-.+\.(jsonl|parquet)\.open")
_PARQUET: Final = re.compile(r"[^._].*\.parquet")
_STAMP: Final = re.compile(r"-(\d{8}T\d{6})-\d+\.")
_NEWEST: Final = "only the newest events are shown"
_DATE: Final = re.compile(r"date=(\d{4})-(\d{2})-(\d{2})")


class TrailError(SemelError):
    """The attempt log cannot be read at all. Check the folder that workers write to: `--attempt-log`."""


@dataclass(frozen=True, slots=True)
class TrailEvent:
    """One event of one message; docs/reference/attempt-log.md explains the fields. 0 and "" mean unknown."""

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
    """`events` are in order, the oldest first. If it is not `complete`, there may be more; `reasons` say why."""

    events: tuple[TrailEvent, ...]
    complete: bool
    reasons: tuple[str, ...] = ()


_NUMBERS: Final = {"at", "sent_at", "seconds", "visibility"}
_WHOLE: Final = {"fence", "attempt", "receive_count"}
_FIELDS: Final = tuple(TrailEvent.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class _Query:
    ids: frozenset[str]
    keys: frozenset[str]
    queue: str | None

    def needles(self) -> list[bytes]:
        """Each id and key as it may stand in a line: JSON can escape a text in more than one way."""
        needles = []
        for text in sorted(self.ids | self.keys):
            encoded = {json.dumps(text).encode()} | ({orjson.dumps(text)} if _is_unicode(text) else set())
            needles += sorted(encoded)
        return needles

    def matches(self, fields: dict[str, Any]) -> bool:
        if self.queue is not None and fields.get("queue") not in (self.queue, None):
            return False
        return fields.get("message_id") in self.ids or fields.get("key") in self.keys


class _Limits:
    """The bytes and the time that a query may take."""

    def __init__(self, most_bytes: int, most_seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + most_seconds
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self.scanned = 0
        self.exceeded = ""  # why a file was not read completely

    def check(self) -> str:
        """Why nothing more may be read; "" if more may be."""
        if self.scanned >= self._most_bytes:
            return f"only the newest {self._most_bytes >> 20:,} MiB were read"
        if self._clock() >= self._deadline:
            return f"only what could be read within {self._most_seconds:g} s is shown"
        return ""


class Trail:
    """Reads attempt logs in folders or files of this machine."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    @classmethod
    def of(cls, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Trail:
        """From paths and file:// URLs. Logs in a bucket are not read: use the doctor."""
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
        """The newest `limit` events of the messages with this id or key, the oldest first."""
        query = _Query(_texts(message_id), _texts(key), queue)
        if not query.ids and not query.keys:
            raise TrailError("the trail of a message needs its id or its key")
        limits = _Limits(most_bytes, most_seconds, clock)
        events: list[TrailEvent] = []
        reasons: list[str] = []
        for file in self._files():
            if reason := limits.check() or (_NEWEST if len(events) >= limit else ""):
                reasons.append(reason)
                break
            try:
                read = _read_parquet if _PARQUET.fullmatch(file.name) else _read_lines
                older = [_event(fields) for fields in read(file, query, limits) if query.matches(fields)]
            except FileNotFoundError:
                continue  # completed or removed just now: its events are in another file, or gone
            except (OSError, ImportError, ValueError) as error:
                reasons.append(f"{file.name} was not read: {error}")
                continue
            events = older + events  # events of the same time keep the order in which they were written
        events.sort(key=lambda event: event.at)
        if len(events) > limit:
            events = events[-limit:]
            reasons.append(_NEWEST)
        if limits.exceeded:
            reasons.append(limits.exceeded)
        return TrailResult(tuple(events), not reasons, tuple(dict.fromkeys(reasons)))

    def _files(self) -> list[Path]:
        """The newest first: by the time in the name, else by the day of the folder, else by the last change."""
        ages: dict[Path, tuple[str, float]] = {}
        for path in self._paths:
            if path.is_file():
                ages[path] = _age(path)
                continue
            if not path.is_dir():
                raise TrailError(
                    f"there is no attempt log at {path}; name the folder that workers write to with --attempt-log"
                )
            for folder, folders, names in os.walk(path, onerror=_unreadable):
                folders[:] = [name for name in folders if not name.startswith((".", "_"))]
                for name in names:
                    if _LINES.fullmatch(name) or _PARQUET.fullmatch(name):
                        ages[Path(folder, name)] = _age(Path(folder, name))
        return sorted(ages, key=lambda file: ages[file], reverse=True)


def _unreadable(error: OSError) -> None:
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
    try:
        scheme, _, path, *_ = urlsplit(text)
    except ValueError:  # a path with a bracket after two slashes
        scheme, path = "", text
    if scheme == "file":
        return Path(unquote(path))
    if len(scheme) > 1:  # a single letter is a drive of Windows
        raise TrailError(
            f"the trail of a message is read from local files only, not from {text}; use the doctor for a bucket"
        )
    return Path(os.path.expanduser(text))


def _texts(values: str | Sequence[str] | None) -> frozenset[str]:
    if values is None:
        return frozenset()
    return frozenset([values] if isinstance(values, str) else values) - {""}


def _is_unicode(text: str) -> bool:
    """False for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Lines.


def _read_lines(path: Path, query: _Query, limits: _Limits) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start, end in reversed(list(_lines_with(data, query.needles(), limits))):
                try:
                    fields = orjson.loads(data[start:end])
                except orjson.JSONDecodeError:
                    continue  # the last line of a file that is being written, or not an event
                if isinstance(fields, dict):
                    yield fields


def _lines_with(data: mmap.mmap, needles: Sequence[bytes], limits: _Limits) -> Iterator[tuple[int, int]]:
    """Start and end of each line that contains a needle, from the end of the file to its beginning."""
    end = len(data)
    while end > 0:
        if reason := limits.check():
            limits.exceeded = reason
            return
        start = max(0, end - WINDOW)
        if start:  # at the beginning of a line; a line longer than the window is not an event
            start = data.find(b"\n", start, end - 1) + 1 or start
        limits.scanned += end - start
        lines: set[tuple[int, int]] = set()
        for needle in needles:
            at = data.find(needle, start, end)
            while at >= 0:
                stop = data.find(b"\n", at, end)
                stop = end if stop < 0 else stop
                begin = data.rfind(b"\n", start, at) + 1 or start
                if stop - begin <= MAX_LINE:
                    lines.add((begin, stop))
                at = data.find(needle, stop, end)
        yield from sorted(lines, reverse=True)
        end = start


# Parquet.


def _read_parquet(path: Path, query: _Query, limits: _Limits) -> Iterator[dict[str, Any]]:
    parquet: Any = _pyarrow("pyarrow.parquet")
    dataset: Any = _pyarrow("pyarrow.dataset")
    field = dataset.field
    limits.scanned += path.stat().st_size
    named = set(parquet.read_schema(path).names)
    condition = None
    for column, values in (("message_id", query.ids), ("key", query.keys)):
        if values and column in named:
            in_column = field(column).isin(sorted(filter(_is_unicode, values)))
            condition = in_column if condition is None else condition | in_column
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
    """The event of a line; values of an unexpected type are left out."""
    values: dict[str, Any] = {"at": 0.0, "step": ""}
    for name in _FIELDS:
        value = fields.get(name)
        if name in _NUMBERS or name in _WHOLE:
            if isinstance(value, int | float) and not isinstance(value, bool):
                values[name] = int(value) if name in _WHOLE else float(value)
        elif isinstance(value, str):
            values[name] = value
    return TrailEvent(**values)
