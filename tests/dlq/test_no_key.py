"""A message in which the key rule finds no key has none; nor has its dead-letter message, nor the redriven copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driven import LEASE, Calls, Place, dead_letter_details, new_place, shop
from semel import App, Reject
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.service import DeadLetterService

WRONG, RIGHT = "$.order_id", "$.id"


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


@pytest.fixture
def service(place: Place, tmp_path: Path) -> DeadLetterService:
    return DeadLetterService(place.client, state=tmp_path, clock=place.clock.now)


def redrive(place: Place, service: DeadLetterService) -> None:
    service.redrive(RedrivePlan(queue="dead", canary=0, where='reason = "no key"')).wait()
    assert place.is_empty("dead")


def drop_restore_and_redrive(place: Place, service: DeadLetterService) -> None:
    lines = list(service.lines("dead", all=True))
    place.client.call("PurgeQueue", {"QueueUrl": place.client.queue("dead").url})
    service.restore(iter(lines)).wait()
    redrive(place, service)


def have_sqs_move_them(place: Place, _service: DeadLetterService) -> None:
    place.redrive("dead")


def run(place: Place, calls: Calls, key: str) -> None:
    """Until nothing is left: of messages under one key, one runs and the others wait for it."""
    while not place.is_empty():
        place.worker(shop(calls, key=key)).drain()
        place.clock.advance(LEASE + 3)


@pytest.mark.parametrize("own", [0, 8, 10])
@pytest.mark.parametrize("back", [redrive, drop_restore_and_redrive, have_sqs_move_them])
def test_a_message_that_had_no_key_is_not_given_one(
    place: Place, service: DeadLetterService, back: Callable[[Place, DeadLetterService], None], own: int
) -> None:
    calls = Calls()
    for sending in range(3):
        place.send({"id": 7, "sending": sending}, attributes={f"a{n}": "its own" for n in range(own)})
    run(place, calls, WRONG)
    assert calls.attempts == []
    dead = place.messages("dead")
    assert len(dead) == 3
    for message in dead:
        assert "key" not in dead_letter_details(message)
        assert json.loads(dead_letter_details(message).get("dead-letter", "{}")).get("key", "") == ""
    back(place, service)
    run(place, calls, RIGHT)
    assert calls.keys == ["7"], "one order, three sendings"
    assert place.is_empty("dead")


def test_nor_is_its_edited_copy(place: Place, service: DeadLetterService) -> None:
    calls = Calls()
    place.send({"id": 7})
    run(place, calls, WRONG)
    (dead,) = place.messages("dead")
    assert service.resend("dead", dead["MessageId"], body='{"id": 8}').key == ""
    run(place, calls, RIGHT)
    assert calls.keys == ["8"]


def test_without_the_right_rule_it_is_rejected_again(place: Place, service: DeadLetterService) -> None:
    calls = Calls()
    place.send({"id": 7})
    run(place, calls, WRONG)
    redrive(place, service)
    run(place, calls, WRONG)
    assert calls.attempts == []
    (dead,) = place.messages("dead")
    assert (dead_letter_details(dead)["reason"], "key" in dead_letter_details(dead)) == ("no key", False)


def test_what_no_handler_could_read_gets_its_key_from_the_rule_that_it_comes_back_to(
    place: Place, service: DeadLetterService
) -> None:
    app = App()

    @app.handler("orders")
    def misread(order: list[str]) -> None: ...

    calls = Calls()
    for _ in range(3):
        place.send({"id": 7})
    place.worker(app).drain()
    dead = place.messages("dead")
    assert [(dead_letter_details(message)["reason"], "key" in dead_letter_details(message)) for message in dead] == [
        ("undecodable", False)
    ] * 3
    service.redrive(RedrivePlan(queue="dead", canary=0, where="reason = undecodable")).wait()
    run(place, calls, RIGHT)
    assert calls.keys == ["7"]


def test_what_a_handler_rejected_under_its_message_id_comes_back_under_that_id(
    place: Place, service: DeadLetterService
) -> None:
    calls = Calls(Reject("not today"), Reject("nor today"))
    sent = place.send({"id": 7})
    for _ in range(3):
        run(place, calls, "message-id")
        service.redrive(RedrivePlan(queue="dead", canary=0, where="reason = rejected")).wait()
    assert calls.keys == [sent] * 3
    assert place.is_empty()
