"""A run with exit_when_empty ends when nothing is left to do; otherwise it reports what is left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running_apps import client_of
from semel import App, Context, Fixed, Reject, Schedule, SqliteLedger, Transaction
from semel.broker import EmbeddedBroker, running


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def clock() -> list[float]:
    """By how much the ledger's clock is ahead: the last one counts."""
    return [0]


@pytest.fixture
def app(broker: EmbeddedBroker, tmp_path: Path, clock: list[float]) -> Iterator[App]:
    path = str(tmp_path / "ledger.db")
    with client_of(broker) as client, SqliteLedger(path, clock=lambda: time.time() + clock[-1]) as ledger:
        client.create_queue("orders")
        yield App(ledger, client=client, lease=10)


def send(app: App, queue: str = "orders", **options: Any) -> None:
    app.client().queue(queue).send(json.dumps({"n": 1}), **options)


def test_it_waits_for_a_retry(app: App, broker: EmbeddedBroker) -> None:
    @app.handler("orders", retry=Fixed(4), lease=1)
    def handle(order: dict[str, int], ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    send(app)
    report = app.run(exit_when_empty=True)
    assert (report.completed, report.retried, report.waiting) == (1, 1, {})
    assert not broker.peek("orders")


def test_a_duplicate_that_came_with_its_original_is_deleted_as_soon_as_that_is_done(
    app: App, broker: EmbeddedBroker
) -> None:
    @app.handler("orders", key="$.n", lease=300)
    def handle(order: dict[str, int]) -> None:
        pass

    send(app)
    send(app)
    report = app.run(exit_when_empty=True)
    assert (report.completed, report.duplicates, report.waiting) == (1, 1, {})
    assert not broker.peek("orders")


@pytest.mark.parametrize("last", [600, 0])
def test_it_does_not_wait_for_a_message_that_nothing_ever_ends(app: App, last: int) -> None:
    attempts = []

    @app.handler("orders", retry=Schedule([0, 0, 0, 0, last]))
    def handle(order: dict[str, int], ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("never")

    send(app)
    report = app.run(exit_when_empty=True)
    assert attempts[:5] == [1, 2, 3, 4, 5]
    assert report.waiting == {"orders": 1}
    assert str(report) == f"messages completed: 0, put back for a retry: {len(attempts)}, waiting for a retry: 1"


def test_it_does_not_wait_for_a_message_that_was_rejected_without_a_dead_letter_queue(app: App) -> None:
    @app.handler("orders")
    def handle(order: dict[str, int]) -> None:
        raise Reject("no such customer")

    send(app)
    assert app.run(exit_when_empty=True).waiting == {"orders": 1}


def test_it_sends_what_is_in_the_outbox_or_reports_what_is_left(
    app: App, broker: EmbeddedBroker, clock: list[float]
) -> None:
    @app.handler("orders")
    def handle(order: dict[str, int], tx: Transaction) -> None:
        tx.send("receipts", "thanks")

    send(app)
    assert app.run(exit_when_empty=True).outbox == 1  # there is no queue receipts
    app.client().create_queue("receipts")
    clock.append(29)  # the first run has taken its message for 30 seconds
    send(app)
    assert app.run(exit_when_empty=True).outbox == 0
    assert len(broker.peek("receipts")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["delayed", "lost by a dead worker"])
def test_it_waits_for_what_is_hidden_and_will_come(app: App, broker: EmbeddedBroker, how: str) -> None:
    @app.handler("orders")
    def handle(order: dict[str, int]) -> None:
        pass

    if how == "delayed":
        send(app, delay=4)
    else:
        send(app)
        assert len(app.client().queue("orders").receive(10, 0, visibility=4)) == 1
    assert app.run(exit_when_empty=True).completed == 1
    assert not broker.peek("orders")


@pytest.mark.slow
def test_what_another_worker_has_in_flight_is_waited_for_no_longer_than_a_lease(app: App) -> None:
    @app.handler("orders", lease=3)
    def handle(order: dict[str, int]) -> None:
        pass

    send(app)
    assert len(app.client().queue("orders").receive(10, 0, visibility=600)) == 1
    report = app.run(exit_when_empty=True)
    assert (report.completed, report.waiting) == (0, {})
