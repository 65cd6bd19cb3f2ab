"""Which engine reads the logs, and why: DuckDB in this process, unless Spark is asked for or the logs are too large."""

from __future__ import annotations

import enum
import shutil
import tempfile
from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.doctor.errors import DoctorError
from semel.doctor.logs.discovery import Kind, LogFile

MOST_EVENTS: Final = 500_000_000  # that one process examines in about half an hour
# Bytes of a log for each event, and bytes of disk that DuckDB needs for each event, with what it sorts.
_BYTES_PER_EVENT: Final = {"parquet": 10, "compressed": 25, "text": 250}
_DISK_PER_EVENT: Final = 150


class EngineName(enum.StrEnum):
    DUCKDB = "duckdb"
    SPARK = "spark"


class Choice(NamedTuple):
    engine: EngineName
    reason: str

    def __str__(self) -> str:
        name = "DuckDB" if self.engine is EngineName.DUCKDB else "Spark"
        return f"{name} ({self.reason})"


def choose(
    requested: str | None, master: str | None, files: Sequence[LogFile], *, free_disk: int | None = None
) -> Choice:
    if requested is not None and requested not in list(EngineName):
        raise DoctorError(f"--engine {requested}: there are duckdb and spark")
    if requested == EngineName.DUCKDB and master is not None:
        raise DoctorError("--master is for --engine spark")
    size, events = size_text(sum(file.size for file in files)), _events(files)
    if requested is not None:
        return Choice(EngineName(requested), f"--engine {requested}; {size} of logs")
    if master is not None:
        return Choice(EngineName.SPARK, f"--master is given; {size} of logs")
    if events > MOST_EVENTS:
        return Choice(EngineName.SPARK, f"{size} of logs, more than {MOST_EVENTS // 1_000_000} million events")
    free = shutil.disk_usage(tempfile.gettempdir()).free if free_disk is None else free_disk
    if events * _DISK_PER_EVENT > free:
        return Choice(EngineName.SPARK, f"{size} of logs, and only {size_text(free)} free in {tempfile.gettempdir()}")
    return Choice(EngineName.DUCKDB, f"{size} of logs")


def _events(files: Sequence[LogFile]) -> int:
    """About how many events the files have."""
    return sum(file.size // _BYTES_PER_EVENT[_form(file)] for file in files)


def _form(file: LogFile) -> str:
    return "parquet" if file.kind is Kind.PARQUET else "compressed" if file.compression else "text"


def size_text(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
