"""Who wins a key: the decision table of a claim, row by row."""

from __future__ import annotations

import uuid

import pytest

from ledger.asking import LEASE, ask, entry, finish, win
from ledger.stores import Shift
from semel.ledger.contract import Claim, ClaimRequest, Conflict, Done, Held, Ledger, LedgerError, Status, Won


def test_a_new_key_is_won_with_its_first_fence_and_first_attempt(ledger: Ledger) -> None:
    assert ask(ledger, "order-1") == Won(Claim("order-1", 1), LEASE, attempt=1, taken_over=False, steps={})


def test_a_won_key_is_seen_with_all_that_its_claim_said(ledger: Ledger) -> None:
    win(ledger, "order-1", payload="digest", source="orders/1", claimant="worker-7")
    ledger_entry = entry(ledger, "order-1")
    assert (ledger_entry.key, ledger_entry.status, ledger_entry.fence, ledger_entry.attempt) == (
        "order-1",
        Status.CLAIMED,
        1,
        1,
    )
    assert (ledger_entry.claimant, ledger_entry.payload, ledger_entry.source) == ("worker-7", "digest", "orders/1")
    assert (ledger_entry.result, ledger_entry.steps) == (b"", {})
    assert ledger_entry.first_seen == ledger_entry.changed
    assert ledger_entry.lease_ends == pytest.approx(ledger_entry.changed + LEASE, abs=0.01)
    assert ledger_entry.expires == pytest.approx(ledger_entry.changed + ledger.retention, abs=1)


def test_a_key_that_another_works_on_is_held_for_the_rest_of_its_lease(ledger: Ledger, clock_offset: Shift) -> None:
    win(ledger, "order-1")
    clock_offset.advance(10)
    held = ask(ledger, "order-1")
    assert isinstance(held, Held)
    assert held.key == "order-1"
    assert 0 < held.remaining <= 20


def test_the_answers_come_in_the_order_of_the_questions(ledger: Ledger) -> None:
    keys = [f"order-{n}" for n in (5, 3, 9, 1, 7)]
    done = win(ledger, "order-9").claim
    assert finish(ledger, done, result=b"9")
    win(ledger, "order-1")
    verdicts = ledger.claim([ClaimRequest(key) for key in keys], claimant="me", lease=LEASE)
    assert [type(verdict) for verdict in verdicts] == [Won, Won, Done, Held, Won]
    assert [verdict.claim.key if isinstance(verdict, Won) else verdict.key for verdict in verdicts] == keys


def test_nothing_asked_is_nothing_answered(ledger: Ledger) -> None:
    assert ledger.claim([], claimant="me", lease=LEASE) == []
    assert ledger.extend([], LEASE) == []
    assert ledger.record([]) == []
    assert ledger.release([]) == []
    assert ledger.get([]) == []
    assert ledger.forget([]) == 0


def test_a_key_whose_lease_is_over_is_taken_over_with_the_next_fence(ledger: Ledger, clock_offset: Shift) -> None:
    win(ledger, "order-1", lease=30)
    clock_offset.advance(31)
    assert ask(ledger, "order-1") == Won(Claim("order-1", 2), LEASE, attempt=2, taken_over=True, steps={})
    assert isinstance(ask(ledger, "order-1"), Held)


def test_a_released_key_is_won_at_once_with_the_next_fence_and_is_not_taken_over(ledger: Ledger) -> None:
    assert ledger.release([win(ledger, "order-1").claim]) == [True]
    assert entry(ledger, "order-1").status is Status.FREE
    assert ask(ledger, "order-1") == Won(Claim("order-1", 2), LEASE, attempt=2, taken_over=False, steps={})


def test_an_attempt_that_was_not_tried_does_not_count(ledger: Ledger) -> None:
    assert ledger.release([win(ledger, "order-1").claim], tried=False) == [True]
    again = win(ledger, "order-1")
    assert (again.claim.fence, again.attempt) == (2, 1)


