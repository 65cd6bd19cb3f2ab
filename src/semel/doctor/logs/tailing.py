"""Follows files that an application appends to: a streaming source that reads on where it stopped, as `tail -F`.

A file is known by its inode, so a rotated one (app.log, now app.log.1) is not read again, and one that was cut short is
read from its start. A line counts when its end is there, or when the file has not grown between two looks. Compressed
files are left out: they are copies of what was followed while it was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from semel.doctor.errors import DoctorError
from semel.doctor.logs.discovery import Kind, LogFile, local_files
from semel.doctor.logs.fetching import LINE_SCHEMA, problem_row, split_lines

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BLOCK: Final = 64 * 1024
TASKS: Final = 8  # at most, in a batch


class Range(NamedTuple):
    path: str
    inode: str
    begin: int
    end: int


def follow(spark: SparkSession, folder: str) -> DataFrame:
    """The lines of a folder's files as a stream, with the columns line and problem."""
    spark.dataSource.register(TailSource)
    return spark.readStream.format(TailSource.name()).option("folder", folder).load()


class TailSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "semel-tail"

    def schema(self) -> str:
        return LINE_SCHEMA

    def streamReader(self, schema: StructType) -> TailReader:  # noqa: ARG002  Spark gives it
        return TailReader(self.options["folder"])


class TailReader(DataSourceStreamReader):
    """An offset says for each file, by its inode, its path and how far it was read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}  # at the last look

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002  Spark gives it
        found: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        for path in self._paths():
            try:
                with open(path, "rb") as file:
                    about = os.fstat(file.fileno())
                    inode = f"{about.st_dev}:{about.st_ino}"
                    sizes[inode] = size = about.st_size
                    read = _read(start, inode, size)
                    settled = self._sizes.get(inode) == size
                    found[inode] = [path, size if settled else max(read, _last_line(file.fileno(), read, size))]
            except OSError:  # gone in this very moment
                continue
        self._sizes = sizes
        return found

    def _paths(self) -> list[str]:
        try:
            files = list(local_files(self._folder, self._folder, True, []))
        except DoctorError:  # the folder is gone; it may come back
            return []
        return [file.path for file in files if file.kind is Kind.LINES]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = [Range(path, inode, _read(start, inode, size), size) for inode, (path, size) in end.items()]
        new = [one for one in ranges if one.end > one.begin]
        return [InputPartition(new[place::TASKS]) for place in range(min(TASKS, len(new)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for one in partition.value:
            yield from _lines_of(Range(*one))


def _read(start: Mapping[str, Any], inode: str, size: int) -> int:
    """How far a file was read; 0 if it is shorter than that by now, for then it was begun anew."""
    read = int(start[inode][1]) if inode in start else 0
    return read if read <= size else 0


def _last_line(file: int, begin: int, size: int) -> int:
    """Where the last whole line ends; `begin` if there is none."""
    for place in range(max(begin, size - BLOCK), begin - BLOCK, -BLOCK):
        place = max(begin, place)
        found = os.pread(file, min(BLOCK, size - place), place).rfind(b"\n")
        if found >= 0:
            return place + found + 1
    return begin


def _lines_of(one: Range) -> Iterator[pa.RecordBatch]:
    try:
        with open(_path(one), "rb") as file:
            file.seek(one.begin)

            def more(size: int) -> bytes:
                return file.read(min(size, one.end - file.tell()))

            yield from split_lines(more)
    except OSError as error:
        yield problem_row(LogFile(f"file://{one.path}", Kind.LINES), error)


def _path(one: Range) -> str:
    """Where the file is now: it may have been renamed since."""
    if _inode(one.path) == one.inode:
        return one.path
    beside = (str(path) for path in Path(one.path).parent.iterdir())
    return next((path for path in beside if _inode(path) == one.inode), one.path)


def _inode(path: str) -> str:
    try:
        about = os.stat(path)
    except OSError:
        return ""
    return f"{about.st_dev}:{about.st_ino}"
