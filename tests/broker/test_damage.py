"""Rows in the broker's database that no broker writes: found at the start, and reported with advice."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from random import Random
from time import sleep

import pytest

from semel.broker import running
from semel.broker.engine import Caller, Engine
from semel.broker.engine.rows import DamagedRow
from semel.broker.engine.schema import DATABASE_NAME, create_tables, open_database
from semel.broker.faults import Faults
from semel.broker.startup import Options, open_engine
from semel.errors import StartError
from semel.sqs import Client

EXAMPLES = {"integer": 1, "text": "{}", "blob": b"\0" * 48}


def _columns() -> list[tuple[str, str, str, bool, bool]]:
    """Of every table: its columns, their types, whether they must not be NULL, whether they are a key."""
    with closing(sqlite3.connect(":memory:")) as db:
        create_tables(db)
        return [
            (table, name, kind.lower(), bool(required), bool(key))
            for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            for _, name, kind, required, _, key in db.execute(f"PRAGMA table_info({table})").fetchall()
            if kind and not table.startswith("sqlite")
        ]


COLUMNS = _columns()
REQUIRED = [(table, name) for table, name, _, required, key in COLUMNS if required and not key]
ALL = [(table, name) for table, name, kind, _, key in COLUMNS if not (key and kind == "integer")]  # but row ids


def damaged_folder(folder: Path, table: str, column: str, value: object) -> Path:
    """A data folder with a row in `table`, and `value` in its column, whatever the table was declared to hold."""
    open_database(folder).close()
    with closing(sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        declared = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall())
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
    with closing(sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)) as db:
        row = {name: EXAMPLES[kind] for of, name, kind, _, _ in COLUMNS if of == table}
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list((row | {column: value}).values()))
        db.execute("PRAGMA writable_schema = ON")
        db.executemany(
            "UPDATE sqlite_schema SET sql = ? WHERE name = ?", [(sql, name) for name, sql in declared.items()]
        )
    return folder


@pytest.mark.parametrize(("table", "column"), REQUIRED)
def test_a_table_that_is_declared_otherwise_is_found_at_the_start(tmp_path: Path, table: str, column: str) -> None:
    """Else NULL would be found by the call that happens to need the value."""
    open_database(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        (declared,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        changed = re.sub(rf"\b({column} +\w+) NOT NULL", r"\1", declared)
        assert changed != declared
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (changed, table))
    with pytest.raises(StartError) as refused:
        open_database(tmp_path)
    declared_otherwise = f"the table {table} is not declared as this version of Semel declares it (columns: {column})"
    assert f"{tmp_path}: {DATABASE_NAME}: {declared_otherwise}; it is not a Semel database, or" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("ALTER TABLE messages ADD COLUMN note", r"messages is not declared as .* \(columns: note\)"),
        ("ALTER TABLE messages DROP COLUMN due", r"messages is not declared as .* \(columns: due\)"),
        (
            "DROP TABLE generations; CREATE TABLE generations (id INTEGER PRIMARY KEY, numbers_end INTEGER NOT NULL, "
            "live INTEGER NOT NULL)",
            r"generations is not declared as .* \(order of columns\)",
        ),
        ("DROP TABLE messages", "the table messages is missing"),
    ],
)
def test_columns_and_tables_that_were_added_or_dropped_are_found_at_the_start(
    tmp_path: Path, change: str, complaint: str
) -> None:
    open_database(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as db:
        db.executescript(change)
    with pytest.raises(StartError, match=complaint):
        open_database(tmp_path)


@pytest.mark.parametrize(("table", "column"), REQUIRED)
def test_null_where_a_value_is_needed_is_found_at_the_start(tmp_path: Path, table: str, column: str) -> None:
    folder = damaged_folder(tmp_path / "data", table, column, None)
    with pytest.raises(StartError) as refused:
        open_database(folder)
    text = str(refused.value)
    assert f"{folder}: {DATABASE_NAME}: the table {table} has a damaged row: {column} is null, not " in text
    assert "move it away, or choose another folder with --data" in text


@pytest.mark.parametrize(("table", "column"), ALL)
def test_a_value_of_another_type_is_found_at_the_start(tmp_path: Path, table: str, column: str) -> None:
    kind = next(kind for of, name, kind, _, _ in COLUMNS if (of, name) == (table, column))
    value: object = b"?" if kind == "text" else "x"
    with pytest.raises(StartError, match=f"{table} has a damaged row: {column} is (text|blob), not {kind}"):
        open_database(damaged_folder(tmp_path / "data", table, column, value))


def test_an_attempt_id_without_a_time_is_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="receive_log has a damaged row: attempt and attempted belong together"):
        open_database(damaged_folder(tmp_path / "data", "receive_log", "attempted", None))


def test_a_folder_in_use_has_nothing_to_complain_of(tmp_path: Path) -> None:
    """All kinds of rows: with and without a group, a delay, a dedup id, an attempt id, a move task."""
    engine = Engine(open_database(tmp_path), Random(1), cooldowns=False)

    def call(operation: str, queue: str = "", **params: object) -> dict[str, object]:
        address = {"QueueUrl": f"http://localhost/000000000000/{queue}"} if queue else {}
        return engine.perform(operation, {**address, **params}, Caller(1_700_000_000_000))

    engine.begin()
    for name in ("dead", "gone"):
        call("CreateQueue", QueueName=name)
    call("DeleteQueue", "gone")
    arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
    call("CreateQueue", QueueName="q", Attributes={"RedrivePolicy": policy})
    call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
    call("SendMessage", "q", MessageBody="x")
    call("SendMessage", "q", MessageBody="x", DelaySeconds=5)
    call("SendMessage", "q", MessageBody="x", MessageGroupId="tenant")
    call("SendMessage", "q.fifo", MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    call("ReceiveMessage", "q", VisibilityTimeout=0)
    call("ReceiveMessage", "q", MaxNumberOfMessages=10)
    call("ReceiveMessage", "q.fifo", ReceiveRequestAttemptId="a")
    call("StartMessageMoveTask", SourceArn=arn)
    engine.flush()
    engine.commit()
    engine.committed()
    engine.close()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as db:
        empty = [name for name in {of for of, *_ in COLUMNS} if not db.execute(f"SELECT 1 FROM {name}").fetchone()]
    assert empty == ["dedup"]  # that is for 100,000 ids and more
    open_engine(Options(data=tmp_path), Faults(0)).close()


def test_a_clean_up_that_fails_holds_up_no_call_and_is_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [TypeError("no time"), ValueError("no number"), DamagedRow("no row")]
    sweep, tries, others = Engine.sweep, 0, threading.enumerate()

    def fail(engine: Engine, now: int) -> bool:
        nonlocal tries
        if threading.current_thread() in others:  # a broker of other tests in this process
            return sweep(engine, now)
        tries += 1
        raise errors[tries % len(errors)]

    monkeypatch.setattr(Engine, "sweep", fail)
    with running() as broker, Client(broker.url) as client:
        queue = client.create_queue("orders")
        for number in range(50):
            queue.send(str(number))
        messages = [message for _ in range(20) for message in queue.receive(wait=0)]
        assert len(messages) == 50
        assert queue.delete([message.receipt for message in messages]) == [None] * 50
        while tries < 5:
            sleep(0.05)
        assert tries < 10
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == len(errors)  # each error once, with what to do
    assert len([text for text in logged if "could not be cleaned up" in text and "restart the broker" in text]) == 2
    assert len([text for text in logged if "damaged (no row): stop the broker, and restore it" in text]) == 1
