"""Controlling a running runtime: pause, resume, concurrency and stop, in any order and at any time."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from running_apps import Running, client_of, running_app, send
from semel import App, Batch, SqliteLedger
from semel.broker import EmbeddedBroker, running
from semel.consumer.runtime import Runtime
from semel.consumer.runtime_control import RuntimeControl, carry_out, view
from semel.sqs import Queue
from semel.telemetry.worker_control import Action, Command, Identity, Refused
from waiting import PATIENCE, until

PAUSE, RESUME = Command(Action.PAUSE), Command(Action.RESUME)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def app(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[App]:
    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger, client_of(broker) as client:
        yield App(ledger, client=client, wait=20)


def make_queue(app: App, name: str = "orders") -> Queue:
    return app.client().create_queue(name, {"FifoQueue": "true"} if name.endswith(".fifo") else None)


def noting(handled_bodies: list[str]) -> Callable[[str], None]:
    def handle(body: str) -> None:
        handled_bodies.append(body)

    return handle


def nothing(body: str) -> None:
    pass


def control(run: Running) -> RuntimeControl:
    return RuntimeControl(run.runtime, Identity.new("shop:app"))


def state(run: Running, queue: str = "orders") -> dict[str, Any]:
    queue_state: dict[str, Any] = control(run).workers()["queues"][queue]
    return queue_state


def concurrency(count: int, queue: str | None = None) -> Command:
    return Command(Action.CONCURRENCY, queue, count)


def receivers(runtime: Runtime) -> int:
    return sum(len(consumer.threads.of("receive")) for consumer in runtime.consumers)


def set_back(runtime: Runtime, seconds: float) -> None:
    """As if the last poll had been so long ago."""
    for consumer in runtime.consumers:
        consumer.receiver.last_poll -= seconds


# Pausing.


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_a_paused_queue_gives_nothing_until_it_is_resumed(app: App, broker: EmbeddedBroker, name: str) -> None:
    queue = make_queue(app, name)
    handled_bodies: list[str] = []
    app.handler(name)(noting(handled_bodies))
    group = (lambda place: "g") if queue.fifo else None
    with running_app(app) as run:
        until(lambda: receivers(run.runtime))
        assert "paused" in control(run).do(PAUSE)["done"]
        until(lambda: not receivers(run.runtime), "the long poll of 20 s ends")
        send(queue, ["a", "b"], group)
        assert state(run, name)["paused"]
        assert [message["State"] for message in broker.peek(name)] == ["visible"] * 2
        assert handled_bodies == []
        control(run).do(RESUME)
        until(lambda: run.deleted == 2)
        assert (handled_bodies if queue.fifo else sorted(handled_bodies)) == ["a", "b"]
        assert not state(run, name)["paused"]
        assert run.stop().clean


def test_what_is_in_progress_goes_on_while_paused(app: App) -> None:
    queue = make_queue(app)
    begun, go = threading.Event(), threading.Event()

    @app.handler("orders")
    def handle(body: str) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    send(queue, ["x"])
    with running_app(app) as run:
        assert begun.wait(PATIENCE)
        carry_out(run.runtime, PAUSE)
        assert state(run)["in_progress"] == 1
        go.set()
        until(lambda: run.deleted == 1)
        assert state(run)["in_progress"] == 0
        assert run.stop().completed == 1


def test_a_pause_is_not_taken_for_a_hanging_poll_and_the_worker_stays_well(app: App) -> None:
    make_queue(app)
    app.handler("orders")(nothing)
    with running_app(app) as run:
        carry_out(run.runtime, PAUSE)
        set_back(run.runtime, 10_000)
        until(lambda: not receivers(run.runtime))
        health = run.runtime.health()
        assert (health.live, health.ready) == (True, True)
        assert health.details["queues"]["orders"]["paused"]
        time.sleep(0.6)  # two rounds of the watchdog, which would have restarted it by now
        assert run.consumer().metrics.watchdog_restarts.count == 0
        assert receivers(run.runtime) == 0
        carry_out(run.runtime, RESUME)
        assert run.runtime.health().live
        until(lambda: receivers(run.runtime))
        time.sleep(0.3)
        assert run.consumer().metrics.watchdog_restarts.count == 0


def test_one_queue_is_paused_and_the_other_works_on(app: App, broker: EmbeddedBroker) -> None:
    handled_bodies: list[str] = []
    queues = [make_queue(app, name) for name in ("orders", "emails")]
    for name in ("orders", "emails"):
        app.handler(name)(noting(handled_bodies))
    with running_app(app) as run:
        carry_out(run.runtime, Command(Action.PAUSE, "orders"))
        for queue in queues:
            send(queue, [queue.name])
        until(lambda: run.deleted == 1)
        assert handled_bodies == ["emails"]
        assert len(broker.peek("orders")) == 1


def test_a_paused_worker_stops_at_once_and_cleanly(app: App) -> None:
    make_queue(app)
    app.handler("orders")(nothing)
    with running_app(app) as run:
        carry_out(run.runtime, PAUSE)
        assert run.stop().clean
        with pytest.raises(Refused, match="is stopping"):
            carry_out(run.runtime, RESUME)
    assert receivers(run.runtime) == 0


def test_commands_before_the_start_count(app: App, broker: EmbeddedBroker) -> None:
    from contextlib import ExitStack

    queue = make_queue(app)
    handled_bodies: list[str] = []
    app.handler("orders")(noting(handled_bodies))
    send(queue, ["x"])
    with ExitStack() as stack:
        runtime = app.prepare(stack)
        carry_out(runtime, PAUSE)
        carry_out(runtime, RESUME)
        assert receivers(runtime) == 0, "nothing is received before there is somebody to claim it"
        carry_out(runtime, PAUSE)
        carry_out(runtime, concurrency(3))
        runtime.start()
        assert receivers(runtime) == 0
        assert view(runtime)["queues"]["orders"]["concurrency"] == 3
        carry_out(runtime, RESUME)
        until(lambda: handled_bodies == ["x"])
        runtime.stop()
        assert runtime.finish().clean


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_first_of_pause_resume_and_stop_nothing_hangs_and_nothing_is_lost(
    app: App, broker: EmbeddedBroker, seed: int
) -> None:
    queue = make_queue(app, "orders.fifo" if seed % 2 else "orders")
    handled_bodies: list[str] = []
    app.handler(queue.name)(noting(handled_bodies))
    bodies = [str(number) for number in range(200)]
    chance = random.Random(seed)
    with running_app(app) as run:

        def disturb(number: int) -> None:
            mine = random.Random(number)
            for _ in range(50):
                command = mine.choice([PAUSE, RESUME, concurrency(mine.randint(1, 20))])
                if mine.random() < 0.1:
                    run.runtime.consumers[0].receiver.restart()  # as the watchdog does
                carry_out(run.runtime, command)

        with ThreadPoolExecutor(4) as pool:
            busy = [pool.submit(disturb, chance.randrange(1_000)) for _ in range(4)]
            send(queue, bodies, (lambda place: str(place % 5)) if queue.fifo else None)
            for future in busy:
                future.result(PATIENCE)
        carry_out(run.runtime, concurrency(10))
        carry_out(run.runtime, RESUME)
        # One that the broker hands out twice, as the poll that it was for has ended, is deleted twice.
        until(lambda: run.deleted >= 200 and not run.consumer().in_flight.deliveries)
        with ThreadPoolExecutor(4) as pool:
            racing = [pool.submit(_until_stopping, run.runtime, command) for command in (PAUSE, RESUME) * 2]
            report = run.stop()
            for future in racing:
                future.result(PATIENCE)
    assert report.clean
    assert sorted(handled_bodies) == sorted(bodies)
    assert receivers(run.runtime) == 0
    assert not broker.peek(queue.name)


def _until_stopping(runtime: Runtime, command: Command) -> None:
    while True:
        try:
            carry_out(runtime, command)
        except Refused:
            return


def test_a_stop_that_comes_during_a_pause_leaves_no_poll_behind(app: App) -> None:
    """The moment that matters: between the end of one generation of receivers and the beginning of the next."""
    make_queue(app)
    app.handler("orders")(nothing)
    for _ in range(10):
        with running_app(app) as run:
            receiver = run.runtime.consumers[0].receiver
            racing = [threading.Thread(target=do) for do in (receiver.pause, receiver.resume, receiver.restart)]
            for thread in racing:
                thread.start()
            assert run.stop().clean
            for thread in racing:
                thread.join(PATIENCE)
                assert not thread.is_alive()
        assert receivers(run.runtime) == 0


# Concurrency.


def test_more_are_worked_on_at_a_time_as_soon_as_they_may(app: App) -> None:
    queue = make_queue(app)
    together = threading.Barrier(6, timeout=PATIENCE)

    @app.handler("orders", concurrency=1)
    def handle(body: str) -> None:
        together.wait()  # passes only when six are there

    send(queue, [str(number) for number in range(6)])
    with running_app(app) as run:
        until(lambda: state(run)["in_progress"] == 1)
        carry_out(run.runtime, concurrency(6, "orders"))
        until(lambda: run.deleted == 6)
        assert state(run)["concurrency"] == 6


def test_fewer_are_worked_on_at_a_time_once_those_in_progress_are_done(app: App) -> None:
    queue = make_queue(app)
    lock, now, most = threading.Lock(), 0, 0
    all_there = threading.Barrier(8, timeout=PATIENCE)
    go = threading.Event()

    @app.handler("orders", concurrency=8)
    def handle(body: str) -> None:
        nonlocal now, most
        if body == "first":
            all_there.wait()
            assert go.wait(PATIENCE)
            return
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1

    send(queue, ["first"] * 8)
    with running_app(app) as run:
        until(lambda: state(run)["in_progress"] == 8 and all(m["state"] == "working" for m in state(run)["messages"]))
        carry_out(run.runtime, concurrency(2))
        assert run.consumer().in_flight.admission.free == 0
        send(queue, [str(number) for number in range(40)])
        go.set()
        until(lambda: run.deleted == 48)
        assert len(run.threads("work")) == 2
    assert most <= 2


def test_async_handlers_take_more_and_fewer_too(app: App) -> None:
    import asyncio

    queue = make_queue(app)
    there: list[str] = []

    @app.handler("orders", concurrency=1)
    async def handle(body: str) -> None:
        there.append(body)
        while len(there) < 5:
            await asyncio.sleep(0.005)

    send(queue, [str(number) for number in range(5)])
    with running_app(app) as run:
        until(lambda: len(there) == 1)
        carry_out(run.runtime, concurrency(5))
        until(lambda: run.deleted == 5)


def test_batches_at_a_time_can_be_more_and_fewer(app: App) -> None:
    queue = make_queue(app)
    together = threading.Barrier(3, timeout=PATIENCE)

    @app.batch_handler("orders", concurrency=1, size=1, linger=0)
    def handle(batch: Batch[str]) -> None:
        if batch[0].value == "together":
            together.wait()

    with running_app(app) as run:
        carry_out(run.runtime, concurrency(3))
        send(queue, ["together"] * 3)
        until(lambda: run.deleted == 3)
        assert len(run.threads("work")) == 3
        carry_out(run.runtime, concurrency(1))
        send(queue, ["alone"] * 3)
        until(lambda: run.deleted == 6)
        until(lambda: len(run.threads("work")) == 1, "two of three leave")
        assert run.stop().clean
    assert run.threads("work") == []


def test_batches_of_a_fifo_queue_are_one_at_a_time_and_it_says_so(app: App) -> None:
    make_queue(app, "orders.fifo")

    @app.batch_handler("orders.fifo")
    def handle(batch: Batch[str]) -> None:
        pass

    with (
        running_app(app) as run,
        pytest.raises(Refused, match=r"orders.fifo works on one batch at a time.*size") as error,
    ):
        carry_out(run.runtime, concurrency(4))
    assert error.value.status == 409


def test_a_message_need_not_wait_for_a_worker_that_is_busy_with_an_earlier_one(app: App) -> None:
    queue = make_queue(app)
    begun, go = threading.Event(), threading.Event()

    @app.handler("orders", concurrency=4)
    def handle(body: str) -> None:
        if body == "slow":
            begun.set()
            assert go.wait(PATIENCE)

    with running_app(app) as run:
        send(queue, ["slow"])
        assert begun.wait(PATIENCE)
        send(queue, ["quick"])
        until(lambda: run.deleted == 1)
        go.set()
        until(lambda: run.deleted == 2)


# Looking.


def test_a_worker_tells_what_it_holds_but_never_a_body(app: App) -> None:
    queue = make_queue(app, "orders.fifo")
    go = threading.Event()

    @app.handler("orders.fifo", key="$.id", lease=30, concurrency=7)
    def ship(order: dict[str, Any]) -> None:
        assert go.wait(PATIENCE)

    send(queue, [json.dumps({"id": "order-1", "note": "hunter2"})], lambda place: "berlin")
    with running_app(app) as run:
        until(lambda: [m["state"] for m in state(run, "orders.fifo")["messages"]] == ["working"])
        answer = control(run).workers()
        go.set()
    assert "hunter2" not in json.dumps(answer)
    assert (answer["app"], answer["processes"], answer["stopping"]) == ("shop:app", 1, False)
    orders = answer["queues"]["orders.fifo"]
    assert (orders["concurrency"], orders["paused"], orders["in_progress"]) == (7, False, 1)
    assert orders["settings"]["lease"] == 30
    (message,) = orders["messages"]
    assert (message["key"], message["group"], message["attempt"]) == ("order-1", "berlin", 1)
    assert message["handler"].endswith("ship")
    assert message["fence"] > 0
    assert 0 <= message["working"] <= message["since"] < 30
    assert 0 <= message["heartbeat_age"] <= 30 - message["visible_for"] + 0.01
    assert 0 < message["lease_for"] <= 31


def test_of_many_messages_those_held_longest_are_told(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.consumer.runtime_control.MAX_SHOWN", 3)
    queue = make_queue(app)
    go = threading.Event()

    @app.handler("orders", concurrency=5)
    def handle(body: str) -> None:
        assert go.wait(PATIENCE)

    send(queue, ["x"])
    with running_app(app) as run:
        until(lambda: state(run)["in_progress"] == 1)
        first = state(run)["messages"][0]["message_id"]
        send(queue, ["y"] * 4)
        until(lambda: state(run)["in_progress"] == 5)
        shown = state(run)["messages"]
        go.set()
    assert len(shown) == 3
    assert shown[0]["message_id"] == first
    assert [m["since"] for m in shown] == sorted((m["since"] for m in shown), reverse=True)


# Commands.


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (None, "is an object such as"),
        ([], "is an object such as"),
        ({}, "needs an action: one of pause, resume, concurrency, stop"),
        ({"action": "explode"}, "unknown action 'explode'"),
        ({"action": ["pause"]}, r"unknown action"),
        ({"action": "pause", "queue": 7}, "queue is a name, or null"),
        ({"action": "pause", "value": 3}, "pause takes no value"),
        ({"action": "pause", "force": True}, "has no force"),
        ({"action": "concurrency"}, "a number from 1 to 10,000"),
        ({"action": "concurrency", "value": 0}, "a number from 1"),
        ({"action": "concurrency", "value": True}, "a number from 1"),
        ({"action": "concurrency", "value": 10_001}, "a number from 1"),
        ({"action": "concurrency", "value": "8"}, "a number from 1"),
        ({"action": "stop", "queue": "orders"}, "stops as a whole; .* pause it"),
    ],
)
def test_what_is_no_command_is_refused_with_the_way_out(command: object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        Command.read(command)


def test_a_queue_that_the_worker_does_not_have_is_named_with_those_it_has(app: App) -> None:
    make_queue(app)
    app.handler("orders")(nothing)
    with running_app(app) as run, pytest.raises(Refused, match=r"'orderz'; its queues are orders") as error:
        carry_out(run.runtime, Command(Action.PAUSE, "orderz"))
    assert error.value.status == 404
