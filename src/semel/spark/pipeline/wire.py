"""Generates the Spark SQL by which a JSON body becomes typed fields. Pure: it does not need Spark.

Spark's `from_json` alone is too lenient: it takes a number for a text, "12,50" for 1250, 20240101 for a day in the year
57385, "12:00" for today at noon, 200 for a TINYINT of -56, and 1e400 for infinity. So it only reads a field as a type
close to the text (the *wire* type), and an expression turns that into the *value*, or into null. Then the rule is
simple: if the value is null and the wire is not, the type is wrong. No value is changed to fit, except for a DECIMAL's
digits beyond its scale, which are rounded as in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyarrow import types

from semel.spark.pipeline.body_schema import is_closed, literal
from semel.spark.sinks.table_schema import quoted, sql_type

_DAY: Final = r"(?!0000)\d{4}-\d{2}-\d{2}"
_CLOCK: Final = r"[T ]\d{2}:\d{2}:\d{2}([.]\d{1,9})?"
_ZONED: Final = literal(rf"^{_DAY}{_CLOCK}[+-]\d{{2}}:\d{{2}}$")
_COMPACT_ZONE: Final = literal(rf"^{_DAY}{_CLOCK}[+-]\d{{4}}$")
_LOCAL: Final = literal(rf"^{_DAY}{_CLOCK}$")
_DATE: Final = literal(f"^{_DAY}$")
_SECONDS: Final = literal(r"^-?\d{9,11}$")  # 1973 to 5138, and as far back; not "2024", not milliseconds
_EXACT_DIGITS: Final = 15  # a number's text goes through a double, which keeps this many
_LARGEST: Final = {pa.float32(): "CAST('3.4028235E38' AS FLOAT)", pa.float64(): "1.7976931348623157E308D"}
# How bodies are read: as standard JSON, with a column `c` for text that could not be read.
OPTIONS: Final = (
    "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'c', 'allowSingleQuotes', 'false', "
    "'allowNonNumericNumbers', 'false')"
)
_OBJECT: Final = "'MAP<STRING, STRING>'"


@dataclass(frozen=True, slots=True)
class Problem:
    """If `condition` is true, the row is rejected. `field` is an expression: a text in quotes, or NULL."""

    condition: str
    reason: str
    field: str


@dataclass(frozen=True, slots=True)
class Wire:
    """`any_as_text`: a STRING accepts any JSON value, as text."""

    any_as_text: bool = False

    def type(self, kind: pa.DataType) -> str:
        """The type as which `from_json` reads a field."""
        if types.is_struct(kind):
            return f"STRUCT<{self.fields(kind)}>"
        if types.is_list(kind):
            return f"ARRAY<{self.type(kind.value_type)}>"
        if types.is_map(kind):
            return f"MAP<STRING, {self.type(kind.item_type)}>"
        if types.is_decimal(kind):
            return "STRING" if kind.precision <= _EXACT_DIGITS else "VARIANT"
        if types.is_string(kind) and not self.any_as_text:
            return "VARIANT"
        if types.is_int8(kind):
            return "SMALLINT"
        return "STRING" if types.is_timestamp(kind) or types.is_date(kind) else sql_type(kind)

    def fields(self, fields: Iterable[pa.Field]) -> str:
        return ", ".join(f"{quoted(field.name)}: {self.type(field.type)}" for field in fields)

    def value(self, kind: pa.DataType, wire: str) -> str:
        """The value as it goes into the table, or null."""
        if not self._converts(kind):
            return wire
        element = _variable(wire)
        if types.is_struct(kind):
            parts = (f"{literal(f.name)}, {self.value(f.type, f'{wire}.{quoted(f.name)}')}" for f in kind)
            return f"CASE WHEN {wire} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
        if types.is_list(kind):
            return f"transform({wire}, {element} -> {self.value(kind.value_type, element)})"
        if types.is_map(kind):
            return f"transform_values({wire}, ({element}k, {element}) -> {self.value(kind.item_type, element)})"
        return _scalar(kind, wire)

    def _converts(self, kind: pa.DataType) -> bool:
        """Whether the value differs from the wire."""
        if types.is_struct(kind):
            return any(self._converts(field.type) for field in kind)
        if types.is_list(kind):
            return self._converts(kind.value_type)
        if types.is_map(kind):
            return self._converts(kind.item_type)
        return kind in _LARGEST or self.type(kind) != sql_type(kind)

    def problems(self, field: pa.Field, wire: str, value: str, path: str, there: str = "true") -> Iterator[Problem]:
        """What can be wrong with a field's value once it is read. `there`: the condition that its object exists."""
        yield from self._wrong(field.type, wire, value, path)
        if not field.nullable:
            yield Problem(f"{there} AND {value} IS NULL", "missing", literal(path))
        if types.is_struct(field.type):
            for part in field.type:
                name = quoted(part.name)
                yield from self.problems(
                    part, f"{wire}.{name}", f"{value}.{name}", f"{path}.{part.name}", f"{value} IS NOT NULL"
                )

    def _wrong(self, kind: pa.DataType, wire: str, value: str, path: str) -> Iterator[Problem]:
        if types.is_list(kind):
            yield from self._wrong_inside(kind.value_field, wire, f"{path}[]")
        elif types.is_map(kind):
            keys = f"map_keys({wire})"
            twice = f"size({keys}) > 1 AND size(array_distinct({keys})) < size({keys})"
            yield Problem(twice, "a name twice", literal(path))
            yield from self._wrong_inside(kind.item_field, f"map_values({wire})", f"{path}[]")
        elif not types.is_struct(kind) and self._converts(kind):
            lost = f"{wire} IS NOT NULL AND {value} IS NULL"
            if self.type(kind) == "VARIANT":
                lost += f" AND NOT is_variant_null({wire})"
            yield Problem(lost, _wrong_type(kind), literal(path))

    def _wrong_inside(self, field: pa.Field, values: str, path: str) -> Iterator[Problem]:
        element = _variable(values)
        for problem in self.problems(field, element, self.value(field.type, element), path):
            yield Problem(f"exists({values}, {element} -> {problem.condition})", problem.reason, problem.field)

    # Why `from_json` could not read a body.

    def broken(self, fields: Iterable[pa.Field], wire: str, texts: str, inside: str = "") -> Iterator[Problem]:
        """The field that could not be read: null in `wire`, but not in `texts`, a map of the same object's names to
        texts."""
        for field in fields:
            kind, path, name = field.type, f"{inside}{field.name}", quoted(field.name)
            text = f"{texts}[{literal(field.name)}]"
            lost = f"{wire}.{name} IS NULL AND {text} IS NOT NULL"
            if types.is_string(kind):
                yield Problem(f"{lost} AND NOT startswith({text}, '{{')", "not Unicode", literal(path))
            yield Problem(lost, _wrong_type(kind), literal(path))
            if types.is_list(kind) or types.is_map(kind):  # with a wrong element, a part of it may have been read
                schema = literal(f"v {self.type(kind)}, c STRING")
                alone = f"from_json(concat('{{\"v\":', {text}, '}}'), {schema}, {OPTIONS})"
                yield Problem(f"{alone}.c IS NOT NULL", _wrong_type(kind), literal(path))
            if types.is_struct(kind):
                yield from self.broken(kind, f"{wire}.{name}", f"from_json({text}, {_OBJECT})", f"{path}.")


