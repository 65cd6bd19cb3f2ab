"""Complaints about other consumers: docs/explanation/complaints.md names a test for each. This file has those that fit
nowhere else, and checks that this page and docs/explanation/guarantees.md name tests that exist."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running_apps import client_of, running_app, send
from semel import App, SqliteLedger
from semel.broker import EmbeddedBroker, running
from semel.sqs import Queue
from semel.testing.driver import driving
from waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def app(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[App]:
    with client_of(broker) as client, SqliteLedger(str(tmp_path / "ledger.db")) as ledger:
        client.create_queue("orders")
        yield App(ledger, client=client, wait=1)


@pytest.mark.parametrize("name", ["complaints.md", "guarantees.md"])
def test_every_test_that_the_page_names_exists(name: str) -> None:
    page = (ROOT / "docs" / "explanation" / name).read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 25
    assert named <= there, sorted(named - there)


def test_a_full_consumer_waits_without_polling(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, polls = threading.Event(), 0
    whole = Queue.receive

    def receive(self: Queue, *arguments: Any, **named: Any) -> Any:
        nonlocal polls
        polls += 1
        return whole(self, *arguments, **named)

    monkeypatch.setattr(Queue, "receive", receive)

    @app.handler("orders", concurrency=2)
    def handle(body: str) -> None:
        go_on.wait(60)

    send(app.client().queue("orders"), ["x"] * 10)
    with running_app(app) as run:
        until(lambda: run.consumer().in_flight.admission.free == 0 and len(run.consumer().in_flight.deliveries) == 2)
        before = polls
        assert not go_on.wait(1.5)  # longer than any poll or pause
        assert polls == before
        go_on.set()
        until(lambda: run.deleted == 10)


def test_a_message_that_arrives_after_the_stop_is_shown_again_at_once(sqs_broker: EmbeddedBroker) -> None:
    app, bodies = App(), list[str]()

    @app.handler("orders")
    def handle(body: str) -> None:
        bodies.append(body)

    sqs = sqs_broker.client()
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="late")
    with driving(app, sqs_broker) as driver:
        consumer = driver.consumer("orders")
        consumer.in_flight.stopping = True  # the signal came while the receive was under way
        assert driver.worker.receive(consumer) == 1
        driver.worker.work(consumer)
        driver.worker.finish(consumer)
        assert bodies == []
        assert len(sqs_broker.peek("orders", state="visible")) == 1
        assert consumer.in_flight.admission.in_use == 0


def test_what_is_done_is_deleted_before_the_process_ends(app: App, broker: EmbeddedBroker) -> None:
    done = threading.Event()

    @app.handler("orders")
    def handle(body: str) -> None:
        done.set()

    send(app.client().queue("orders"), ["x"])
    with running_app(app) as run:
        assert done.wait(60)
        run.stop()  # its delete is still waiting for others to go with
    assert broker.peek("orders") == []


def test_one_slow_message_does_not_hold_up_those_it_came_with(app: App) -> None:
    slow, go_on = threading.Event(), threading.Event()

    @app.handler("orders", concurrency=10)
    def handle(body: str) -> None:
        if body == "slow":
            slow.set()
            go_on.wait(60)

    send(app.client().queue("orders"), ["slow", *["quick"] * 29])
    with running_app(app) as run:
        assert slow.wait(60)
        until(lambda: run.deleted == 29)
        go_on.set()
        until(lambda: run.deleted == 30)


def test_no_member_of_a_group_is_begun_when_its_visibility_is_about_to_end(sqs_broker: EmbeddedBroker) -> None:
    app, bodies = App(lease=30), list[str]()

    @app.handler("events.fifo")
    def handle(body: str) -> None:
        bodies.append(body)
        if body == "1" and bodies.count("1") == 1:
            sqs_broker.clock.advance(29.8)  # a pause so long that no beat got through

    sqs = sqs_broker.client()
    url = sqs.create_queue(QueueName="events.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in "123":
        sqs.send_message(QueueUrl=url, MessageBody=number, MessageGroupId="g", MessageDeduplicationId=number)
    with driving(app, sqs_broker) as driver:
        driver.drain()
        assert bodies == ["1"]
        sqs_broker.clock.advance(31)
        driver.drain()
    assert bodies == ["1", "2", "3"]


def test_the_lease_is_always_set_and_can_be_chosen_for_each_handler(sqs_broker: EmbeddedBroker) -> None:
    app = App()

    @app.handler("short", lease="15s")
    def short(body: str) -> None: ...

    @app.handler("queues-own")
    def own(body: str) -> None: ...

    @app.handler("careless")
    def careless(body: str) -> None: ...

    sqs = sqs_broker.client()
    sqs.create_queue(QueueName="short")
    sqs.create_queue(QueueName="queues-own", Attributes={"VisibilityTimeout": "120"})
    sqs.create_queue(QueueName="careless", Attributes={"VisibilityTimeout": "0"})
    with driving(app, sqs_broker) as driver:
        leases = {consumer.name: consumer.setup.settings.lease for consumer in driver.worker.consumers}
    assert leases == {"short": 15, "queues-own": 120, "careless": 30}
