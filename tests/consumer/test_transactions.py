"""A handler with `tx`: its writes, the record and its outgoing messages are one commit."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from driven import LEASE, Calls, Place, dead_letter_details, ledger_away, new_place, shop, take
from running_apps import client_of
from semel import App, Context, Fixed, Lost, Reject, Retry, SemelError, Transaction
from semel.broker import running
from semel.consumer.delivery import Delivery
from semel.consumer.handler import Guarantee
from semel.consumer.in_flight import InFlight
from semel.consumer.lifecycle import Event
from semel.consumer.queue_reporter import QueueReporter
from semel.ledger.contract import LedgerUnavailable, Status
from semel.ledger.postgres.ledger import PostgresLedger
from semel.sqs import Entry
from semel.telemetry.attempt_log import Step

if TYPE_CHECKING:
    from servers.postgres import Server

Hook = Callable[[dict[str, Any], Context, Transaction], None]


class Bank:
    """Payments in, entries in a table of the ledger's own database, and a receipt for each."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with place.ledger.transaction() as tx:
            tx.execute("CREATE TABLE entries (id text, fence integer)")

    def app(self, *, before: Hook | None = None, after: Hook | None = None, sends: bool = False, **options: Any) -> App:
        app = App()

        @app.handler("payments", key="$.id", **({"retry": Fixed(5)} | options))
        def book(payment: dict[str, Any], ctx: Context, tx: Transaction) -> str:
            if before:
                before(payment, ctx, tx)
            tx.execute("INSERT INTO entries VALUES (?, ?)", (ctx.key, ctx.fence))
            if sends:
                tx.send("receipts", {"for": ctx.key}, key=f"receipt-{ctx.key}")
            if after:
                after(payment, ctx, tx)
            return f"entry {ctx.key}"

        return app

    def entries(self) -> list[tuple[str, int]]:
        with self._place.ledger.transaction() as tx:
            return list(tx.execute("SELECT id, fence FROM entries ORDER BY id, fence"))


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("payments", dlq="dead")
        place.queue("receipts")
        yield place


@pytest.fixture
def bank(place: Place) -> Bank:
    return Bank(place)


def fail(error: BaseException) -> Hook:
    def hook(_payment: dict[str, Any], ctx: Context, _tx: Transaction) -> None:
        if ctx.attempt == 1:
            raise error

    return hook


class TestCommit:
    def test_the_effect_and_the_record_are_there_together(self, place: Place, bank: Bank) -> None:
        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(), keep_result=True)
        assert worker.drain() == 1
        assert bank.entries() == [("p1", 1)]
        entry = place.known("p1", "payments")
        assert (entry.status, entry.result) == (Status.DONE, b'"entry p1"')
        assert place.is_empty("payments")
        assert worker.consumer("payments").in_flight.admission.in_use == 0

    @pytest.mark.parametrize("error", [ValueError("no"), Retry(after=5)])
    def test_a_failure_undoes_the_effect_and_the_next_attempt_makes_it(
        self, place: Place, bank: Bank, error: BaseException
    ) -> None:
        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(after=fail(error)))
        worker.drain()
        assert bank.entries() == []
        assert place.known("p1", "payments").status is Status.FREE
        place.clock.advance(5)
        worker.drain()
        assert bank.entries() == [("p1", 2)]

    def test_a_rejection_undoes_the_effect_and_becomes_a_dead_letter(self, place: Place, bank: Bank) -> None:
        place.send({"id": "p1"}, "payments")
        place.worker(bank.app(after=fail(Reject("no such account")), sends=True)).drain()
        assert bank.entries() == []
        assert place.is_empty("receipts")
        assert place.is_empty("payments")
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["error"] == "no such account"
        assert place.known("p1", "payments").status is Status.REJECTED

    @pytest.mark.parametrize("point", ["before_work", "before_commit", "after_record", "before_delete", "after_delete"])
    def test_a_death_at_any_point_leaves_one_effect(self, place: Place, bank: Bank, point: str) -> None:
        for n in range(4):
            place.send({"id": f"p{n}"}, "payments")
        worker = place.worker(bank.app(), crash_at=point)
        worker.drain()
        assert worker.crashed_at == point
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert [key for key, _ in bank.entries()] == ["p0", "p1", "p2", "p3"]
        assert place.is_empty("payments")

    def test_a_claim_that_another_has_taken_over_before_the_commit_undoes_it(self, place: Place, bank: Bank) -> None:
        def lose(_payment: dict[str, Any], ctx: Context, _tx: Transaction) -> None:
            if ctx.fence == 1:
                place.take_over("p1", "payments")
                place.clock.advance(LEASE / 3)
                worker.worker.beat()
                with pytest.raises(Lost):
                    ctx.check()

        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(before=lose))
        worker.drain()
        assert bank.entries() == []
        assert len(place.messages("payments")) == 1
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert bank.entries() == [("p1", 3)]
        assert place.is_empty("payments")

    def test_a_transaction_commits_although_its_handler_was_told_if_nobody_took_over(
        self, place: Place, bank: Bank, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def outlast_an_outage(_payment: dict[str, Any], ctx: Context, _tx: Transaction) -> None:
            ledger_away(monkeypatch, "extend")
            for _ in range(4):
                place.clock.advance(LEASE / 3)
                worker.worker.beat()
            monkeypatch.undo()
            assert ctx.lost.is_set()

        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(before=outlast_an_outage))
        assert worker.drain() == 1
        assert bank.entries() == [("p1", 1)]
        assert place.is_empty("payments")

    def test_the_guarantee_of_a_handler_is_told_by_what_it_asks_for(self, bank: Bank) -> None:
        (booking,) = bank.app().handlers.values()
        (shipping,) = shop(Calls()).handlers.values()
        assert booking.guarantee is Guarantee.EXACTLY_ONCE
        assert shipping.guarantee is Guarantee.DEDUPLICATED

    def test_an_async_handler_cannot_ask_for_a_transaction(self) -> None:
        app = App()

        async def book(payment: dict[str, Any], tx: Transaction) -> None: ...

        with pytest.raises(SemelError, match="async and asks for a transaction"):
            app.handler("payments")(book)

    def test_an_open_transaction_can_be_undone_in_parts(self, place: Place, bank: Bank) -> None:
        def write_and_undo(_payment: dict[str, Any], ctx: Context, tx: Transaction) -> None:
            with contextlib.suppress(ZeroDivisionError), tx.savepoint():
                tx.execute("INSERT INTO entries VALUES ('undone', 0)")
                raise ZeroDivisionError

        place.send({"id": "p1"}, "payments")
        place.worker(bank.app(before=write_and_undo)).drain()
        assert bank.entries() == [("p1", 1)]


