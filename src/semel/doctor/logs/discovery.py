"""Which files a log consists of, on this machine or in a bucket.

The rules: files and folders whose names begin with a dot or an underscore are not read, because they are being written;
a folder `date=…` that cannot hold an event of the requested time is left out; a damaged file is reported by name, and a
missing one is an error.
"""

from __future__ import annotations

import enum
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from semel.doctor.errors import DoctorError
from semel.telemetry.attempt_log.local_sink import DAY, day
from semel.telemetry.logs import safe_text

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}
PARQUET: Final = (".parquet", ".parq", ".pq")
LINES: Final = (".jsonl", ".json", ".ndjson", ".log")
NO_LOG: Final = (".crc", ".tmp", ".part", ".zip", ".tar", ".tgz", ".xz", ".7z")
LATE: Final = 300.0  # seconds: a file, and so its date, may be older than an event in it by this much
CSV: Final = (".csv",)
_ROTATED: Final = re.compile(r"[.-][0-9][0-9TZ:.-]*$", re.IGNORECASE)  # app.log.1, app.log-2026-11-16
_DATE: Final = re.compile(r"(?:^|/)date=(\d{4}-\d{2}-\d{2})(?=/|$)")
_MAGIC: Final = re.compile(r"[*?\[]")
LOOKED_FOR: Final = "JSON lines (.jsonl, .json, .ndjson, .log), CSV (.csv), also .gz, .zst, .bz2; or Parquet (.parquet)"


class Kind(enum.StrEnum):
    LINES = "lines"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class LogFile:
    """`address` is for people. `store` is the address of the bucket, with its options, or "" on this machine."""

    address: str
    kind: Kind
    size: int = 0
    path: str = ""  # within the store, or on this machine
    store: str = ""

    @property
    def compression(self) -> str | None:
        return COMPRESSIONS.get(os.path.splitext(self.path.lower())[1])


@dataclass(slots=True)
class LogFiles:
    """The files of all the paths that were given, each once."""

    files: list[LogFile] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # path and reason


@dataclass(frozen=True, slots=True)
class Days:
    """The days whose folders can hold an event of the requested time; an event may be in the next day's folder."""

    first: str = ""
    last: str = "9999-99-99"

    @staticmethod
    def of(since: float | None, until: float | None) -> Days:
        return Days(
            "" if since is None else day(max(0.0, since - LATE)),
            "9999-99-99" if until is None else day(until + DAY),
        )

    def may_hold(self, path: str) -> bool:
        return all(self.first <= date <= self.last for date in _DATE.findall(path))


def find(
    paths: Sequence[str], *, any_name: bool = False, days: Days | None = None, open_files: bool = False
) -> LogFiles:
    """All log files at these paths. `any_name`: also files whose names do not say that they are logs. `open_files`:
    also those that the attempt log is writing. Raises DoctorError if a path does not exist or has no log file."""
    log_files, known = LogFiles(), set[str]()
    for path in paths:
        unreadable: list[str] = []
        files = list(_files(path, any_name, open_files, unreadable))
        if not files and not unreadable:
            raise DoctorError(f"--log {safe_text(path, 300)}: no log file is there; looked for {LOOKED_FOR}")
        log_files.unreadable += unreadable
        for file in files:
            if file.address not in known and (days is None or days.may_hold(file.address)):
                known.add(file.address)
                log_files.files.append(file)
    return log_files


def _files(path: str, any_name: bool, open_files: bool, unreadable: list[str]) -> Iterable[LogFile]:
    if is_local(path):
        return local_files(local_path(path), path, any_name, unreadable, open_files=open_files)
    from semel.doctor.logs import remote_files

    return remote_files.files(path, any_name)


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")


def local_path(address: str) -> str:
    if "://" not in address:
        return os.path.abspath(os.path.expanduser(address))
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise DoctorError(f"--log {address}: {error}; write file:///var/log") from None
    if parts.netloc not in ("", "localhost"):
        raise DoctorError(f"--log {address}: file:// takes three slashes before a path, as in file:///var/log")
    return unquote(parts.path)


def kind_of(name: str, *, any_name: bool, named: bool = False) -> Kind | None:
    """The kind of file, by its name; None if it is not a log. `named`: the user named this very file, so its name need
    not end like that of a log."""
    lower = name.lower()
    stem, suffix = os.path.splitext(lower)
    stem = stem if suffix in COMPRESSIONS else lower
    if lower.endswith(PARQUET):
        return Kind.PARQUET
    if stem.endswith(CSV):
        return Kind.CSV
    is_log = _ROTATED.sub("", stem).endswith(LINES) or ((any_name or named) and not lower.endswith(NO_LOG))
    return Kind.LINES if is_log else None


def hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def is_open(name: str) -> bool:
    """Whether the attempt log is writing this file. It is renamed at its end; a Parquet log then writes another one."""
    return name.startswith(".attempts-") and name.endswith(".jsonl.open")


# This machine.


def local_files(
    path: str, address: str, any_name: bool, unreadable: list[str], *, open_files: bool = False
) -> Iterator[LogFile]:
    if os.path.exists(path):
        places = [path]
    elif not _MAGIC.search(path):
        raise DoctorError(f"--log {address}: no such file or folder")
    elif not (places := sorted(glob.glob(path, recursive=True))):
        raise DoctorError(f"--log {address}: no file or folder matches")
    for place in places:
        if os.path.isdir(place):
            yield from _walk(place, any_name, open_files, unreadable)
        elif (
            file := _local(place, kind_of(os.path.basename(place), any_name=any_name, named=True), unreadable)
        ) is not None:
            yield file


def _walk(folder: str, any_name: bool, open_files: bool, unreadable: list[str]) -> Iterator[LogFile]:
    def refused(error: OSError) -> None:
        unreadable.append(f"{error.filename}: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not hidden(name))
        for name in sorted(names):
            if hidden(name):
                kind = Kind.LINES if open_files and is_open(name) else None
            else:
                kind = kind_of(name, any_name=any_name)
            if kind is not None and (file := _local(os.path.join(place, name), kind, unreadable)) is not None:
                yield file


def _local(path: str, kind: Kind | None, unreadable: list[str]) -> LogFile | None:
    """The file, unless it plainly cannot be read."""
    if kind is None:
        return None
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            damage = _damage(file, size) if kind is Kind.PARQUET else None
    except OSError as error:
        damage = error.strerror or "cannot be opened"
    if damage is not None:
        unreadable.append(f"{path}: {damage}")
        return None
    return LogFile(path, kind, size, path)


def _damage(file: Any, size: int) -> str | None:
    """What is wrong with a Parquet file, as far as its size and its end show."""
    half = "no Parquet file, or a half written one: its end is missing"
    if size < 12:
        return half
    file.seek(size - 8)
    end = file.read(8)
    if end[4:] == b"PARE":
        return "an encrypted Parquet file"
    return half if end[4:] != b"PAR1" or int.from_bytes(end[:4], "little") > size - 12 else None
