"""Provably exactly once: the user's writes, the record and the outgoing messages in one commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.conftest import Opener
from ledger.stores import TRANSACTIONAL, Shift, StoreUnderTest, on
from semel.ledger.contract import (
    Claim,
    ClaimRequest,
    Completion,
    Done,
    Fenced,
    Ledger,
    Outgoing,
    Status,
    Transaction,
    Won,
)

pytestmark = on(TRANSACTIONAL)


class Effects:
    """A table of the user's own, in the ledger's database."""

    def __init__(self, store: StoreUnderTest, ledger: Ledger) -> None:
        self._ledger, self._table, self._place = ledger, store.effects, store.placeholder
        with ledger.transaction() as tx:
            tx.execute(f"CREATE TABLE {self._table} (id text, who text)")

    def add(self, tx: Transaction, key: str, who: str = "") -> Any:
        return tx.execute(f"INSERT INTO {self._table} (id, who) VALUES ({self._place}, {self._place})", (key, who))

    def add_many(self, tx: Transaction, keys: list[str]) -> None:
        values = [(key, "") for key in keys]
        tx.executemany(f"INSERT INTO {self._table} (id, who) VALUES ({self._place}, {self._place})", values)

    def all(self) -> list[tuple[str, str]]:
        with self._ledger.transaction() as tx:
            return [tuple(row) for row in tx.execute(f"SELECT id, who FROM {self._table} ORDER BY id, who").fetchall()]


@pytest.fixture
def effects(store: StoreUnderTest, ledger: Ledger) -> Effects:
    return Effects(store, ledger)


def drained(ledger: Ledger) -> list[Outgoing]:
    """All that waits in the outbox, handed over and marked as sent."""
    sent: list[Outgoing] = []
    while batch := ledger.take_outgoing():
        ledger.sent_outgoing([it.id for it in batch])
        sent += batch
    return sent


def test_it_says_that_it_is_transactional(ledger: Ledger) -> None:
    assert ledger.transactional


def test_the_record_and_the_effect_are_committed_together(
    ledger: Ledger, make_ledger: Opener, effects: Effects
) -> None:
    claim, other = win(ledger, "a").claim, make_ledger()
    with ledger.transaction() as tx:
        effects.add(tx, "a")
        assert tx.record([Completion(claim, result=b"booked")]) == [True]
        assert entry(other, "a").status is Status.CLAIMED  # nobody sees it before the commit
    assert ask(other, "a") == Done("a", Status.DONE, b"booked")
    assert effects.all() == [("a", "")]


def test_an_exception_undoes_everything(ledger: Ledger, effects: Effects) -> None:
    claim = win(ledger, "a").claim

    def fail() -> None:
        with ledger.transaction() as tx:
            effects.add(tx, "a")
            tx.send("receipts", "a")
            assert tx.record([Completion(claim)]) == [True]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert entry(ledger, "a").status is Status.CLAIMED
    assert effects.all() == []
    assert ledger.take_outgoing() == []
    assert finish(ledger, claim)  # the claim is as it was


def test_a_zombie_is_refused_inside_its_transaction_and_undoes_its_effect(
    ledger: Ledger, clock_offset: Shift, effects: Effects
) -> None:
    zombie = win(ledger, "a").claim
    clock_offset.advance(LEASE + 1)
    successor = win(ledger, "a").claim

    def go_on_as_if_nothing_had_happened() -> None:
        with ledger.transaction() as tx:
            effects.add(tx, "a", "zombie")
            if tx.record([Completion(zombie)]) != [True]:
                raise Fenced("a newer claim on a")

    with pytest.raises(Fenced):
        go_on_as_if_nothing_had_happened()
    with ledger.transaction() as tx:
        effects.add(tx, "a", "successor")
        assert tx.record([Completion(successor)]) == [True]
    assert effects.all() == [("a", "successor")]


def test_of_many_holders_in_turn_one_transaction_commits(
    ledger: Ledger, make_ledger: Opener, clock_offset: Shift, effects: Effects
) -> None:
    """Every former holder of each key tries to commit its effect at the same time as the last one."""
    ledgers, keys = [ledger, make_ledger()], [f"order-{n}" for n in range(5)]
    holders: list[list[Claim]] = []
    for turn in range(4):
        verdicts = ledger.claim([ClaimRequest(key) for key in keys], claimant=str(turn), lease=LEASE)
        holders.append([verdict.claim for verdict in verdicts if isinstance(verdict, Won)])
        clock_offset.advance(LEASE + 1)

    def worker(number: int) -> Callable[[], int]:
        def work() -> int:
            done = 0
            for claim in holders[number]:
                try:
                    with ledgers[number % 2].transaction() as tx:
                        effects.add(tx, claim.key, str(number))
                        if tx.record([Completion(claim)]) != [True]:
                            raise Fenced(claim.key)
                except Fenced:
                    continue
                done += 1
            return done

        return work

    assert at_once([worker(n) for n in range(4)]) == [0, 0, 0, 5]
    assert effects.all() == [(key, "3") for key in keys]


def test_a_transaction_may_record_many_and_write_much(ledger: Ledger, effects: Effects) -> None:
    keys = [f"order-{n:03}" for n in range(200)]
    verdicts = ledger.claim([ClaimRequest(key) for key in keys], claimant="me", lease=LEASE)
    claims = [verdict.claim for verdict in verdicts if isinstance(verdict, Won)]
    with ledger.transaction() as tx:
        effects.add_many(tx, keys)
        finishes = [Completion(claim, result=claim.key.encode()) for claim in claims]
        assert tx.record([*finishes, Completion(Claim("unknown", 1))]) == [True] * 200 + [False]
    assert [key for key, _ in effects.all()] == keys
    assert all(entry is not None and entry.result == entry.key.encode() for entry in ledger.get(keys))


def test_a_transaction_that_does_nothing_is_fine(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        pass
    with ledger.transaction() as tx:
        assert tx.record([]) == []


def test_the_connection_is_the_drivers_own_and_in_the_transaction(
    ledger: Ledger, effects: Effects, store: StoreUnderTest
) -> None:
    def fail() -> None:
        with ledger.transaction() as tx:
            tx.connection.execute(f"INSERT INTO {store.effects} (id, who) VALUES ('a', 'b')")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert effects.all() == []


class TestSavepoints:
    def test_a_part_that_fails_is_undone_alone(self, ledger: Ledger, effects: Effects) -> None:
        good, bad = win(ledger, "good").claim, win(ledger, "bad").claim
        with ledger.transaction() as tx:
            for claim in (bad, good):
                try:
                    with tx.savepoint():
                        effects.add(tx, claim.key)
                        tx.send("receipts", claim.key)
                        assert tx.record([Completion(claim)]) == [True]
                        if claim == bad:
                            raise ValueError("a poisonous one")
                except ValueError:
                    continue
        assert effects.all() == [("good", "")]
        assert [it.body for it in drained(ledger)] == ["good"]
        assert [entry(ledger, key).status for key in ("good", "bad")] == [Status.DONE, Status.CLAIMED]

    def test_an_error_of_the_database_inside_does_not_spoil_the_rest(self, ledger: Ledger, effects: Effects) -> None:
        def fail(tx: Transaction) -> None:
            with tx.savepoint():
                effects.add(tx, "inside")
                tx.execute("INSERT INTO no_such_table VALUES (1)")

        with ledger.transaction() as tx:
            effects.add(tx, "before")
            with pytest.raises(Exception, match="no_such_table"):
                fail(tx)
            effects.add(tx, "after")
        assert effects.all() == [("after", ""), ("before", "")]

    def test_they_nest(self, ledger: Ledger, effects: Effects) -> None:
        def fail(tx: Transaction) -> None:
            with tx.savepoint():
                effects.add(tx, "inner")
                raise ValueError

        with ledger.transaction() as tx, tx.savepoint():
            effects.add(tx, "outer")
            with pytest.raises(ValueError):
                fail(tx)
        assert effects.all() == [("outer", "")]


class TestOutbox:
    def test_a_committed_message_waits_with_all_that_it_was_sent_with(
        self, ledger: Ledger, make_ledger: Opener
    ) -> None:
        other = make_ledger()
        with ledger.transaction() as tx:
            tx.send("plain", "text", delay=30)
            tx.send(
                "orders.fifo",
                {"id": 7, "name": "Zoë"},
                key="order-7/receipt",
                group="g",
                attributes={"a": "ü"},
            )
            assert other.take_outgoing() == []  # it is not sent before the commit
        first, second = drained(ledger)
        assert (first.queue, first.body, first.key, first.delay, first.group, first.attributes) == (
            *("plain", "text", "", 30, None),
            {},
        )
        assert (second.queue, second.key, second.delay, second.group) == ("orders.fifo", "order-7/receipt", None, "g")
        assert (json.loads(second.body), second.attributes) == ({"id": 7, "name": "Zoë"}, {"a": "ü"})
        assert first.id
        assert first.id != second.id
        assert ledger.take_outgoing() == []

    def test_what_is_taken_is_hidden_until_its_lease_ends(self, ledger: Ledger, clock_offset: Shift) -> None:
        with ledger.transaction() as tx:
            tx.send("receipts", "a")
        (first,) = ledger.take_outgoing(lease=30)
        assert ledger.take_outgoing() == []
        clock_offset.advance(31)
        assert ledger.take_outgoing() == [first]  # the one who took it may have crashed; its id is the same
        ledger.sent_outgoing([first.id])
        clock_offset.advance(31)
        assert ledger.take_outgoing() == []

    def test_they_come_in_the_order_of_sending_and_no_more_than_asked_for(self, ledger: Ledger) -> None:
        with ledger.transaction() as tx:
            for number in range(25):
                tx.send("receipts", str(number))
        batches = [[it.body for it in ledger.take_outgoing(limit=10)] for _ in range(4)]
        assert [len(batch) for batch in batches] == [10, 10, 5, 0]
        assert [body for batch in batches for body in batch] == [str(number) for number in range(25)]

    def test_those_that_somebody_has_taken_count_until_they_are_sent(self, ledger: Ledger) -> None:
        with ledger.transaction() as tx:
            for number in range(3):
                tx.send("receipts", str(number))
        (first,) = ledger.take_outgoing(limit=1)
        assert ledger.count_outgoing() == 3
        ledger.sent_outgoing([first.id])
        assert ledger.count_outgoing() == 2
        drained(ledger)
        assert ledger.count_outgoing() == 0

    def test_each_is_taken_by_one_of_many(self, ledger: Ledger, make_ledger: Opener) -> None:
        with ledger.transaction() as tx:
            for number in range(60):
                tx.send("receipts", str(number))
        ledgers = [ledger, make_ledger()]

        def worker(number: int) -> Callable[[], list[Outgoing]]:
            return lambda: drained(ledgers[number % 2])

        bodies = [it.body for part in at_once([worker(n) for n in range(6)]) for it in part]
        assert sorted(bodies, key=int) == [str(number) for number in range(60)]

    def test_marking_what_is_unknown_or_gone_does_no_harm(self, ledger: Ledger) -> None:
        with ledger.transaction() as tx:
            tx.send("receipts", "a")
        (first,) = ledger.take_outgoing()
        ledger.sent_outgoing([])
        ledger.sent_outgoing([first.id])
        ledger.sent_outgoing([first.id])
        assert ledger.take_outgoing() == []
