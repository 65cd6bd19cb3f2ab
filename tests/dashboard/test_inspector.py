"""The inspector with a real broker, a real ledger and real workers: queues, messages and deliveries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dashboard.serving import Shop, shop
from semel import App, Retry, SqliteLedger
from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.views import DashboardError, NotThere, QueueInspector, search
from semel.dashboard.views.model import Level
from semel.dlq.filter.parser import FilterError
from waiting import until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path / "state", clock="manual") as place:
        yield place


@pytest.fixture
def inspector(place: Shop) -> Iterator[QueueInspector]:
    inspector = QueueInspector(place.settings(), client=place.client)
    yield inspector
    inspector.close()


def levels(inspector: QueueInspector, queue: str) -> dict[str, Level]:
    inspector.changed(queue)
    return {alarm.name: alarm.level for alarm in inspector.queue(queue).row.alarms}


# Queues.


def test_rates_come_from_the_brokers_own_past(inspector: QueueInspector, place: Shop) -> None:
    place.broker.clock.advance(10)
    for _ in range(20):
        place.orders.send("x")
    place.orders.delete([message.receipt for message in place.orders.receive(10, 0)])
    place.broker.clock.advance(10)
    inspector.changed()
    row = inspector.queue("orders").row
    assert row.rates.sent == pytest.approx(1.0, abs=0.5)
    assert row.rates.received == row.rates.deleted == pytest.approx(0.5, abs=0.25)
    page = inspector.queue("orders")
    assert page.series.source == "broker"
    assert page.series.visible[-1] == 10
    assert len(page.series.at) == len(page.series.sent) == len(page.series.oldest_age)


def test_alarms_are_raised_by_what_is_there(inspector: QueueInspector, place: Shop) -> None:
    assert levels(inspector, "orders") == {
        "dead-letters": Level.OK,
        "age": Level.OK,
        "in-flight": Level.OK,
        "not-deleted": Level.UNKNOWN,
    }
    place.dead_letter(1)
    assert levels(inspector, "orders")["dead-letters"] is Level.WARNING
    assert levels(inspector, "orders-dlq")["dead-letters"] is Level.WARNING
    assert inspector.queue("orders").row.level is Level.WARNING


def test_an_old_message_raises_the_age_and_one_near_its_end_is_critical(inspector: QueueInspector, place: Shop) -> None:
    place.orders.send("x")
    for _ in range(30):
        place.broker.clock.advance(60)
    assert levels(inspector, "orders")["age"] is Level.WARNING
    place.broker.clock.advance(3.9 * 86_400)
    for _ in range(3):
        place.broker.clock.advance(30)
    assert levels(inspector, "orders")["age"] is Level.CRITICAL


def test_what_is_received_and_not_deleted_raises_an_alarm(inspector: QueueInspector, place: Shop) -> None:
    for _ in range(30):
        place.orders.send("x")
    for _ in range(3):
        place.orders.receive(10, 0)
    place.broker.clock.advance(10)
    assert levels(inspector, "orders")["not-deleted"] is Level.WARNING


def test_a_queue_without_dead_letter_queue_is_told_so(inspector: QueueInspector, place: Shop) -> None:
    place.client.create_queue("alone")
    (alarm,) = [alarm for alarm in inspector.queue("alone").row.alarms if alarm.name == "dead-letters"]
    assert alarm.level is Level.INFO


def test_a_queue_that_was_just_made_is_found(inspector: QueueInspector, place: Shop) -> None:
    inspector.queues()
    place.client.create_queue("brand-new")
    assert inspector.queue("brand-new").row.name == "brand-new"
    with pytest.raises(NotThere, match="list of queues"):
        inspector.queue("never-made")


def test_nothing_is_asked_while_nobody_looks(place: Shop) -> None:
    inspector = QueueInspector(place.settings(), client=place.client)
    asked: list[str] = []
    exchange = place.client.exchange

    def counted(method: str, path: str, *rest: Any, **more: Any) -> Any:
        asked.append(path)
        return exchange(method, path, *rest, **more)

    place.client.exchange = counted  # type: ignore[method-assign, assignment]
    inspector.begin()
    inspector.queues()
    after = len(asked)
    for _ in range(20):  # ten tabs in one moment ask once
        inspector.queues()
    assert len([path for path in asked[after:] if "queues" in path]) <= 1
    inspector.close()


def test_a_value_that_was_read_before_a_change_is_not_kept() -> None:
    cache: TtlCache[int] = TtlCache(60)

    def read() -> int:
        cache.forget()  # the change, while it is read
        return 1

    assert cache.get("", read) == 1
    assert cache.get("", lambda: 2) == 2
    assert cache.get("", lambda: 3) == 2


# Messages: why is it stuck?


def test_a_message_in_flight_says_when_it_comes_back_and_how_often_it_may(
    inspector: QueueInspector, place: Shop
) -> None:
    id = place.orders.send("x").message_id
    place.orders.receive(1, 0)
    page = inspector.message("orders", id)
    assert page.retries_left == 2
    assert page.next_visible_at == pytest.approx(inspector.now() + 30)
    assert "in flight for another 30 s" in page.stuck[0]
    place.broker.clock.advance(31)
    place.orders.receive(1, 0)
    place.broker.clock.advance(31)
    place.orders.receive(1, 0)
    place.broker.clock.advance(31)
    assert any("next receive moves it to orders-dlq" in sentence for sentence in inspector.message("orders", id).stuck)


def test_a_fifo_message_names_the_one_that_holds_it_back(inspector: QueueInspector, place: Shop) -> None:
    queue = place.client.create_queue("steps.fifo")
    first = queue.send("1", group="g", dedup="1").message_id
    second = queue.send("2", group="g", dedup="2").message_id
    queue.receive(1, 0)
    assert first in inspector.message("steps.fifo", second).stuck[0]


def test_a_delayed_message_and_one_near_its_end_say_so(inspector: QueueInspector, place: Shop) -> None:
    id = place.orders.send("x", delay=60).message_id
    assert "delayed for another 60 s" in inspector.message("orders", id).stuck[0]
    place.broker.clock.advance(3.5 * 86_400)
    assert any("retention ends" in sentence for sentence in inspector.message("orders", id).stuck)


def test_a_message_that_is_gone_is_told_so(inspector: QueueInspector, place: Shop) -> None:
    id = place.orders.send("x").message_id
    place.orders.delete([place.orders.receive(1, 0)[0].receipt])
    with pytest.raises(NotThere, match="is not in orders"):
        inspector.message("orders", id, place=1)


def test_a_dead_letter_tells_its_error_and_what_the_ledger_knows(place: Shop, tmp_path: Path) -> None:
    from semel.ledger.contract import ClaimRequest, Completion, Status, Won

    (id,) = place.dead_letter(1, "KeyError: 'total'")
    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger:
        key = f"{place.orders.scope}/order-0"
        (won,) = ledger.claim([ClaimRequest(key, source="orders/message-0")], claimant="w1", lease=30)
        assert isinstance(won, Won)
        ledger.record([Completion(won.claim, Status.REJECTED)])
        inspector = QueueInspector(place.settings(), client=place.client, ledger=ledger)
        page = inspector.message("orders-dlq", id)
        inspector.close()
    assert page.is_dead_letter
    assert page.ledger is not None
    assert (page.ledger.key, page.ledger.status) == (key, "rejected")
    said = " ".join(page.stuck)
    assert "dead-letter message of orders" in said
    assert "KeyError" in said
    assert "rejected" in said


def test_a_ledger_that_is_away_is_a_sentence_and_not_an_error(place: Shop) -> None:
    id = place.orders.send("x").message_id
    inspector = QueueInspector(place.settings(ledger="redis://127.0.0.1:1/0"), client=place.client)
    for _ in range(2):
        assert "does not answer" in inspector.message("orders", id).ledger_note
    inspector.close()


# Dead letters.


def test_dead_letter_messages_are_grouped_and_their_group_is_a_filter(inspector: QueueInspector, place: Shop) -> None:
    place.dead_letter(30, "Timeout: no answer from 10.0.0.1 after 31 s")
    place.dead_letter(5, "KeyError: 'total'", start=100)
    page = until(lambda: (now := inspector.dead_letters("orders-dlq")).complete and now, "the search")
    assert [group.count for group in page.groups] == [30, 5]
    assert (page.matched, page.total) == (35, 35)
    small = until(
        lambda: (now := inspector.dead_letters("orders-dlq", page.groups[1].where)).complete and now, "the search"
    )
    assert small.matched == 5
    assert {row.error for row in small.messages} == {"KeyError: 'total'"}
    pages = inspector.dead_letters("orders-dlq", limit=20)
    rest = inspector.dead_letters("orders-dlq", limit=20, after=pages.next)
    assert [len(pages.messages), len(rest.messages), rest.next] == [20, 15, None]


def test_messages_beyond_those_that_a_search_keeps_are_listed_too(
    inspector: QueueInspector, place: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_MESSAGES", 20)
    ids = place.dead_letter(63)
    listed: list[str] = []
    after: str | None = None
    while True:
        page = inspector.dead_letters("orders-dlq", limit=15, after=after, wait=60)
        assert page.matched == 63
        listed += [message.id for message in page.messages]
        after = page.next
        if after is None:
            break
    assert listed == ids


def test_a_wrong_filter_is_shown_where_it_is_wrong(inspector: QueueInspector, place: Shop) -> None:
    assert "^" in (inspector.dead_letters("orders-dlq", "age >").error or "")
    with pytest.raises(FilterError, match=r"\^"):
        inspector.messages("orders", "age >")


def test_dead_letter_queues_know_when_the_first_is_lost(inspector: QueueInspector, place: Shop) -> None:
    place.dead_letter(2)
    place.broker.clock.advance(3600)
    inspector.changed("orders-dlq")
    (row,) = inspector.dead_letter_queues()
    assert row.depth == 2
    assert row.oldest_age == pytest.approx(3600, abs=1)
    assert row.first_expires == pytest.approx(inspector.now() + 1_209_600 - 3600, abs=1)


# Faults are the broker's.


def test_faults_are_set_and_ended_for_one_queue_only(inspector: QueueInspector) -> None:
    inspector.broker.set_fault("duplicate", 0.1, None, None)
    inspector.broker.set_fault("latency", 0.2, "orders", 50)
    inspector.broker.clear_faults(None, "orders")
    left = [fault for fault in inspector.broker.faults("orders") if fault.rate]
    assert [(fault.kind, fault.queue) for fault in left] == [("duplicate", None)]


# Workers and once.


@pytest.fixture
def worker(place: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """An app with a health endpoint; its handler waits where a test tells it to."""
    monkeypatch.setenv("SEMEL_STATE", str(place.state))
    go, entered = threading.Event(), threading.Event()
    app = App(SqliteLedger(str(tmp_path / "ledger.db")), client=place.client, wait=1)

    def handle(body: dict[str, Any]) -> None:
        if body.get("waits"):
            entered.set()
            go.wait(60)
        if body.get("fails"):
            raise Retry("not yet")

    app.handler("orders", key="$.key", concurrency=2)(handle)
    with ExitStack() as stack:
        runtime = app.start(stack, health="0", name="shop:app")
        try:
            yield {"app": app, "go": go, "entered": entered}
        finally:
            go.set()
            runtime.stop()
            runtime.finish()


def test_a_worker_shows_what_it_has_in_progress_and_can_be_paused(
    inspector: QueueInspector, place: Shop, worker: dict[str, Any]
) -> None:
    id = place.orders.send(json.dumps({"key": "k1", "waits": True})).message_id
    assert worker["entered"].wait(60)
    row = until(
        lambda: next((row for row in inspector.workers().workers if row.queues[0].in_progress), None), "the worker"
    )
    (held,) = row.queues[0].in_progress
    assert (held.message_id, held.key, row.app, row.live) == (id, "k1", "shop:app", True)
    page = inspector.message("orders", id)
    assert page.in_progress is not None
    assert "has been processing it" in page.stuck[0]
    assert inspector.queue("orders").row.workers == 1
    assert "paused" in inspector.directory.control(row.id, "pause", "orders", None)
    assert inspector.workers().workers[0].paused
    assert "the concurrency of orders to 3" in inspector.directory.control(row.id, "concurrency", "orders", 3)
    assert inspector.workers().workers[0].queues[0].concurrency == 3
    inspector.directory.control(row.id, "resume", None, None)
    assert not inspector.workers().workers[0].paused
    with pytest.raises(DashboardError, match="does not receive from"):
        inspector.directory.control(row.id, "pause", "nope", None)
    with pytest.raises(NotThere):
        inspector.directory.control("nobody", "pause", None, None)


def test_deliveries_are_held_against_effects(inspector: QueueInspector, place: Shop, worker: dict[str, Any]) -> None:
    for _ in range(3):  # a producer that sends the same thing three times
        place.orders.send(json.dumps({"key": "same"}))
    place.orders.send(json.dumps({"key": "other"}))
    page = until(lambda: (now := inspector.deliveries()).deliveries >= 4 and now.effects >= 2 and now, "the work")
    assert page.effects == 2
    assert page.workers == 1
    (queue,) = [queue for queue in page.queues if queue.queue == "orders"]
    assert queue.effects == 2
    assert {row.cause for row in page.caught} == {"duplicates_deleted", "claimed_elsewhere", "fenced", "conflicts"}


def test_the_trail_of_a_message_is_every_attempt_with_its_error(place: Shop, tmp_path: Path) -> None:
    from semel.telemetry.attempt_log.events import Attempt, Step, encode

    id = place.orders.send("x").message_id
    events = [
        Attempt(1_000.0, Step.STARTED, "orders", id, key="k", attempt=1, worker="w1"),
        Attempt(1_001.0, Step.RETRIED, "orders", id, key="k", attempt=1, worker="w1", error="Timeout: bank"),
        Attempt(1_000.5, Step.STARTED, "orders", "another", key="other", attempt=1, worker="w1"),
    ]
    log = tmp_path / "log"
    log.mkdir()
    (log / "attempts.jsonl").write_bytes(encode(events, "w")[0])
    inspector = QueueInspector(place.settings(attempt_logs=(str(log),)), client=place.client)
    page = inspector.message("orders", id)
    assert [(event.step, event.error) for event in page.trail] == [("started", ""), ("retried", "Timeout: bank")]
    assert page.trail_note == ""
    assert any("Timeout: bank" in sentence for sentence in page.stuck)
    place.orders.receive(wait=0, visibility=600)  # as a retry hides it
    hidden = inspector.message("orders", id)
    inspector.close()
    assert "failed and waits for its next attempt" in hidden.stuck[0]


def test_what_a_worker_counted_stays_when_it_has_ended() -> None:
    from semel.dashboard.views.deliveries import DeliveryCounts

    lines = ("semel_received_total", 10), ("semel_completed_total", 9), ("semel_in_flight", 4)
    texts = {"w1": "".join(f'{name}{{queue="orders"}} {count}\n' for name, count in lines)}

    class WorkerDirectory:
        def metrics(self) -> dict[str, str]:
            return dict(texts)

    now = [100.0]
    once = DeliveryCounts(WorkerDirectory(), clock=lambda: now[0])  # type: ignore[arg-type]
    once._sample()
    texts["w1"] = texts["w1"].replace("} 10", "} 30").replace("} 9", "} 19")
    now[0] += 10
    once._sample()
    texts.clear()
    texts["w2"] = 'semel_received_total{queue="orders"} 1000\n'
    now[0] += 10
    once._sample()
    page = once.page()
    assert (page.deliveries, page.effects, page.workers) == (1030, 19, 1)
    assert page.queues[0].in_flight == 0
    # What w2 had counted before it was first seen is no work of these ten seconds.
    assert page.series.deliveries[:2] == (2.0, 0.0)


def test_a_worker_that_does_not_answer_is_shown_with_the_reason(place: Shop) -> None:
    inspector = QueueInspector(place.settings(workers=("127.0.0.1:1",)), client=place.client)
    (row,) = inspector.workers().workers
    assert row.error is not None
    assert not row.live
    inspector.close()


# The doctor.


def test_the_doctor_examines_the_brokers_own_past(place: Shop, credentials: None) -> None:
    place.broker.clock.advance(60)
    place.orders.send("x")
    place.broker.clock.advance(60)
    inspector = QueueInspector(place.settings(), client=place.client)
    inspector.doctor()
    assert inspector.doctor_job.wait(60)
    assert inspector.doctor_job.diagnosis is not None
    assert all(case.series is not None for case in inspector.doctor_job.diagnosis.cases)  # the broker's own past
    page = inspector.doctor()
    assert page.error is None
    assert page.findings
    inspector.close()