def test_a_recorded_key_is_done_for_everybody_with_its_result(ledger: Ledger) -> None:
    assert finish(ledger, win(ledger, "order-1", payload="a").claim, result=b"shipped")
    assert ask(ledger, "order-1") == Done("order-1", Status.DONE, b"shipped")
    assert ask(ledger, "order-1", payload="a", source="elsewhere") == Done("order-1", Status.DONE, b"shipped")


def test_a_recorded_key_stays_done_long_after_its_lease(ledger: Ledger, clock_offset: Shift) -> None:
    assert finish(ledger, win(ledger, "order-1").claim)
    clock_offset.advance(ledger.retention - 60)
    assert isinstance(ask(ledger, "order-1"), Done)


class TestPayloads:
    def test_another_payload_on_a_key_that_is_held_is_a_conflict(self, ledger: Ledger) -> None:
        win(ledger, "order-1", payload="a")
        assert ask(ledger, "order-1", payload="b") == Conflict("order-1", recorded=False)

    def test_another_payload_is_a_conflict_also_when_the_lease_is_over(
        self, ledger: Ledger, clock_offset: Shift
    ) -> None:
        win(ledger, "order-1", payload="a")
        clock_offset.advance(LEASE + 1)
        assert ask(ledger, "order-1", payload="b") == Conflict("order-1", recorded=False)
        assert entry(ledger, "order-1").fence == 1

    def test_another_payload_is_a_conflict_also_from_the_same_claimant(self, ledger: Ledger) -> None:
        win(ledger, "order-1", payload="a", claimant="me")
        assert ask(ledger, "order-1", payload="b", claimant="me") == Conflict("order-1", recorded=False)

    def test_another_payload_on_a_released_key_is_a_conflict(self, ledger: Ledger) -> None:
        ledger.release([win(ledger, "order-1", payload="a").claim])
        assert ask(ledger, "order-1", payload="b") == Conflict("order-1", recorded=False)
        assert win(ledger, "order-1", payload="a").claim.fence == 2

    def test_another_payload_on_a_recorded_key_is_a_conflict_with_what_is_done(self, ledger: Ledger) -> None:
        assert finish(ledger, win(ledger, "order-1", payload="a").claim)
        assert ask(ledger, "order-1", payload="b") == Conflict("order-1", recorded=True)

    @pytest.mark.parametrize(("first", "second"), [("", "b"), ("a", "")])
    def test_no_payload_fits_any(self, ledger: Ledger, first: str, second: str) -> None:
        claim = win(ledger, "order-1", payload=first).claim
        assert isinstance(ask(ledger, "order-1", payload=second), Held)
        assert finish(ledger, claim)
        assert isinstance(ask(ledger, "order-1", payload=second), Done)

    def test_a_payload_that_comes_later_is_set_by_the_next_winner(self, ledger: Ledger) -> None:
        ledger.release([win(ledger, "order-1").claim])
        ledger.release([win(ledger, "order-1", payload="a").claim])
        assert ask(ledger, "order-1", payload="b") == Conflict("order-1", recorded=False)

    def test_a_payload_that_is_known_stays_when_the_next_winner_brings_none(self, ledger: Ledger) -> None:
        ledger.release([win(ledger, "order-1", payload="a").claim])
        ledger.release([win(ledger, "order-1").claim])
        assert ask(ledger, "order-1", payload="b") == Conflict("order-1", recorded=False)

    def test_one_who_only_asks_sets_no_payload(self, ledger: Ledger) -> None:
        claim = win(ledger, "order-1").claim
        assert isinstance(ask(ledger, "order-1", payload="b"), Held)
        ledger.release([claim])
        assert win(ledger, "order-1", payload="a").claim.fence == 2


