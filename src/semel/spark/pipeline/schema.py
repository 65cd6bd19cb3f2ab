"""The body's schema as one small tree, whether it was written as DDL or as JSON Schema; from it come Spark's schema,
Arrow's, and the text that the checkpoint records.

The rule: what a schema says and this tree cannot hold is refused by name when the file is read, never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, assert_never

from semel.errors import SemelError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as spark_types

RESERVED: Final = "_semel"  # how no field's name may begin
LARGEST_PRECISION: Final = 38


class SchemaError(SemelError):
    """A schema cannot be used; the text names the field and says what is possible."""


class Kind(StrEnum):
    """The types without parts, by Spark's own names."""

    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    BYTE = "TINYINT"
    SHORT = "SMALLINT"
    INT = "INT"
    LONG = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_NTZ = "TIMESTAMP_NTZ"
    BINARY = "BINARY"


@dataclass(frozen=True, slots=True)
class Plain:
    kind: Kind


@dataclass(frozen=True, slots=True)
class Decimal:
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Array:
    element: Type
    nullable: bool = True  # may an element be null


@dataclass(frozen=True, slots=True)
class Map:
    """From text to values: what a JSON object with any names is."""

    value: Type
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Struct:
    """`closed`: an object with other fields than these is refused."""

    fields: tuple[Field, ...]
    closed: bool = False


Type = Plain | Decimal | Array | Map | Struct


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Type
    nullable: bool = True
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A row for which `check`, a condition in Spark SQL over the row's fields, is not true is rejected with `name`.

    Where `check` is null because `field` is, the row is fine: a value that may be missing breaks no rule."""

    name: str
    field: str | None
    check: str


# As text.


def sql(kind: Type) -> str:
    """The type as Spark's SQL writes it."""
    match kind:
        case Plain(kind=name):
            return name.value
        case Decimal(precision=precision, scale=scale):
            return f"DECIMAL({precision},{scale})"
        case Array(element=element):
            return f"ARRAY<{sql(element)}>"
        case Map(value=value):
            return f"MAP<STRING, {sql(value)}>"
        case Struct(fields=fields):
            return f"STRUCT<{', '.join(f'{quoted(one.name)}: {_field_sql(one)}' for one in fields)}>"
        case other:
            assert_never(other)


def ddl(fields: Sequence[Field]) -> str:
    return ", ".join(f"{quoted(one.name)} {_field_sql(one)}" for one in fields)


def _field_sql(field: Field) -> str:
    return sql(field.type) + ("" if field.nullable else " NOT NULL")


