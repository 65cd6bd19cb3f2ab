"""How a JSON body becomes typed fields, as texts of Spark SQL: pure, without Spark.

Spark's `from_json` alone is too kind: it takes a number for a text, "12,50" for 1250, 20240101 for a day in the year
57385, "12:00" for today at noon, 200 for a TINYINT of -56, and 1e400 for infinity. So it reads a field as what is near
to the text (the *wire* type), and an expression makes the *value* of it, or null. Then the rule is simple: a value that
is null where the wire had something is of the wrong type. Nothing is bent to fit, but for a DECIMAL's digits beyond its
scale, which are rounded as in SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from semel.spark.pipeline.schema import (
    Array,
    Decimal,
    Field,
    Kind,
    Map,
    Plain,
    Struct,
    Type,
    literal,
    quoted,
    sql,
)

_DAY: Final = r"(?!0000)\d{4}-\d{2}-\d{2}"
_CLOCK: Final = r"[T ]\d{2}:\d{2}:\d{2}([.]\d{1,9})?"
_ZONED: Final = literal(rf"^{_DAY}{_CLOCK}[+-]\d{{2}}:\d{{2}}$")
_COMPACT_ZONE: Final = literal(rf"^{_DAY}{_CLOCK}[+-]\d{{4}}$")
_LOCAL: Final = literal(rf"^{_DAY}{_CLOCK}$")
_DATE: Final = literal(f"^{_DAY}$")
_SECONDS: Final = literal(r"^-?\d{9,11}$")  # from 1973 to 5138, and as far back; "2024" is none, nor are milliseconds
_EXACT_DIGITS: Final = 15  # a number's text goes through a double, which keeps so many
_TEXTS: Final = (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.DATE)
_LARGEST: Final = {Kind.FLOAT: "CAST('3.4028235E38' AS FLOAT)", Kind.DOUBLE: "1.7976931348623157E308D"}
# How bodies are read: as the standard has JSON, and with a column `c` for what could not be read.
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
    """`any_as_text`: a STRING takes any JSON value, as its text."""

    any_as_text: bool = False

    def type(self, kind: Type) -> str:
        """What `from_json` is to read."""
        match kind:
            case Plain(kind=Kind.STRING) if not self.any_as_text:
                return "VARIANT"
            case Plain(kind=Kind.BYTE):
                return "SMALLINT"
            case Plain(kind=name):
                return "STRING" if name in _TEXTS else name.value
            case Decimal(precision=precision):
                return "STRING" if precision <= _EXACT_DIGITS else "VARIANT"
            case Array(element=element):
                return f"ARRAY<{self.type(element)}>"
            case Map(value=value):
                return f"MAP<STRING, {self.type(value)}>"
            case Struct(fields=fields):
                return f"STRUCT<{self.fields(fields)}>"
            case other:
                assert_never(other)

    def fields(self, fields: Sequence[Field]) -> str:
        return ", ".join(f"{quoted(one.name)}: {self.type(one.type)}" for one in fields)

    def value(self, kind: Type, wire: str) -> str:
        """The value as it goes into the table, or null."""
        if not self._converts(kind):
            return wire
        one = _variable(wire)
        match kind:
            case Plain(kind=name):
                return _plain(name, wire)
            case Decimal(precision=precision) if precision <= _EXACT_DIGITS:
                return f"try_cast({wire} AS {sql(kind)})"
            case Decimal():
                return _long_decimal(sql(kind), wire)
            case Array(element=element):
                return f"transform({wire}, {one} -> {self.value(element, one)})"
            case Map(value=value):
                return f"transform_values({wire}, ({one}k, {one}) -> {self.value(value, one)})"
            case Struct(fields=fields):
                parts = [f"{literal(f.name)}, {self.value(f.type, f'{wire}.{quoted(f.name)}')}" for f in fields]
                return f"CASE WHEN {wire} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
            case other:
                assert_never(other)

    def _converts(self, kind: Type) -> bool:
        match kind:
            case Plain(kind=Kind.STRING):
                return not self.any_as_text
            case Plain(kind=name):
                return name in (*_TEXTS, *_LARGEST, Kind.BYTE)
            case Decimal():
                return True
            case Array(element=part) | Map(value=part):
                return self._converts(part)
            case Struct(fields=fields):
                return any(self._converts(one.type) for one in fields)
            case other:
                assert_never(other)

    def problems(self, field: Field, wire: str, value: str, path: str, there: str = "true") -> Iterator[Problem]:
        """What can be wrong with a field's value once it is read; `there` says that the object it is in is there."""
        yield from self._wrong(field.type, wire, value, path)
        if not field.nullable:
            yield Problem(f"{there} AND {value} IS NULL", "missing", literal(path))
        if isinstance(field.type, Struct):
            for one in field.type.fields:
                name = quoted(one.name)
                inner = self.problems(
                    one, f"{wire}.{name}", f"{value}.{name}", f"{path}.{one.name}", f"{value} IS NOT NULL"
                )
                yield from inner

    def _wrong(self, kind: Type, wire: str, value: str, path: str) -> Iterator[Problem]:
        match kind:
            case Array(element=element, nullable=nullable):
                yield from self._wrong_inside(Field("", element, nullable), wire, f"{path}[]")
            case Map(value=part, nullable=nullable):
                keys = f"map_keys({wire})"
                twice = f"size({keys}) > 1 AND size(array_distinct({keys})) < size({keys})"
                yield Problem(twice, "a name twice", literal(path))
                yield from self._wrong_inside(Field("", part, nullable), f"map_values({wire})", f"{path}[]")
            case Plain() | Decimal() if self._converts(kind):
                lost = f"{wire} IS NOT NULL AND {value} IS NULL"
                if self.type(kind) == "VARIANT":
                    lost += f" AND NOT is_variant_null({wire})"
                yield Problem(lost, _wrong_type(kind), literal(path))
            case _:
                return

    def _wrong_inside(self, field: Field, values: str, path: str) -> Iterator[Problem]:
        one = _variable(values)
        for problem in self.problems(field, one, self.value(field.type, one), path):
            yield Problem(f"exists({values}, {one} -> {problem.condition})", problem.reason, problem.field)

    # Why `from_json` could not read a body.

    def broken(self, fields: Sequence[Field], wire: str, texts: str, inside: str = "") -> Iterator[Problem]:
        """The field that could not be read: null in `wire`, and there in `texts`: the same object as names to texts."""
        for one in fields:
            path, name = f"{inside}{one.name}", quoted(one.name)
            text = f"{texts}[{literal(one.name)}]"
            lost = f"{wire}.{name} IS NULL AND {text} IS NOT NULL"
            if one.type == Plain(Kind.STRING):
                yield Problem(f"{lost} AND NOT startswith({text}, '{{')", "not Unicode", literal(path))
            yield Problem(lost, _wrong_type(one.type), literal(path))
            if isinstance(one.type, Array | Map):  # with a wrong element it may be there in part
                schema = literal(f"v {self.type(one.type)}, c STRING")
                alone = f"from_json(concat('{{\"v\":', {text}, '}}'), {schema}, {OPTIONS})"
                yield Problem(f"{alone}.c IS NOT NULL", _wrong_type(one.type), literal(path))
            if isinstance(one.type, Struct):
                yield from self.broken(one.type.fields, f"{wire}.{name}", f"from_json({text}, {_OBJECT})", f"{path}.")


