"""Reads logs into events of the normal form: Semel's attempt log, or any application's by a mapping.

Nothing in a log is fatal: what is damaged, malformed or incomplete is left out, counted in the same pass, and told by
`Reading.quality`. Only a path that is not there, or holds no log at all, is an error; `unusable` has the words for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semel.doctor.events import COLUMNS, SCHEMA
from semel.doctor.logs import fetching, mapped
from semel.doctor.logs.discovery import NO_LOG, PARQUET, Days, Found, Kind, LogFile, find
from semel.doctor.logs.footers import ROWS, read_footer
from semel.doctor.logs.judging import LINE, PERMISSIVE, Counts, Tally, counted, from_json, from_lines, from_rows, within
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.model import Quality

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    Reader = DataFrameReader | DataStreamReader

# Files were listed already, and a file that vanishes or breaks while it is read must not end the whole.
OPTIONS: Final = {"recursiveFileLookup": "true", "ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"


@dataclass(frozen=True, slots=True)
class Reading:
    """`exact`: the log has receive counts; else deliveries must be told apart by the order of their events."""

    events: DataFrame
    exact: bool
    files: int
    unreadable: tuple[str, ...]
    known: Counts  # without reading
    tally: Tally | None = None
    judged: DataFrame | None = None  # all lines, of whatever time, with their verdicts

    def quality(self) -> Quality:
        """To be asked after an action on all of `events`; before, it knows only what files tell without being read."""
        counts = (self.tally.counts() if self.tally is not None else None) or Counts()
        return quality_of(self.known + counts, self.files, self.unreadable)

    def quality_of_all_time(self) -> Quality:
        """The same without the limits of time, by a pass of its own."""
        counts = Counts() if self.judged is None else counted(self.judged)
        return quality_of(self.known + counts, self.files, self.unreadable)


@dataclass(slots=True)
class _Parts:
    """What is to be read: `clean` holds nothing but events, `rows` of them; `judged` is to be counted on the way."""

    judged: list[DataFrame] = field(default_factory=list)
    clean: list[DataFrame] = field(default_factory=list)
    rows: int = 0


def quality_of(counts: Counts, files: int, unreadable: tuple[str, ...]) -> Quality:
    return Quality(
        files=files,
        unreadable=unreadable + counts.problems,
        lines=counts.lines,
        events=counts.events,
        malformed=counts.malformed,
        incomplete=counts.incomplete,
        dropped=counts.dropped,
        samples=counts.samples,
        unknown_events=counts.unknown,
        unknown_words=counts.words,
    )


def read(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    mapping: LogMapping | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Reading:
    """The events of all logs at `paths` (files, folders, globs; here, in a bucket, or where Spark can reach)."""
    found = find(spark, paths, mapped=mapping is not None, days=Days.of(since, until))
    parts = _Parts()
    _lines(spark, found, mapping, parts)
    _rows(spark, found, mapping, parts, since, until)
    judged = reduce(DataFrame.unionByName, parts.judged) if parts.judged else None
    tally = None if judged is None else Tally(within(judged, since, until))
    all_events = parts.clean + ([tally.events] if tally is not None else [])
    events = reduce(DataFrame.unionByName, all_events or [spark.createDataFrame([], SCHEMA)])
    return Reading(
        events if mapping is None else mapped.with_starts(events, mapping),
        mapping is None or mapping.has_receives,
        len(found.files),
        tuple(found.unreadable),
        Counts(lines=parts.rows, events=parts.rows),
        tally,
        judged,
    )


def _lines(spark: SparkSession, found: Found, mapping: LogMapping | None, parts: _Parts) -> None:
    files = [file for file in found.files if file.kind is not Kind.PARQUET]
    by_python = [file for file in files if _is_for_python(file)]
    if by_spark := [file for file in files if not _is_for_python(file)]:
        addresses = [escaped(file.address) for file in by_spark]
        with _no_job_to_list(spark):
            parts.judged.append(judged_lines(spark.read, addresses, mapping))
    if by_python:
        lines = fetching.lines(spark, by_python)
        parts.judged.append(from_lines(lines) if mapping is None else mapped.from_lines(lines, mapping))


def _is_for_python(file: LogFile) -> bool:
    """What Spark cannot reach; and what is compressed, as it passes over damage without a word."""
    return bool(file.store) or (file.kind is Kind.PACKED and bool(file.path))


def _rows(
    spark: SparkSession,
    found: Found,
    mapping: LogMapping | None,
    parts: _Parts,
    since: float | None,
    until: float | None,
) -> None:
    files = [file for file in found.files if file.kind is Kind.PARQUET]
    if mapping is not None:
        _leave_out(found, dict.fromkeys(files, "a mapping is for JSON lines, and this is Parquet"))
        return
    if fetched := [file for file in files if file.store]:
        parts.judged.append(from_rows(fetching.rows(spark, fetched, ROWS)))
    _spark_rows(spark, [file for file in files if not file.store], found, parts, since, until)


def _leave_out(found: Found, problems: dict[LogFile, str]) -> None:
    found.unreadable += [f"{file.path or file.address}: {problem}" for file, problem in problems.items()]
    found.files[:] = [file for file in found.files if file not in problems]


def judged_lines(reader: Reader, address: Any, mapping: LogMapping | None, *, sift: bool = False) -> DataFrame:
    """What Spark itself reads, at once or as a stream; `sift` leaves out what by its name is no log."""
    reader = reader.options(**OPTIONS)
    if mapping is None:
        return from_json(reader.schema(LINE).options(**PERMISSIVE).json(address))
    lines = reader.text(address)
    if sift:
        name = F.lower(F.col("_metadata.file_name"))
        lines = lines.where(~reduce(Column.__or__, (name.endswith(end) for end in (*PARQUET, *NO_LOG))))
    nothing = F.lit(None).cast("string")
    return mapped.from_lines(lines.select(F.col("value").alias("line"), nothing.alias("problem")), mapping)


def _spark_rows(
    spark: SparkSession,
    files: Sequence[LogFile],
    found: Found,
    parts: _Parts,
    since: float | None,
    until: float | None,
) -> None:
    """Clean files as they are; files whose columns have other types than ours are cast."""
    with ThreadPoolExecutor(8) as pool:
        footers = dict(zip(files, pool.map(lambda file: read_footer(file, since, until), files), strict=True))
    _leave_out(found, {file: footer.problem for file, footer in footers.items() if footer.problem is not None})
    groups: dict[tuple[str, bool], list[LogFile]] = {}
    for file, footer in footers.items():
        if footer.problem is None:
            groups.setdefault((footer.schema, footer.clean), []).append(file)
    for (schema, clean), same in groups.items():
        with _no_job_to_list(spark):
            rows = spark.read.options(**OPTIONS).schema(schema).parquet(*(escaped(file.address) for file in same))
        if clean:
            parts.clean.append(rows.select(*COLUMNS))
            parts.rows += sum(footers[file].rows for file in same)
        else:
            parts.judged.append(from_rows(_cast(rows)))


def _cast(rows: DataFrame) -> DataFrame:
    known = {column.name: column.dataType.simpleString() for column in rows.schema.fields}
    columns = [
        F.col(f"`{name}`") if known[name] == kind.lower() else F.col(f"`{name}`").try_cast(kind).alias(name)
        for name, kind in ROWS
    ]
    return rows.select(*columns, F.lit(None).cast("string").alias("problem"))


def escaped(address: str) -> str:
    """A file's address, which Spark would take for a glob if it has such characters in it."""
    return "".join(f"\\{letter}" if letter in "*?[]{}\\" else letter for letter in address)


@contextmanager
def _no_job_to_list(spark: SparkSession) -> Iterator[None]:
    """More than 32 files, and Spark would run a job to ask for each one's size."""
    before: Any = spark.conf.get(_LISTING)
    spark.conf.set(_LISTING, "1000000")
    try:
        yield
    finally:
        spark.conf.set(_LISTING, before)
