"""Turns rows of the source into rows of the sink: the body becomes columns, or is rejected with a reason.

All expressions run in the JVM. A row's outcome depends on the row alone, so a batch that is run again has the same rows
and the same rejects. No body, whatever it contains, stops a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semel.spark.pipeline.body_schema import RESERVED, SOURCE, Constraint, Fields, find, literal
from semel.spark.pipeline.config import Extra, HandlerSpec, Pipeline, PipelineFileError, SchemaSpec
from semel.spark.pipeline.wire import OPTIONS, Problem, Wire, unknown
from semel.spark.sinks.table_schema import quoted, sql_type
from semel.spark.source.column_types import REJECTED, TRACED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY: Final = f"{RESERVED}_identity"
_MESSAGE, _WIRE, _PROBLEM = f"{RESERVED}_message", f"{RESERVED}_wire", f"{RESERVED}_problem"

# `from_json` stops at the end of the first value, and does not notice what follows it. So the body is read as a member
# of an object, with a second member behind it: if the body does not end where it should, the second member is missing.
_WRAPPED: Final = "concat('{{\"r\":', {0}, ',\"e\":1}}')"
_LONE_SURROGATE: Final = literal(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


def row_fields(pipeline: Pipeline) -> Fields:
    """The body's fields, or the body itself, and the chosen metadata. A handler gets the rows of the source
    unchanged."""
    if isinstance(pipeline.sink, HandlerSpec):
        return tuple(SOURCE)
    metadata = (SOURCE.field(name).with_name(f"_{name}") for name in pipeline.schema.metadata)
    return (*body_fields(pipeline), *metadata)


def body_fields(pipeline: Pipeline) -> Fields:
    return (SOURCE.field("body"),) if pipeline.schema.raw else pipeline.schema.fields


def row_schema(pipeline: Pipeline) -> pa.Schema:
    return pa.schema(row_fields(pipeline))


def parsed(
    df: DataFrame, pipeline: Pipeline, *, with_message: bool = False, traced: bool = False, identified: bool = False
) -> DataFrame:
    """Columns: row, key, reason, field, message. If `reason` is null, the row is good; otherwise `row` is null.

    `with_message`: good rows have their `message`, too. `traced`: adds the columns TRACED. `identified`: adds
    `planned_at` and IDENTITY: the key of a good row, and the message id of a bad one, because a rejected message must
    not keep out a later, correct one with the same key. With the handler sink, `row` has the source's own columns,
    unchanged."""
    schema = pipeline.schema
    with _lenient(df.sparkSession):
        check_constraints(df.sparkSession, pipeline)
        # As one column, the message is cheap to carry along.
        message = f"named_struct({', '.join(f'{literal(name)}, {name}' for name in SOURCE.names)}) AS {_MESSAGE}"
        planned_at = ["planned_at"] if identified else []
        if schema.raw:
            rows = df.selectExpr(message, *planned_at)
        else:
            wire = Wire(schema.any_as_text)
            read = f"{_read(f'r STRUCT<{wire.fields(schema.fields)}>', 'body')} AS {_WIRE}"
            rows = df.selectExpr(message, *planned_at, read)
            values = (f"{wire.value(f.type, _wire(f))} AS {quoted(f.name)}" for f in schema.fields)
            rows = rows.selectExpr("*", *values)
        judged = rows.selectExpr("*", f"{_case(_problems(pipeline))} AS {_PROBLEM}")
        identity = [f"{_identity()} AS {IDENTITY}"] if identified else []
        return judged.selectExpr(*_columns(pipeline, with_message, traced), *identity, *planned_at)


def _identity() -> str:
    of_message = f"concat('\\0', {_own('message_id')})"
    key = f"CASE WHEN {_PROBLEM} IS NULL THEN coalesce({_own('key')}, {of_message}) ELSE {of_message} END"
    return f"concat_ws('/', {_own('queue')}, {key})"


def _own(name: str) -> str:
    """A column of the source."""
    return f"{_MESSAGE}.{name}"


def _wire(field: pa.Field) -> str:
    return f"{_WIRE}.r.{quoted(field.name)}"


def _read(member: str, body: str) -> str:
    return f"from_json({_WRAPPED.format(body)}, {literal(f'{member}, e INT, c STRING')}, {OPTIONS})"


def _columns(pipeline: Pipeline, with_message: bool, traced: bool) -> Iterator[str]:
    yield f"CASE WHEN {_PROBLEM} IS NULL THEN {_row(pipeline)} END AS row"
    yield f"{_PROBLEM}.reason AS reason"
    yield f"{_PROBLEM}.field AS field"
    message = f"named_struct({', '.join(f'{literal(name)}, {_own(name)}' for name in REJECTED)})"
    yield f"{message if with_message else f'CASE WHEN {_PROBLEM} IS NOT NULL THEN {message} END'} AS message"
    yield from (f"{_own(name)} AS {name}" for name in (TRACED if traced else ("key",)))


def _row(pipeline: Pipeline) -> str:
    parts: list[tuple[str, str]]
    if isinstance(pipeline.sink, HandlerSpec):
        parts = [(name, _own(name)) for name in SOURCE.names]
    else:
        raw = pipeline.schema.raw
        parts = [("body", _own("body"))] if raw else [(f.name, quoted(f.name)) for f in pipeline.schema.fields]
        parts += [(f"_{name}", _own(name)) for name in pipeline.schema.metadata]
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in parts)})"


# What is wrong with a row: the first condition that holds.


def _case(problems: Sequence[tuple[str, str]]) -> str:
    if not problems:
        return "CAST(NULL AS STRUCT<reason: STRING, field: STRING>)"
    return f"CASE {' '.join(f'WHEN {condition} THEN {outcome}' for condition, outcome in problems)} END"


def _outcome(reason: str, field: str) -> str:
    return f"named_struct('reason', CAST({reason} AS STRING), 'field', CAST({field} AS STRING))"


def _pair(problem: Problem) -> tuple[str, str]:
    return problem.condition, _outcome(literal(problem.reason), problem.field)


def _problems(pipeline: Pipeline) -> list[tuple[str, str]]:
    schema = pipeline.schema
    problems: list[tuple[str, str]] = []
    if not schema.raw:
        wire, read = Wire(schema.any_as_text), _WIRE
        unread = f"{read}.c IS NOT NULL OR {read}.e IS NULL OR {read}.r IS NULL"
        problems.append((unread, _diagnosis(wire, schema.fields)))
        for field in schema.fields:
            problems += map(_pair, wire.problems(field, _wire(field), quoted(field.name), field.name))
        problems += map(_pair, _of_the_whole(schema))
    problems += [_broken_constraint(constraint, schema.fields) for constraint in schema.constraints]
    if not isinstance(pipeline.sink, HandlerSpec):  # a handler has a rule of its own for the key
        problems.append(_no_key(pipeline.source.key))
    return problems


def _of_the_whole(schema: SchemaSpec) -> Iterator[Problem]:
    body = _own("body")
    if schema.any_as_text:
        rare = f"(contains({body}, '\\\\ud') OR contains({body}, '\\\\uD'))"
        yield Problem(f"{rare} AND {body} RLIKE {_LONE_SURROGATE}", "not Unicode", "NULL")
    if schema.extra is Extra.REJECT:
        yield from unknown(schema.fields, body)


def _diagnosis(wire: Wire, fields: Fields) -> str:
    """Why a body could not be read. Only few rows need this, so it may read them again. Lambdas bind variables."""
    text, names = f"{RESERVED}_text", f"{RESERVED}_names"
    first = f"left(trim(LEADING ' \\n\\r\\t' FROM {_own('body')}), 1)"
    broken = [*map(_pair, wire.broken(fields, f"{_WIRE}.r", names))]
    inner = _case([*broken, ("true", _outcome("'wrong type'", "NULL"))])
    cases = _case(
        [
            (f"{text}.c IS NOT NULL OR {text}.e IS NULL", _outcome("'not JSON'", "NULL")),
            (f"{first} <> '{{'", _outcome("'not a JSON object'", "NULL")),
            ("true", _let(names, f"from_json({text}.r, 'MAP<STRING, STRING>')", inner)),
        ]
    )
    return _let(text, _read("r STRING", _own("body")), cases)


def _let(name: str, value: str, within: str) -> str:
    return f"element_at(transform(array({value}), {name} -> {within}), 1)"


def _broken_constraint(constraint: Constraint, fields: Fields) -> tuple[str, str]:
    about = "false"
    if constraint.field is not None and find(fields, constraint.field) is not None:
        about = f"{_path(fields, constraint.field)} IS NULL"
    # On lines of its own: it may end in a comment.
    condition = f"NOT coalesce((\n{constraint.check}\n), {about})"
    field = "NULL" if constraint.field is None else literal(constraint.field)
    return condition, _outcome(literal(constraint.name), field)


def _path(fields: Fields, path: str) -> str:
    if any(field.name == path for field in fields):
        return quoted(path)
    return ".".join(map(quoted, path.split(".")))


def _no_key(rule: str | None) -> tuple[str, str]:
    path = rule[2:] if rule is not None and rule.startswith("$.") else None
    reason = f"no key: {rule} finds none" if rule is not None else "no key"
    return f"{_own('key')} IS NULL", _outcome(literal(reason), "NULL" if path is None else literal(path))


# The user's conditions.


@contextmanager
def _lenient(spark: SparkSession) -> Iterator[None]:
    """SQL that is analysed within gives null where ANSI mode would fail: 1 / amount > 2 must not end a batch."""
    setting = "spark.sql.ansi.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "false")
    try:
        yield
    finally:
        spark.conf.set(setting, str(before))


def check_constraints(spark: SparkSession, pipeline: Pipeline) -> None:
    """Each constraint must be a deterministic condition over the row's fields. Raises PipelineFileError."""
    from pyspark.errors import PySparkException

    if not pipeline.schema.constraints:
        return
    columns = (f"CAST(NULL AS {sql_type(field.type)}) AS {quoted(field.name)}" for field in pipeline.schema.fields)
    empty = spark.range(0).selectExpr(*columns)
    wrong = []
    for constraint in pipeline.schema.constraints:
        try:
            plan = empty.where(constraint.check)._jdf.queryExecution().analyzed()
            if not plan.deterministic() or not plan.subqueries().isEmpty():
                wrong.append(
                    f"{_about(constraint)} must say the same about a row whenever it is asked: no rand(), no subquery"
                )
        except PySparkException as error:
            wrong.append(f"{_about(constraint)} {_first(str(error))}")
    if wrong:
        raise PipelineFileError(pipeline.path, wrong)


def _about(constraint: Constraint) -> str:
    return f"[[schema.constraints]] {constraint.name!r}: check = {constraint.check!r}:"


def _first(text: str) -> str:
    """Spark's own words, without its codes and plans."""
    line = text.strip().splitlines()[0].partition(" SQLSTATE")[0]
    return line.partition("] ")[2] if line.startswith("[") else line
