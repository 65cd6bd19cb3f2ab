"""Rows that PostgreSQL would refuse are found before they are sent: all of these, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

from semel.spark.sinks.contract import InvalidRow, Sink, SinkError, invalid_rows
from semel.spark.sinks.parquet.sink import ParquetSink
from semel.spark.sinks.postgres.sink import PostgresSink
from spark.sinks_support import ORDERS, UTC_TIME, batch, orders, put, run

if TYPE_CHECKING:
    from servers.postgres import Server

TEXTS = pa.list_(pa.string())
PLACE = pa.struct([("city", pa.string())])
WORDS = pa.map_(pa.string(), pa.string())
UUID = "01234567-89ab-CDEF-0123-456789abcdef"
CASES: list[tuple[str, pa.DataType, list[Any], list[Any], str]] = [
    ("text", pa.string(), ["", "a\\0", "\\u0000", None], ["\0", "a\0b"], "NUL character"),
    ("varchar(3)", pa.string(), ["äöü", "", None], ["abcd"], "more than 3 characters"),
    ("char(3)", pa.string(), ["abc", "a"], ["abcd"], "more than 3 characters"),
    ("uuid", pa.string(), [UUID, UUID.replace("-", ""), "{" + UUID + "}", None], ["", "x", UUID + "0"], "not a UUID"),
    ("jsonb", pa.string(), ["1", '"a"', "[{}]", None], ["", "{", '"\\u0000"', "nope"], "not JSON"),
    ("text NOT NULL", pa.string(), ["", "a"], [None], "no value for a column that the table has as NOT NULL"),
    ("date", pa.date32(), [0, 2932896, None], [-800000, 2932897], "not between the years 1 and 9999"),
    ("timestamptz", UTC_TIME, [0, None], [-(10**17), 3 * 10**17], "not between the years 1 and 9999"),
    ("timestamp", pa.timestamp("us"), [0, None], [-(10**17), 3 * 10**17], "not between the years 1 and 9999"),
    ("text[]", TEXTS, [["a"], [], None, [None]], [["a", "\0"]], "NUL character"),
    ("jsonb", PLACE, [{"city": "a"}, None], [{"city": "\0"}], "NUL character"),
    ("jsonb", WORDS, [[("a", "b")], []], [[("a\0", "b")], [("a", "\0")]], "NUL character"),
]


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:12]}"


def sink_on(server: Server, name: str, column: str, kind: pa.DataType) -> tuple[Sink, pa.Schema]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (v {column})".encode())
    sink, schema = PostgresSink(server.url, name), pa.schema([("v", kind)])
    sink.open(schema)
    return sink, schema


@pytest.fixture
def closing() -> Iterator[list[Sink]]:
    sinks: list[Sink] = []
    yield sinks
    for sink in sinks:
        sink.close()


@pytest.mark.parametrize(("column", "kind", "good", "bad", "reason"), CASES, ids=[case[0] for case in CASES])
def test_a_row_is_invalid_if_and_only_if_postgres_refuses_it(
    postgres_server: Server,
    name: str,
    closing: list[Sink],
    column: str,
    kind: pa.DataType,
    good: list[Any],
    bad: list[Any],
    reason: str,
) -> None:
    sink, schema = sink_on(postgres_server, name, column, kind)
    closing.append(sink)
    values = pa.concat_arrays([pa.array(good, kind), pa.array(bad, kind), pa.array(good, kind)])
    rows = pa.RecordBatch.from_arrays([values], schema=schema)
    writer = sink.writer(batch(0))
    invalid = invalid_rows(writer, rows)
    assert [invalid_row.row for invalid_row in invalid] == list(range(len(good), len(good) + len(bad)))
    assert all(invalid_row.field == "v" and reason in invalid_row.reason for invalid_row in invalid)
    wrong = {invalid_row.row for invalid_row in invalid}
    put(sink, 0, [rows.filter(pa.array([place not in wrong for place in range(len(rows))]))])
    if "years" in reason:  # a later one would do, and nobody can mean it
        return
    for place in sorted(wrong):
        with pytest.raises(SinkError, match="PostgreSQL refuses"):
            sink.commit(batch(1), [run(sink.writer(batch(1)), [rows.slice(place, 1)])])


def test_a_row_without_the_key_of_an_upsert_is_invalid(postgres_server: Server, name: str, closing: list[Sink]) -> None:
    schema = pa.schema([("id", pa.string()), ("amount", pa.int64())])
    sink = PostgresSink(postgres_server.url, name, "upsert", ["id"])
    closing.append(sink)
    sink.open(schema)
    rows = pa.RecordBatch.from_pylist([{"id": "a"}, {"id": None}], schema=schema)
    assert invalid_rows(sink.writer(batch(0)), rows) == [InvalidRow(1, "id", "no value for the key of the upsert")]


def test_a_row_with_several_things_wrong_is_one_invalid_row(
    postgres_server: Server, name: str, closing: list[Sink]
) -> None:
    sink = PostgresSink(postgres_server.url, name)
    closing.append(sink)
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("at", UTC_TIME)])
    sink.open(schema)
    rows = pa.RecordBatch.from_pylist(
        [{"a": "x", "b": "\0"}, {"a": "\0", "b": "\0"}, {"at": datetime(2024, 1, 1)}], schema=schema
    )
    assert [(invalid_row.row, invalid_row.field) for invalid_row in invalid_rows(sink.writer(batch(0)), rows)] == [
        (0, "b"),
        (1, "a"),
    ]


def test_a_sink_that_takes_everything_has_no_invalid_rows(tmp_path: Any) -> None:
    sink = ParquetSink(str(tmp_path))
    sink.open(ORDERS)
    assert invalid_rows(sink.writer(batch(0)), orders("\0")) == []
