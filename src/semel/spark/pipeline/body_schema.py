"""The body's schema as Arrow fields, whether it was written as DDL or as JSON Schema.

The rule: anything in a schema that these fields cannot express is refused by name when the file is read, and never
ignored. NOT NULL is `nullable=False`. Arrow has no comments and no closed objects: these are in a field's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from semel.errors import SemelError
from semel.spark.sinks.table_schema import SQL_NAMES, column_type, quoted, sql_type
from semel.spark.source.column_types import MESSAGE
from semel.spark.source.columns import arrow_columns

Fields = tuple[pa.Field, ...]
SOURCE: Final = arrow_columns(MESSAGE)
TYPES: Final = {name: kind for kind, name in SQL_NAMES.items() if name != "TIME"}  # of values in a JSON body
RESERVED: Final = "_semel"  # a prefix that no field's name may have
COMMENT: Final = b"comment"
_CLOSED: Final = b"closed"


class SchemaError(SemelError):
    """A schema cannot be used. Change the field that the text names."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A row is rejected with `name` if `check`, a condition in Spark SQL over the row's fields, is not true.

    If `check` is null because `field` is null, the row is good: a value that may be missing breaks no rule."""

    name: str
    field: str | None
    check: str


def array_of(element: pa.DataType, nullable: bool = True) -> pa.DataType:
    return pa.list_(pa.field("element", element, nullable))


def map_of(value: pa.DataType, nullable: bool = True) -> pa.DataType:
    """A map from text to values: a JSON object with any names."""
    return pa.map_(pa.string(), pa.field("value", value, nullable))


def parts(kind: pa.DataType) -> Fields:
    """The fields within a type: those of a struct, the element of an array, the value of a map."""
    if types.is_map(kind):
        return (kind.item_field,)
    if types.is_list(kind):
        return (kind.value_field,)
    return tuple(kind) if types.is_struct(kind) else ()


def closed(fields: Sequence[pa.Field]) -> Fields:
    """The same fields, but objects in them, at any depth, may have no other fields."""
    return tuple(close(field.with_type(_with_parts(field.type, closed(parts(field.type))))) for field in fields)


def close(field: pa.Field) -> pa.Field:
    """The same field, but if its value is an object, the object may have no other fields."""
    return field.with_metadata({**(field.metadata or {}), _CLOSED: b"true"}) if types.is_struct(field.type) else field


def is_closed(field: pa.Field) -> bool:
    return _CLOSED in (field.metadata or {})


def _with_parts(kind: pa.DataType, inner: Fields) -> pa.DataType:
    if types.is_map(kind):
        return pa.map_(pa.string(), *inner)
    if types.is_list(kind):
        return pa.list_(*inner)
    return pa.struct(inner) if types.is_struct(kind) else kind


def find(fields: Sequence[pa.Field], path: str) -> pa.Field | None:
    """The field at a dotted path, through structs only."""
    name, _, rest = path.partition(".")
    for field in fields:
        if field.name == path:
            return field
        if field.name == name and rest and types.is_struct(field.type):
            return find(parts(field.type), rest)
    return None


def checked(fields: Sequence[pa.Field]) -> Fields:
    """The fields, if their names are possible names of columns. Raises SchemaError."""
    if not fields:
        raise SchemaError("there is no field in it")
    _check_names(fields, "")
    return tuple(fields)


def _check_names(fields: Sequence[pa.Field], inside: str) -> None:
    """In SQL, Id and id are the same name."""
    known: dict[str, str] = {}
    for field in fields:
        path, lower = f"{inside}{field.name}", field.name.lower()
        if not field.name.strip():
            raise SchemaError(f"a field{f' of {inside[:-1]}' if inside else ''} has an empty name")
        if lower.startswith(RESERVED):
            raise SchemaError(f"field {path!r}: names that begin with {RESERVED} are Semel's own; choose another")
        if lower in known:
            raise SchemaError(
                f"fields {known[lower]!r} and {path!r} are one name in SQL, which knows no upper and lower case; "
                "keep one of them"
            )
        known[lower] = path
        kind = field.type
        while types.is_list(kind) or types.is_map(kind):
            kind = parts(kind)[0].type
        _check_names(parts(kind), f"{path}.")


# As text.


def ddl(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{quoted(field.name)} {column_type(field)}" for field in fields)


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# As JSON, for the checkpoint.


def encode(fields: Sequence[pa.Field]) -> list[dict[str, Any]]:
    return [
        {
            "name": field.name,
            "type": sql_type(field.type).partition("<")[0],
            "nullable": field.nullable,
            "fields": encode(parts(field.type)),
        }
        for field in fields
    ]


def decode(encoded: Sequence[Any]) -> Fields:
    """Raises KeyError, TypeError or ValueError if `encode` has not made this."""
    return tuple(
        pa.field(field["name"], _decoded(field["type"], decode(field["fields"])), field["nullable"])
        for field in encoded
    )


def _decoded(name: str, inner: Fields) -> pa.DataType:
    match name:
        case "ARRAY":
            return pa.list_(*inner)
        case "MAP":
            return pa.map_(pa.string(), *inner)
        case "STRUCT":
            return pa.struct(inner)
    if name.startswith("DECIMAL("):
        precision, scale = name[len("DECIMAL(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return TYPES[name]
