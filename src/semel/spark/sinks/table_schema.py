"""The columns of a table as Arrow sees them: the types that are stored, the changes a table can take, rows in shape.

The rule: rows are never bent to fit. A column that is not as the table has it is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from semel.spark.sinks.contract import SinkError

UTC_TIME: Final = pa.timestamp("us", tz="UTC")
_SAME: Final = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_decimal128,
    types.is_string,
    types.is_binary,
    types.is_date32,
)
_AS: Final[tuple[tuple[Callable[[Any], bool], pa.DataType], ...]] = (
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_date64, pa.date32()),
    (types.is_time, pa.time64("us")),
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
)
_NAMES: Final = {
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


def storable(schema: pa.Schema) -> pa.Schema:
    """The same columns in the types that tables have: microseconds in UTC, no large or dictionary types."""
    return pa.schema([pa.field(field.name, _stored(field.type, field.name), field.nullable) for field in schema])


def _stored(kind: pa.DataType, column: str) -> pa.DataType:
    if any(same(kind) for same in _SAME):
        return kind
    if types.is_timestamp(kind):
        return UTC_TIME if kind.tz else pa.timestamp("us")
    if types.is_dictionary(kind):
        return _stored(kind.value_type, column)
    if types.is_map(kind):
        item = pa.field("value", _stored(kind.item_type, column), kind.item_field.nullable)
        return pa.map_(_stored(kind.key_type, column), item)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type, column), kind.value_field.nullable))
    if types.is_struct(kind):
        return pa.struct([pa.field(part.name, _stored(part.type, column), part.nullable) for part in kind])
    for matches, stored in _AS:
        if matches(kind):
            return stored
    raise SinkError(f"column {column}: a table cannot hold the type {kind}; give it another one in the schema")


def sql_name(kind: pa.DataType) -> str:
    """A type as the schema of a pipeline writes it."""
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if types.is_map(kind):
        return f"MAP<{sql_name(kind.key_type)}, {sql_name(kind.item_type)}>"
    if types.is_list(kind):
        return f"ARRAY<{sql_name(kind.value_type)}>"
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{part.name}: {sql_name(part.type)}' for part in kind)}>"
    return _NAMES.get(kind, str(kind))


def grown(old: pa.Schema, new: pa.Schema, *, table: str, way_out: str, may_lack: bool) -> pa.Schema:
    """The table's columns once rows of `new` go into it. New ones that may be null are fine; with `may_lack`, rows need
    not have all of the table's. Any other difference is an error that lists them all.
    """
    wrong: list[str] = []
    fields = _grown(list(old), list(new), "", wrong, may_lack)
    if wrong:
        differences = "\n".join(f"  - {text}" for text in wrong)
        raise SinkError(
            f"{table} cannot take the pipeline's rows:\n{differences}\n"
            f"A new column is added by itself if it may be null; other changes would break what is there. {way_out}"
        )
    return pa.schema(fields)


def _grown(old: list[pa.Field], new: list[pa.Field], inside: str, wrong: list[str], may_lack: bool) -> list[pa.Field]:
    there, coming = {field.name: field for field in old}, {field.name: field for field in new}
    fields = []
    for name, field in there.items():
        if name in coming:
            fields.append(_met(field, coming[name], inside + name, wrong, may_lack))
        else:
            fields.append(field)
            if not (may_lack and field.nullable):
                wrong.append(f"column {inside}{name}: the table has it ({_described(field)}), the rows no longer do")
    added = [field for name, field in coming.items() if name not in there]
    for field in added:
        if not field.nullable:
            wrong.append(f"column {inside}{field.name}: is new and NOT NULL, and the rows that are there lack it")
    return fields + added


def _met(old: pa.Field, new: pa.Field, path: str, wrong: list[str], may_lack: bool) -> pa.Field:
    if types.is_struct(old.type) and types.is_struct(new.type):
        kind = pa.struct(_grown(list(old.type), list(new.type), f"{path}.", wrong, may_lack))
    else:
        kind = old.type
        if old.type != new.type:
            wrong.append(f"column {path}: the table has {sql_name(old.type)}, the rows {sql_name(new.type)}")
    if new.nullable and not old.nullable:
        wrong.append(f"column {path}: the table has it as NOT NULL, the rows may be without a value")
    return pa.field(old.name, kind, old.nullable)


def _described(field: pa.Field) -> str:
    return sql_name(field.type) + ("" if field.nullable else " NOT NULL")


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
