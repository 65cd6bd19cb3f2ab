"""What tasks do for a PostgreSQL table: their rows into the batch's staging table, by one COPY, column by column.

The rule: an attempt's rows are in staging all or not at all, under a name that no other attempt has. Nobody reads them
before the driver's commit picks the attempts that count.
"""

from __future__ import annotations

import time
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

from semel.spark.sinks.contract import InvalidRow, SinkError, Written, unique
from semel.spark.sinks.postgres.table import JSONS, Connection, Table
from semel.spark.sinks.postgres.validation import invalid_rows
from semel.spark.sinks.table_schema import in_shape, shaped

ATTEMPT: Final = "_semel_attempt"
PLACE: Final = "_semel_place"  # task and row: the order in which rows came
_PLACES: Final = 1 << 40  # more rows than a task can have
_NO_HEADER: Final = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
_CONNECT_TRIES: Final = 7
_CONNECT_PAUSE: Final = 0.1  # seconds, doubled from try to try


@dataclass(frozen=True, slots=True)
class PostgresWriter:
    dsn: str = field(repr=False)
    sink: str
    table: Table
    staging: tuple[str, str]
    schema: pa.Schema
    key: tuple[str, ...]

    def invalid_rows(self, batch: pa.RecordBatch) -> list[InvalidRow]:
        return invalid_rows(in_shape(batch, _nullable(self.schema), self.sink), self.table, self.key)

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = shaped(batches, self.schema, self.sink)
        first = next(rows, None)
        if first is None:
            return Written(task, attempt, 0, 0)
        name, batch = unique(attempt), first
        count = size = 0
        try:
            with connect(self.dsn, self.sink) as connection, connection.cursor() as cursor:
                # What is lost with the server is found to be missing before anything is committed.
                cursor.execute("SET LOCAL synchronous_commit = off")
                with cursor.copy(self._statement()) as copy:
                    for batch in chain((first,), rows):
                        data = encoded(batch, self.table, name, task * _PLACES + count)
                        copy.write(data)
                        count, size = count + batch.num_rows, size + len(data)
        except psycopg.Error as error:
            odd = invalid_rows(batch, self.table, self.key)  # PostgreSQL does not always know the column
            what = f"task {task}" + (f" (column {odd[0].field}: {odd[0].reason})" if odd else "")
            raise refused(self.sink, what, error) from error
        return Written(task, attempt, count, size, {"attempt": name})

    def _statement(self) -> sql.Composed:
        names = [ATTEMPT, PLACE, *(column.name for column in self.table.columns)]
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            sql.Identifier(*self.staging), sql.SQL(", ").join(map(sql.Identifier, names))
        )


def connect(dsn: str, sink: str, *, autocommit: bool = False, tries: int = _CONNECT_TRIES) -> Connection:
    """A connection; a server that is starting again is waited for."""
    for attempt in range(tries):
        try:
            return psycopg.connect(
                dsn, autocommit=autocommit, client_encoding="UTF8", application_name="semel", connect_timeout=10
            )
        except psycopg.OperationalError as error:
            failure = error
        except psycopg.ProgrammingError as error:
            raise SinkError(f"{sink}: the connection string cannot be read: {error}") from None
        if attempt + 1 < tries:
            time.sleep(_CONNECT_PAUSE * 2**attempt)
    reason = " ".join(str(failure).split())
    raise SinkError(f"{sink}: no connection (check [sink] dsn, and that the server runs): {reason}") from failure


def refused(sink: str, what: str, error: psycopg.Error) -> SinkError:
    """PostgreSQL's own words, and what they are about, in one text."""
    found = error.diag
    about = [f"column {found.column_name}"] if found.column_name else []
    about += [f"constraint {found.constraint_name}"] if found.constraint_name else []
    about += [text[:300] for text in (found.message_detail, found.context) if text]
    about += [found.message_hint] if found.message_hint else []
    text = found.message_primary or str(error).strip() or type(error).__name__
    if about:
        text += f" ({'; '.join(about)})"
    return SinkError(
        f"{sink}: PostgreSQL refuses {what}: {text}. Nothing of the batch is in the table; it is tried again at the "
        "next start"
    )


def encoded(batch: pa.RecordBatch, table: Table, attempt: str, place: int) -> bytes:
    """Rows as CSV: a null is nothing at all, an empty text a pair of quotes."""
    names = [ATTEMPT, PLACE, *batch.schema.names]
    columns = [pa.repeat(attempt, batch.num_rows), pa.array(range(place, place + batch.num_rows), pa.int64())]
    for column, target in zip(batch.columns, table.columns, strict=True):
        columns.append(_sendable(column, as_json=target.base in JSONS))
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
    """All bytes at once: twice as long, at twice the offset."""
    if column.offset:
        column = pa.concat_arrays([column])  # a copy that begins where its buffers do
    validity, offsets, data = column.buffers()
    places = pc.multiply(pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, offsets]).cast(pa.int64()), 2)
    digits = pa.py_buffer((data.to_pybytes() if data else b"").hex().encode())
    doubled = pa.Array.from_buffers(pa.large_string(), len(column), [validity, places.buffers()[1], digits])
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
