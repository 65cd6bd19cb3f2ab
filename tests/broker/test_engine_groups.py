"""The engine alone: whatever happens to messages with or without groups, those that are ready can be received."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from semel.broker.engine import Caller, Engine, generation, store
from semel.broker.engine.generation import Generation
from semel.broker.engine.schema import open_database

URL = "http://localhost/000000000000/work"


def perform(engine: Engine, operation: str, **parameters: Any) -> dict[str, Any]:
    answer = engine.perform(operation, parameters, Caller(1_000))
    return answer if isinstance(answer, dict) else answer.as_dict()


def receive(engine: Engine, visibility: int) -> list[str]:
    answer = perform(
        engine, "ReceiveMessage", QueueUrl=URL, MaxNumberOfMessages=10, VisibilityTimeout=visibility, WaitTimeSeconds=0
    )
    return sorted(message["Body"] for message in answer.get("Messages", ()))


@pytest.mark.parametrize("group", [{}, {"MessageGroupId": "a"}], ids=["no group", "group"])
@pytest.mark.parametrize("received_before", [False, True])
def test_what_is_sent_after_a_crash_can_be_received_even_if_a_message_was_sent_to_the_back_before(
    monkeypatch: pytest.MonkeyPatch, received_before: bool, group: dict[str, str]
) -> None:
    """Places at the back of the queue are not reserved on disk: a new message must not get a number before them, as it
    would never be looked at once they have been received. Found by the simulation."""
    monkeypatch.setattr(store, "_NUMBERS_RESERVED", 3)
    engine = Engine(open_database(None), Random(1))
    engine.begin()
    perform(engine, "CreateQueue", QueueName="work")
    perform(engine, "SendMessage", QueueUrl=URL, MessageBody="often", **group)
    for _ in range(9):
        assert receive(engine, 0) == ["often"]
    engine.flush()
    engine.commit()
    killed, engine = engine, Engine(engine.store.db, Random(2))
    engine.begin()
    if received_before:
        assert receive(engine, 0) == ["often"]
    perform(engine, "SendMessage", QueueUrl=URL, MessageBody="new", **group)
    assert receive(engine, 30) == ["new", "often"]
    engine.rollback()
    killed.close()


def test_a_group_is_offered_again_after_stale_entries_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only message was claimed by its id, and has come back to the same place."""
    monkeypatch.setattr(generation, "_STALE_ENTRIES", 0)
    queue = Generation(1, 1, fifo=False)
    claimed, busy = queue.group("claimed"), queue.group("busy")
    claimed.add(100)
    queue.offer(claimed)
    claimed.discard(100)
    for key in range(90, 50, -1):  # each sorts before the last one, and is an entry of its own
        busy.add(key)
        queue.offer(busy)
    claimed.add(100)
    queue.offer(claimed)
    assert any(group is claimed for _, group in queue.group_heap)
