"""A store that becomes unreachable and comes back, and answers that are lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.asking import LEASE, ask, entry, finish, win
from ledger.conftest import Opener
from ledger.lossy import Lossy, lossy
from ledger.stores import REMOTE, StoreUnderTest, on
from semel.ledger.contract import (
    Claim,
    ClaimRequest,
    Completion,
    Done,
    Held,
    Ledger,
    LedgerUnavailable,
    OutcomeUnknown,
    Status,
    Won,
)


def test_while_the_store_is_away_every_write_says_so_and_later_all_goes_on(
    make_ledger: Opener, store: StoreUnderTest
) -> None:
    ledger = make_ledger(impatient=True)
    mine, done = win(ledger, "mine", claimant="me").claim, win(ledger, "done").claim
    assert finish(ledger, done, result=b"before")
    with store.outage():
        for write in (
            lambda: ledger.claim([ClaimRequest("new")], claimant="me", lease=LEASE),
            lambda: ledger.extend([mine], LEASE),
            lambda: ledger.record([Completion(mine)]),
            lambda: ledger.release([mine]),
            lambda: ledger.save_step(mine, "step", b"1"),
            lambda: ledger.forget(["done"]),
        ):
            with pytest.raises(LedgerUnavailable) as raised:
                write()
            assert not isinstance(raised.value, OutcomeUnknown)
            assert len(str(raised.value)) > 20
    assert ask(ledger, "done") == Done("done", Status.DONE, b"before")
    assert isinstance(ask(ledger, "mine"), Held)
    assert win(ledger, "mine", claimant="me").claim == mine
    assert win(ledger, "new").claim == Claim("new", 1)
    assert ledger.save_step(mine, "step", b"1")
    assert finish(ledger, mine)


def test_a_ledger_that_was_idle_while_the_store_was_away_notices_nothing(ledger: Ledger, store: StoreUnderTest) -> None:
    mine = win(ledger, "mine").claim
    with store.outage():
        pass
    assert ledger.extend([mine], LEASE) == [True]
    assert isinstance(ask(ledger, "mine"), Held)
    assert finish(ledger, mine)


@on(REMOTE)
class TestALostAnswer:
    @pytest.fixture
    def wire(self, store: StoreUnderTest) -> Iterator[Lossy]:
        assert store.port is not None
        with lossy(store.port) as wire:
            yield wire

    @pytest.fixture
    def ledger(self, wire: Lossy, make_ledger: Opener) -> Iterator[Ledger]:
        """Closed before the wire is."""
        with make_ledger(via=wire.port) as ledger:
            yield ledger

    def test_to_a_claim_is_asked_for_again_and_wins_what_was_won(self, ledger: Ledger, wire: Lossy) -> None:
        wire.lose(b"order-lost")
        won = win(ledger, "order-lost")
        assert wire.lost == 1
        assert (won.claim, won.attempt) == (Claim("order-lost", 1), 1)
        assert finish(ledger, won.claim)

    def test_to_a_claim_of_many_wins_them_all(self, ledger: Ledger, wire: Lossy) -> None:
        wire.lose(b"order-03")
        asks = [ClaimRequest(f"order-{n:02}") for n in range(10)]
        verdicts = ledger.claim(asks, claimant="me", lease=LEASE)
        assert wire.lost == 1
        assert verdicts == [Won(Claim(it.key, 1), LEASE) for it in asks]

    def test_to_a_record_counts_as_made(self, ledger: Ledger, wire: Lossy) -> None:
        claim = win(ledger, "order-lost").claim
        wire.lose(b"order-lost")
        assert finish(ledger, claim, result=b"shipped")
        assert wire.lost == 1
        assert ask(ledger, "order-lost") == Done("order-lost", Status.DONE, b"shipped")

    def test_to_an_extension_and_to_a_step_does_no_harm_either(self, ledger: Ledger, wire: Lossy) -> None:
        claim = win(ledger, "order-lost").claim
        wire.lose(b"order-lost")
        assert ledger.extend([claim], LEASE) == [True]
        wire.lose(b"order-lost")
        assert ledger.save_step(claim, "step", b"1")
        assert wire.lost == 2
        assert entry(ledger, "order-lost").steps == {"step": b"1"}

    @on(["postgres"])
    def test_to_a_commit_leaves_the_outcome_unknown_and_the_ledger_tells_it(
        self, ledger: Ledger, wire: Lossy, store: StoreUnderTest
    ) -> None:
        claim = win(ledger, "order-lost").claim

        def ship() -> None:
            with ledger.transaction() as tx:
                tx.execute(f"CREATE TABLE {store.effects} (id integer)")
                assert tx.record([Completion(claim, result=b"shipped")]) == [True]
                wire.lose(b"COMMIT")

        with pytest.raises(OutcomeUnknown):
            ship()
        assert wire.lost == 1
        assert ask(ledger, "order-lost") == Done("order-lost", Status.DONE, b"shipped")
        with ledger.transaction() as tx:
            assert tx.execute(f"SELECT count(*) FROM {store.effects}").fetchone() == (0,)
