"""A data folder with the first version of the broker's database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from semel.broker.engine import Caller, Engine, Wanted
from semel.broker.engine.schema import DATABASE_NAME, SCHEMA_VERSION, open_database
from semel.errors import StartError
from semel.sqs.errors import ServiceError

WRITTEN = Path(__file__).with_name("data_folder_v1.sql")
NOW = 1_700_000_005_000
# As the first version handed them out.
HANDLES = {"w0": "AAAAAwAAAwAAAAACAAAAAZljbeDCFU2h", "a0": "AAAABAAABAAAAAABAAAAAZ+oPmoAB2nQ"}
LATER = NOW + 100_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    old = sqlite3.connect(tmp_path / DATABASE_NAME)
    old.executescript(WRITTEN.read_text())
    old.close()
    with closing(Engine(open_database(tmp_path), Random(1), cooldowns=False)) as engine:
        engine.begin()
        yield engine


def call(engine: Engine, operation: str, queue: str, now: int = NOW, **params: Any) -> dict[str, Any]:
    url = f"http://localhost/000000000000/{queue}"
    return engine.perform(operation, {"QueueUrl": url, **params}, Caller(now))


def bodies(engine: Engine, queue: str, now: int = NOW) -> list[str]:
    answer = call(engine, "ReceiveMessage", queue, now, MaxNumberOfMessages=10)
    return [message["Body"] for message in answer.get("Messages", ())]


def states(engine: Engine, queue: str) -> dict[str, str]:
    return {item["Body"]: item["State"] for item in engine.peek(queue, Wanted(), now=NOW)["Messages"]}


def test_messages_are_as_they_were(engine: Engine) -> None:
    assert states(engine, "work") == {
        "w0": "in_flight",
        "w1": "in_flight",
        "w2": "visible",
        "w3": "visible",
        "w4": "visible",
        "delayed": "delayed",
    }
    assert states(engine, "orders.fifo") == {"a0": "in_flight", "a1": "visible", "b2": "visible", "b3": "visible"}
    assert bodies(engine, "orders.fifo") == ["b2", "b3"]
    assert sorted(bodies(engine, "tenants")) == ["alone", "x0", "x1", "y2"]
    assert bodies(engine, "work", NOW + 2_000_000) == ["w2", "w3", "w4", "delayed"]


def test_a_dead_letter_keeps_what_it_brought(engine: Engine) -> None:
    params: dict[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (message,) = call(engine, "ReceiveMessage", "dead", **params)["Messages"]
    assert message["Body"] == 'dead "letter" \u00e4\n'
    assert message["MessageAttributes"] == {"n": {"DataType": "Number", "StringValue": "5"}}
    assert message["Attributes"] == {
        "SenderId": "AKIDEXAMPLE",
        "SentTimestamp": "1700000000000",
        "ApproximateReceiveCount": "2",
        "ApproximateFirstReceiveTimestamp": "1700000000000",
        "DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:000000000000:work",
    }


def test_receipt_handles_of_an_older_version_are_refused_and_their_messages_stay(engine: Engine) -> None:
    for queue, body in (("work", "w0"), ("orders.fifo", "a0")):
        with pytest.raises(ServiceError, match="not a valid receipt handle"):
            call(engine, "DeleteMessage", queue, ReceiptHandle=HANDLES[body])
        assert body in states(engine, queue)


def test_dedup_ids_still_count(engine: Engine) -> None:
    again: dict[str, Any] = {"MessageBody": "b3", "MessageGroupId": "b", "MessageDeduplicationId": "d3"}
    sent = call(engine, "SendMessage", "orders.fifo", **again)
    new = call(engine, "SendMessage", "orders.fifo", **again | {"MessageDeduplicationId": "new"})
    assert int(new["SequenceNumber"]) > int(sent["SequenceNumber"])
    assert len(engine.peek("orders.fifo", Wanted(), now=NOW)["Messages"]) == 5  # only the second is new


def test_receives_count_on_and_move_tasks_go_on(engine: Engine) -> None:
    assert bodies(engine, "work", LATER) == ["w2", "w3", "w4"]  # the others become dead letters now
    engine.step_moves(LATER)
    assert 'dead "letter" \u00e4\n' in states(engine, "work")
    assert states(engine, "dead") == {"w0": "visible", "w1": "visible"}
    assert call(engine, "ListQueueTags", "work")["Tags"] == {"team": "shop"}


def test_it_is_upgraded_once(engine: Engine, tmp_path: Path) -> None:
    engine.rollback()
    engine.close()
    database = open_database(tmp_path)
    assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert database.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'old_%'").fetchone() == (0,)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


@pytest.mark.parametrize("change", ["pos = NULL", "first = 'x'", "enqueued = NULL", "extra = 'no JSON'"])
def test_a_damaged_folder_of_an_older_version_is_refused_and_stays_as_it_is(tmp_path: Path, change: str) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as old:
        old.executescript(re.sub(r"(INTEGER|TEXT|BLOB) NOT NULL", r"\1", WRITTEN.read_text()))
        old.execute(f"UPDATE messages SET {change}")
        old.commit()
    with pytest.raises(StartError, match="damaged; move it away, or choose another folder with --data"):
        open_database(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (1,)
