"""Odd messages on the threads of a running app. tests/proof/test_odd_messages.py generates more of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driven import Place, dead_letter_details, new_place
from running_apps import client_of, running_app
from semel import App, Message
from semel.broker import running
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Queue, Received
from waiting import until


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


ODD = [
    '{"a": []}',
    '{"a": {}}',
    '{"a": [[], []]}',
    '{"a": ["String"]}',
    '{"a": ["Binary", "", "?"]}',
    "[]",
    "null",
    "{",
]


def test_no_attribute_in_our_names_stops_the_app(tmp_path: Path) -> None:
    handled: list[str] = []
    with running() as broker, client_of(broker) as client, SqliteLedger(str(tmp_path / "ledger.db")) as ledger:
        queue = client.create_queue("orders")
        app = App(ledger, client=client, wait=1)

        @app.handler("orders")
        def handle(message: Message) -> None:
            handled.append(message.body)

        for name in (
            own_attributes.OWN,
            own_attributes.PACKED,
            own_attributes.REASON,
            own_attributes.ATTEMPTS,
            own_attributes.REDRIVES,
        ):
            for text in ODD:
                queue.send("odd", attributes={name: text})
        queue.send("good")
        with running_app(app) as run:
            until(lambda: "good" in handled)
            until(lambda: run.deleted == 5 * len(ODD) + 1)
            assert run.stop().error is None


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [Broken(), asyncio.CancelledError(), SystemExit(), KeyError("id")])
@pytest.mark.parametrize("which", ["key", "payload"])
def test_whatever_a_key_or_payload_function_raises_only_its_message_is_rejected(
    place: Place, error: BaseException, which: str
) -> None:
    app, handled = App(), list[int]()

    def read(order: dict[str, Any]) -> int:
        if order["id"] == 2:
            raise error
        return int(order["id"])

    @app.handler("orders", key=read if which == "key" else "$.id", payload=read if which == "payload" else False)
    def handle(order: dict[str, Any]) -> None:
        handled.append(order["id"])

    for number in (1, 2, 3):
        place.send({"id": number})
    place.worker(app).drain()
    assert handled == [1, 3]
    (dead,) = place.messages("dead")
    assert dead["Body"] == '{"id": 2}'
    assert dead_letter_details(dead)["reason"] == f"no {which}"
    assert type(error).__name__ in dead_letter_details(dead)["error"]


def test_attributes_that_cannot_be_read_at_all_are_a_reason_to_reject_their_message_only(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, handled = App(), list[str]()

    @app.handler("orders")
    def handle(body: str) -> None:
        handled.append(body)

    receive = Queue.receive

    def garbled(self: Queue, *args: Any, **options: Any) -> list[Received]:
        """As an endpoint that is not AWS might answer."""
        received = receive(self, *args, **options)
        for message in received:
            if message.body == "odd":
                message._wire_attributes = {"a": {"BinaryValue": "?"}}
        return received

    monkeypatch.setattr(Queue, "receive", garbled)
    for body in ("good", "odd", "fine"):
        place.send(body)
    place.worker(app).drain()
    assert handled == ["good", "fine"]
    (dead,) = place.messages("dead")
    assert dead["Body"] == "odd"
    assert dead_letter_details(dead)["reason"] == "unreadable"
