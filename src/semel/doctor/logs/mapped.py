"""An application's JSON lines as events of the normal form, by a `LogMapping`: one pass of one parser over each line.

Everything is read as text first, and then as what it must be: a log's numbers are strings as often as not. A line that
is JSON but is about no message is usual in such a log: it is counted as incomplete, not as malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from semel.doctor.events import COLUMNS
from semel.doctor.logs.judging import BAD, LAST, PERMISSIVE, SAMPLE, Flaw
from semel.doctor.logs.mapping import AROUND, DURATIONS, NO_QUEUE, LogMapping, Path
from semel.telemetry.attempt_log.events import MAX_ERROR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENDS: Final = ("recorded", "retried", "rejected", "skipped")
_NUMBER: Final = r"^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$"
_ZONED: Final = r"([zZ]|[+-]\d{2}(:?\d{2})?| ?(UTC|GMT))$"
_UNITS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip


def from_lines(lines: DataFrame, mapping: LogMapping) -> DataFrame:
    """Judge lines of an application's log; `lines` has the columns line and problem."""
    text = F.col("line")
    start = F.instr(text, "{")
    json = F.when(start == 1, text).when(start > 1, F.expr("substring(line, instr(line, '{'))"))
    parsed = lines.select("line", "problem", json.alias("json")).select(
        "*", F.explode(F.array(F.from_json("json", schema_of(mapping), PERMISSIVE))).alias("j")
    )
    word = _text(mapping, "event")
    fields = parsed.select(
        "line",
        "problem",
        F.trim("line").isin("", "\r", "\n", "\r\n").alias("blank"),
        # A value of another shape than the mapping says makes the whole unreadable to Spark, but it is JSON.
        F.when(F.col("json").isNull(), F.lit(True))
        .when(F.col("j").getField(BAD).isNotNull(), F.json_object_keys("json").isNull())
        .otherwise(F.lit(False))
        .alias("malformed"),
        word.alias("word"),
        *_columns(mapping),
    )
    made = {
        "fence": F.lit(None).cast("bigint"),
        "seconds": F.when(F.col("step").isin(*ENDS), F.col("seconds")),
    }
    return fields.withColumn("step", _step(mapping)).select(
        *(made[name].alias(name) if name in made else F.col(f"`{name}`") for name in COLUMNS),
        _flaw(mapping).alias("flaw"),
        _sample().alias("sample"),
        F.lit(None).cast("bigint").alias("dropped"),
        "problem",
    )


def with_starts(events: DataFrame, mapping: LogMapping) -> DataFrame:
    """Add the starts that a log without start lines leaves out: an end with a duration tells when it began."""
    if mapping.duration is None:
        return events
    message = Window.partitionBy("message_id")
    has_start = F.max(F.col("step") == "started").over(message)
    told = ~F.col("has_start") & F.col("step").isin(*ENDS) & (F.col("seconds") > 0)
    nothing = F.lit(None)
    changed = {
        "at": F.col("at") - F.col("seconds"),
        "step": F.lit("started"),
        "seconds": nothing.cast("double"),
        "error": nothing.cast("string"),
    }
    itself = {name: F.col(f"`{name}`") for name in events.columns}
    start = F.struct(*(column.alias(name) for name, column in (itself | changed).items()))
    end = F.struct(*itself.values())
    known = events.withColumn("has_start", has_start)
    return known.select(F.inline(F.when(told, F.array(start, end)).otherwise(F.array(end))))


# The line as columns.


def schema_of(mapping: LogMapping) -> StructType:
    """All that is mapped, as one nested type of strings."""
    root: dict[str | int, Any] = {}
    for path in mapping.paths.values():
        node = root
        for part in path:
            node = node.setdefault(part if isinstance(part, str) else 0, {})
    schema = _type(root)
    assert isinstance(schema, StructType)
    return StructType([*schema.fields, StructField(BAD, StringType())])


def _type(node: dict[str | int, Any]) -> DataType:
    if not node:
        return StringType()
    if 0 in node:
        return ArrayType(_type(node[0]))
    return StructType([StructField(str(name), _type(below)) for name, below in node.items()])


def _at(path: Path) -> Column:
    found = F.col("j")
    for part in path:
        found = F.get(found, F.lit(part)) if isinstance(part, int) else found.getField(part)
    return found


def _text(mapping: LogMapping, name: str) -> Column:
    """A mapped value as text; null if it is empty, missing, or not mapped."""
    if name in mapping.constants:
        return F.lit(mapping.constants[name])
    if name not in mapping.paths:
        return F.lit(None).cast("string")
    return F.nullif(F.trim(_at(mapping.paths[name])), F.lit(""))


