"""A client that hangs up before its answer: its messages are released, unless another receive has them by then."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from semel.broker.engine import Caller, Engine
from semel.broker.engine.schema import open_database

URL = "http://localhost/000000000000/q.fifo"


@pytest.fixture
def engine() -> Engine:
    engine = Engine(open_database(None), Random(1), cooldowns=False)
    engine.begin()
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    engine.perform("CreateQueue", {"QueueName": "q.fifo", "Attributes": attributes}, Caller(1_000))
    engine.perform("SendMessage", {"QueueUrl": URL, "MessageBody": "x", "MessageGroupId": "g"}, Caller(1_000))
    return engine


def receive(engine: Engine, now: int, attempt: str | None = None) -> list[dict[str, Any]]:
    params: dict[str, Any] = {"QueueUrl": URL}
    if attempt:
        params["ReceiveRequestAttemptId"] = attempt
    messages: list[dict[str, Any]] = engine.perform("ReceiveMessage", params, Caller(now)).get("Messages", [])
    return messages


def test_what_nobody_got_is_there_for_the_next(engine: Engine) -> None:
    (gone,) = receive(engine, 2_000, "a")
    engine.give_back("q.fifo", [gone["ReceiptHandle"]], 2_000, 2_001)
    assert len(receive(engine, 2_002)) == 1
    engine.close()


@pytest.mark.parametrize("later", [2_000, 2_005], ids=["at once", "later"])
def test_what_the_same_attempt_was_handed_again_stays_with_it(engine: Engine, later: int) -> None:
    (gone,) = receive(engine, 2_000, "a")
    (again,) = receive(engine, later, "a")
    assert gone["ReceiptHandle"] == again["ReceiptHandle"]
    engine.give_back("q.fifo", [gone["ReceiptHandle"]], 2_000, 2_006)
    assert receive(engine, 2_007) == []
    engine.perform("DeleteMessage", {"QueueUrl": URL, "ReceiptHandle": again["ReceiptHandle"]}, Caller(2_008))
    assert receive(engine, 100_000) == []
    engine.close()
