"""Reads logs into events of the normal form: Semel's attempt log, or any application's by a mapping.

Nothing in a log is fatal: what is damaged, malformed or incomplete is left out, counted in the same pass, and told by
`Reading.quality`. Only a path that is not there, or holds no log at all, is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from semel.doctor import fetching, mapped
from semel.doctor.events import SCHEMA
from semel.doctor.files import Days, Found, Kind, LogFile, find, reason
from semel.doctor.judging import Counts, Tally, from_lines, from_rows, within
from semel.doctor.mapping import Mapping
from semel.doctor.model import Quality

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What is read of a Parquet file: the normal form, and how many events the log itself misses.
ROWS: Final = tuple(
    (name.strip("`"), kind) for name, kind in (column.split() for column in f"{SCHEMA}, count BIGINT".split(", "))
)
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
    tally: Tally | None = None

    def quality(self) -> Quality:
        """To be asked after an action on all of `events`; before, it knows the files only."""
        counts = (self.tally.counts() if self.tally is not None else None) or Counts()
        return quality_of(counts, self.files, self.unreadable)


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
    mapping: Mapping | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Reading:
    """The events of all logs at `paths` (files, folders, globs; here, in a bucket, or where Spark can reach)."""
    found = find(spark, paths, mapped=mapping is not None, days=Days.of(since, until))
    parts = [within(part, since, until) for part in _judged(spark, found, mapping)]
    exact = mapping is None or mapping.has_receives
    if not parts:
        return Reading(spark.createDataFrame([], SCHEMA), exact, 0, tuple(found.unreadable))
    tally = Tally(reduce(DataFrame.unionByName, parts))
    events = tally.events if mapping is None else mapped.with_starts(tally.events, mapping)
    return Reading(events, exact, len(found.files), tuple(found.unreadable), tally)


def _judged(spark: SparkSession, found: Found, mapping: Mapping | None) -> Iterator[DataFrame]:
    """The files, each kind in the way that suits it."""
    kinds: dict[tuple[Kind, bool], list[LogFile]] = {}
    for file in found.files:
        by_python = bool(file.store) or (file.kind is Kind.PACKED and bool(file.path))
        kinds.setdefault((Kind.PARQUET if file.kind is Kind.PARQUET else Kind.LINES, by_python), []).append(file)
    for (kind, by_python), files in kinds.items():
        if kind is Kind.LINES:
            lines = fetching.lines(spark, files) if by_python else as_lines(_spark_lines(spark, files))
            yield judge_lines(lines, mapping)
        elif mapping is not None:
            found.unreadable += [f"{file.address}: a mapping is for JSON lines, and this is Parquet" for file in files]
            found.files[:] = [file for file in found.files if file not in files]
        elif by_python:
            yield from_rows(fetching.rows(spark, files, ROWS))
        else:
            yield from (from_rows(rows) for rows in _spark_rows(spark, files, found))


def judge_lines(lines: DataFrame, mapping: Mapping | None) -> DataFrame:
    return from_lines(lines) if mapping is None else mapped.from_lines(lines, mapping)


def as_lines(text: DataFrame) -> DataFrame:
    """What Spark's text format gives, with the columns that we use."""
    return text.select(F.col("value").alias("line"), F.lit(None).cast("string").alias("problem"))


def _spark_lines(spark: SparkSession, files: Sequence[LogFile]) -> DataFrame:
    with _no_job_to_list(spark):
        return spark.read.options(**OPTIONS).text([escaped(file.address) for file in files])


def _spark_rows(spark: SparkSession, files: Sequence[LogFile], found: Found) -> Iterator[DataFrame]:
    """Files whose columns have other types than ours are read as they are, and cast."""
    for schema, same in _by_schema(files, found).items():
        with _no_job_to_list(spark):
            rows = spark.read.options(**OPTIONS).schema(schema).parquet(*(escaped(file.address) for file in same))
        known = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        columns = [
            F.col(f"`{name}`") if known[name] == kind.lower() else F.col(f"`{name}`").try_cast(kind).alias(name)
            for name, kind in ROWS
        ]
        yield rows.select(*columns, F.lit(None).cast("string").alias("problem"))


def _by_schema(files: Sequence[LogFile], found: Found) -> dict[str, list[LogFile]]:
    """Local files by the types they have for our columns; one whose footer cannot be read is left out, and named."""
    with ThreadPoolExecutor(8) as pool:
        schemas = list(pool.map(_schema, files))
    groups: dict[str, list[LogFile]] = {}
    for file, (schema, problem) in zip(files, schemas, strict=True):
        if problem is not None:
            found.unreadable.append(f"{file.path}: {problem}")
            found.files.remove(file)
        else:
            groups.setdefault(schema, []).append(file)
    return groups


def _schema(file: LogFile) -> tuple[str, str | None]:
    """A file's columns as far as they are ours, in Spark's words; or what is wrong with it."""
    if not file.path:  # where only Spark can reach
        return _ddl({}), None
    import pyarrow as pa
    from pyarrow import parquet
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        schema = parquet.read_schema(file.path)
    except (OSError, pa.ArrowException) as error:
        return "", f"no Parquet file that can be read: {reason(error)}"
    if missing := {"at", "step", "message_id"} - set(schema.names):
        return "", f"no attempt log: it has no column {', '.join(sorted(missing))}"
    types: dict[str, str] = {}
    for name, _ in ROWS:
        if name in schema.names:
            try:
                types[name] = from_arrow_type(schema.field(name).type).simpleString()
            except PySparkException:
                return "", f"its column {name} is of a type that Spark does not know"
    return _ddl(types), None


def _ddl(types: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {types.get(name, kind.lower())}" for name, kind in ROWS)


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
