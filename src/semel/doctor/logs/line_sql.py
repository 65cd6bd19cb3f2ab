"""SQL that turns lines and rows of a log into rows of `log_lines`, by a mapping; DuckDB runs it, in both engines.

The rule: nothing in a line raises an error. A value that cannot be read is null, and the column `problem` says if the
line cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from semel.doctor.events import COLUMNS, LineProblem
from semel.doctor.logs.mapping import DURATIONS, NAMES, NO_QUEUE, LogMapping, own
from semel.messages.fingerprint import FINGERPRINT_FROM, VOLATILE
from semel.telemetry.attempt_log.events import MAX_ERROR
from semel.telemetry.field_mapping import Path

SAMPLE: Final = 200  # characters of a malformed line
LONGEST_WORD: Final = 200
LAST_TIME: Final = 10**17  # microseconds: the year 5138; larger numbers are not times
_UNITS: Final = {
    "ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6, "second": 1e6, "seconds": 1e6,
    "m": 6e7, "min": 6e7, "h": 3.6e9,
}  # fmt: skip

# The attempt log's own columns as Parquet has them.
OWN_TYPES: Final = {
    "at": "DOUBLE",
    "step": "VARCHAR",
    "queue": "VARCHAR",
    "message_id": "VARCHAR",
    "key": "VARCHAR",
    "receive_count": "BIGINT",
    "sent_at": "DOUBLE",
    "group": "VARCHAR",
    "seconds": "DOUBLE",
    "visibility": "DOUBLE",
    "error": "VARCHAR",
    "worker": "VARCHAR",
    "handler": "VARCHAR",
    "count": "BIGINT",
}

Value = Callable[[str], str]  # the name of a field -> SQL for it


def lines_query(
    mapping: LogMapping, *, since: float | None = None, until: float | None = None, checked: bool = True
) -> str:
    """Rows of `log_lines` from a text of many lines: parameters are $text, $file and $first_line.

    Without `checked` it is faster, and fails if a line is not JSON."""
    paths = dict(mapping.paths) | ({"count": ("count",)} if mapping.is_own else {})
    listed = ", ".join(literal(json_pointer(path)) for path in paths.values())
    at_path = {name: f"nullif(v[{place}], '')" for place, name in enumerate(paths, 1)}
    captures = ", ".join(literal(name) for name in mapping.captured)
    captured = f"regexp_extract({at_path['text']}, {literal(mapping.pattern)}, [{captures}])" if captures else "NULL"
    texts = []
    for name in (*NAMES, "count"):
        ways = [f"nullif(captured.{name}, '')"] if name in mapping.captured else []
        ways += [at_path[name]] if name in at_path else []
        ways += [literal(mapping.constants[name])] if name in mapping.constants else []
        text = f"coalesce({', '.join(ways)})" if len(ways) > 1 else ways[0] if ways else "CAST(NULL AS VARCHAR)"
        texts.append(f"{text} AS {_text(name)}")
    timed = ("time", "sent", "visibility", mapping.duration or "seconds")
    numbers = [f"TRY_CAST({_text(name)} AS DOUBLE) AS {_number(name)}" for name in timed]
    return f"""
