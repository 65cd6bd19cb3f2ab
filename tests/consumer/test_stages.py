"""The line of stages: what each stage does with a chunk, how threads start and end, and how many messages it holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from driven import LEASE, Calls, Place, new_place, shop, take
from running_apps import client_of, running_app, send
from semel import App, Retry, SqliteLedger
from semel.broker import EmbeddedBroker, running
from semel.consumer.admission import MOST_AHEAD, Prefetch
from semel.consumer.delivery import Delivery
from semel.consumer.heartbeat import Heartbeat, HeartbeatThreads
from semel.consumer.lifecycle import State
from semel.consumer.stage import Stage, Threads
from semel.ledger.contract import ClaimRequest, ClaimResult, LedgerError
from semel.sqs import Received
from waiting import until


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def app(broker: EmbeddedBroker) -> Iterator[App]:
    with SqliteLedger(":memory:") as ledger:
        client = client_of(broker)
        client.create_queue("orders")
        yield App(ledger, client=client)
        client.close()


# Given up while the claim is under way.


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_what_is_given_up_during_its_claim_is_returned_after_the_claim_was_released(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Shown before that, it would come to another worker that finds it claimed, and hides it for a whole lease."""
    if name == "orders.fifo":
        place.queue(name)
    place.send({"id": 7}, name)
    first, calls = place.worker(shop(Calls(), name)), Calls()
    consumer = first.consumer(name)
    claim = place.ledger.claim

    def stop_meanwhile(requests: Sequence[ClaimRequest], **how: Any) -> list[ClaimResult]:
        results: list[ClaimResult] = claim(requests, **how)
        consumer.receiver.stop()
        consumer.give_up()
        first.worker.finish(consumer)
        assert place.messages(name, "in_flight"), "it is shown while its claim is ours"
        return results

    monkeypatch.setattr(place.ledger, "claim", stop_meanwhile)
    first.worker.receive(consumer)
    monkeypatch.undo()
    first.worker.work(consumer)
    assert place.messages(name, "visible")
    assert place.worker(shop(calls, name)).drain() == 1
    assert calls.attempts == [("7", 1)]


