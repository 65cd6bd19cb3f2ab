"""PostgreSQL that is unreachable, full or refuses: errors that waiting may fix are distinguished from others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors

from ledger.postgres_wire import wire_to
from semel.errors import Unavailable
from semel.spark.sinks.contract import Commit, MicroBatch, SinkError, SinkPermissionDenied, SinkUnavailable
from semel.spark.sinks.postgres.connection import failure, is_outage
from semel.spark.sinks.postgres.sink import PostgresSink
from spark.sinks_support import ORDERS, PIPELINE, batch, execute, orders, put, run, select, write

if TYPE_CHECKING:
    from servers.postgres import Server

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"  # the answer to a COMMIT, as it comes over the wire


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.spark.retries.SECONDS", 0.0)


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def server(postgres_server: Server) -> Iterator[Server]:
    postgres_server.start()
    yield postgres_server
    postgres_server.start()


@contextmanager
def opened(url: str, name: str) -> Iterator[PostgresSink]:
    sink = PostgresSink(url, name)
    try:
        sink.open(ORDERS)
        yield sink
    finally:
        sink.close()


def role_of(server: Server, name: str) -> str:
    """The URL of a role of its own, named like the table."""
    execute(server.url, f"CREATE ROLE {name} LOGIN; GRANT ALL ON SCHEMA public TO {name}")
    return server.url.replace("postgres@", f"{name}@")


# Away.


def test_a_server_that_is_away_is_an_outage_for_the_driver_and_for_tasks(server: Server, name: str) -> None:
    with opened(server.url, name) as sink:
        put(sink, 0, [orders("a")])
        writer = sink.writer(batch(1))
        written = run(writer, [orders("b")])
        server.stop()
        actions: list[Callable[[], object]] = [
            lambda: run(writer, [orders("b")]),
            lambda: sink.commit(batch(1), [written]),
            lambda: sink.last(PIPELINE),
            lambda: sink.check_owner(PIPELINE),
            lambda: PostgresSink(server.url, name).open(ORDERS),
            lambda: PostgresSink(server.url, name).check(ORDERS, PIPELINE),
        ]
        for action in actions:
            with pytest.raises(SinkUnavailable, match=r"no connection|terminating connection") as caught:
                action()
            assert isinstance(caught.value, Unavailable)
        server.start()
        put(sink, 1, [orders("b")])  # the very sink goes on
        assert [row["id"] for row in select(server.url, f"SELECT id FROM {name} ORDER BY id")] == ["a", "b"]


def test_a_commit_whose_answer_was_lost_with_the_server_is_found_after_the_restart(server: Server, name: str) -> None:
    made = MicroBatch(PIPELINE, 0, "0123456789ab/7/00112233445566")
    with wire_to(server.port) as wire, opened(wire.url, name) as sink:
        written = run(sink.writer(made), [orders("a")])
        wire.cut_before(COMMITTED)
        with pytest.raises(SinkUnavailable, match="no connection"):
            sink.commit(made, [written])
    server.stop()
    server.start()
    with opened(server.url, name) as after:
        assert after.last(PIPELINE) == Commit(0, made.content)
        after.commit(made, [run(after.writer(made), [orders("a")])])
    assert select(server.url, f"SELECT id FROM {name}") == [{"id": "a"}]


def test_a_session_that_an_operator_ended_is_an_outage(server: Server, name: str) -> None:
    with opened(server.url, name) as sink:
        execute(server.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'semel'")
        with pytest.raises(SinkUnavailable, match="terminating connection"):
            sink.last(PIPELINE)
        assert sink.last(PIPELINE) is None  # with a new connection


def test_too_many_connections_are_an_outage(server: Server, name: str) -> None:
    url = role_of(server, name)
    execute(server.url, f"ALTER ROLE {name} CONNECTION LIMIT 0")
    with pytest.raises(SinkUnavailable, match="too many connections"):
        PostgresSink(url, name).open(ORDERS)


def test_a_server_that_became_read_only_is_an_outage_and_a_read_only_role_is_not(server: Server, name: str) -> None:
    url = role_of(server, name)
    with opened(url, name):
        pass
    execute(server.url, "ALTER DATABASE postgres SET default_transaction_read_only = on")  # as managed servers do
    try:
        with opened(url, name) as sink, pytest.raises(SinkUnavailable, match="read-only"):
            sink.writer(batch(0))
    finally:
        execute(
            f"{server.url}?options=-c%20default_transaction_read_only%3Doff",
            "ALTER DATABASE postgres RESET default_transaction_read_only",
        )
    execute(server.url, f"ALTER ROLE {name} SET default_transaction_read_only = on")
    with opened(url, name) as sink, pytest.raises(SinkError, match="use a role that may write") as caught:
        sink.writer(batch(0))
    assert not isinstance(caught.value, Unavailable)


@pytest.mark.parametrize(
    ("kind", "outage"),
    [
        (errors.SerializationFailure, True),
        (errors.DeadlockDetected, True),
        (errors.DiskFull, True),
        (errors.AdminShutdown, True),
        (errors.CannotConnectNow, True),
        (errors.TooManyConnections, True),
        (errors.LockNotAvailable, True),
        (errors.QueryCanceled, True),
        (errors.InsufficientPrivilege, False),
        (errors.UndefinedTable, False),
        (errors.InvalidPassword, False),
        (errors.ProgramLimitExceeded, False),
        (errors.DatabaseDropped, False),
        (errors.NotNullViolation, False),
    ],
)
def test_each_state_of_postgres_is_an_outage_or_not(kind: type[psycopg.Error], outage: bool) -> None:
    assert is_outage(kind("…")) is outage
    assert isinstance(failure("PostgreSQL table t", "commit batch 1", kind("…")), SinkUnavailable) is outage


def test_a_full_disk_is_waited_for_and_the_text_says_what_to_do() -> None:
    error = failure("PostgreSQL table t", "commit batch 1", errors.DiskFull("No space left on device"))
    assert isinstance(error, Unavailable)
    assert "Free some space" in str(error)


# Refused: waiting does not help.


def refusal(action: Callable[[], object], text: str) -> None:
    with pytest.raises(SinkError, match=text) as caught:
        action()
    assert not isinstance(caught.value, Unavailable)


def test_a_wrong_password_role_database_or_host_is_no_outage(server: Server, name: str) -> None:
    url = role_of(server, name)
    execute(server.url, f"ALTER ROLE {name} PASSWORD 'right'")
    rules = server.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{before}")
    execute(server.url, "SELECT pg_reload_conf()")
    try:
        wrong = url.replace(f"{name}@", f"{name}:wrong-secret@")
        with suppress(psycopg.OperationalError):  # once the server has read it
            for _ in range(1_000):
                psycopg.connect(wrong).close()
        with pytest.raises(SinkPermissionDenied, match="password authentication failed") as caught:
            PostgresSink(wrong, name).open(ORDERS)
        assert "wrong-secret" not in str(caught.value)
    finally:
        rules.write_text(before)
        execute(server.url, "SELECT pg_reload_conf()")
    refusal(lambda: PostgresSink(server.url.replace("postgres@", "nobody-here@"), name).open(ORDERS), "does not exist")
    refusal(lambda: PostgresSink(server.url.rsplit("/", 1)[0] + "/nowhere", name).open(ORDERS), "does not exist")
    refusal(lambda: PostgresSink("postgresql://host.invalid/db", name).open(ORDERS), "host.invalid")


@pytest.mark.parametrize(
    "dsn", ["host=x password=my secret", "postgresql://u:p@secret@host/db", "postgresql://u:p/secret@host/db"]
)
def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_it(dsn: str) -> None:
    with pytest.raises(SinkError, match="dsn cannot be read") as caught:
        PostgresSink(dsn, "orders").open(ORDERS)
    assert "secret" not in str(caught.value)


def test_a_revoked_insert_and_a_dropped_table_end_the_pipeline(server: Server, name: str) -> None:
    url = role_of(server, name)
    execute(server.url, f"CREATE TABLE {name} (id text, amount bigint); GRANT INSERT ON {name} TO {name}")
    execute(server.url, f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    sink = PostgresSink(url, name, staging_schema=name)
    sink.open(ORDERS)
    put(sink, 0, [orders("a")])
    execute(server.url, f"REVOKE INSERT ON {name} FROM {name}")
    with pytest.raises(SinkPermissionDenied, match="permission denied for table"):
        sink.commit(batch(1), write(sink, 1, [orders("b")]))
    execute(server.url, f"DROP TABLE {name}")
    refusal(lambda: sink.commit(batch(1), write(sink, 1, [orders("b")])), f'relation "public.{name}" does not exist')
    sink.close()


# Checked before a run.


def test_a_check_changes_nothing(server: Server, name: str) -> None:
    def relations() -> list[str]:
        return [row["relname"] for row in select(server.url, "SELECT relname FROM pg_class ORDER BY relname")]

    before = relations()
    PostgresSink(server.url, name).check(ORDERS, None)
    PostgresSink(server.url, name, "upsert", ["id"]).check(ORDERS, None)
    assert relations() == before


@pytest.mark.parametrize(
    ("options", "missing"),
    [({}, "INSERT"), ({"mode": "upsert", "key": ["id"]}, "INSERT"), ({"mode": "upsert", "key": ["id"]}, "UPDATE")],
)
def test_a_check_finds_a_missing_permission_on_the_table(
    server: Server, name: str, options: dict[str, object], missing: str
) -> None:
    url = role_of(server, name)
    execute(server.url, f"CREATE TABLE {name} (id text PRIMARY KEY, amount bigint)")
    execute(server.url, f"GRANT SELECT, INSERT, UPDATE ON {name} TO {name}; CREATE SCHEMA {name} AUTHORIZATION {name}")
    sink = PostgresSink(url, name, staging_schema=name, **options)  # type: ignore[arg-type]
    rows = pa.schema([("id", pa.string()), ("amount", pa.int64())])
    sink.check(rows, None)
    execute(server.url, f"REVOKE {missing} ON {name} FROM {name}")
    refusal(lambda: sink.check(rows, None), "permission denied for table")


def test_a_check_finds_that_a_role_may_not_create_tables(server: Server, name: str) -> None:
    execute(server.url, f"CREATE ROLE {name} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    url = server.url.replace("postgres@", f"{name}@")
    refusal(lambda: PostgresSink(url, name).check(ORDERS, None), "permission denied for schema public")
    execute(server.url, f"CREATE TABLE {name} (id text, amount bigint); GRANT ALL ON {name} TO {name}")
    refusal(lambda: PostgresSink(url, name).check(ORDERS, None), "permission denied")