class TestRejected:
    def test_a_rejected_key_is_done_for_its_own_source(self, ledger: Ledger) -> None:
        assert finish(ledger, win(ledger, "order-1", source="orders/1").claim, Status.REJECTED, b"bad address")
        assert ask(ledger, "order-1", source="orders/1") == Done("order-1", Status.REJECTED, b"bad address")

    def test_without_any_source_a_rejected_key_is_done_for_all(self, ledger: Ledger) -> None:
        assert finish(ledger, win(ledger, "order-1").claim, Status.REJECTED, b"why")
        assert ask(ledger, "order-1") == Done("order-1", Status.REJECTED, b"why")

    @pytest.mark.parametrize(("rejected", "comes_back_as"), [("orders/1", "orders/2"), ("orders/1", ""), ("", "o/2")])
    def test_from_another_source_a_rejected_key_starts_anew(
        self, ledger: Ledger, rejected: str, comes_back_as: str
    ) -> None:
        first = win(ledger, "order-1", payload="a", source=rejected)
        assert ledger.save_step(first.claim, "step", b"1")
        assert finish(ledger, first.claim, Status.REJECTED, b"why")
        assert ask(ledger, "order-1", payload="b", source=comes_back_as) == Won(Claim("order-1", 2), LEASE)
        ledger_entry = entry(ledger, "order-1")
        assert (ledger_entry.payload, ledger_entry.source, ledger_entry.result, ledger_entry.steps) == (
            "b",
            comes_back_as,
            b"",
            {},
        )

    def test_a_redriven_key_that_is_done_in_the_end_is_done_for_both_sources(self, ledger: Ledger) -> None:
        assert finish(ledger, win(ledger, "order-1", source="orders/1").claim, Status.REJECTED)
        assert finish(ledger, win(ledger, "order-1", source="orders/2").claim, result=b"ok")
        assert ask(ledger, "order-1", source="orders/1") == Done("order-1", Status.DONE, b"ok")
        assert ask(ledger, "order-1", source="orders/2") == Done("order-1", Status.DONE, b"ok")

    def test_the_source_of_a_rejection_is_that_of_the_last_winner(self, ledger: Ledger) -> None:
        ledger.release([win(ledger, "order-1", source="orders/1").claim])
        assert finish(ledger, win(ledger, "order-1", source="orders/2").claim, Status.REJECTED)
        assert isinstance(ask(ledger, "order-1", source="orders/2"), Done)
        assert isinstance(ask(ledger, "order-1", source="orders/1"), Won)


class TestRepeatedClaims:
    def test_a_claim_that_is_repeated_wins_what_it_had_won(self, ledger: Ledger, clock_offset: Shift) -> None:
        first = win(ledger, "order-1", claimant="call-1", lease=30)
        clock_offset.advance(20)
        again = win(ledger, "order-1", claimant="call-1", lease=30)
        assert (again.claim, again.attempt) == (first.claim, 1)
        clock_offset.advance(20)  # the first lease is over, the second is not
        assert isinstance(ask(ledger, "order-1"), Held)

    def test_a_repeated_claim_wins_even_after_its_lease_as_long_as_nobody_took_over(
        self, ledger: Ledger, clock_offset: Shift
    ) -> None:
        first = win(ledger, "order-1", claimant="call-1")
        clock_offset.advance(LEASE + 1)
        assert win(ledger, "order-1", claimant="call-1").claim == first.claim

    def test_a_repeated_claim_does_not_win_back_what_was_taken_over(self, ledger: Ledger, clock_offset: Shift) -> None:
        win(ledger, "order-1", claimant="call-1")
        clock_offset.advance(LEASE + 1)
        win(ledger, "order-1", claimant="call-2")
        assert isinstance(ask(ledger, "order-1", claimant="call-1"), Held)

    def test_a_repeated_claim_of_many_keys_gets_the_same_answers(self, ledger: Ledger) -> None:
        asks = [ClaimRequest(f"order-{n}") for n in range(20)]
        win(ledger, "order-7")
        assert finish(ledger, win(ledger, "order-8").claim)
        first, again = (ledger.claim(asks, claimant="call-1", lease=LEASE) for _ in range(2))
        assert [type(verdict) for verdict in first] == [type(verdict) for verdict in again]
        assert [verdict.claim for verdict in first if isinstance(verdict, Won)] == [
            verdict.claim for verdict in again if isinstance(verdict, Won)
        ]


