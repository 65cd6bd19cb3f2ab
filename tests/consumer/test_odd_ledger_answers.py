"""A ledger that refuses one message or does not answer: others continue, and nothing is logged or tried in a loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from driven import LEASE, Calls, Place, dead_letter_details, place_of, shop, take
from running_apps import client_of, running_app, send
from semel import App, Fixed
from semel.broker import running
from semel.consumer import runtime as runtime_module
from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, LedgerError, LedgerUnavailable, Status
from semel.ledger.sqlite.ledger import SqliteLedger
from waiting import until


class Picky(SqliteLedger):
    """Refuses keys that end in `bad`, in the calls that are named; or all keys, with `away`."""

    def __init__(self, path: str = ":memory:", **options: Any) -> None:
        super().__init__(path, **options)
        self.refused: set[str] = set()
        self.error: Exception = LedgerError("it cannot keep this")
        self.away: set[str] = set()
        self.calls = 0

    def _look_at(self, call: str, keys: Sequence[str]) -> None:
        if call in self.away:
            self.calls += 1
            raise LedgerUnavailable("away")
        if call in self.refused and any(key.endswith("bad") for key in keys):
            self.calls += 1
            raise self.error

    def claim(self, asks: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        self._look_at("claim", [ask.key for ask in asks])
        return super().claim(asks, claimant=claimant, lease=lease)

    def record(self, finishes: Sequence[Completion]) -> list[bool]:
        self._look_at("record", [finish.claim.key for finish in finishes if finish.result or "always" in self.refused])
        return super().record(finishes)

    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        self._look_at("release", [claim.key for claim in claims])
        return super().release(claims, tried=tried)

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        self._look_at("extend", [claim.key for claim in claims])
        return super().extend(claims, lease, timeout=timeout)


@pytest.fixture
def place() -> Iterator[Place]:
    with running(clock="manual") as broker, place_of(broker, lambda clock: Picky(clock=clock)) as place:
        place.queue("orders", dlq="dead")
        yield place


def picky(place: Place, *refused: str) -> Picky:
    ledger = place.ledger
    assert isinstance(ledger, Picky)
    ledger.refused = set(refused)
    return ledger


ERRORS = [LedgerError("it cannot keep this"), ValueError("a driver's own")]


@pytest.mark.parametrize("error", ERRORS)
def test_a_message_whose_key_the_ledger_refuses_is_dead_lettered_and_the_others_are_handled(
    place: Place, error: Exception
) -> None:
    picky(place, "claim").error = error
    calls = Calls()
    for key in ("a", "bad", "b", "c"):
        place.send({"id": key})
    worker = place.worker(shop(calls))
    assert worker.drain() == 3
    assert sorted(calls.keys) == ["a", "b", "c"]
    (dead,) = place.messages("dead")
    assert dead_letter_details(dead)["reason"] == "unclaimable"
    assert str(error) in dead_letter_details(dead)["error"]
    assert place.is_empty()


def test_a_key_that_comes_twice_beside_a_refused_one_is_handled_once(place: Place) -> None:
    picky(place, "claim")
    calls = Calls()
    for key in ("a", "bad", "a"):
        place.send({"id": key})
    worker = place.worker(shop(calls))
    worker.drain()
    place.clock.advance(LEASE + 3)
    worker.drain()
    assert calls.keys == ["a"]
    assert place.is_empty()


@pytest.mark.parametrize("error", ERRORS)
def test_a_message_whose_result_the_ledger_refuses_is_done_without_it_and_holds_up_no_other(
    place: Place, error: Exception
) -> None:
    picky(place, "record").error = error
    calls = Calls()
    for key in ("a", "bad", "b"):
        place.send({"id": key})
    worker = place.worker(shop(calls), keep_result=True)
    assert worker.drain() == 3
    assert place.known("bad").status is Status.DONE
    assert place.known("bad").result == b""
    assert place.known("b").result
    assert worker.consumer("orders").metrics.results_dropped.count == 1
    assert sorted(calls.keys) == ["a", "b", "bad"]
    assert place.is_empty()


def test_a_record_that_is_refused_for_good_holds_up_no_other(place: Place) -> None:
    picky(place, "record", "always")
    for key in ("a", "bad", "b"):
        place.send({"id": key})
    assert place.worker(shop(Calls())).drain() == 2
    assert place.known("a").status is place.known("b").status is Status.DONE
    assert place.bodies() == [{"id": "bad"}]


def test_a_claim_that_cannot_be_released_keeps_no_other_claimed(place: Place) -> None:
    picky(place, "release")
    for key in ("a", "bad", "b"):
        place.send({"id": key})
    place.worker(shop(Calls(*[ValueError("no")] * 3), retry=Fixed(5))).drain()
    assert place.known("a").status is place.known("b").status is Status.FREE
    assert place.known("bad").status is Status.CLAIMED


def test_a_lease_that_cannot_be_extended_costs_no_other_message_its_own(place: Place) -> None:
    picky(place, "extend")
    for key in ("a", "bad", "b"):
        place.send({"id": key})
    calls = Calls()
    worker = place.worker(shop(calls))
    consumer = take(worker)
    for _ in range(6):
        place.clock.advance(LEASE / 4)
        worker.worker.beat()
    worker.worker.work(consumer)
    assert sorted(calls.keys) == ["a", "b"]


def test_the_same_error_is_said_once_in_a_while_and_how_often_it_was_left_out(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = picky(place)
    place.send({"id": "a"})
    worker = place.worker(shop(Calls()))
    consumer = take(worker)
    ledger.away = {"record"}

    def said() -> list[str]:
        return [record.message for record in caplog.records if "the ledger failed at record" in record.message]

    for _ in range(50):
        worker.worker.work(consumer)
    assert ledger.calls >= 50
    assert len(said()) == 1
    tried = ledger.calls
    place.clock.advance(6)
    worker.worker.work(consumer)
    assert f"(repeated {tried - 1} more times since)" in said()[1]
    assert len(said()) == 2


def test_the_heartbeat_does_not_spin_over_an_outcome_that_cannot_be_recorded(place: Place) -> None:
    ledger = picky(place)
    place.send({"id": "a"})
    worker = place.worker(shop(Calls()))
    consumer = take(worker)
    ledger.away = {"record", "extend"}
    worker.worker.work(consumer)
    place.clock.advance(LEASE + 1)  # past its deadline: this process was held up
    rounds = 0
    while worker.worker.heartbeat.run_once():
        rounds += 1
        assert rounds < 100


def test_the_recorder_does_not_spin_at_the_end_when_the_ledger_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "FLUSH", 0.5)
    with (
        running() as broker,
        client_of(broker) as client,
        Picky(str(tmp_path / "ledger.db")) as ledger,
    ):
        queue = client.create_queue("orders")
        app, done = App(ledger, client=client, wait=1, drain=0.2), threading.Event()

        @app.handler("orders")
        def handle(body: str) -> None:
            ledger.away = {"record"}
            done.set()

        send(queue, ["a"])
        with running_app(app) as run:
            assert done.wait(60)
            until(lambda: ledger.calls)
            run.stop()
            assert ledger.calls < 50
            for thread in run.threads("record"):
                thread.join(60)  # it does not go on after the app has stopped
                assert not thread.is_alive()


def test_while_the_ledger_refuses_one_record_for_good_the_others_are_recorded_without_a_pause(tmp_path: Path) -> None:
    with running() as broker, client_of(broker) as client, Picky(str(tmp_path / "ledger.db")) as ledger:
        ledger.refused = {"record", "always"}
        queue = client.create_queue("orders")
        app = App(ledger, client=client, wait=1, drain=0.2)

        @app.handler("orders", key=lambda body: body)
        def handle(body: str) -> None: ...

        send(queue, ["bad"])
        with running_app(app) as run:
            until(lambda: ledger.calls > 5)  # its pauses are long by now
            for number in range(5):
                send(queue, [f"good-{number}"])
                until(lambda number=number: run.deleted == number + 1)  # type: ignore[misc]
            assert ledger.calls < 20
            assert run.runtime.health().ready
            ledger.refused = set()
            until(lambda: run.deleted == 6)
