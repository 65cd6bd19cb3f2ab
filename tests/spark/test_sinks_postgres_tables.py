"""Existing PostgreSQL tables: created by somebody else, with their own types and constraints, or inaccessible."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from semel.errors import SemelError
from semel.spark.sinks.contract import SinkError
from semel.spark.sinks.postgres.sink import PostgresSink
from spark.sinks_support import (
    NOON,
    ORDERS,
    UTC_TIME,
    Table,
    batch,
    committed,
    execute,
    orders,
    postgres_table,
    put,
    run,
    select,
    write,
)

if TYPE_CHECKING:
    from servers.postgres import Server


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def server(postgres_server: Server) -> Server:
    postgres_server.start()
    return postgres_server


@pytest.fixture
def table(server: Server, name: str) -> Iterator[Table]:
    made = postgres_table(server.url, name)
    yield made
    made.close()


def test_a_table_of_the_users_own_is_taken_where_its_types_can_hold_the_rows(server: Server, name: str) -> None:
    execute(
        server.url,
        f"""CREATE TABLE {name} (loaded timestamptz DEFAULT now(), price numeric, id varchar(20), at timestamp,
            ref uuid, doc jsonb, names varchar(9)[], nr bigserial, small bigint)""",
    )
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("price", pa.decimal128(12, 2)),
            ("at", UTC_TIME),
            ("ref", pa.string()),
            ("doc", pa.string()),
            ("names", pa.list_(pa.string())),
            ("small", pa.int16()),
        ]
    )
    reference = uuid4()
    row = {
        "id": "a",
        "price": Decimal("1.50"),
        "at": NOON,
        "ref": str(reference),
        "doc": '{"a": [1]}',
        "names": ["x"],
        "small": 3,
    }
    table = postgres_table(server.url, name)
    put(table.driver(schema), 0, [pa.RecordBatch.from_pylist([row], schema=schema)])
    (table_row,) = table.read()
    assert table_row.pop("loaded") is not None
    assert table_row.pop("nr") == 1
    assert table_row == row | {"at": NOON.replace(tzinfo=None), "ref": reference, "doc": {"a": [1]}}
    table.close()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("integer", pa.int64()),
        ("real", pa.float64()),
        ("numeric(10,2)", pa.decimal128(12, 2)),
        ("numeric(14,1)", pa.decimal128(12, 2)),
        ("numeric(18,0)", pa.int64()),
        ("text", pa.int64()),
        ("timestamptz", pa.timestamp("us")),
        ("text", pa.list_(pa.string())),
        ("integer[]", pa.list_(pa.string())),
        ("text[]", pa.struct([("a", pa.string())])),
        ("date", UTC_TIME),
        ("bigint GENERATED ALWAYS AS (1) STORED", pa.int64()),
    ],
)
def test_a_column_that_cannot_hold_every_value_is_refused(
    server: Server, name: str, column: str, kind: pa.DataType
) -> None:
    execute(server.url, f"CREATE TABLE {name} (id text, v {column})")
    with pytest.raises(SinkError, match="column v"):
        postgres_table(server.url, name).driver(pa.schema([("id", pa.string()), ("v", kind)]))


def test_a_column_that_rows_lack_and_that_must_have_a_value_is_refused(server: Server, name: str) -> None:
    execute(server.url, f"CREATE TABLE {name} (id text, amount bigint, who text NOT NULL)")
    with pytest.raises(SinkError, match="column who: is NOT NULL without a default"):
        postgres_table(server.url, name).driver()


def test_a_view_is_refused(server: Server, name: str) -> None:
    execute(server.url, f"CREATE VIEW {name} AS SELECT 1 AS id")
    with pytest.raises(SinkError, match="is not a table"):
        postgres_table(server.url, name).driver()


def test_names_are_taken_as_they_are_written(server: Server) -> None:
    odd = f'Order "Items" {uuid4().hex[:6]}'
    execute(server.url, 'CREATE SCHEMA IF NOT EXISTS "My Shop"')
    schema = pa.schema([("select", pa.string()), ("Üñ {x} %s", pa.int64())])
    sink = PostgresSink(server.url, f"My Shop.{odd}", "upsert", ["select"])
    sink.open(schema)
    put(sink, 0, [pa.RecordBatch.from_pylist([{"select": "a", "Üñ {x} %s": 1}], schema=schema)])
    sink.close()
    quoted = odd.replace('"', '""')
    assert select(server.url, f'SELECT * FROM "My Shop"."{quoted}"') == [{"select": "a", "Üñ {x} %s": 1}]


# What PostgreSQL refuses.


def test_a_constraint_of_the_users_own_stops_the_batch_with_its_name_and_leaves_nothing(
    table: Table, server: Server, name: str
) -> None:
    sink = table.driver()
    execute(server.url, f"ALTER TABLE {name} ADD CONSTRAINT small_orders CHECK (amount < 3)")
    written = write(sink, 0, [orders("a"), orders("long")])
    with pytest.raises(SinkError, match="small_orders") as caught:
        sink.commit(batch(0), written)
    assert name in str(caught.value)
    assert table.ids() == []
    assert not committed(sink, batch(0))
    execute(server.url, f"ALTER TABLE {name} DROP CONSTRAINT small_orders")
    sink.commit(batch(0), written)
    assert table.ids() == ["a", "long"]


def test_a_value_that_cannot_be_copied_is_said_with_its_column(table: Table) -> None:
    with pytest.raises(SinkError, match="column id") as caught:
        run(table.driver().writer(batch(0)), [orders("a\0b")])
    assert "0x00" in str(caught.value)


def test_a_server_that_is_not_there_is_said_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.spark.retries.SECONDS", 0.0)
    sink = PostgresSink("postgresql://me:secret@127.0.0.1:1/shop", "orders")
    with pytest.raises(SinkError, match="no connection") as caught:
        sink.open(ORDERS)
    assert "secret" not in str(caught.value)
    assert sink.name == "PostgreSQL table orders (shop on 127.0.0.1)"


def test_a_connection_string_that_is_none_is_said() -> None:
    with pytest.raises(SinkError, match="cannot be read"):
        PostgresSink("what=is this", "orders").open(ORDERS)


def test_without_psycopg_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import semel.spark.sinks as sinks

    for module in [module for module in sys.modules if module.startswith("semel.spark.sinks.postgres.sink")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SemelError, match=r"pip install 'semel\[postgres\]'"):
        _ = sinks.PostgresSink


# Types.


def test_what_is_nested_is_json_that_loses_nothing(server: Server, name: str) -> None:
    inner = pa.struct(
        [
            ("price", pa.decimal128(38, 10)),
            ("raw", pa.binary()),
            ("at", UTC_TIME),
            ("day", pa.date32()),
            ("by_number", pa.map_(pa.int32(), pa.bool_())),
            ("text", pa.string()),
        ]
    )
    price = Decimal("1234567890123456789012345678.0123456789")
    value = {
        "price": price,
        "raw": b"\x00\x01",
        "at": NOON,
        "day": date(2024, 2, 29),
        "by_number": {1: True},
        "text": 'é"\\',
    }
    schema = pa.schema([("id", pa.string()), ("v", inner)])
    table = postgres_table(server.url, name)
    put(table.driver(schema), 0, [pa.RecordBatch.from_pylist([{"id": "a", "v": value}], schema=schema)])
    query = f"SELECT (v->>'price')::numeric AS price, v->>'raw' AS raw, v->>'at' AS at, v->>'day' AS day, v FROM {name}"
    (row,) = select(server.url, query)
    assert (row["price"], row["raw"], row["day"]) == (price, "\\x0001", "2024-02-29")
    assert datetime.fromisoformat(row["at"]) == NOON
    assert row["v"]["by_number"] == {"1": True}
    assert row["v"]["text"] == 'é"\\'
    table.close()


def test_lists_of_simple_values_are_arrays(server: Server, name: str) -> None:
    schema = pa.schema(
        [
            ("n", pa.list_(pa.int64())),
            ("f", pa.list_(pa.float64())),
            ("b", pa.list_(pa.bool_())),
            ("d", pa.list_(pa.date32())),
            ("t", pa.list_(UTC_TIME)),
            ("raw", pa.list_(pa.binary())),
        ]
    )
    row = {
        "n": [1, None],
        "f": [0.5, float("inf")],
        "b": [True, False],
        "d": [date(1, 1, 1)],
        "t": [NOON],
        "raw": [b"\0\\", b""],
    }
    nothing = dict.fromkeys(row)
    table = postgres_table(server.url, name)
    rows = pa.RecordBatch.from_pylist([nothing, row, {name: [] for name in row}, row], schema=schema)
    put(table.driver(schema), 0, [rows, rows.slice(1, 2)])
    assert table.read() == [nothing, row, {name: [] for name in row}, row, row, {name: [] for name in row}]
    table.close()


def test_a_slice_of_bytes_is_that_slice(server: Server, name: str) -> None:
    schema = pa.schema([("raw", pa.binary())])
    rows = pa.RecordBatch.from_pylist(
        [{"raw": value} for value in (b"\x01", None, b"", b"\xff\xfe", b"x")], schema=schema
    )
    table = postgres_table(server.url, name)
    put(table.driver(schema), 0, [rows.slice(1, 3)])
    assert [row["raw"] for row in table.read()] == [None, b"", b"\xff\xfe"]
    table.close()