def unknown(fields: Iterable[pa.Field], text: str) -> Iterator[Problem]:
    """Fields that a closed object has and its schema does not; `text` is the JSON of an object with these fields."""
    others = _others(fields, text)
    yield Problem(f"size({others}) > 0", "unknown field", f"try_element_at({others}, 1)")
    yield from _unknown_within(fields, text, "")


def _others(fields: Iterable[pa.Field], text: str) -> str:
    return f"array_except(json_object_keys({text}), array({', '.join(literal(field.name) for field in fields)}))"


def _unknown_within(fields: Iterable[pa.Field], text: str, inside: str) -> Iterator[Problem]:
    for field in fields:
        member = f"from_json({text}, {_OBJECT})[{literal(field.name)}]"
        for condition in _has_unknown(field, member):
            yield Problem(condition, "unknown field", literal(f"{inside}{field.name}"))


def _has_unknown(field: pa.Field, text: str) -> Iterator[str]:
    kind, element = field.type, _variable(text)
    if types.is_struct(kind):
        if is_closed(field):
            yield f"size({_others(kind, text)}) > 0"
        yield from (problem.condition for problem in _unknown_within(kind, text, ""))
    elif types.is_list(kind):
        values = f"from_json({text}, 'ARRAY<STRING>')"
        yield from (f"exists({values}, {element} -> {c})" for c in _has_unknown(kind.value_field, element))
    elif types.is_map(kind):
        values = f"map_values(from_json({text}, {_OBJECT}))"
        yield from (f"exists({values}, {element} -> {c})" for c in _has_unknown(kind.item_field, element))