class TestOutbox:
    def test_what_was_sent_inside_leaves_after_the_commit(self, place: Place, bank: Bank) -> None:
        waiting: list[bool] = []
        place.send({"id": "p1"}, "payments")
        place.worker(bank.app(sends=True, after=lambda *_: waiting.append(place.is_empty("receipts")))).drain()
        assert waiting == [True]
        assert place.bodies("receipts") == [{"for": "p1"}]

    def test_what_was_sent_in_a_failed_attempt_never_leaves(self, place: Place, bank: Bank) -> None:
        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(sends=True, after=fail(ValueError("no"))))
        worker.drain()
        assert place.is_empty("receipts")
        place.clock.advance(5)
        worker.drain()
        assert len(place.messages("receipts")) == 1

    def test_a_death_between_commit_and_sending_delays_it_and_no_more(self, place: Place, bank: Bank) -> None:
        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(sends=True), crash_at="after_record")
        worker.drain()
        assert place.is_empty("receipts")
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert place.bodies("receipts") == [{"for": "p1"}]
        assert bank.entries() == [("p1", 1)]

    def test_a_death_after_the_sending_sends_it_again_and_the_other_side_does_it_once(
        self, place: Place, bank: Bank
    ) -> None:
        receipts = Calls()
        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(sends=True), crash_at="after_outbox_send")
        worker.drain()
        assert worker.crashed_at == "after_outbox_send"
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert len(place.messages("receipts")) == 2
        printer = place.worker(shop(receipts, "receipts", key=None))
        printer.drain()
        place.clock.advance(LEASE + 2)
        printer.drain()
        assert receipts.attempts == [("receipt-p1", 1)]
        assert place.is_empty("receipts")

    def test_a_message_without_a_key_of_its_own_gets_one_that_its_second_sending_bears_too(
        self, place: Place, bank: Bank
    ) -> None:
        def send(_payment: dict[str, Any], _ctx: Context, tx: Transaction) -> None:
            tx.send("receipts", "one")
            tx.send("receipts", "two")

        calls = Calls()
        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(after=send), crash_at="after_outbox_send")
        worker.drain()
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert len(place.messages("receipts")) == 4
        app = App()

        @app.handler("receipts")
        def print_it(text: str, ctx: Context) -> None:
            calls(ctx)

        printer = place.worker(app)
        printer.drain()
        place.clock.advance(LEASE + 2)
        printer.drain()
        assert len(set(calls.keys)) == len(calls.keys) == 2

    def test_a_fifo_queue_takes_the_second_sending_for_the_first(self, place: Place, bank: Bank) -> None:
        place.queue("receipts.fifo")

        def send(_payment: dict[str, Any], _ctx: Context, tx: Transaction) -> None:
            tx.send("receipts.fifo", {"n": 1}, group="g")
            tx.send("receipts.fifo", {"n": 2}, group="g")

        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(after=send), crash_at="after_outbox_send")
        worker.drain()
        assert worker.crashed_at == "after_outbox_send"
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert place.bodies("receipts.fifo") == [{"n": 1}, {"n": 2}]

    def test_what_sqs_does_not_take_waits_in_the_outbox_and_holds_up_nobody_else(
        self, place: Place, bank: Bank
    ) -> None:
        def send(_payment: dict[str, Any], ctx: Context, tx: Transaction) -> None:
            tx.send("not-there-yet", {"n": 1})
            tx.send("receipts", {"for": ctx.key})

        place.send({"id": "p1"}, "payments")
        worker = place.worker(bank.app(after=send))
        worker.drain()
        assert bank.entries() == [("p1", 1)]
        assert place.bodies("receipts") == [{"for": "p1"}]
        place.queue("not-there-yet")
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert place.bodies("not-there-yet") == [{"n": 1}]
        assert len(place.messages("receipts")) == 1

    def test_delay_and_attributes_travel_with_it(self, place: Place, bank: Bank) -> None:
        def send(_payment: dict[str, Any], _ctx: Context, tx: Transaction) -> None:
            tx.send("receipts", "late", delay=60, attributes={"tenant": "acme"})

        place.send({"id": "p1"}, "payments")
        place.worker(bank.app(after=send)).drain()
        (message,) = place.messages("receipts", "delayed")
        assert message["MessageAttributes"]["tenant"]["StringValue"] == "acme"


