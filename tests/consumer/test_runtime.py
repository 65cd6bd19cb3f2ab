"""The runtime with its threads, on a real broker."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from running_apps import client_of, running_app, send
from semel import App, Batch, Context, Fixed, Reject, Retry, SqliteLedger, Transaction
from semel.broker import EmbeddedBroker, running
from semel.ledger.contract import ClaimResult, LedgerUnavailable
from semel.sqs import Queue
from semel.sqs.errors import AccessDenied, QueueNotFound
from semel.telemetry.attempt_log import AttemptLog
from waiting import PATIENCE, until


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger:
        yield ledger


@pytest.fixture
def app(broker: EmbeddedBroker, ledger: SqliteLedger) -> Iterator[App]:
    with client_of(broker) as client:
        yield App(ledger, client=client, wait=1)


def make_queue(app: App, name: str = "orders", dead_letters: bool = False, **attributes: str) -> Queue:
    client = app.client()
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    if dead_letters:
        suffix = ".fifo" if fifo else ""
        dead = client.create_queue(f"{name.removesuffix('.fifo')}-dlq{suffix}", fifo)
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5})
    return client.create_queue(name, {**fifo, **attributes})


def is_empty(broker: EmbeddedBroker, name: str = "orders") -> bool:
    return not broker.peek(name)


def test_every_message_is_handled_once_and_deleted(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app)
    calls: Counter[int] = Counter()

    @app.handler("orders")
    def handle(order: dict[str, Any]) -> None:
        calls[order["n"]] += 1

    send(queue, [json.dumps({"n": n}) for n in range(500)])
    with running_app(app) as run:
        until(lambda: run.deleted == 500)
        report = run.stop()
    assert calls == dict.fromkeys(range(500), 1)
    assert report.clean
    assert report.completed == 500
    assert is_empty(broker)


def test_slow_handlers_run_side_by_side_up_to_the_concurrency_and_no_further(app: App) -> None:
    queue = make_queue(app)
    together, most, lock = 0, 0, threading.Lock()
    all_there = threading.Barrier(8)

    @app.handler("orders", concurrency=8)
    def handle(body: str) -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        all_there.wait(60)
        with lock:
            together -= 1

    send(queue, ["x"] * 16)
    with running_app(app) as run:
        until(lambda: run.deleted == 16)
    assert most == 8


def test_no_more_is_received_than_there_are_free_slots(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app)
    go_on = threading.Event()

    @app.handler("orders", concurrency=3)
    def handle(body: str) -> None:
        go_on.wait(60)

    send(queue, ["x"] * 20)
    with running_app(app) as run:
        until(lambda: len(broker.peek("orders", state="in_flight")) == 3)
        until(lambda: run.consumer().in_flight.admission.free == 0)
        assert len(broker.peek("orders", state="visible")) == 17
        go_on.set()
        until(lambda: run.deleted == 20)


def test_receiving_pauses_while_too_many_bytes_are_in_flight(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app)
    go_on = threading.Event()

    @app.handler("orders", concurrency=40, max_bytes=1 << 20)
    def handle(body: str) -> None:
        go_on.wait(60)

    send(queue, ["x" * 200_000] * 30)
    with running_app(app) as run:
        until(lambda: run.consumer().in_flight.admission.bytes >= 1 << 20)
        held = len(broker.peek("orders", state="in_flight"))
        assert held < 30
        go_on.set()
        until(lambda: run.deleted == 30)
        assert run.consumer().in_flight.admission.bytes == 0


def test_async_handlers_share_one_loop(app: App) -> None:
    queue = make_queue(app)
    threads, waiting, all_there = set(), 0, asyncio.Event()

    @app.handler("orders", concurrency=20)
    async def handle(body: str, ctx: Context) -> None:
        nonlocal waiting
        threads.add(threading.get_ident())
        waiting += 1
        if waiting == 20:
            all_there.set()
        await all_there.wait()
        assert app.current is ctx

    send(queue, ["x"] * 20)
    with running_app(app) as run:
        until(lambda: run.deleted == 20)
    assert len(threads) == 1


def test_failures_give_their_slots_back(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app)
    attempts: Counter[str] = Counter()

    @app.handler("orders", concurrency=2)
    def handle(body: str) -> None:
        attempts[body] += 1
        if attempts[body] == 1:
            raise Retry(after=0)

    send(queue, [str(n) for n in range(20)])
    with running_app(app) as run:
        until(lambda: run.deleted == 20)
        run.stop()
        until(lambda: run.consumer().in_flight.admission.in_use == 0, "the last slot's return")
    assert set(attempts.values()) == {2}


def test_rejected_messages_become_dead_letters_and_others_go_on(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app, dead_letters=True)

    @app.handler("orders")
    def handle(body: str) -> None:
        if body.startswith("bad"):
            raise Reject("no such product")

    send(queue, ["bad" if n % 5 == 0 else "good" for n in range(50)])
    with running_app(app) as run:
        until(lambda: run.deleted == 50)
    assert len(broker.peek("orders-dlq")) == 10
    assert is_empty(broker)


def test_a_fifo_queue_keeps_its_groups_in_order_and_side_by_side(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app, "ledger.fifo")
    numbers_of_group: defaultdict[str, list[int]] = defaultdict(list)
    busy: Counter[str] = Counter()
    failed: set[str] = set()

    @app.handler("ledger.fifo", concurrency=20)
    def handle(event: dict[str, Any], ctx: Context) -> None:
        group, n = event["account"], event["n"]
        busy[group] += 1
        assert busy[group] == 1
        try:
            if n == 3 and group not in failed and group != "a1":
                failed.add(group)
                raise Retry("once", after=0)
            numbers_of_group[group].append(n)
        finally:
            busy[group] -= 1

    bodies = [json.dumps({"account": f"a{place % 5}", "n": place // 5}) for place in range(60)]
    send(queue, bodies, group=lambda place: f"a{place % 5}")
    with running_app(app) as run:
        until(lambda: run.deleted == 60)
    assert numbers_of_group == {f"a{place}": list(range(12)) for place in range(5)}
    assert len(failed) == 4


def test_a_batch_in_a_transaction_is_recorded_with_its_writes(
    app: App, ledger: SqliteLedger, broker: EmbeddedBroker
) -> None:
    queue = make_queue(app)
    sizes: list[int] = []
    with ledger.transaction() as tx:
        tx.execute("CREATE TABLE clicks (n INTEGER)")

    @app.batch_handler("orders", size=50, linger=0.5)
    def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
        sizes.append(len(batch))
        tx.executemany("INSERT INTO clicks VALUES (?)", [(value["n"],) for value in batch.values])

    send(queue, [json.dumps({"n": n}) for n in range(200)])
    with running_app(app) as run:
        until(lambda: run.deleted == 200)
    with ledger.transaction() as tx:
        numbers = [n for (n,) in tx.execute("SELECT n FROM clicks ORDER BY n").fetchall()]
    assert numbers == list(range(200))
    assert max(sizes) > 10


def test_stopping_waits_for_handlers_and_hands_back_what_was_not_begun(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app)
    begun, go_on = threading.Semaphore(0), threading.Event()
    done: list[str] = []

    @app.handler("orders", concurrency=4)
    def handle(body: str) -> None:
        begun.release()
        go_on.wait(60)
        done.append(body)

    send(queue, [str(n) for n in range(10)])
    with running_app(app) as run:
        for _ in range(4):
            assert begun.acquire(timeout=60)
        stopper = threading.Thread(target=run.stop)
        stopper.start()
        go_on.set()
        stopper.join(60)
        report = run.stop()
    assert report.clean
    assert len(done) == 4
    assert len(broker.peek("orders", state="visible")) == 6
    assert not broker.peek("orders", state="in_flight")


def test_what_is_left_at_the_end_of_the_drain_is_reported_and_comes_back(app: App, broker: EmbeddedBroker) -> None:
    queue = make_queue(app)
    begun, go_on = threading.Event(), threading.Event()

    @app.handler("orders")
    def handle(body: str) -> None:
        begun.set()
        go_on.wait(60)

    send(queue, ["x"])
    with running_app(app, drain=0.1) as run:
        assert begun.wait(60)
        report = run.stop()
        assert report.left == {"orders": 1}
        assert not report.clean
        assert len(broker.peek("orders", state="in_flight")) == 1  # still hidden: nobody else may begin it yet
        go_on.set()


def test_async_handlers_that_do_not_finish_in_time_are_cancelled_logged_and_given_back(
    app: App, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(app)
    begun, cancelled = threading.Event(), threading.Event()

    @app.handler("orders")
    async def handle(body: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            cancelled.set()

    send(queue, ["x"])
    with running_app(app, drain=0.1) as run:
        assert begun.wait(60)
        report = run.stop()
    assert cancelled.is_set()
    assert report.clean
    assert "the handler was cancelled: the worker is stopping" in caplog.text
    assert len(broker.peek("orders", state="visible")) == 1


def test_exit_when_empty_ends_by_itself_when_the_queue_is_empty(app: App) -> None:
    queue = make_queue(app)
    bodies: list[str] = []

    @app.handler("orders")
    def handle(body: str) -> None:
        bodies.append(body)

    send(queue, [str(n) for n in range(30)])
    report = app.run(exit_when_empty=True)
    assert report.completed == len(bodies) == 30


def test_stopping_an_idle_consumer_does_not_wait_for_its_long_poll(app: App, broker: EmbeddedBroker) -> None:
    make_queue(app)

    @app.handler("orders", wait=20)
    def handle(body: str) -> None:
        pass

    with running_app(app) as run:
        until(lambda: run.consumer().in_flight.admission.in_use > 0, "the poll")
        assert run.stop().clean
        until(lambda: run.runtime.consumers[0].receiver.count == 0, "the receiver's end")


def test_what_a_fifo_receive_had_got_when_the_stop_cancelled_it_is_handed_back_before_the_end(
    app: App, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(app, "moves.fifo")

    @app.handler("moves.fifo", wait=20)
    def apply(move: dict[str, Any]) -> None:
        pytest.fail("it came after the stop")

    with running_app(app) as run:
        consumer = run.runtime.consumers[0]
        receive, claimer = consumer.setup.queue.receive, consumer.claimer

        def receive_late(limit: int, wait: int, **options: Any) -> Any:
            if wait == 0:  # it looks what the cancelled one has got; SQS takes its time
                claimer._threads.join("claim", time.monotonic() + 0.5)  # which ends only after the receiver
                queue.send("{}", group="a", dedup="1")
            return receive(limit, wait, **options)

        until(lambda: consumer.receiver.cancel._running, "a poll")
        monkeypatch.setattr(consumer.setup.queue, "receive", receive_late)
        assert run.stop().clean
        consumer.receiver.close(time.monotonic() + PATIENCE)
        assert [message["State"] for message in broker.peek("moves.fifo")] == ["visible"]


def test_without_the_ledger_nothing_is_worked_on_and_all_goes_on_when_it_is_back(
    app: App, ledger: SqliteLedger, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(app)
    bodies: list[str] = []
    away = threading.Event()
    away.set()

    def unless_away(name: str) -> None:
        whole = getattr(SqliteLedger, name)

        def method(self: SqliteLedger, *arguments: Any, **named: Any) -> Any:
            if away.is_set():
                raise LedgerUnavailable("the ledger is away")
            return whole(self, *arguments, **named)

        monkeypatch.setattr(SqliteLedger, name, method)

    for name in ("claim", "record", "extend", "release", "get"):
        unless_away(name)

    @app.handler("orders")
    def handle(body: str) -> None:
        bodies.append(body)

    send(queue, [str(n) for n in range(40)])
    with running_app(app) as run:
        until(lambda: run.runtime.breaker.is_open, "the circuit's opening")
        assert not run.runtime.health().ready
        assert run.runtime.health().live
        assert bodies == []
        away.clear()
        until(lambda: run.deleted == 40)
        assert run.runtime.health().ready
    assert len(bodies) == 40


def test_a_queue_that_vanishes_stops_the_app_and_says_so(app: App) -> None:
    queue = make_queue(app)

    @app.handler("orders")
    def handle(body: str) -> None:
        pass

    with running_app(app) as run:
        until(lambda: run.consumer().in_flight.admission.in_use > 0, "the poll")
        queue.drop()
        assert run.runtime.stopping.wait(60)
        report = run.stop()
    assert isinstance(report.error, QueueNotFound)
    assert "orders" in str(report.error)


@pytest.mark.parametrize("call", ["delete", "change_visibility"])
def test_a_missing_permission_stops_the_app_and_is_named(app: App, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(app)

    @app.handler("orders", lease=2, retry=Fixed(1))
    def handle(body: str) -> None:
        if call == "change_visibility":
            raise ValueError("to be put back")

    def denied(self: Queue, *_arguments: Any) -> Any:
        raise AccessDenied(f"{call} is not allowed", code="AccessDenied", operation=call, queue=self.name)

    monkeypatch.setattr(Queue, call, denied)
    send(queue, ["x"])
    with running_app(app) as run:
        assert run.runtime.stopping.wait(60)
        report = run.stop()
    assert isinstance(report.error, AccessDenied)
    assert call in str(report.error)


def test_a_poller_that_hangs_is_noticed_and_replaced(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(app)
    hangs = threading.Event()
    bodies: list[str] = []

    @app.handler("orders")
    def handle(body: str) -> None:
        bodies.append(body)

    whole = Queue.receive
    hung: list[int] = []

    def receive(self: Queue, *arguments: Any, **named: Any) -> Any:
        if not hung:
            hung.append(1)
            hangs.wait(60)
        return whole(self, *arguments, **named)

    monkeypatch.setattr(Queue, "receive", receive)
    send(queue, ["x"])
    with running_app(app) as run:
        until(lambda: hung)
        run.runtime.consumers[0].receiver.last_poll -= 10_000
        assert not run.runtime.health().live
        until(lambda: bodies == ["x"])
        assert run.consumer().metrics.watchdog_restarts.count == 1
        assert run.runtime.health().live
        hangs.set()


def test_the_outbox_is_sent_after_the_commit(app: App, broker: EmbeddedBroker) -> None:
    queue, receipts = make_queue(app), make_queue(app, "receipts")

    @app.handler("orders")
    def handle(order: dict[str, Any], tx: Transaction) -> None:
        tx.send("receipts", {"for": order["n"]}, key=f"receipt-{order['n']}")

    send(queue, [json.dumps({"n": n}) for n in range(20)])
    with running_app(app) as run:
        until(lambda: run.deleted == 20)
        until(lambda: len(broker.peek("receipts")) == 20)
    assert receipts.name == "receipts"


def test_an_outbox_that_never_becomes_empty_does_not_keep_a_worker_from_stopping(
    app: App, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers commit all the time, and any of them can send it."""
    make_queue(app)
    make_queue(app, "receipts")
    monkeypatch.setattr("semel.consumer.runtime.FLUSH", 0.2)

    @app.handler("orders")
    def handle(body: str, tx: Transaction) -> None:
        pass

    sent_outgoing = SqliteLedger.sent_outgoing

    def sent_and_more_came(self: SqliteLedger, ids: Sequence[str]) -> None:
        sent_outgoing(self, ids)
        with self.transaction() as tx:
            tx.send("receipts", "another")

    with running_app(app, drain=0) as run:
        monkeypatch.setattr(SqliteLedger, "sent_outgoing", sent_and_more_came)
        with ledger.transaction() as tx:
            tx.send("receipts", "first")
        report = run.stop()
    assert report.outbox == 1
    assert report.clean