def _columns(mapping: LogMapping) -> Sequence[Column]:
    queue = _text(mapping, "queue")
    name = F.regexp_extract(queue, r"([^/:]+)/*$", 1)  # of an address or an ARN, the name
    unit = DURATIONS[mapping.duration] if mapping.duration else 1.0
    return (
        seconds_since_1970(_text(mapping, "time")).alias("at"),
        F.coalesce(F.nullif(name, F.lit("")), F.lit(NO_QUEUE)).alias("queue"),
        _text(mapping, "id").alias("message_id"),
        _text(mapping, "key").alias("key"),
        number(_text(mapping, "receives")).cast("bigint").alias("receive_count"),
        seconds_since_1970(_text(mapping, "sent")).alias("sent_at"),
        _text(mapping, "group").alias("group"),
        duration(_text(mapping, mapping.duration or "seconds"), unit).alias("seconds"),
        duration(_text(mapping, "visibility"), 1.0).alias("visibility"),
        F.substring(_text(mapping, "error"), 1, MAX_ERROR).alias("error"),
        _text(mapping, "worker").alias("worker"),
        _text(mapping, "handler").alias("handler"),
    )


def number(text: Column) -> Column:
    return F.when(text.rlike(_NUMBER), text.try_cast("double"))


def seconds_since_1970(text: Column) -> Column:
    """ISO 8601 (UTC, if it names no zone), or a number of seconds, milli-, micro- or nanoseconds, told by its size."""
    value = text.try_cast("double")
    size = F.abs(value)
    epoch = (
        F.when(size < LAST, value).when(size < 1e14, value / 1e3).when(size < 1e17, value / 1e6).otherwise(value / 1e9)
    )
    iso = F.replace(F.upper(text), F.lit(","), F.lit("."))
    iso = F.when(text.rlike(_ZONED) & text.rlike(":"), iso).otherwise(F.concat(iso, F.lit("Z")))
    moment = F.unix_micros(iso.try_cast("timestamp")) / F.lit(1e6)
    return F.when(text.rlike(_NUMBER), epoch).when(text.rlike(r"^\d{4}-\d\d-\d\d"), moment)


def duration(text: Column, unit: float) -> Column:
    """Seconds. A unit in the value itself ("350ms", "1m30.5s") wins over the one that the mapping says."""
    parts = r"^(?:(\d+)h)?(?:(\d+)m)?([\d.]+)s$"
    hours, minutes, rest = (F.regexp_extract(text, parts, place) for place in (1, 2, 3))
    value = F.regexp_extract(text, r"^([\d.]+)", 1).try_cast("double")
    name = F.lower(F.regexp_extract(text, r"([A-Za-zµμ]+)$", 1))
    factor = F.element_at(_table(_UNITS.items()), name)
    whole = _or_zero(hours) * 3600 + _or_zero(minutes) * 60 + _or_zero(rest)
    return (
        F.when(text.rlike(_NUMBER), text.try_cast("double") * unit)
        .when(text.rlike(r"^[\d.]+ ?[A-Za-zµμ]+$"), value * factor)
        .when(text.rlike(parts), whole)
    )


def _table(entries: Iterable[tuple[str, str | float]]) -> Column:
    """A map, in one text: made of columns, it takes a call into Spark for each. Its words have no quotes in them."""
    pairs = (f"'{key}', " + (f"'{value}'" if isinstance(value, str) else f"{value}D") for key, value in entries)
    return F.expr(f"map({', '.join(pairs)})")


def _or_zero(text: Column) -> Column:
    return F.coalesce(text.try_cast("double"), F.lit(0.0))


def _step(mapping: LogMapping) -> Column:
    if "event" not in mapping.paths:
        # A line for each run: with its duration it is the end of one, else the beginning.
        end = F.when(F.col("error").isNotNull(), "retried").otherwise("recorded")
        return F.when(F.col("seconds").isNotNull(), end).otherwise("started")
    lower = F.lower(F.col("word"))
    word = F.trim(F.regexp_replace(lower, "[^a-z0-9]+", "_"), F.lit("_"))
    words = _table((word, step.value) for word, step in mapping.words.items())
    bare = F.regexp_replace(word, AROUND, "")
    return F.coalesce(*(F.element_at(words, form) for form in (lower, word, bare)))


def _flaw(mapping: LogMapping) -> Column:
    at, known = F.col("at"), F.col("message_id").isNotNull()
    if "event" in mapping.paths:
        known = known & F.col("word").isNotNull()
    return (
        F.when(F.col("problem").isNotNull() | F.col("blank"), Flaw.NOTHING)
        .when(F.col("malformed"), Flaw.MALFORMED)
        .when(~known | at.isNull() | (at <= 0) | (at >= LAST), Flaw.INCOMPLETE)
        .when(F.col("step").isNull(), Flaw.UNKNOWN)
        .otherwise(Flaw.NONE)
    )


def _sample() -> Column:
    return F.when(F.col("malformed"), F.substring("line", 1, SAMPLE)).when(
        F.col("step").isNull(), F.substring("word", 1, 60)
    )
