"""The columns of a table in Arrow: the types that are stored, their names in SQL, and how columns may change.

The rule: no value is changed to fit. A column that differs from the table's is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from semel.spark.sinks.contract import SinkError

UTC_TIME: Final = pa.timestamp("us", tz="UTC")
# Spark's names of all simple types except decimals.
SQL_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    UTC_TIME: "TIMESTAMP",
}
_STORED: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
}


def storable(schema: pa.Schema) -> pa.Schema:
    """The same columns in the types that tables have: microseconds in UTC, no large or dictionary types."""
    return pa.schema([pa.field(field.name, _stored(field.type, field.name), field.nullable) for field in schema])


def _stored(kind: pa.DataType, column: str) -> pa.DataType:
    if kind in SQL_NAMES or types.is_decimal128(kind):
        return kind
    if kind in _STORED:
        return _STORED[kind]
    if types.is_timestamp(kind):
        return UTC_TIME if kind.tz else pa.timestamp("us")
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_dictionary(kind):
        return _stored(kind.value_type, column)
    if types.is_map(kind):
        item = pa.field("value", _stored(kind.item_type, column), kind.item_field.nullable)
        return pa.map_(_stored(kind.key_type, column), item)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type, column), kind.value_field.nullable))
    if types.is_struct(kind):
        return pa.struct([pa.field(part.name, _stored(part.type, column), part.nullable) for part in kind])
    raise SinkError(f"column {column}: a table cannot hold the type {kind}; give it another one in the schema")


# As text.


def sql_type(kind: pa.DataType) -> str:
    """The type in Spark's SQL."""
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if types.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(part.name)}: {column_type(part)}' for part in kind)}>"
    return SQL_NAMES.get(kind, str(kind))


def column_type(field: pa.Field) -> str:
    return sql_type(field.type) + ("" if field.nullable else " NOT NULL")


def sql_name(kind: pa.DataType) -> str:
    """The type for texts that people read: as in the schema of a pipeline."""
    return sql_type(kind).replace("`", "")


def quoted(name: str) -> str:
    """A quoted name in SQL; it may contain any characters."""
    return f"`{name.replace('`', '``')}`"


# What may change.


class ChangeKind(Enum):
    ADDED = auto()
    REMOVED = auto()
    RETYPED = auto()
    NOW_NULLABLE = auto()
    NOW_NOT_NULL = auto()


class Difference(NamedTuple):
    """A column, or a field of a struct, that has changed. `old` is None if it is new, `new` is None if it was
    removed."""

    kind: ChangeKind
    path: str
    old: pa.Field
    new: pa.Field

    @property
    def breaking(self) -> bool:
        """Whether old and new rows cannot be in one table. A change of NOT NULL is not counted here, as it depends on
        the caller: a table must accept the new rows, a pipeline's file must describe the old ones."""
        if self.kind is ChangeKind.ADDED:
            return not self.new.nullable
        return self.kind in (ChangeKind.REMOVED, ChangeKind.RETYPED)


def differences(old: Iterable[pa.Field], new: Iterable[pa.Field], inside: str = "") -> Iterator[Difference]:
    """The changes from `old` to `new`. Structs are compared field by field, arrays and maps as a whole."""
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    for name, field in before.items():
        path = inside + name
        other = after.get(name)
        if other is None:
            yield Difference(ChangeKind.REMOVED, path, field, None)
            continue
        if other.nullable != field.nullable:
            yield Difference(ChangeKind.NOW_NULLABLE if other.nullable else ChangeKind.NOW_NOT_NULL, path, field, other)
        if types.is_struct(field.type) and types.is_struct(other.type):
            yield from differences(field.type, other.type, f"{path}.")
        elif field.type != other.type:
            yield Difference(ChangeKind.RETYPED, path, field, other)
    for name, field in after.items():
        if name not in before:
            yield Difference(ChangeKind.ADDED, inside + name, None, field)


def grown(old: pa.Schema, new: pa.Schema, *, table: str, advice: str, may_lack: bool) -> pa.Schema:
    """The table's columns after rows of `new` are added. New columns that may be null are allowed. With `may_lack`,
    rows may lack columns of the table. Any other difference is an error, which lists all of them.
    """
    wrong = [text for difference in differences(old, new) if (text := _objection(difference, may_lack))]
    if wrong:
        listed = "\n".join(f"  - column {text}" for text in wrong)
        raise SinkError(
            f"{table} cannot take the pipeline's rows:\n{listed}\n"
            f"A new column is added by itself if it may be null; other changes would break what is there. {advice}"
        )
    return pa.schema(_merged(old, new))


def _objection(difference: Difference, may_lack: bool) -> str | None:
    """Why a table cannot take the rows, or None if it can."""
    kind, path, old, new = difference
    if kind is ChangeKind.NOW_NULLABLE:
        return f"{path}: the table has it as NOT NULL, the rows may be without a value"
    if not difference.breaking:
        return None
    if kind is ChangeKind.RETYPED:
        return f"{path}: the table has {sql_name(old.type)}, the rows {sql_name(new.type)}"
    if kind is ChangeKind.ADDED:
        return f"{path}: is new and NOT NULL, and the rows that are there lack it"
    if may_lack and old.nullable:
        return None
    return f"{path}: the table has it ({column_type(old).replace('`', '')}), the rows no longer do"


def _merged(old: Iterable[pa.Field], new: Iterable[pa.Field]) -> list[pa.Field]:
    """The fields of `old`, then those that only `new` has. They were checked before."""
    coming = {field.name: field for field in new}
    fields = []
    for field in old:
        other = coming.pop(field.name, None)
        if other is not None and types.is_struct(field.type):
            fields.append(field.with_type(pa.struct(_merged(field.type, other.type))))
        else:
            fields.append(field)
    return [*fields, *coming.values()]


# Rows.


def shaped(batches: Iterator[pa.RecordBatch], schema: pa.Schema, table: str) -> Iterator[pa.RecordBatch]:
    """Each batch with exactly the columns of `schema`, in their order and types. Batches without rows are left out."""
    for batch in batches:
        if batch.num_rows:
            yield in_shape(batch, schema, table)


def in_shape(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        columns = batch.columns
    elif sorted(batch.schema.names) != sorted(schema.names):
        raise SinkError(
            f"{table}: rows with the columns {batch.schema.names} came, it was opened for {schema.names}; "
            "start the pipeline again, so that the table is opened with the current schema"
        )
    else:
        columns = [_cast(batch.column(field.name), field, table) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if column.null_count and not field.nullable:
            raise SinkError(
                f"{table}: column {field.name} is NOT NULL, and {column.null_count} rows have no value there"
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, table: str) -> pa.Array:
    try:
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SinkError(
            f"{table}: column {field.name}: {sql_name(field.type)} was expected, {sql_name(column.type)} came: {error}"
        ) from error