def quoted(name: str) -> str:
    """A name within SQL, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A text within SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# Rules for all schemas.


def checked(fields: Sequence[Field], inside: str = "") -> tuple[Field, ...]:
    """The fields, if their names can be those of columns. SQL takes Id and id for the same."""
    seen: dict[str, str] = {}
    for one in fields:
        path = f"{inside}{one.name}"
        if not one.name.strip():
            raise SchemaError(f"a field{f' of {inside[:-1]}' if inside else ''} has an empty name")
        if one.name.lower().startswith(RESERVED):
            raise SchemaError(f"field {path!r}: names that begin with {RESERVED} are Semel's own; choose another")
        if one.name.lower() in seen:
            raise SchemaError(
                f"fields {seen[one.name.lower()]!r} and {path!r} are one name in SQL, which knows no upper and lower "
                "case; keep one of them"
            )
        seen[one.name.lower()] = path
        for part in structs_in(one.type):
            checked(part.fields, f"{path}.")
    if not fields and not inside:
        raise SchemaError("there is no field in it")
    return tuple(fields)


def structs_in(kind: Type) -> Iterator[Struct]:
    """The nearest structs within a type."""
    match kind:
        case Struct():
            yield kind
        case Array(element=part) | Map(value=part):
            yield from structs_in(part)
        case _:
            return


def closed(fields: Sequence[Field]) -> tuple[Field, ...]:
    """The same fields; objects within them may have no others."""
    return tuple(replace(one, type=_closed(one.type)) for one in fields)


def _closed(kind: Type) -> Type:
    match kind:
        case Struct(fields=fields):
            return Struct(closed(fields), closed=True)
        case Array(element=element):
            return replace(kind, element=_closed(element))
        case Map(value=value):
            return replace(kind, value=_closed(value))
        case _:
            return kind


def find(fields: Sequence[Field], path: str) -> Field | None:
    """The field at a dotted path, through structs only."""
    name, _, rest = path.partition(".")
    for one in fields:
        if one.name == path:
            return one
        if one.name == name and rest and isinstance(one.type, Struct):
            return find(one.type.fields, rest)
    return None


# As JSON, for the checkpoint.


def encode(fields: Sequence[Field]) -> list[dict[str, Any]]:
    return [{"name": one.name, "type": _encoded(one.type), "nullable": one.nullable} for one in fields]


def _encoded(kind: Type) -> Any:
    match kind:
        case Array(element=element, nullable=nullable):
            return {"array": _encoded(element), "nullable": nullable}
        case Map(value=value, nullable=nullable):
            return {"map": _encoded(value), "nullable": nullable}
        case Struct(fields=fields):
            return {"struct": encode(fields)}
        case _:
            return sql(kind)


def decode(found: Sequence[Any]) -> tuple[Field, ...]:
    return tuple(Field(one["name"], _decoded(one["type"]), one["nullable"]) for one in found)


def _decoded(found: Any) -> Type:
    match found:
        case {"array": element, "nullable": nullable}:
            return Array(_decoded(element), nullable)
        case {"map": value, "nullable": nullable}:
            return Map(_decoded(value), nullable)
        case {"struct": fields}:
            return Struct(decode(fields))
        case str() if found.startswith("DECIMAL("):
            precision, scale = found[len("DECIMAL(") : -1].split(",")
            return Decimal(int(precision), int(scale))
        case _:
            return Plain(Kind(found))


# For Spark and for Arrow.


def spark_schema(fields: Sequence[Field]) -> spark_types.StructType:
    from pyspark.sql import types as t

    return t.StructType([t.StructField(one.name, _spark(one.type), one.nullable) for one in fields])


def _spark(kind: Type) -> spark_types.DataType:
    from pyspark.sql import types as t

    plain: dict[Kind, spark_types.DataType] = {
        Kind.STRING: t.StringType(),
        Kind.BOOLEAN: t.BooleanType(),
        Kind.BYTE: t.ByteType(),
        Kind.SHORT: t.ShortType(),
        Kind.INT: t.IntegerType(),
        Kind.LONG: t.LongType(),
        Kind.FLOAT: t.FloatType(),
        Kind.DOUBLE: t.DoubleType(),
        Kind.DATE: t.DateType(),
        Kind.TIMESTAMP: t.TimestampType(),
        Kind.TIMESTAMP_NTZ: t.TimestampNTZType(),
        Kind.BINARY: t.BinaryType(),
    }
    match kind:
        case Plain(kind=name):
            return plain[name]
        case Decimal(precision=precision, scale=scale):
            return t.DecimalType(precision, scale)
        case Array(element=element, nullable=nullable):
            return t.ArrayType(_spark(element), nullable)
        case Map(value=value, nullable=nullable):
            return t.MapType(t.StringType(), _spark(value), nullable)
        case Struct(fields=fields):
            return spark_schema(fields)
        case other:
            assert_never(other)


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([_arrow_field(one) for one in fields])


def _arrow_field(field: Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(field.name, _arrow(field.type), field.nullable)


def _arrow(kind: Type) -> pa.DataType:
    import pyarrow as pa

    plain = {
        Kind.STRING: pa.string(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.BYTE: pa.int8(),
        Kind.SHORT: pa.int16(),
        Kind.INT: pa.int32(),
        Kind.LONG: pa.int64(),
        Kind.FLOAT: pa.float32(),
        Kind.DOUBLE: pa.float64(),
        Kind.DATE: pa.date32(),
        Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
        Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
        Kind.BINARY: pa.binary(),
    }
    match kind:
        case Plain(kind=name):
            return plain[name]
        case Decimal(precision=precision, scale=scale):
            return pa.decimal128(precision, scale)
        case Array(element=element, nullable=nullable):
            return pa.list_(pa.field("element", _arrow(element), nullable))
        case Map(value=value, nullable=nullable):
            return pa.map_(pa.string(), pa.field("value", _arrow(value), nullable))
        case Struct(fields=fields):
            return pa.struct([_arrow_field(one) for one in fields])
        case other:
            assert_never(other)
