"""The heartbeat, run step by step: what it extends, what it loses, and what it never does too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from driven import ledger_away
from semel import App, Context, Lost
from semel.broker import EmbeddedBroker
from semel.consumer.lifecycle import State
from semel.ledger.contract import Claim, LedgerUnavailable
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages.keys import scoped
from semel.telemetry.attempt_log import Attempt, Step
from semel.testing.driver import Driver, driving

LEASE = 30


class Log:
    """What the consumer tells the attempt log."""

    dropped = 0

    def __init__(self) -> None:
        self.events: list[Attempt] = []

    def add_all(self, events: list[Attempt]) -> None:
        self.events += events

    def steps(self) -> list[Step]:
        return [event.step for event in self.events]


@pytest.fixture
def queue(sqs_broker: EmbeddedBroker) -> str:
    return str(sqs_broker.client().create_queue(QueueName="jobs")["QueueUrl"])


@contextmanager
def at_work(broker: EmbeddedBroker, during: Callable[[Driver, Context], None], **options: Any) -> Iterator[Driver]:
    """A driver whose handler does `during` while it works."""
    app = App(lease=LEASE, **options)
    drivers: list[Driver] = []

    @app.handler("jobs")
    def work(body: str, ctx: Context) -> None:
        during(drivers[0], ctx)

    with driving(app, broker) as driver:
        drivers.append(driver)
        log = Log()
        driver.worker.tools.log = log  # type: ignore[assignment]
        driver.log = log  # type: ignore[attr-defined]
        yield driver


def send(broker: EmbeddedBroker, queue: str, body: str = "x") -> str:
    return str(broker.client().send_message(QueueUrl=queue, MessageBody=body)["MessageId"])


def watch_changes(driver: Driver, watch: Callable[[Any], None]) -> None:
    """Sees every change of visibility on its way to SQS."""
    queue = driver.consumer("jobs").setup.queue
    change = queue.change_visibility

    def watched(pairs: Any, **options: Any) -> Any:
        watch(pairs)
        return change(pairs, **options)

    queue.change_visibility = watched  # type: ignore[method-assign]


def in_flight(broker: EmbeddedBroker) -> int:
    return len(broker.peek("jobs", state="in_flight"))


def ledger_key(driver: Driver, ctx: Context) -> str:
    return scoped(driver.client.queue("jobs").scope, ctx.key)


def test_a_message_stays_hidden_and_leased_for_as_long_as_its_handler_works(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        for _ in range(20):  # ten times the lease
            sqs_broker.clock.advance(LEASE / 2)
            driver.worker.beat()
            assert in_flight(sqs_broker) == 1
        (entry,) = driver.ledger.get([ledger_key(driver, ctx)])
        assert entry is not None
        assert entry.lease_ends > sqs_broker.clock.now()
        assert not ctx.lost.is_set()

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1
        assert sqs_broker.peek("jobs") == []


def test_no_beat_is_sent_before_a_quarter_nor_after_a_third_of_the_lease(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        began = ctx.deadline
        sqs_broker.clock.advance(LEASE / 4)
        driver.worker.beat()
        assert ctx.deadline == began
        sqs_broker.clock.advance(LEASE / 3 - LEASE / 4 + 0.01)
        driver.worker.beat()
        assert ctx.deadline > began

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1


def test_messages_that_wait_for_a_worker_are_kept_too_ten_a_call(sqs_broker: EmbeddedBroker, queue: str) -> None:
    calls: list[int] = []

    def during(driver: Driver, ctx: Context) -> None:
        if calls:
            return
        watch_changes(driver, lambda pairs: calls.append(len(pairs)))
        sqs_broker.clock.advance(LEASE / 2)
        driver.worker.beat()
        assert in_flight(sqs_broker) == 10

    with at_work(sqs_broker, during) as driver:
        for _ in range(10):
            send(sqs_broker, queue)
        assert driver.drain() == 10
        assert calls == [10]


def another(driver: Driver, broker: EmbeddedBroker, runs: list[int]) -> Driver:
    """A second worker of the same queue and ledger; it notes its fence in `runs`."""
    app = App(lease=LEASE)

    @app.handler("jobs")
    def work(body: str, ctx: Context) -> None:
        runs.append(ctx.fence)

    return Driver(app, broker, driver.client, driver.ledger)


def test_a_handler_whose_claim_was_taken_over_is_told_and_its_outcome_does_not_count(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    runs: list[int] = []

    def during(driver: Driver, ctx: Context) -> None:
        lost = ctx.lost
        sqs_broker.clock.advance(LEASE + 1)  # no beat in time: a long pause
        another(driver, sqs_broker, runs).drain()
        driver.worker.beat()
        assert lost.is_set()
        with pytest.raises(Lost):
            ctx.check()

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 0
        assert runs == [2]
        steps = driver.log.steps()  # type: ignore[attr-defined]
        assert steps.count(Step.FENCED) == 1
        assert steps.count(Step.RECORDED) == 0
        assert sqs_broker.peek("jobs") == []


def test_a_process_that_was_held_up_past_its_lease_keeps_its_claim_if_nobody_took_over(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    runs: list[int] = []

    def during(driver: Driver, ctx: Context) -> None:
        sqs_broker.clock.advance(LEASE + 1)  # no beat in time: a long pause
        driver.worker.beat()
        assert not ctx.lost.is_set()
        another(driver, sqs_broker, runs).drain()  # SQS shows it again; the ledger says that it is held

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1
        assert runs == []
        sqs_broker.clock.advance(LEASE + 2)
        another(driver, sqs_broker, runs).drain()
        assert runs == []
        assert sqs_broker.peek("jobs") == []


@pytest.mark.parametrize("how", ["SQS does not answer", "SQS has taken it back"])
def test_work_whose_visibility_is_lost_goes_on_under_its_lease_and_its_outcome_counts(
    sqs_broker: EmbeddedBroker, queue: str, how: str
) -> None:
    runs: list[int] = []

    def during(driver: Driver, ctx: Context) -> None:
        if how == "SQS does not answer":
            sqs_broker.faults.set("server-error", 1.0)
        else:
            sqs_broker.client().purge_queue(QueueUrl=queue)
        for _ in range(20):  # many leases
            sqs_broker.clock.advance(LEASE / 4)
            driver.worker.beat()
            assert not ctx.lost.is_set()
            ctx.check()
            assert ctx.deadline > sqs_broker.clock.now()
        sqs_broker.faults.clear()
        another(driver, sqs_broker, runs).drain()

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1
        sqs_broker.clock.advance(LEASE + 2)
        another(driver, sqs_broker, runs).drain()
        assert runs == []
        assert sqs_broker.peek("jobs") == []
        assert driver.log.steps().count(Step.LOST) == 1  # type: ignore[attr-defined]


def test_a_handler_that_was_told_and_succeeds_all_the_same_is_recorded_if_nobody_took_over(
    sqs_broker: EmbeddedBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        ledger_away(monkeypatch, "extend")
        deadline = ctx.deadline
        while not ctx.lost.is_set():
            sqs_broker.clock.advance(0.25)
            driver.worker.beat()
            assert sqs_broker.clock.now() < deadline  # told in time
        monkeypatch.undo()

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1
        assert sqs_broker.peek("jobs") == []


def test_work_that_is_done_outlasts_any_outage_of_the_ledger_hidden_and_is_recorded_after_it(
    sqs_broker: EmbeddedBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    def during(driver: Driver, ctx: Context) -> None:
        runs.append(ctx.fence)
        ledger_away(monkeypatch, "extend", "record", "claim")

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 0
        worker, consumer = driver.worker, driver.consumer("jobs")
        for _ in range(20):  # five leases
            sqs_broker.clock.advance(LEASE / 4)
            worker.beat()
            worker.finish(consumer)
            assert in_flight(sqs_broker) == 1
        monkeypatch.undo()
        assert driver.drain() == 1
        assert runs == [1]
        assert sqs_broker.peek("jobs") == []


def test_a_heartbeat_gives_sqs_one_attempt_and_a_sixth_of_the_lease(sqs_broker: EmbeddedBroker, queue: str) -> None:
    timeouts: list[float] = []
    calls: list[int] = []

    def during(driver: Driver, ctx: Context) -> None:
        change = driver.consumer("jobs").setup.queue.change_visibility

        def watched(pairs: Any, *, timeout: float) -> Any:
            timeouts.append(timeout)
            return change(pairs, timeout=timeout)

        driver.consumer("jobs").setup.queue.change_visibility = watched  # type: ignore[assignment, method-assign]
        sqs_broker.faults.set("server-error", 1.0)
        sqs_broker.clock.advance(LEASE / 3)
        before = sqs_broker.faults.counts().get("server-error", 0)
        driver.worker.beat()
        calls.append(sqs_broker.faults.counts()["server-error"] - before)
        sqs_broker.faults.clear()

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        driver.worker.receive(driver.consumer("jobs"))
        driver.worker.work(driver.consumer("jobs"))
        assert timeouts == [LEASE / 6]
        assert calls == [1]


def test_a_beat_that_fails_is_tried_again_inside_the_margin(sqs_broker: EmbeddedBroker, queue: str) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        sqs_broker.faults.set("throttle", 1.0)
        sqs_broker.clock.advance(LEASE / 2)
        driver.worker.beat()
        assert not ctx.lost.is_set()
        sqs_broker.faults.clear()
        sqs_broker.clock.advance(2)
        driver.worker.beat()
        assert ctx.deadline > sqs_broker.clock.now() + LEASE / 2
        sqs_broker.clock.advance(LEASE / 4)
        assert in_flight(sqs_broker) == 1

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1


def test_beats_that_go_on_failing_lose_what_is_not_begun_before_its_visibility_ends(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    runs: list[str] = []
    with at_work(sqs_broker, lambda _driver, ctx: runs.append(ctx.key)) as driver:
        send(sqs_broker, queue)
        consumer = driver.consumer("jobs")
        driver.worker.receive(consumer)
        (delivery,) = consumer.in_flight.deliveries.values()
        sqs_broker.faults.set("throttle", 1.0)
        while consumer.in_flight.deliveries:
            sqs_broker.clock.advance(0.25)
            driver.worker.beat()
            driver.worker.finish(consumer)
            assert sqs_broker.clock.now() < delivery.visible_at
        sqs_broker.faults.clear()
        driver.worker.work(consumer)
        assert runs == []
        assert in_flight(sqs_broker) == 1  # nothing of it was touched: it comes back by itself
        assert consumer.in_flight.admission.in_use == 0


def test_a_ledger_that_gave_the_key_to_another_is_a_loss_too(sqs_broker: EmbeddedBroker, queue: str) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        driver.ledger.forget([ledger_key(driver, ctx)])
        sqs_broker.clock.advance(LEASE / 2)
        driver.worker.beat()
        assert ctx.lost.is_set()

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        driver.drain()
        assert driver.log.steps().count(Step.RECORDED) == 0  # type: ignore[attr-defined]


def test_a_ledger_that_does_not_answer_a_beat_is_asked_again(
    sqs_broker: EmbeddedBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        away = True

        def extend(
            ledger: SqliteLedger, claims: list[Claim], lease: float, *, timeout: float | None = None
        ) -> list[bool]:
            if away:
                raise LedgerUnavailable("away")
            return whole(ledger, claims, lease, timeout=timeout)

        whole = SqliteLedger.extend
        monkeypatch.setattr(SqliteLedger, "extend", extend)
        sqs_broker.clock.advance(LEASE / 2)
        driver.worker.beat()
        assert not ctx.lost.is_set()
        away = False
        sqs_broker.clock.advance(2)
        driver.worker.beat()
        assert ctx.deadline > sqs_broker.clock.now() + LEASE / 2

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1


def test_a_message_of_which_a_new_copy_comes_goes_on_with_the_new_handle(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        if not runs:
            runs.append(ctx.fence)
            handle = driver.consumer("jobs").in_flight.by_message[ctx.message.message_id].receipt
            sqs_broker.client().change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
            assert driver.worker.receive(driver.consumer("jobs")) == 1
            assert driver.consumer("jobs").in_flight.by_message[ctx.message.message_id].receipt != handle
        else:
            runs.append(ctx.fence)

    runs: list[int] = []
    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        assert driver.drain() == 1
        assert runs == [1]
        assert sqs_broker.peek("jobs") == []
        assert driver.consumer("jobs").in_flight.admission.free == driver.consumer("jobs").in_flight.admission.count


def test_a_handler_that_has_lost_its_claim_is_at_work_also_when_its_message_comes_again_and_is_returned(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    """Found by the simulation: a stop did not wait for it any more, and nobody could see that it ran."""

    def during(driver: Driver, ctx: Context) -> None:
        runs.append(ctx.fence)
        if len(runs) > 1:
            return
        consumer = driver.consumer("jobs")
        (delivery,) = consumer.in_flight.deliveries.values()
        consumer.in_flight.lose(delivery, "another worker has it")
        change = sqs_broker.client().change_message_visibility
        change(QueueUrl=queue, ReceiptHandle=delivery.receipt, VisibilityTimeout=0)
        driver.worker.receive(consumer)
        counts.append((len(consumer.in_flight.deliveries), consumer.at_work()))
        driver.worker.finish(consumer)  # the key is claimed: the second delivery is returned
        counts.append((len(consumer.in_flight.deliveries), consumer.at_work()))

    runs: list[int] = []
    counts: list[tuple[int, int]] = []
    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        driver.drain()
        assert counts == [(1, 1), (1, 1)]
        assert not driver.consumer("jobs").in_flight.deliveries


def test_a_handler_past_its_max_runtime_is_given_up_on(sqs_broker: EmbeddedBroker, queue: str) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        for _ in range(5):
            sqs_broker.clock.advance(LEASE / 2)
            driver.worker.beat()
        assert ctx.lost.is_set()

    with at_work(sqs_broker, during, max_runtime=60) as driver:
        send(sqs_broker, queue)
        driver.drain()
        assert Step.LOST in driver.log.steps()  # type: ignore[attr-defined]


def test_twelve_hours_after_the_receipt_the_message_is_lost_and_no_beat_asks_for_more(
    sqs_broker: EmbeddedBroker, queue: str
) -> None:
    def during(driver: Driver, ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        asked: list[int] = []
        watch_changes(driver, lambda pairs: asked.extend(seconds for _, seconds in pairs))
        began = sqs_broker.clock.now()
        while not ctx.lost.is_set():
            sqs_broker.clock.advance(600)
            driver.worker.beat()
            assert sqs_broker.clock.now() - began < 12 * 3_600 + 600
        assert sqs_broker.clock.now() - began > 11 * 3_600
        assert max(asked) <= 1_800

    with at_work(sqs_broker, during) as driver:
        driver.consumer("jobs")
        send(sqs_broker, queue)
        for consumer in driver.worker.consumers:
            object.__setattr__(consumer.setup.settings, "lease", 1_800.0)
        driver.drain()


def test_the_back_off_waits_for_a_beat_that_is_under_way(sqs_broker: EmbeddedBroker, queue: str) -> None:
    """Otherwise the late beat would overwrite the shorter time of the back-off."""
    order: list[str] = []
    beats: list[threading.Thread] = []
    reached, go_on = threading.Event(), threading.Event()

    def during(driver: Driver, ctx: Context) -> None:
        consumer = driver.consumer("jobs")
        change = consumer.setup.queue.change_visibility

        def slow(pairs: Any, **options: Any) -> Any:
            name = "beat" if not order else "back-off"
            if name == "beat":
                reached.set()
                go_on.wait(30)
            answer = change(pairs, **options)
            order.append(name)
            return answer

        consumer.setup.queue.change_visibility = slow  # type: ignore[method-assign]
        sqs_broker.clock.advance(LEASE / 2)
        beats.append(threading.Thread(target=driver.worker.beat, daemon=True))
        beats[0].start()
        assert reached.wait(30)
        raise ValueError("fails while a beat is on its way")

    with at_work(sqs_broker, during) as driver:
        send(sqs_broker, queue)
        consumer = driver.consumer("jobs")
        driver.worker.receive(consumer)
        driver.worker.work(consumer)
        driver.worker.finish(consumer)
        assert order == []  # neither: the back-off must not go first
        (delivery,) = consumer.in_flight.deliveries.values()
        go_on.set()
        ends = time.monotonic() + 30
        while delivery.after_beat or delivery.beating:
            assert time.monotonic() < ends
            time.sleep(0.001)
        while consumer.in_flight.deliveries:
            driver.worker.finish(consumer)
            assert time.monotonic() < ends
        assert order == ["beat", "back-off"]
        beats[0].join(30)
        assert delivery.state is State.BACKING_OFF