def unknown(fields: Sequence[Field], text: str) -> Iterator[Problem]:
    """Fields that a closed object has and its schema does not; `text` is the JSON of an object with these fields."""
    names = ", ".join(literal(one.name) for one in fields)
    others = f"array_except(json_object_keys({text}), array({names}))"
    yield Problem(f"size({others}) > 0", "unknown field", f"try_element_at({others}, 1)")
    yield from _unknown_within(fields, text, "")


def _unknown_within(fields: Sequence[Field], text: str, inside: str) -> Iterator[Problem]:
    for one in fields:
        member = f"from_json({text}, {_OBJECT})[{literal(one.name)}]"
        for condition in _has_unknown(one.type, member):
            yield Problem(condition, "unknown field", literal(f"{inside}{one.name}"))


def _has_unknown(kind: Type, text: str) -> Iterator[str]:
    one = _variable(text)
    match kind:
        case Struct(fields=fields, closed=closed):
            if closed:
                names = ", ".join(literal(part.name) for part in fields)
                yield f"size(array_except(json_object_keys({text}), array({names}))) > 0"
            yield from (problem.condition for problem in _unknown_within(fields, text, ""))
        case Array(element=part):
            yield from (f"exists(from_json({text}, 'ARRAY<STRING>'), {one} -> {c})" for c in _has_unknown(part, one))
        case Map(value=part):
            values = f"map_values(from_json({text}, {_OBJECT}))"
            yield from (f"exists({values}, {one} -> {c})" for c in _has_unknown(part, one))
        case _:
            return


def _wrong_type(kind: Type) -> str:
    return f"wrong type: {sql(kind).partition('<')[0]} expected"


def _variable(outside: str) -> str:
    """A name for a lambda's variable that none around it has."""
    return f"_semel_x{outside.count('_semel_x')}"


def _plain(kind: Kind, wire: str) -> str:
    match kind:
        case Kind.STRING:
            return f"CASE WHEN schema_of_variant({wire}) = 'STRING' THEN try_cast({wire} AS STRING) END"
        case Kind.BYTE:
            return f"CASE WHEN {wire} BETWEEN -128 AND 127 THEN CAST({wire} AS TINYINT) END"
        case Kind.FLOAT | Kind.DOUBLE:
            return f"CASE WHEN abs({wire}) <= {_LARGEST[kind]} THEN {wire} END"
        case Kind.DATE:
            return f"CASE WHEN {wire} RLIKE {_DATE} THEN try_cast({wire} AS DATE) END"
        case Kind.TIMESTAMP_NTZ:
            return f"CASE WHEN {wire} RLIKE {_LOCAL} THEN try_cast({wire} AS TIMESTAMP_NTZ) END"
        case Kind.TIMESTAMP:
            return _timestamp(wire)
        case _:
            return wire


def _timestamp(wire: str) -> str:
    """Without a zone it is UTC; a whole number is seconds since 1970."""
    # Most end in Z. The comparisons are a third of a regular expression's cost, and see to it that there is a date:
    # Spark takes a time alone for one of today.
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


def _long_decimal(kind: str, wire: str) -> str:
    """From a number, or from a text that is one: money is often sent so."""
    given, text = f"schema_of_variant({wire})", f"try_cast({wire} AS STRING)"
    number = f"CASE WHEN {given} <> 'BOOLEAN' THEN try_cast({wire} AS {kind}) END"
    return f"CASE WHEN {given} = 'STRING' THEN try_cast({text} AS {kind}) ELSE {number} END"