def test_the_attempt_log_tells_the_whole_story(app: App, tmp_path: Path) -> None:
    queue = make_queue(app)
    log = AttemptLog.open(str(tmp_path / "log"))

    @app.handler("orders")
    def handle(body: str) -> None:
        pass

    app._attempt_log = log
    send(queue, ["a", "b"])
    with running_app(app) as run:
        until(lambda: run.deleted == 2)
    log.close()
    steps: defaultdict[str, list[str]] = defaultdict(list)
    for line in logged(tmp_path / "log"):
        steps[line["message_id"]].append(line["step"])
        assert line["handler"].endswith("handle")
    assert len(steps) == 2
    for story in steps.values():
        assert story == ["received", "claimed", "started", "recorded", "deleted"]


def test_the_attempt_log_tells_of_a_message_that_comes_again_to_the_worker_that_has_it(
    app: App, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    queue = make_queue(app)
    log, go_on = AttemptLog.open(str(tmp_path / "log")), threading.Event()

    @app.handler("orders")
    def handle(body: str) -> None:
        go_on.wait(PATIENCE)

    app._attempt_log = log
    send(queue, ["a"])
    broker.faults.set("duplicate", 1.0)
    with running_app(app) as run:
        until(lambda: run.consumer().metrics.delivered_again.count)
        broker.faults.clear()
        go_on.set()
        until(lambda: run.deleted == 1)
    log.close()
    assert [line["step"] for line in logged(tmp_path / "log") if line["receive_count"] == 2] == ["received", "held"]


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: float(line["at"]))


def test_verdicts_are_all_handled() -> None:
    """A new kind of verdict would have to be taught to the consumer."""
    assert {kind.__name__ for kind in ClaimResult.__args__} == {"Won", "Done", "Held", "Conflict"}