def test_a_zombies_transaction_is_undone_whatever_it_wrote(place: Place, bank: Bank) -> None:
    successor = place.worker(bank.app())

    def sleep(_payment: dict[str, Any], _ctx: Context, _tx: Transaction) -> None:
        place.clock.advance(LEASE + 1)
        assert successor.drain() == 1

    place.send({"id": "p1"}, "payments")
    zombie = place.worker(bank.app(before=sleep, sends=True))
    consumer = take(zombie, "payments")
    zombie.worker.work(consumer)
    zombie.worker.dispatch_outbox()
    assert bank.entries() == [("p1", 2)]
    assert place.is_empty("receipts")
    assert consumer.metrics.fenced.count == 1


class TestAPoolThatIsSmallerThanTheConcurrency:
    """PostgreSQL: each open transaction needs a connection of its own."""

    @pytest.fixture
    def ledger(self, postgres_server: Server) -> Iterator[PostgresLedger]:
        schema = f"test_{uuid.uuid4().hex[:12]}"
        with PostgresLedger(postgres_server.url, schema=schema, pool_size=1) as ledger:
            yield ledger
            with ledger.transaction() as tx:
                tx.execute(f"DROP SCHEMA {schema} CASCADE")

    @pytest.fixture
    def app(self, ledger: PostgresLedger) -> Iterator[App]:
        with running() as broker, client_of(broker) as client:
            queue = client.create_queue("payments")
            queue.send_many([Entry(json.dumps({"id": n})) for n in range(4)])
            yield App(ledger, client=client, concurrency=4, lease=30, max_attempts=1)

    def test_holds_nobody_up_before_the_first_statement(self, app: App) -> None:
        together = threading.Barrier(4)

        @app.handler("payments", key="$.id")
        def book(payment: dict[str, Any], tx: Transaction) -> None:
            together.wait(30)
            tx.execute("SELECT 1")

        report = app.run(exit_when_empty=True)
        assert (report.completed, report.retried, report.dead_lettered) == (4, 0, 0)

    def test_makes_handlers_wait_for_each_other_and_costs_no_attempt(self, app: App, ledger: PostgresLedger) -> None:
        attempts, waiting = list[int](), threading.Semaphore(0)
        with ledger.transaction() as tx:
            tx.execute("SELECT 1")  # the connection is there
        ledger._timeout = 0.1  # of the pool only: what the ledger itself does has its full time

        @app.handler("payments", key="$.id")
        def book(payment: dict[str, Any], ctx: Context, tx: Transaction) -> None:
            attempts.append(ctx.attempt)
            waiting.release()
            tx.execute("SELECT 1")
            if len(attempts) < 4:  # the first one
                for _ in range(4):
                    assert waiting.acquire(timeout=30)
            tx.execute("SELECT pg_sleep(0.3)")  # several times as long as one waits for a connection at a time

        report = app.run(exit_when_empty=True)
        assert attempts == [1, 1, 1, 1]
        assert (report.completed, report.retried, report.dead_lettered) == (4, 0, 0)


def test_a_ledger_that_is_away_while_a_handler_works_costs_no_attempt(place: Place) -> None:
    place.queue("orders", dlq="dead")
    place.send({"id": 7})
    calls = Calls(LedgerUnavailable("away"), LedgerUnavailable("away"))
    worker = place.worker(shop(calls, max_attempts=1))
    for _ in range(3):
        worker.drain()
        place.clock.advance(LEASE)
    assert calls.attempts == [("7", 1), ("7", 1), ("7", 1)]
    assert place.is_empty("dead")
    assert place.is_empty()


def test_a_commit_is_logged_before_its_delete_can_be(place: Place, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reader of the attempt log would see a delete without a record before it."""
    order: list[Step | Event] = []
    apply = InFlight.apply

    def note_event(self: InFlight, event: Event, chunk: Sequence[Delivery]) -> None:
        order.append(event)
        apply(self, event, chunk)

    monkeypatch.setattr(InFlight, "apply", note_event)
    monkeypatch.setattr(QueueReporter, "logs_attempts", True)
    monkeypatch.setattr(QueueReporter, "log", lambda _self, step, *_rest, **_options: order.append(step))
    place.send({"id": "p1"}, "payments")
    assert place.worker(bank.app()).drain() == 1
    assert order.index(Step.RECORDED) < order.index(Event.COMMITTED)
