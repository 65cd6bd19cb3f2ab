"""Which files a log consists of: local, in a bucket, or wherever Hadoop's file systems reach.

The rules: names that begin with a dot or an underscore are not read, for they are being written; a folder `date=…` that
cannot hold an event of the time asked for is left out; what is damaged is named, and what is not there is an error.
"""

from __future__ import annotations

import enum
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from semel.doctor.errors import DoctorError
from semel.telemetry.attempt_log.local_sink import DAY, day
from semel.telemetry.logs import safe_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKED: Final = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
PARQUET: Final = (".parquet", ".parq", ".pq")
LINES: Final = (".jsonl", ".json", ".ndjson", ".log")
NO_LOG: Final = (".crc", ".tmp", ".part", ".zip", ".tar", ".tgz", ".xz", ".7z")
LATE: Final = 300.0  # seconds that a file may be begun before an event that it holds, midnight between them
FETCHED: Final = ("s3", "gs", "gcs")  # read by pyarrow, as a Spark without further jars knows none of them
_DATE: Final = re.compile(r"(?:^|/)date=(\d{4}-\d{2}-\d{2})(?=/|$)")
_MAGIC: Final = re.compile(r"[*?\[]")
LOOKED_FOR: Final = "JSON lines (.jsonl, .json, .ndjson, .log; also .gz, .zst, .bz2, .lz4) or Parquet (.parquet)"


class Kind(enum.StrEnum):
    LINES = "lines"
    PACKED = "packed"  # lines, compressed
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class LogFile:
    """`address` names it for people and for Spark; `store` is the bucket's address, with its options, "" elsewhere."""

    address: str
    kind: Kind
    size: int = 0
    path: str = ""  # within the store, or on this machine
    store: str = ""


@dataclass(slots=True)
class Found:
    """The files of all the paths that were given, each once."""

    files: list[LogFile] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # path and reason


@dataclass(frozen=True, slots=True)
class Days:
    """The days whose folders can hold an event of the time asked for; an event may be in the next day's folder."""

    first: str = ""
    last: str = "9999-99-99"

    @staticmethod
    def of(since: float | None, until: float | None) -> Days:
        return Days(
            "" if since is None else day(max(0.0, since - LATE)),
            "9999-99-99" if until is None else day(until + DAY),
        )

    def may_hold(self, path: str) -> bool:
        return all(self.first <= found <= self.last for found in _DATE.findall(path))


def find(spark: SparkSession, paths: Sequence[str], *, mapped: bool, days: Days) -> Found:
    """All log files at these paths. DoctorError if a path is not there or holds none."""
    found, seen = Found(), set[str]()
    for path in paths:
        unreadable: list[str] = []
        files = list(_files(spark, path, mapped, unreadable))
        if not files and not unreadable:
            raise DoctorError(f"--log {safe_text(path, 300)}: no log file is there; looked for {LOOKED_FOR}")
        found.unreadable += unreadable
        for file in files:
            if file.address not in seen and days.may_hold(file.address):
                seen.add(file.address)
                found.files.append(file)
    return found


def _files(spark: SparkSession, path: str, mapped: bool, unreadable: list[str]) -> Iterable[LogFile]:
    scheme = path.partition("://")[0] if "://" in path else "file"
    if scheme == "file":
        return local_files(local_path(path), path, mapped, unreadable)
    if scheme in FETCHED:
        from semel.doctor.logs import remote

        return remote.files(path, mapped)
    return _hadoop_files(spark, path, mapped)


def local_path(address: str) -> str:
    if "://" not in address:
        return os.path.abspath(os.path.expanduser(address))
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost"):
        raise DoctorError(f"--log {address}: file:// takes three slashes before a path, as in file:///var/log")
    return unquote(parts.path)


def kind_of(name: str, *, mapped: bool, named: bool = False) -> Kind | None:
    """What a file's name says that it holds; None: no log. One that was `named` by itself is one in any case."""
    lower = name.lower()
    stem, suffix = os.path.splitext(lower)
    packed = suffix in PACKED
    stem = stem if packed else lower
    if lower.endswith(PARQUET):
        return Kind.PARQUET
    is_log = stem.endswith(LINES) or ((mapped or named) and not lower.endswith(NO_LOG))
    return (Kind.PACKED if packed else Kind.LINES) if is_log else None


def hidden(name: str) -> bool:
    return name.startswith((".", "_"))


# This machine.


def local_files(path: str, given: str, mapped: bool, unreadable: list[str]) -> Iterator[LogFile]:
    if os.path.exists(path):
        places = [path]
    elif not _MAGIC.search(path):
        raise DoctorError(f"--log {given}: no such file or folder")
    elif not (places := sorted(glob.glob(path, recursive=True))):
        raise DoctorError(f"--log {given}: no file or folder matches")
    for place in places:
        if os.path.isdir(place):
            yield from _walk(place, mapped, unreadable)
        elif (
            file := _local(place, kind_of(os.path.basename(place), mapped=mapped, named=True), unreadable)
        ) is not None:
            yield file


def _walk(folder: str, mapped: bool, unreadable: list[str]) -> Iterator[LogFile]:
    def refused(error: OSError) -> None:
        unreadable.append(f"{error.filename}: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not hidden(name))
        for name in sorted(names):
            kind = None if hidden(name) else kind_of(name, mapped=mapped)
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
    return LogFile(f"file://{path}", kind, size, path)


def _damage(file: Any, size: int) -> str | None:
    """What is wrong with a Parquet file, as far as its two ends tell."""
    half = "no Parquet file, or a half written one: its end is missing"
    if size < 12:
        return half
    file.seek(size - 8)
    end = file.read(8)
    if end[4:] == b"PARE":
        return "an encrypted Parquet file"
    return half if end[4:] != b"PAR1" or int.from_bytes(end[:4], "little") > size - 12 else None


# What only Spark can reach: s3a, hdfs, abfs, …


def _hadoop_files(spark: SparkSession, address: str, mapped: bool) -> list[LogFile]:
    try:
        return list(_listed(spark, address, mapped))
    except DoctorError:
        raise
    except Exception as error:  # whatever a file system's library raises
        raise DoctorError(f"--log {address}: {reason(error)}") from error


def _listed(spark: SparkSession, address: str, mapped: bool) -> Iterator[LogFile]:
    context: Any = spark.sparkContext
    root = context._jvm.org.apache.hadoop.fs.Path(address)
    system = root.getFileSystem(context._jsc.hadoopConfiguration())
    matches = system.globStatus(root)
    if not matches:
        raise DoctorError(f"--log {address}: no such file or folder")
    for match in matches:
        top = match.getPath()
        if match.isFile():
            if (kind := kind_of(top.getName(), mapped=mapped, named=True)) is not None:
                yield LogFile(top.toString(), kind, match.getLen())
            continue
        found = system.listFiles(top, True)
        while found.hasNext():
            status = found.next()
            name = status.getPath().toString()
            inside = name[len(top.toString()) :].split("/")
            kind = kind_of(inside[-1], mapped=mapped)
            if kind is not None and not any(hidden(part) for part in inside):
                yield LogFile(name, kind, status.getLen())


def reason(error: BaseException) -> str:
    """What went wrong, in one line of a stack trace that may have hundreds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (thrown or lines or [type(error).__name__])[0][:300]
