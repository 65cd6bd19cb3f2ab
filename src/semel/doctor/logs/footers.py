"""What the footer of a local Parquet file tells: whether it can be read, its types, and whether every row is an event.

A file in which the statistics show no flaw needs no counting while it is read, and that is what most of the time of a
large log would go into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from semel.doctor.events import SCHEMA
from semel.doctor.logs.discovery import LogFile, reason
from semel.doctor.logs.judging import LAST

# What is read of a Parquet file: the normal form, and how many events the log itself misses.
ROWS: Final = tuple(
    (name.strip("`"), kind) for name, kind in (column.split() for column in f"{SCHEMA}, count BIGINT".split(", "))
)
NEEDED: Final = ("at", "message_id", "step")


@dataclass(frozen=True, slots=True)
class Footer:
    schema: str = ""  # our columns, with the types that this file has for them, in Spark's words
    problem: str | None = None  # why it cannot be used
    rows: int = 0
    clean: bool = False  # each row is an event of the time asked for, and nothing is missing


def read_footer(file: LogFile, since: float | None, until: float | None) -> Footer:
    if not file.path:  # where only Spark can reach
        return Footer(_ddl({}))
    import pyarrow as pa
    from pyarrow import parquet
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        metadata = parquet.read_metadata(file.path)
        schema = metadata.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        return Footer(problem=f"no Parquet file that can be read: {reason(error)}")
    if missing := [name for name in NEEDED if name not in schema.names]:
        return Footer(problem=f"no attempt log: it has no column {', '.join(missing)}")
    types: dict[str, str] = {}
    for name, _ in ROWS:
        if name in schema.names:
            try:
                types[name] = from_arrow_type(schema.field(name).type).simpleString()
            except PySparkException:
                return Footer(problem=f"its column {name} is of a type that Spark does not know")
    ours = all(types.get(name, kind.lower()) == kind.lower() for name, kind in ROWS)
    return Footer(_ddl(types), None, metadata.num_rows, ours and _clean(metadata, since or 0.0, until or LAST))


def _ddl(types: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {types.get(name, kind.lower())}" for name, kind in ROWS)


def _clean(metadata: Any, since: float, until: float) -> bool:
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        stats = {name: group.column(places[name]).statistics for name in (*NEEDED, "count") if name in places}
        if not all(_has_no_nulls(stats[name]) for name in NEEDED):
            return False
        times, ids = stats["at"], stats["message_id"]
        if not (times.min > 0 and since <= times.min and times.max < min(until, LAST) and ids.min):
            return False
        if "count" in stats and (stats["count"] is None or stats["count"].num_values):
            return False  # it tells of events that were dropped
    return True


def _has_no_nulls(stats: Any) -> bool:
    return stats is not None and stats.has_min_max and stats.has_null_count and stats.null_count == 0