def test_what_is_lost_during_its_claim_is_nobodys_holder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its duplicates would wait for an end that has been."""
    place.send({"id": 7})
    worker = place.worker(shop(Calls()))
    consumer = worker.consumer("orders")
    claim = place.ledger.claim

    def lose_meanwhile(requests: Sequence[ClaimRequest], **how: Any) -> list[ClaimResult]:
        for delivery in list(consumer.in_flight.deliveries.values()):
            consumer.in_flight.visibility_lost(delivery, "test")
        results: list[ClaimResult] = claim(requests, **how)
        return results

    monkeypatch.setattr(place.ledger, "claim", lose_meanwhile)
    worker.worker.receive(consumer)
    worker.worker.work(consumer)
    assert consumer.in_flight.holder_of(place.ledger_key("7")) is None
    assert consumer.in_flight.deliveries == {}


# Messages that a worker takes along when it dies.


def test_a_message_that_was_claimed_but_never_started_loses_no_attempt_when_its_worker_dies(place: Place) -> None:
    """A message that kills its worker four times; its neighbour was claimed each time, and not started."""
    place.send({"id": "neighbour"})
    calls = Calls()
    app = shop(calls, max_attempts=3)
    for _ in range(4):
        worker = place.worker(app)
        take(worker)  # and dies of another message
        worker.kill()
        place.clock.advance(LEASE + 1)
    assert place.worker(app).drain() == 1
    assert calls.keys == ["neighbour"]
    assert place.is_empty("dead")


def test_a_message_that_kills_its_worker_each_time_is_dead_lettered_after_its_attempts(place: Place) -> None:
    place.send({"id": "pill"})
    app = shop(Calls(), max_attempts=3)
    for _ in range(3):
        worker = place.worker(app, crash_at="before_work")
        worker.drain()
        assert worker.crashed_at == "before_work"
        place.clock.advance(LEASE + 1)
    place.worker(app).drain()
    (dead,) = place.messages("dead")
    assert "3 began and none came to an end" in dead["MessageAttributes"]["semel-error"]["StringValue"]


@pytest.mark.parametrize("error", [LedgerError("no room"), RuntimeError("odd")])
def test_a_start_that_the_ledger_refuses_to_note_is_no_outage(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    place.send({"id": 7})
    calls = Calls(Retry(after=0))
    worker = place.worker(shop(calls))

    def refuse(*_arguments: object) -> bool:
        raise error

    monkeypatch.setattr(place.ledger, "save_step", refuse)
    worker.drain()
    worker.drain()
    assert calls.attempts == [("7", 1), ("7", 2)]
    assert place.is_empty()


# How many messages are held.


def handled(prefetch: Prefetch, handler: float, overhead: float = 0.02) -> Prefetch:
    for _ in range(50):
        prefetch.observe(handler, overhead)
    return prefetch


def test_nothing_is_received_ahead_before_anything_is_known() -> None:
    assert Prefetch(lease=30).ahead(32) == 0


@pytest.mark.parametrize(
    ("handler", "ahead"),
    [(0.0, MOST_AHEAD), (0.000_1, MOST_AHEAD), (0.05, 32), (0.5, 3), (2.0, 0), (60.0, 0)],
)
def test_as_many_are_received_ahead_as_handlers_start_while_others_are_received(handler: float, ahead: int) -> None:
    assert handled(Prefetch(lease=30), handler).ahead(32) == ahead


def test_a_longer_round_trip_needs_more_messages_ahead_but_never_a_tenth_of_the_lease() -> None:
    near, far = handled(Prefetch(lease=30), 0.05), handled(Prefetch(lease=30), 0.05, overhead=0.1)
    near.observe_receive(0.005)
    far.observe_receive(0.1)
    assert near.ahead(32) < far.ahead(32) == int(32 * 0.4 / 0.05)
    assert handled(Prefetch(lease=2), 0.05, overhead=0.2).ahead(32) == int(32 * 0.2 / 0.05)


def test_handlers_that_have_run_for_long_count_before_they_end() -> None:
    prefetch = handled(Prefetch(lease=30), 0.001)
    assert prefetch.ahead(32) == MOST_AHEAD
    prefetch.running = 10.0
    assert prefetch.ahead(32) == 0


def test_after_a_worker_has_died_nothing_is_received_ahead_for_a_minute(place: Place) -> None:
    """The message that killed it may be among those that come next."""
    place.send({"id": "pill"})
    worker = place.worker(shop(Calls()), crash_at="before_work")
    worker.drain()
    place.clock.advance(LEASE + 1)
    in_flight = take(worker).in_flight
    handled(in_flight.prefetch, 0.0)
    in_flight.fit()
    assert in_flight.admission.count == in_flight.concurrency
    place.clock.advance(61)
    in_flight.fit()
    assert in_flight.admission.count == in_flight.concurrency + MOST_AHEAD


def test_a_body_counts_as_bytes_until_its_message_is_deleted(place: Place) -> None:
    """Deletes that wait for SQS are in memory, too. Their slots are free."""
    body = {"id": 7, "pad": "x" * 1_000}
    place.send(body)
    worker = place.worker(shop(Calls()))
    consumer = take(worker)
    admission = consumer.in_flight.admission
    assert consumer.worker.run_once()
    assert consumer.recorder.run_once()
    assert (admission.in_use, admission.bytes > 1_000) == (0, True)
    assert consumer.acknowledger.run_once()
    assert (admission.in_use, admission.bytes) == (0, 0)
    assert place.is_empty()


def test_a_limit_of_the_users_is_a_limit() -> None:
    for limit in (0, 7):
        assert handled(Prefetch(lease=30, limit=limit), 0.0).ahead(32) == limit


def test_a_long_poll_that_has_waited_says_nothing_about_the_round_trip() -> None:
    prefetch = handled(Prefetch(lease=30), 0.05)
    for seconds in (0.01, 15.0, 0.01, 20.0):
        prefetch.observe_receive(seconds)
    assert prefetch.ahead(32) < 50


def test_a_worker_whose_handlers_hang_returns_what_it_received_ahead(app: App, broker: EmbeddedBroker) -> None:
    hang, hung = threading.Event(), threading.Semaphore(0)

    @app.handler("orders", concurrency=2)
    def handle(body: str) -> None:
        if body == "hang":
            hung.release()
            hang.wait(60)

    queue = app.client().queue("orders")
    send(queue, ["quick"] * 300)
    with running_app(app) as run:
        until(lambda: run.deleted == 300)
        send(queue, [*["hang"] * 2, *["later"] * 100])
        assert all(hung.acquire(timeout=60) for _ in range(2))
        until(lambda: len(run.consumer().in_flight.deliveries) == 2, "the return of what others could start")
        # Those that overtook the second one that hangs, in a receive of their own, are done.
        until(lambda: len(broker.peek("orders", "visible")) == 400 - run.deleted)
        hang.set()
        until(lambda: run.deleted == 402)


def test_while_some_handlers_hang_the_others_are_no_reason_to_receive_ahead(app: App, broker: EmbeddedBroker) -> None:
    hang, hung = threading.Event(), threading.Semaphore(0)

    @app.handler("orders", concurrency=4)
    def handle(body: str) -> None:
        if body == "hang":
            hung.release()
            hang.wait(60)

    queue = app.client().queue("orders")
    with running_app(app) as run:
        send(queue, ["quick"] * 300)
        until(lambda: run.deleted == 300)
        send(queue, ["hang"] * 3)
        assert all(hung.acquire(timeout=60) for _ in range(3))
        until(lambda: run.consumer().in_flight.admission.count == 4, "fewer slots")
        for already in (300, 500):
            send(queue, ["quick"] * 200)  # by the one handler that is left
            until(lambda done=already + 200: run.deleted == done)  # type: ignore[misc]
            assert run.consumer().in_flight.admission.count <= 14
        hang.set()


def test_a_limit_on_messages_ahead_is_kept(app: App, broker: EmbeddedBroker) -> None:
    most = 0

    @app.handler("orders", concurrency=2, prefetch=3)
    def handle(body: str) -> None:
        nonlocal most
        most = max(most, len(run.consumer().in_flight.deliveries))

    send(app.client().queue("orders"), ["x"] * 200)
    with running_app(app) as run:
        until(lambda: run.deleted == 200)
    assert most <= 5


def test_bodies_are_counted_in_bytes(place: Place) -> None:
    place.send('"' + "é" * 1_000 + '"')
    consumer = take(place.worker(shop(Calls(), key="message-id")))
    assert consumer.in_flight.admission.bytes == 2_002


# Threads.


class Slow(Stage[int]):
    role = "slow"

    def __init__(self, threads: Threads) -> None:
        super().__init__(threads, at_once=1, most_threads=4)
        self.done: list[int] = []
        self.at_once = threading.Barrier(4, timeout=60)

    def process(self, items: Sequence[int]) -> None:
        self.at_once.wait()
        self.done += items


def test_a_stage_gets_threads_while_work_piles_up_and_loses_them_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.consumer.stage.IDLE", 0.05)
    failed: list[BaseException] = []
    stage = Slow(Threads("orders", failed.append, time.monotonic))
    stage.start()
    stage.inbox.put(range(8))
    until(lambda: len(stage.done) == 8)
    until(lambda: stage._count == 1, "the end of three threads")
    stage.inbox.put(range(4))
    until(lambda: len(stage.done) == 12)
    stage.close(time.monotonic() + 60)
    assert stage.is_dead()
    assert failed == []


def test_waiting_for_a_heartbeat_to_become_due_is_no_reason_for_more_threads() -> None:
    heartbeat, started = Heartbeat(time.monotonic, lambda: 0.5), list[str]()
    threads = HeartbeatThreads(heartbeat, lambda role, _run: started.append(role), time.monotonic)
    threads.start()
    ends = time.monotonic() + 0.7

    def due_after_a_while(timeout: float = 0.0) -> bool:
        time.sleep(0.6)  # it waited, and the round itself took no time
        heartbeat.closed = time.monotonic() > ends
        return True

    heartbeat.run_once = due_after_a_while  # type: ignore[method-assign]
    threads._run()
    assert started == ["heartbeat"]


def test_no_message_waits_behind_one_whose_handler_does_not_return(app: App) -> None:
    """Its thread was the only one so far: quick handlers need no other."""
    hang, hung = threading.Event(), threading.Event()
    bodies: list[str] = []

    @app.handler("orders")
    def handle(body: str) -> None:
        if body == "hang":
            hung.set()
            hang.wait(60)
        bodies.append(body)

    queue = app.client().queue("orders")
    send(queue, ["quick"] * 100)
    with running_app(app) as run:
        until(lambda: run.deleted == 100)
        send(queue, ["hang", *["behind"] * 9])
        assert hung.wait(60)
        until(lambda: bodies.count("behind") == 9)
        assert "hang" not in bodies
        hang.set()


def test_quick_handlers_are_called_by_one_thread_and_slow_ones_by_many(app: App) -> None:
    together = threading.Barrier(8, timeout=60)
    callers: dict[str, set[int]] = {"quick": set(), "slow": set()}

    @app.handler("orders", concurrency=8)
    def handle(body: str) -> None:
        callers[body].add(threading.get_ident())
        if body == "slow":
            together.wait()

    queue = app.client().queue("orders")
    send(queue, ["quick"] * 200)
    with running_app(app) as run:
        until(lambda: run.deleted == 200)
        assert len(callers["quick"]) <= 3
        send(queue, ["slow"] * 16)
        until(lambda: run.deleted == 216)
        assert len(callers["slow"]) == 8


# The order of the line.


def test_a_chunk_shares_one_event_and_a_late_one_is_returned_alone(place: Place) -> None:
    for number in range(3):
        place.send({"id": number})
    worker = place.worker(shop(Calls()))
    consumer = take(worker)
    first, second, third = consumer.in_flight.deliveries.values()
    consumer.in_flight.lose(second, "test")
    worker.worker.work(consumer)
    assert [delivery.state for delivery in (first, second, third)] == [State.ACKED, State.LOST, State.ACKED]
    assert consumer.in_flight.admission.in_use == 0


def test_a_delivery_that_was_not_claimed_costs_no_more_than_its_message(place: Place) -> None:
    """What a delivery has not got yet is on the class."""
    place.send({"id": 1})
    setup = place.worker(shop(Calls())).consumer("orders").setup
    delivery = Delivery(setup, Received("id", "receipt", "{}"), 0.0, 30.0)
    assert len(vars(delivery)) < 10
