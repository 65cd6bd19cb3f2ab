"""What tasks do for a PostgreSQL table: COPY their rows into the batch's staging table, encoded column by column.

The rule: the staging table has all rows of an attempt or none, under a name that no other attempt has. Nobody reads
them before the driver's commit selects the attempts that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import orjson
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg import sql
from pyarrow import types

from semel.spark.retries import retry
from semel.spark.sinks.contract import InvalidRow, Written, attempt_name
from semel.spark.sinks.postgres.connection import connect, failure, is_outage
from semel.spark.sinks.postgres.table import JSON_TYPES, Table
from semel.spark.sinks.postgres.validation import refused_rows
from semel.spark.sinks.table_schema import in_shape, shaped

ATTEMPT: Final = "_semel_attempt"
POSITION: Final = "_semel_position"  # task and row: the order in which rows came
_MAX_ROWS: Final = 1 << 40  # of a task
_NO_HEADER: Final = pa.csv.WriteOptions(include_header=False, quoting_style="needed")


@dataclass(frozen=True, slots=True)
class PostgresWriter:
    dsn: str = field(repr=False)
    sink: str
    table: Table
    staging: tuple[str, str]
    schema: pa.Schema
    key: tuple[str, ...]

    def invalid_rows(self, batch: pa.RecordBatch) -> list[InvalidRow]:
        return refused_rows(in_shape(batch, _nullable(self.schema), self.sink), self.table, self.key)

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = shaped(batches, self.schema, self.sink)
        first = next(rows, None)
        if first is None:
            return Written(task, attempt, 0, 0)
        name, batch = attempt_name(attempt), first
        count = size = 0
        try:
            connected = retry(lambda: connect(self.dsn), is_outage)
            with connected as connection, connection.cursor() as cursor:
                # If a crash of the server loses these rows, the commit finds that they are missing.
                cursor.execute("SET LOCAL synchronous_commit = off")
                with cursor.copy(self._statement()) as copy:
                    for batch in chain((first,), rows):
                        data = encoded(batch, self.table, name, task * _MAX_ROWS + count)
                        copy.write(data)
                        count, size = count + batch.num_rows, size + len(data)
        except psycopg.Error as error:
            refused = refused_rows(batch, self.table, self.key)  # PostgreSQL does not always name the column
            about = f" (column {refused[0].field}: {refused[0].reason})" if refused else ""
            raise failure(self.sink, f"write the rows of task {task}{about}", error) from error
        return Written(task, attempt, count, size, {"attempt": name})

    def _statement(self) -> sql.Composed:
        names = [ATTEMPT, POSITION, *(column.name for column in self.table.columns)]
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            sql.Identifier(*self.staging), sql.SQL(", ").join(map(sql.Identifier, names))
        )


def encoded(batch: pa.RecordBatch, table: Table, attempt: str, position: int) -> bytes:
    """Rows as CSV: a null is empty, an empty text is a pair of quotes."""
    names = [ATTEMPT, POSITION, *batch.schema.names]
    columns = [pa.repeat(attempt, batch.num_rows), pa.array(range(position, position + batch.num_rows), pa.int64())]
    for column, target in zip(batch.columns, table.columns, strict=True):
        columns.append(_sendable(column, as_json=target.base in JSON_TYPES))
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(pa.RecordBatch.from_arrays(columns, names), sink, _NO_HEADER)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _sendable(column: pa.Array, *, as_json: bool) -> pa.Array:
    """The column in a type that the CSV writer writes as PostgreSQL reads it."""
    kind = column.type
    if types.is_binary(kind):
        return _hexadecimal(column)
    if types.is_nested(kind):
        return _json(column) if as_json else _array_literals(column)
    return column


def _hexadecimal(column: pa.Array) -> pa.Array:
    """Converts all bytes in one call: the text is twice as long, so the offsets are doubled."""
    if column.offset:
        column = pa.concat_arrays([column])  # a copy that begins where its buffers do
    validity, offsets, data = column.buffers()
    doubled_offsets = pc.multiply(
        pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, offsets]).cast(pa.int64()), 2
    )
    digits = pa.py_buffer((data.to_pybytes() if data else b"").hex().encode())
    doubled = pa.Array.from_buffers(pa.large_string(), len(column), [validity, doubled_offsets.buffers()[1], digits])
    return pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), doubled, pa.scalar("", pa.large_string()))


def _json(column: pa.Array) -> pa.Array:
    dumps = orjson.dumps
    options = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
    return pa.array(
        [
            None if value is None else dumps(value, _json_value, options).decode()
            for value in column.to_pylist(maps_as_pydicts="lossy")
        ],
        pa.string(),
    )


def _json_value(value: object) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value) if value.is_finite() else "null")
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    raise TypeError


def _array_literals(column: pa.Array) -> pa.Array:
    """Lists of simple values as `{"a","b",NULL}`."""
    values = column.flatten()
    if types.is_binary(values.type):
        values = _hexadecimal(values)
    texts = values.cast(pa.string())
    for special in ("\\", '"'):
        texts = pc.replace_substring(texts, special, "\\" + special)
    quote = pa.scalar('"', pa.string())
    items = pc.fill_null(pc.binary_join_element_wise(quote, texts, quote, ""), "NULL")
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    lists = pa.LargeListArray.from_arrays(offsets, items)
    joined = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, pa.string()))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])