WITH split AS (
  -- With LIMIT, the text is split while the query runs; else that is done while it is planned, value by value.
  SELECT unnest(lines) AS line, unnest(range(len(lines))) AS place
  FROM (SELECT string_split(text, chr(10)) AS lines FROM (SELECT $text AS text LIMIT 1))
),
objects AS (
  SELECT line, place, CASE WHEN starts_with(line, '{{') THEN line ELSE substr(line, instr(line, '{{')) END AS object
  FROM split
  WHERE CASE WHEN starts_with(line, '{{') THEN TRUE ELSE trim(line, ' ' || chr(9) || chr(13)) <> '' END
),
checked AS (SELECT *, starts_with(object, '{{'){" AND json_valid(object)" if checked else ""} AS is_json FROM objects),
extracted AS (
  SELECT line, is_json, $first_line + place AS line_number,
    CASE WHEN is_json THEN json_extract_string(object, [{listed}]) END AS v
  FROM checked
),
captures AS (SELECT *, {captured} AS captured FROM extracted),
texts AS (SELECT line, is_json, line_number, {", ".join(texts)} FROM captures),
parsed AS (SELECT *, {", ".join(numbers)} FROM texts),
{_normalised(mapping, _text, _time, _duration, since=since, until=until)}
"""


def _text(name: str) -> str:
    return f"text_{name}"


def _number(name: str) -> str:
    return f"number_{name}"


def rows_query(relation: str, columns: Mapping[str, str], *, since: float | None, until: float | None) -> str:
    """Rows of `log_lines` from an attempt log in Parquet, whose columns have their own types."""
    mapping = own()
    names = {name: str(path[0]) for name, path in mapping.paths.items()} | {"count": "count"}

    def value(name: str) -> str:
        column = names.get(name, "")
        kind = "DOUBLE" if name in ("time", "sent", "visibility", *DURATIONS) else "VARCHAR"
        if column not in columns:
            return f"CAST(NULL AS {kind})"
        return f"nullif(\"{column}\", '')" if columns[column] == "VARCHAR" else f'"{column}"'

    def microseconds(name: str, unit: float = 1e6) -> str:
        return f"TRY_CAST(floor({value(name)} * {unit!r} + 0.5) AS BIGINT)"

    return f"""
WITH parsed AS (
  SELECT *, TRUE AS is_json, CAST(NULL AS VARCHAR) AS line, file_row_number + 1 AS line_number
  FROM {relation}
),
{_normalised(mapping, value, microseconds, microseconds, since=since, until=until, typed=True)}
"""


def _normalised(
    mapping: LogMapping,
    value: Value,
    time: Callable[[str], str],
    duration: Callable[[str, float], str],
    *,
    since: float | None,
    until: float | None,
    typed: bool = False,
) -> str:
    unit = DURATIONS[mapping.duration] * 1e6 if mapping.duration else 1e6
    queue = value("queue") if mapping.is_own else f"nullif(regexp_extract({value('queue')}, '([^/:]+)/*$', 1), '')"
    receives = value("receives") if typed else f"TRY_CAST(TRY_CAST({value('receives')} AS DOUBLE) AS BIGINT)"
    dropped = f"CASE WHEN {value('event')} = 'dropped' THEN greatest(TRY_CAST({value('count')} AS BIGINT), 0) END"
    error = f"left({value('error')}, {MAX_ERROR})"
    made = {
        "is_json": "is_json",
        "line": "line",
        "line_number": "line_number",
        "dropped": dropped if mapping.is_own else "CAST(NULL AS BIGINT)",
        "event_time": time("time"),
        "word": _word(mapping, value),
        "queue": f"coalesce({queue}, {literal(NO_QUEUE)})",
        "message_id": value("id"),
        "key": value("key"),
        "receive_count": f"nullif({receives}, 0)",
        "sent_time": f"nullif({time('sent')}, 0)",
        "msg_group": value("group"),
        "duration": duration(mapping.duration or "seconds", unit),
        "visibility": f"nullif({duration('visibility', 1e6)}, 0)",
        "error": error,
        "worker": value("worker"),
        "handler": value("handler"),
    }
    fields = ",\n    ".join(f"{sql} AS {name}" for name, sql in made.items())
    # The outbox knows no message id when it sends: such a line of the attempt log is not an event, nor a problem.
    not_counted = "NOT (word IS NOT DISTINCT FROM 'sent')" if mapping.is_own else "TRUE"
    limits = [] if since is None else [f"event_time < {round(since * 1e6)}"]
    limits += [] if until is None else [f"event_time >= {round(until * 1e6)}"]
    out_of_range = " OR ".join(limits)
    columns = {
        "problem": f"""CASE
      WHEN NOT is_json THEN {LineProblem.MALFORMED:d}
      WHEN dropped IS NOT NULL THEN {LineProblem.DROPPED:d}
      WHEN message_id IS NULL OR word IS NULL OR event_time IS NULL OR event_time <= 0 OR event_time >= {LAST_TIME}
        THEN {LineProblem.INCOMPLETE:d}
      {f"WHEN {out_of_range} THEN {LineProblem.OUT_OF_RANGE:d}" if out_of_range else ""}
      ELSE {LineProblem.NONE:d} END""",
        "file": "$file",
        "sample": f"CASE WHEN NOT is_json THEN left(line, {SAMPLE}) END",
        "queue_id": _hash("queue"),
        "slot": "CAST(hash(queue, message_id) >> 1 AS BIGINT)",
        "key_id": _hash("key"),
        "group_id": _hash("msg_group"),
        "error_kind": error_kind("error"),
        "worker_id": _hash("worker"),
        "handler_id": _hash("handler"),
    }
    selected = ",\n  ".join(f"{columns[name]} AS {name}" if name in columns else name for name in COLUMNS)
    return f"""fields AS (
  SELECT
    {fields}
  FROM parsed
)
SELECT
  {selected}
