"""The receive log stays short, and trimming keeps the entries that still count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest

from semel.broker.engine import Caller, Engine, receive_log
from semel.broker.engine.schema import open_database

URL = "http://localhost/000000000000/q.fifo"
NOW = 1_700_000_000_000


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(receive_log, "_LONG", 20)
    with closing(Engine(open_database(None), Random(1), cooldowns=False)) as engine:
        call(engine, "CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
        yield engine


def call(engine: Engine, operation: str, **params: Any) -> dict[str, Any]:
    engine.begin()
    answer = engine.perform(operation, params, Caller(NOW))
    engine.sweep(NOW)
    engine.flush()
    engine.commit()
    engine.committed()
    return answer


def send(engine: Engine, group: str) -> None:
    call(engine, "SendMessage", QueueUrl=URL, MessageBody=group, MessageGroupId=group, MessageDeduplicationId=group)


def receive(engine: Engine, **params: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = call(engine, "ReceiveMessage", QueueUrl=URL, **params).get("Messages", [])
    return messages


def states_in_log(engine: Engine) -> int:
    (size,) = engine.store.db.execute("SELECT coalesce(sum(length(states)), 0) FROM receive_log").fetchone()
    return int(size) // 48


def test_what_is_in_flight_and_its_attempt_id_outlive_the_rows_that_first_had_them(engine: Engine) -> None:
    send(engine, "first")
    (first,) = receive(engine, ReceiveRequestAttemptId="try", VisibilityTimeout=600)
    (row,) = engine.store.db.execute("SELECT min(id) FROM receive_log").fetchone()
    for number in range(100):
        send(engine, f"g{number}")
        (message,) = receive(engine)
        call(engine, "DeleteMessage", QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
    assert engine.store.db.execute("SELECT count(*) FROM receive_log WHERE id = ?", (row,)).fetchone() == (0,)
    again = Engine(engine.store.db, Random(2), cooldowns=False)
    assert receive(again) == []
    assert receive(again, ReceiveRequestAttemptId="try", VisibilityTimeout=600) == [first]


def test_the_log_grows_with_what_is_in_flight_and_not_with_what_was(engine: Engine) -> None:
    for number in range(300):
        send(engine, f"g{number}")
        (message,) = receive(engine)
        call(engine, "DeleteMessage", QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
        assert states_in_log(engine) <= 30
    for number in range(300, 400):
        send(engine, f"g{number}")
        receive(engine)
    assert 100 <= states_in_log(engine) <= 400