class TestOneKeyTwiceInOneCall:
    def test_its_second_place_is_held(self, ledger: Ledger) -> None:
        asks = [ClaimRequest("a"), ClaimRequest("b"), ClaimRequest("a"), ClaimRequest("a")]
        first, other, second, third = ledger.claim(asks, claimant="me", lease=LEASE)
        assert first == Won(Claim("a", 1), LEASE)
        assert other == Won(Claim("b", 1), LEASE)
        assert isinstance(second, Held)
        assert isinstance(third, Held)
        assert 0 < second.remaining <= LEASE

    def test_a_repetition_of_that_call_is_answered_alike(self, ledger: Ledger) -> None:
        for _ in range(2):
            first, second = ledger.claim([ClaimRequest("a"), ClaimRequest("a")], claimant="me", lease=LEASE)
            assert first == Won(Claim("a", 1), LEASE)
            assert isinstance(second, Held)

    def test_with_another_payload_its_second_place_is_a_conflict(self, ledger: Ledger) -> None:
        first, second = ledger.claim([ClaimRequest("a", "one"), ClaimRequest("a", "two")], claimant="me", lease=LEASE)
        assert isinstance(first, Won)
        assert second == Conflict("a", recorded=False)

    def test_both_places_of_a_recorded_key_are_done(self, ledger: Ledger) -> None:
        assert finish(ledger, win(ledger, "a").claim, result=b"r")
        assert (
            ledger.claim([ClaimRequest("a"), ClaimRequest("a")], claimant="me", lease=LEASE)
            == [Done("a", Status.DONE, b"r")] * 2
        )

    def test_both_places_of_a_held_key_are_held(self, ledger: Ledger) -> None:
        win(ledger, "a")
        verdicts = ledger.claim([ClaimRequest("a"), ClaimRequest("a")], claimant="me", lease=LEASE)
        assert [type(verdict) for verdict in verdicts] == [Held, Held]


class TestRefusedBeforeTheStore:
    @pytest.mark.parametrize("key", ["", "k" * 1025, "é" * 513])
    def test_a_key_that_no_store_could_keep_is_refused(self, ledger: Ledger, key: str) -> None:
        with pytest.raises(LedgerError, match="1 to 1024"):
            ask(ledger, key)

    @pytest.mark.parametrize("lease", [0, -1, 12 * 3600 + 1, float("nan")])
    def test_a_lease_that_is_none_is_refused(self, ledger: Ledger, lease: float) -> None:
        with pytest.raises(LedgerError, match="lease"):
            ask(ledger, "order-1", lease=lease)
        with pytest.raises(LedgerError, match="lease"):
            ledger.extend([Claim("order-1", 1)], lease)

    def test_one_bad_key_in_a_call_claims_nothing(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError):
            ledger.claim([ClaimRequest("good"), ClaimRequest("")], claimant=uuid.uuid4().hex, lease=LEASE)
        assert ledger.get(["good"]) == [None]

    @pytest.mark.parametrize(
        "key", ["k" * 1024, "é" * 512, "a b\tc\nd", "'; DROP TABLE semel_ledger; --", "\x00", "{x}:y", "%s", "🐘" * 256]
    )
    def test_any_other_key_is_kept_as_it_is(self, ledger: Ledger, key: str) -> None:
        assert finish(ledger, win(ledger, key).claim, result=b"1")
        assert ask(ledger, key) == Done(key, Status.DONE, b"1")
        assert entry(ledger, key).key == key

    def test_keys_that_look_alike_are_different_keys(self, ledger: Ledger) -> None:
        alike = ["key", "KEY", "key ", " key", "k\u00e9y", "ke\u0301y", "key\x00", "1", "01", "1.0"]
        verdicts = ledger.claim([ClaimRequest(key) for key in alike], claimant="me", lease=LEASE)
        assert [type(verdict) for verdict in verdicts] == [Won] * len(alike)
