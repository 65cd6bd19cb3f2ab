"""The heartbeat, step by step: it extends a message while its handler runs, and stops before the message returns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from driven import LEASE, Calls, Place, new_place, shop, take
from semel import App, Context, Retry
from semel.ledger.contract import ClaimRequest, Status, Won
from semel.messages.visibility import LONGEST

HOUR = 3_600


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


def test_a_long_job_keeps_its_message_hidden_and_its_claim_alive(place: Place) -> None:
    app, others = App(), Calls()

    @app.handler("orders", key="$.id")
    def encode(video: dict[str, Any], ctx: Context) -> None:
        for _ in range(20):
            place.clock.advance(LEASE / 3)
            worker.worker.beat()
            assert ctx.deadline > place.clock.now()
            place.worker(shop(others)).drain()

    place.send({"id": 7})
    worker = place.worker(app)
    take(worker)
    worker.worker.work(worker.consumer("orders"))
    assert others.attempts == []
    assert place.known("7").fence == 1
    assert place.is_empty()


def test_messages_that_wait_for_their_turn_are_kept_too(place: Place) -> None:
    calls, others = Calls(), Calls()
    for n in range(10):
        place.send({"id": n})
    worker = place.worker(shop(calls))
    consumer = take(worker)
    for _ in range(6):
        place.clock.advance(LEASE / 3)
        worker.worker.beat()
    place.worker(shop(others)).drain()
    worker.worker.work(consumer)
    worker.worker.finish(consumer)
    assert others.attempts == []
    assert len(calls.attempts) == 10
    assert place.is_empty()
    assert consumer.metrics.heartbeat_ok.count == 60


def test_a_claim_that_somebody_else_has_by_now_is_lost_though_the_message_is_still_ours(place: Place) -> None:
    app, lost = App(), list[bool]()

    @app.handler("orders", key="$.id")
    def encode(video: dict[str, Any], ctx: Context) -> None:
        place.ledger.forget([place.ledger_key("7")])
        (verdict,) = place.ledger.claim([ClaimRequest(place.ledger_key("7"))], claimant="somebody", lease=LEASE)
        assert isinstance(verdict, Won)
        place.clock.advance(LEASE / 3)
        worker.worker.beat()
        lost.append(ctx.lost.is_set())

    place.send({"id": 7})
    worker = place.worker(app)
    consumer = take(worker)
    worker.worker.work(consumer)
    assert lost == [True]
    assert (place.known("7").status, place.known("7").fence) == (Status.CLAIMED, 2)
    assert len(place.messages()) == 1
    assert consumer.metrics.deleted.count == 0


def test_an_async_handler_that_has_lost_its_message_is_cancelled(place: Place) -> None:
    app, ends = App(), list[str]()

    @app.handler("orders", key="$.id")
    async def encode(video: dict[str, Any], ctx: Context) -> None:
        worker.consumer("orders").in_flight.lose(ctx._delivery, "test")
        try:
            await asyncio.sleep(60)
            ends.append("came to its end")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    place.send({"id": 7})
    worker = place.worker(app)
    consumer = take(worker)
    worker.worker.work(consumer)
    assert ends == ["cancelled"]
    assert place.known("7").status is Status.FREE  # given back: the next one need not wait for the lease
    assert len(place.messages()) == 1
    assert consumer.in_flight.admission.in_use == 0


def test_nothing_is_kept_hidden_that_is_over(place: Place) -> None:
    place.send({"id": 7})
    worker = place.worker(shop(Calls()))
    worker.drain()
    ok = worker.consumer("orders").metrics.heartbeat_ok.count
    place.clock.advance(LEASE)
    worker.worker.beat()
    assert worker.consumer("orders").metrics.heartbeat_ok.count == ok
    assert worker.consumer("orders").in_flight.deliveries == {}


def test_a_beat_that_comes_late_does_not_overwrite_the_back_off(place: Place) -> None:
    place.send({"id": 7})
    worker = place.worker(shop(Calls(Retry(after=100))))
    worker.drain()
    for _ in range(3):
        place.clock.advance(10)
        worker.worker.beat()
    assert place.hidden_for() == 70


def test_the_heartbeat_holds_a_message_up_to_the_twelve_hours_and_then_tells_its_handler(place: Place) -> None:
    app, lost = App(), list[float]()

    @app.handler("orders", key="$.id", lease=HOUR, max_runtime="11h59m")
    def encode(video: dict[str, Any], ctx: Context) -> None:
        started = place.clock.now()
        while not ctx.lost.is_set():
            place.clock.advance(HOUR / 6)
            worker.worker.beat()
        lost.append(place.clock.now() - started)

    place.send({"id": 7})
    worker = place.worker(app)
    consumer = take(worker)
    worker.worker.work(consumer)
    assert 11.5 * HOUR < lost[0] <= LONGEST + HOUR / 6
    assert consumer.metrics.heartbeat_failed.count == 0  # SQS was never asked for more than it gives
    assert place.known("7").status is Status.DONE  # nobody else began meanwhile: its work counts
    assert consumer.in_flight.admission.in_use == 0


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_handler_that_runs_longer_than_it_may_is_told_and_from_then_on_another_may_take_over(
    place: Place, taken_over: bool
) -> None:
    app, others = App(), Calls()

    @app.handler("orders", key="$.id", max_runtime=60)
    def encode(video: dict[str, Any], ctx: Context) -> None:
        for _ in range(20):
            place.clock.advance(5)
            worker.worker.beat()
        assert ctx.lost.is_set()
        if taken_over:
            place.worker(shop(others)).drain()

    place.send({"id": 7})
    worker = place.worker(app)
    consumer = take(worker)
    worker.worker.work(consumer)
    assert consumer.metrics.fenced.count == taken_over
    assert consumer.metrics.completed.count == (not taken_over)
    assert others.attempts == [("7", 2)] * taken_over
    assert place.known("7").status is Status.DONE


@pytest.mark.parametrize("end", ["lost", "given up"])
def test_a_claim_that_is_won_after_its_message_was_let_go_is_given_back_and_nothing_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The ledger took its time, and SQS, or a shutdown, did not wait for it."""
    calls, real = Calls(), place.ledger.claim

    def claim_slowly(asks: Any, *, claimant: str, lease: float) -> Any:
        verdicts = real(asks, claimant=claimant, lease=lease)
        for delivery in list(consumer.in_flight.deliveries.values()):
            if end == "lost":
                consumer.in_flight.visibility_lost(delivery, "test")
            else:
                consumer.in_flight.give_up([delivery])
        return verdicts

    place.send({"id": 7})
    worker = place.worker(shop(calls))
    consumer = worker.consumer("orders")
    monkeypatch.setattr(place.ledger, "claim", claim_slowly)
    worker.worker.receive(consumer)
    worker.worker.work(consumer)
    monkeypatch.undo()
    assert calls.attempts == []
    assert (place.known("7").status, place.known("7").attempt) == (Status.FREE, 0)
    assert consumer.in_flight.admission.in_use == 0
    place.clock.advance(LEASE + 1)
    worker.drain()
    assert calls.attempts == [("7", 1)]
