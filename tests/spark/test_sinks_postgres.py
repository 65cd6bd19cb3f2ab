"""The PostgreSQL table: one transaction per batch, whatever is disconnected, killed or blocking."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

from ledger.postgres_wire import wire_to
from semel.spark import crash_points
from semel.spark.sinks.contract import SinkError, SinkUnavailable
from semel.spark.sinks.postgres.sink import PostgresSink
from spark.sinks_support import (
    NOON,
    ORDERS,
    PIPELINE,
    UTC_TIME,
    Table,
    batch,
    committed,
    execute,
    orders,
    postgres_table,
    put,
    select,
    write,
)

if TYPE_CHECKING:
    from servers.postgres import Server

# The answer to a COMMIT, as it comes over the wire; and the request.
COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
COMMIT = b"COMMIT"


class Dead(BaseException):
    """The driver dies here."""


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def server(postgres_server: Server) -> Iterator[Server]:
    postgres_server.start()
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS semel_batches")
        for (left,) in connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^semel_staging_'").fetchall():
            connection.execute(f"DROP TABLE {left}".encode())
    yield postgres_server
    postgres_server.start()


@pytest.fixture
def table(server: Server, name: str) -> Iterator[Table]:
    made = postgres_table(server.url, name)
    yield made
    made.close()


def staging(server: Server) -> list[str]:
    rows = select(server.url, "SELECT relname FROM pg_class WHERE relname ~ '^semel_staging_' AND relkind = 'r'")
    return sorted(row["relname"] for row in rows)


# Crashes.


def test_a_driver_that_dies_within_the_transaction_has_changed_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.driver()
    written = write(sink, 0, [orders("a")])

    def reached(_: str) -> None:
        raise Dead

    monkeypatch.setattr(crash_points, "reached", reached)
    with pytest.raises(Dead):
        sink.commit(batch(0), written)
    monkeypatch.undo()
    after = table.driver()
    assert not committed(after, batch(0))
    assert table.ids() == []
    put(after, 0, [orders("a")])
    assert table.ids() == ["a"]


@pytest.mark.parametrize("message", [COMMIT, COMMITTED], ids=["before it commits", "before it answers"])
def test_a_connection_that_is_lost_at_the_commit_leaves_the_batch_in_once(
    server: Server, name: str, message: bytes
) -> None:
    with wire_to(server.port) as wire:
        sink = PostgresSink(wire.url, name)
        sink.open(ORDERS)
        written = write(sink, 0, [orders("a")], [orders("b")])
        wire.cut_before(message)
        sink.commit(batch(0), written)
        assert committed(sink, batch(0))
        sink.close()
    assert sorted(row["id"] for row in select(server.url, f"SELECT id FROM {name}")) == ["a", "b"]
    assert select(server.url, "SELECT number, rows FROM semel_batches") == [{"number": 0, "rows": 2}]


@pytest.mark.slow
def test_a_server_that_crashes_after_the_copy_loses_staging_and_that_is_noticed(table: Table, server: Server) -> None:
    sink = table.driver()
    put(sink, 0, [orders("a")])
    written = write(sink, 1, [orders("b")], [orders("c")])
    server.kill()
    server.start()
    with pytest.raises(SinkUnavailable, match="has 0 rows where 2 were written"):
        sink.commit(batch(1), written)
    assert not committed(sink, batch(1))
    put(table.driver(), 1, [orders("b")], [orders("c")])
    assert table.ids() == ["a", "b", "c"]


def test_a_server_that_was_away_between_batches_is_found_again(table: Table, server: Server) -> None:
    sink = table.driver()
    put(sink, 0, [orders("a")])
    server.stop()
    server.start()
    assert committed(sink, batch(0))
    put(sink, 1, [orders("b")])
    assert table.ids() == ["a", "b"]


def test_a_zombie_of_long_ago_is_refused_by_the_number_of_its_batch(table: Table) -> None:
    zombie, after = table.driver(), table.driver()
    late = write(zombie, 3, [orders("x")])
    for number in range(3, 40):
        put(after, number, [orders(str(number))])
    zombie.commit(batch(3), late)
    assert "x" not in table.ids()
    assert committed(after, batch(39))


def test_a_commit_outlives_a_database_that_would_forget_it(server: Server, name: str) -> None:
    execute(
        server.url,
        f"CREATE TABLE {name} (id text, amount bigint, sync text DEFAULT current_setting('synchronous_commit'))",
    )
    url = f"{server.url}?options=-c%20synchronous_commit%3Doff"
    sink = PostgresSink(url, name)
    sink.open(ORDERS)
    put(sink, 0, [orders("a")])
    sink.close()
    assert select(server.url, f"SELECT sync FROM {name}") == [{"sync": "on"}]


# Staging.


def test_no_staging_table_stays_behind(table: Table, server: Server) -> None:
    sink = table.driver()
    put(sink, 0, [orders("a")])
    put(sink, 1, [])
    assert staging(server) == []


def test_staging_tables_of_dead_drivers_are_dropped_with_a_later_batch(table: Table, server: Server) -> None:
    write(table.driver(), 0, [orders("a")])
    other = table.driver()
    other.writer(batch(0, "f" * 32))
    after = table.driver()
    put(after, 0, [orders("a")])
    assert len(staging(server)) == 2  # who knows whether that driver is dead
    put(after, 1, [orders("b")])
    (left,) = staging(server)
    assert left.startswith("semel_staging_ffffffffffff_0_")


def test_a_staging_table_that_a_zombie_still_writes_to_holds_nobody_up(table: Table, server: Server) -> None:
    write(table.driver(), 0, [orders("a")])
    (busy,) = staging(server)
    after = table.driver()
    with psycopg.connect(server.url) as zombie:
        zombie.execute(f"LOCK TABLE {busy} IN ROW EXCLUSIVE MODE".encode())
        put(after, 0, [orders("a")])
        put(after, 1, [orders("b")])
        assert staging(server) == [busy]
    put(after, 2, [orders("c")])
    assert staging(server) == []
    assert table.ids() == ["a", "b", "c"]


def test_staging_can_be_kept_in_a_schema_of_its_own(server: Server, name: str) -> None:
    execute(server.url, f"CREATE SCHEMA IF NOT EXISTS work; CREATE TABLE {name} (id text, amount bigint)")
    execute(
        server.url, f"CREATE ROLE {name} LOGIN; GRANT INSERT ON {name} TO {name}; GRANT ALL ON SCHEMA work TO {name}"
    )
    execute(server.url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; DROP TABLE IF EXISTS work.semel_batches")
    sink = PostgresSink(server.url.replace("postgres@", f"{name}@"), name, staging_schema="work")
    sink.open(ORDERS)
    put(sink, 0, [orders("a")])
    sink.close()
    assert select(server.url, f"SELECT id FROM {name}") == [{"id": "a"}]
    assert select(server.url, "SELECT table_name FROM work.semel_batches") == [{"table_name": f"public.{name}"}]


# Upsert.

CHANGES = pa.schema(
    [
        ("id", pa.string()),
        ("value", pa.int64()),
        ("_sequence_number", pa.string()),
        ("_sent_at", UTC_TIME),
    ]
)


def change(value: int, sequence: str | None = None, sent: int | None = None, key: str = "k") -> pa.RecordBatch:
    at = None if sent is None else NOON + timedelta(seconds=sent)
    row = {"id": key, "value": value, "_sequence_number": sequence, "_sent_at": at}
    return pa.RecordBatch.from_pylist([row], schema=CHANGES)


@pytest.fixture
def changes(server: Server, name: str) -> Iterator[Table]:
    made = postgres_table(server.url, name, mode="upsert", key=["id"])
    yield made
    made.close()


def values(table: Table) -> list[int]:
    return [row["value"] for row in table.read()]


@pytest.mark.parametrize(
    "rows",
    [
        [change(1, "9"), change(3, "100"), change(2, "10")],  # numbers, not texts
        [change(1, sent=0), change(3, sent=9), change(2, sent=5)],
        [change(1), change(2), change(3)],
        [change(1, "1", 9), change(3, "2", 1)],
        [change(1), change(3, sent=1)],
    ],
    ids=["by sequence number", "by time", "as they came", "the number before the time", "any time before none"],
)
@pytest.mark.parametrize("tasks", [1, 2])
def test_of_rows_with_one_key_in_a_batch_the_latest_stays(
    changes: Table, rows: list[pa.RecordBatch], tasks: int
) -> None:
    put(changes.driver(CHANGES), 0, *([rows] if tasks == 1 else [[row] for row in rows]))
    assert values(changes) == [3]


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (change(1, "9"), change(2, "10"), 2),
        (change(1, "10"), change(2, "9"), 1),
        (change(1, sent=9), change(2, sent=5), 1),
        (change(1, sent=5), change(2, sent=5), 2),
        (change(1), change(2), 2),
        (change(1, sent=1), change(2), 2),
        (change(1, "5", 1), change(2, "6", 0), 2),
    ],
)
def test_a_later_batch_replaces_a_row_unless_that_is_newer(
    changes: Table, first: pa.RecordBatch, second: pa.RecordBatch, stays: int
) -> None:
    sink = changes.driver(CHANGES)
    put(sink, 0, [first])
    put(sink, 1, [second])
    assert values(changes) == [stays]


def test_an_upsert_without_other_columns_than_its_key_keeps_what_is_there(server: Server, name: str) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    table = postgres_table(server.url, name, mode="upsert", key=["b", "a"])
    sink = table.driver(schema)
    rows = pa.RecordBatch.from_pylist([{"a": "x", "b": 1}, {"a": "x", "b": 1}, {"a": "x", "b": 2}], schema=schema)
    put(sink, 0, [rows])
    put(sink, 1, [rows])
    assert sorted(row["b"] for row in table.read()) == [1, 2]
    table.close()


def test_a_table_without_a_unique_index_is_refused_with_the_statement_that_makes_one(server: Server, name: str) -> None:
    execute(server.url, f"CREATE TABLE {name} (id text, amount bigint); CREATE INDEX ON {name} (id)")
    execute(
        server.url, f"CREATE UNIQUE INDEX ON {name} (id, amount); CREATE UNIQUE INDEX ON {name} (id) WHERE amount > 1"
    )
    table = postgres_table(server.url, name, mode="upsert", key=["id"])
    with pytest.raises(SinkError, match="needs a unique index") as caught:
        table.driver()
    execute(server.url, str(caught.value).partition("these columns: ")[2])
    put(table.driver(), 0, [orders("a", "a")])
    assert table.ids() == ["a"]
    table.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "upsert"}, "upsert needs a key"),
        ({"key": ["id"]}, "append has no key"),
        ({"mode": "merge"}, "mode 'merge' is not known"),
        ({"mode": "upsert", "key": ["nr"]}, "the key names nr"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        PostgresSink("postgresql://nowhere", "orders", **options).open(ORDERS)


def test_rows_of_a_pipeline_are_counted(table: Table, server: Server) -> None:
    sink = table.driver()
    put(sink, 0, [orders("a", "b")])
    put(sink, 1, [orders("c")])
    batches = select(server.url, "SELECT pipeline, number, rows FROM semel_batches")
    assert batches == [{"pipeline": PIPELINE, "number": 1, "rows": 3}]
