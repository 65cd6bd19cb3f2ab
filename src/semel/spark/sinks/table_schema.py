"""The columns of a table as Arrow sees them: the types that are stored, their names in SQL, how columns may change.

The rule: no value is changed to fit. A column that is not as the table has it is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from semel.spark.sinks.contract import SinkError

UTC_TIME: Final = pa.timestamp("us", tz="UTC")
# By Spark's names: the types without parts, but for decimals.
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
    """The type as Spark's SQL writes it."""
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
    """The type for people: as the schema of a pipeline writes it."""
    return sql_type(kind).replace("`", "")


def quoted(name: str) -> str:
    """A name within SQL, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


# What may change.


class ChangeKind(Enum):
    ADDED = auto()
    REMOVED = auto()
    RETYPED = auto()
    NOW_NULLABLE = auto()
    NOW_NOT_NULL = auto()


class Difference(NamedTuple):
    """One column, or one field of a struct, that is not as it was. `old` is None if it is new, `new` if it is gone."""

    kind: ChangeKind
    path: str
    old: pa.Field
    new: pa.Field

    @property
    def breaking(self) -> bool:
        """Whether rows in both forms cannot be in one table. Whether a column may lose or get its NOT NULL depends on
        who asks: a table must take the new rows, a pipeline's file must describe the old ones."""
        if self.kind is ChangeKind.ADDED:
            return not self.new.nullable
        return self.kind in (ChangeKind.REMOVED, ChangeKind.RETYPED)


def differences(old: Iterable[pa.Field], new: Iterable[pa.Field], inside: str = "") -> Iterator[Difference]:
    """A table can add a column, or a field to a struct; a type, and what is within an array or a map, stays."""
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


def grown(old: pa.Schema, new: pa.Schema, *, table: str, way_out: str, may_lack: bool) -> pa.Schema:
    """The table's columns once rows of `new` go into it. New ones that may be null are fine; with `may_lack`, rows need
    not have all of the table's. Any other difference is an error that lists them all.
    """
    wrong = [text for difference in differences(old, new) if (text := _objection(difference, may_lack))]
    if wrong:
        listed = "\n".join(f"  - column {text}" for text in wrong)
        raise SinkError(
            f"{table} cannot take the pipeline's rows:\n{listed}\n"
            f"A new column is added by itself if it may be null; other changes would break what is there. {way_out}"
        )
    return pa.schema(_merged(old, new))


def _objection(difference: Difference, may_lack: bool) -> str | None:
    """Why a table cannot take the rows, or None."""
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
    """The fields of `old`, and those that only `new` has; they are known to go together."""
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
    """Each batch with exactly the columns of `schema`, in its order and types; batches without rows are left out."""
    for batch in batches:
        if batch.num_rows:
            yield in_shape(batch, schema, table)


def in_shape(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        columns = batch.columns
    elif sorted(batch.schema.names) != sorted(schema.names):
        raise SinkError(
            f"{table}: rows with the columns {batch.schema.names} came, it was opened for {schema.names}; "
            "start the pipeline again, so that the table is opened with the schema of now"
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