FROM fields WHERE {not_counted}"""


def _word(mapping: LogMapping, value: Value) -> str:
    if "event" in mapping.names:
        return f"left({value('event')}, {LONGEST_WORD})"
    # There is one line for each run: with a duration it is its end, else its beginning.
    end = f"CASE WHEN {value('error')} IS NOT NULL THEN 'retried' ELSE 'recorded' END"
    return f"CASE WHEN {value(mapping.duration or 'seconds')} IS NOT NULL THEN {end} ELSE 'started' END"


def _hash(column: str) -> str:
    """63 bits, because Spark has no unsigned numbers. The chance that any two of a hundred million texts have the same
    hash is 1 in 1,800."""
    return f"CASE WHEN {column} IS NOT NULL THEN CAST(hash({column}) >> 1 AS BIGINT) END"


def error_kind(column: str) -> str:
    kind = f"left({column}, {FINGERPRINT_FROM})"
    for pattern, replacement in VOLATILE:
        kind = f"regexp_replace({kind}, {literal(pattern)}, {literal(replacement)}, 'g')"
    return f"CASE WHEN {column} IS NOT NULL THEN {kind} END"


def _time(name: str) -> str:
    """ISO 8601 (UTC, if it names no zone), or a number of seconds, milli-, micro- or nanoseconds, told by its size."""
    text, number = _text(name), _number(name)
    scaled = (
        f"CASE WHEN abs({number}) < 1e11 THEN {number} * 1e6 WHEN abs({number}) < 1e14 THEN {number} * 1e3 "
        f"WHEN abs({number}) < 1e17 THEN {number} ELSE {number} / 1e3 END"
    )
    iso = f"TRY_CAST(translate({text}, ',tz', '.TZ') AS TIMESTAMPTZ)"
    return (
        f"CASE WHEN {number} IS NOT NULL THEN TRY_CAST(floor({scaled} + 0.5) AS BIGINT) "
        f"WHEN regexp_matches({text}, '^[0-9]{{4}}-[0-9]{{2}}') THEN epoch_us({iso}) END"
    )


def _duration(name: str, unit: float) -> str:
    """A unit in the value itself ("350ms", "1m30.5s") wins over the one that the mapping says."""
    text, number = _text(name), _number(name)
    units = " ".join(f"WHEN {literal(unit_name)} THEN {factor!r}" for unit_name, factor in _UNITS.items())
    one_unit = r"^([0-9.]+) ?([A-Za-zµμ]+)$"
    with_unit = (
        f"TRY_CAST(regexp_extract({text}, {literal(one_unit)}, 1) AS DOUBLE) * "
        f"CASE lower(regexp_extract({text}, {literal(one_unit)}, 2)) {units} END"
    )
    parts = r"^(?:([0-9]+)h)?(?:([0-9]+)m)?([0-9.]+)s$"
    hours, minutes, seconds = (
        f"coalesce(TRY_CAST(regexp_extract({text}, {literal(parts)}, {place}) AS DOUBLE), 0)" for place in (1, 2, 3)
    )
    return (
        f"CASE WHEN {number} IS NOT NULL THEN TRY_CAST(floor({number} * {unit!r} + 0.5) AS BIGINT) "
        f"WHEN regexp_matches({text}, {literal(one_unit)}) THEN TRY_CAST(floor({with_unit} + 0.5) AS BIGINT) "
        f"WHEN regexp_matches({text}, {literal(parts)}) "
        f"THEN TRY_CAST(floor(({hours} * 3600 + {minutes} * 60 + {seconds}) * 1e6 + 0.5) AS BIGINT) END"
    )


def json_pointer(path: Path) -> str:
    """A path as a JSON pointer, which takes any name: /a.b/0/c."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