def _wrong_type(kind: pa.DataType) -> str:
    return f"wrong type: {sql_type(kind).partition('<')[0]} expected"


def _variable(outside: str) -> str:
    """A name for a lambda's variable that no lambda around it uses."""
    return f"_semel_x{outside.count('_semel_x')}"


def _scalar(kind: pa.DataType, wire: str) -> str:
    if types.is_string(kind):
        return f"CASE WHEN schema_of_variant({wire}) = 'STRING' THEN try_cast({wire} AS STRING) END"
    if types.is_int8(kind):
        return f"CASE WHEN {wire} BETWEEN -128 AND 127 THEN CAST({wire} AS TINYINT) END"
    if kind in _LARGEST:
        return f"CASE WHEN abs({wire}) <= {_LARGEST[kind]} THEN {wire} END"
    if types.is_date(kind):
        return f"CASE WHEN {wire} RLIKE {_DATE} THEN try_cast({wire} AS DATE) END"
    if types.is_decimal(kind):
        return _decimal(kind, wire)
    if kind.tz is None:
        return f"CASE WHEN {wire} RLIKE {_LOCAL} THEN try_cast({wire} AS TIMESTAMP_NTZ) END"
    return _timestamp(wire)


def _timestamp(wire: str) -> str:
    """Without a zone it is UTC; a whole number is seconds since 1970."""
    # Most texts end in Z. The comparisons cost a third of a regular expression, and make sure that there is a date:
    # Spark takes a time alone for a time of today.
    usual = f"endswith({wire}, 'Z') AND length({wire}) > 19 AND substr({wire}, 5, 1) = '-' AND {wire} > '0001'"
    with_colon = f"concat(left({wire}, length({wire}) - 2), ':', right({wire}, 2))"
    return (
        f"CASE WHEN {usual} THEN try_cast({wire} AS TIMESTAMP)"
        f" WHEN {wire} RLIKE {_ZONED} THEN try_cast({wire} AS TIMESTAMP)"
        f" WHEN {wire} RLIKE {_LOCAL} THEN try_cast(concat({wire}, 'Z') AS TIMESTAMP)"
        f" WHEN {wire} RLIKE {_DATE} THEN try_cast(concat({wire}, 'T00:00:00Z') AS TIMESTAMP)"
        f" WHEN {wire} RLIKE {_COMPACT_ZONE} THEN try_cast({with_colon} AS TIMESTAMP)"
        f" WHEN {wire} RLIKE {_SECONDS} THEN timestamp_seconds(try_cast({wire} AS BIGINT)) END"
    )


def _decimal(kind: pa.DataType, wire: str) -> str:
    """From a number, or from a text that is a number: money is often sent that way."""
    name, json_type, text = sql_type(kind), f"schema_of_variant({wire})", f"try_cast({wire} AS STRING)"
    if kind.precision <= _EXACT_DIGITS:
        return f"try_cast({wire} AS {name})"
    number = f"CASE WHEN {json_type} <> 'BOOLEAN' THEN try_cast({wire} AS {name}) END"
    return f"CASE WHEN {json_type} = 'STRING' THEN try_cast({text} AS {name}) ELSE {number} END"
