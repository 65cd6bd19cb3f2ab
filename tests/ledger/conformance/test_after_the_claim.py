"""What a holder may do and a former holder may not: extend, save steps, record, release. Also: forget, purge, get."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.asking import LEASE, ask, entry, finish, win
from ledger.conftest import Opener
from ledger.stores import FENCES_OUTLIVE_PURGE, PURGED, Shift, on
from semel.ledger.contract import (
    MAX_RESULT,
    Claim,
    ClaimRequest,
    Completion,
    Done,
    Held,
    Ledger,
    LedgerError,
    Status,
    Won,
)

ALL_BYTES = bytes(range(256))


class TestExtend:
    def test_an_extended_lease_counts_from_now(self, ledger: Ledger, clock_offset: Shift) -> None:
        claim = win(ledger, "order-1", lease=30).claim
        clock_offset.advance(20)
        assert ledger.extend([claim], 30) == [True]
        clock_offset.advance(20)
        held = ask(ledger, "order-1")
        assert isinstance(held, Held)
        assert 0 < held.remaining <= 10

    def test_a_lease_that_has_run_out_can_be_extended_if_nobody_came(self, ledger: Ledger, clock_offset: Shift) -> None:
        claim = win(ledger, "order-1", lease=30).claim
        clock_offset.advance(31)
        assert ledger.extend([claim], 30) == [True]
        assert isinstance(ask(ledger, "order-1"), Held)

    def test_each_claim_gets_its_own_answer(self, ledger: Ledger) -> None:
        mine, given_back = win(ledger, "a").claim, win(ledger, "b").claim
        assert ledger.release([given_back]) == [True]
        claims = [given_back, mine, Claim("unknown", 1), Claim("a", 7)]
        assert ledger.extend(claims, LEASE) == [False, True, False, False]

    def test_a_shorter_lease_ends_earlier(self, ledger: Ledger, clock_offset: Shift) -> None:
        claim = win(ledger, "order-1", lease=3600).claim
        assert ledger.extend([claim], 5) == [True]
        clock_offset.advance(6)
        assert win(ledger, "order-1").taken_over

    def test_what_is_recorded_cannot_be_extended(self, ledger: Ledger) -> None:
        claim = win(ledger, "order-1").claim
        assert finish(ledger, claim)
        assert ledger.extend([claim], LEASE) == [False]
        assert entry(ledger, "order-1").status is Status.DONE


class TestRecord:
    @pytest.mark.parametrize("status", [Status.DONE, Status.REJECTED])
    def test_a_record_that_is_repeated_counts_as_made(self, ledger: Ledger, status: Status) -> None:
        claim = win(ledger, "order-1").claim
        assert finish(ledger, claim, status, b"first")
        assert finish(ledger, claim, status, b"second")
        assert ask(ledger, "order-1") == Done("order-1", status, b"first")

    @pytest.mark.parametrize(
        ("first", "then"), [(Status.DONE, Status.REJECTED), (Status.REJECTED, Status.DONE)], ids=str
    )
    def test_what_is_recorded_is_not_recorded_otherwise(self, ledger: Ledger, first: Status, then: Status) -> None:
        claim = win(ledger, "order-1").claim
        assert finish(ledger, claim, first, b"first")
        assert not finish(ledger, claim, then, b"then")
        assert ask(ledger, "order-1") == Done("order-1", first, b"first")

    def test_a_holder_whose_lease_is_over_can_record_if_nobody_came(self, ledger: Ledger, clock_offset: Shift) -> None:
        claim = win(ledger, "order-1").claim
        clock_offset.advance(LEASE + 1)
        assert finish(ledger, claim)

    def test_each_finish_gets_its_own_answer(self, ledger: Ledger) -> None:
        first, second, third = (win(ledger, key).claim for key in ("a", "b", "c"))
        assert ledger.release([second]) == [True]
        finishes = [
            Completion(second, result=b"2"),
            Completion(third, Status.REJECTED, b"3"),
            Completion(Claim("unknown", 1)),
            Completion(first, result=b"1"),
            Completion(Claim("a", first.fence + 1)),
        ]
        assert ledger.record(finishes) == [False, True, False, True, False]
        assert [entry.status if entry else None for entry in ledger.get(["a", "b", "c", "unknown"])] == [
            Status.DONE,
            Status.FREE,
            Status.REJECTED,
            None,
        ]

    def test_one_claim_recorded_twice_in_one_call_keeps_the_first(self, ledger: Ledger) -> None:
        claim = win(ledger, "a").claim
        answers = ledger.record(
            [Completion(claim, result=b"1"), Completion(claim, result=b"2"), Completion(claim, Status.REJECTED)]
        )
        assert answers == [True, True, False]
        assert ask(ledger, "a") == Done("a", Status.DONE, b"1")

    def test_a_record_is_kept_for_as_long_as_it_asks(self, ledger: Ledger, clock_offset: Shift) -> None:
        short, long, usual = (win(ledger, key).claim for key in ("short", "long", "usual"))
        keep = ledger.retention
        finishes = [Completion(short, retention=60), Completion(long, retention=2 * keep), Completion(usual)]
        assert ledger.record(finishes) == [True, True, True]
        clock_offset.advance(61)
        assert [type(ask(ledger, key)) for key in ("short", "long", "usual")] == [Won, Done, Done]
        clock_offset.advance(keep)
        assert [type(ask(ledger, key)) for key in ("long", "usual")] == [Done, Won]

    @pytest.mark.parametrize("status", [Status.FREE, Status.CLAIMED])
    def test_only_done_and_rejected_can_be_recorded(self, ledger: Ledger, status: Status) -> None:
        claim = win(ledger, "a").claim
        with pytest.raises(LedgerError, match="'a'"):
            ledger.record([Completion(claim, status)])
        assert finish(ledger, claim)

    @pytest.mark.parametrize(
        "result", [b"", b"\x00", ALL_BYTES, "ünïcode".encode(), b'{"a": 1}', b"'\"\\\r\n"], ids=repr
    )
    def test_a_result_comes_back_byte_for_byte(self, ledger: Ledger, result: bytes) -> None:
        assert finish(ledger, win(ledger, "a").claim, result=result)
        assert ask(ledger, "a") == Done("a", Status.DONE, result)
        assert entry(ledger, "a").result == result

    def test_a_result_may_be_as_large_as_the_limit_and_not_larger(self, ledger: Ledger) -> None:
        full = (ALL_BYTES * (MAX_RESULT // 256 + 1))[:MAX_RESULT]
        claim = win(ledger, "a").claim
        with pytest.raises(LedgerError, match=str(MAX_RESULT)):
            ledger.record([Completion(claim, result=full + b"!")])
        assert finish(ledger, claim, result=full)
        assert ask(ledger, "a") == Done("a", Status.DONE, full)


class TestNotes:
    def test_the_next_attempt_gets_what_earlier_ones_noted(self, ledger: Ledger, clock_offset: Shift) -> None:
        first = win(ledger, "a").claim
        assert ledger.save_step(first, "download", ALL_BYTES)
        assert ledger.save_step(first, "leer", b"")
        assert ledger.release([first]) == [True]
        second = win(ledger, "a")
        assert second.steps == {"download": ALL_BYTES, "leer": b""}
        assert ledger.save_step(second.claim, "schließen: §1.2", b"x")
        clock_offset.advance(LEASE + 1)
        third = win(ledger, "a")
        assert third.taken_over
        assert third.steps == {"download": ALL_BYTES, "leer": b"", "schließen: §1.2": b"x"}
        assert entry(ledger, "a").steps == third.steps

    def test_a_repeated_claim_gets_the_notes_too(self, ledger: Ledger) -> None:
        claim = win(ledger, "a", claimant="me").claim
        assert ledger.save_step(claim, "step", b"1")
        assert win(ledger, "a", claimant="me").steps == {"step": b"1"}

    def test_a_note_of_the_same_name_takes_the_place_of_the_older(self, ledger: Ledger) -> None:
        claim = win(ledger, "a").claim
        assert ledger.save_step(claim, "step", b"1")
        assert ledger.save_step(claim, "step", b"2")
        assert entry(ledger, "a").steps == {"step": b"2"}

    @pytest.mark.parametrize("status", [Status.DONE, Status.REJECTED])
    def test_notes_are_dropped_when_the_key_is_recorded(self, ledger: Ledger, status: Status) -> None:
        claim = win(ledger, "a").claim
        assert ledger.save_step(claim, "step", b"1")
        assert finish(ledger, claim, status)
        assert entry(ledger, "a").steps == {}
        assert not ledger.save_step(claim, "late", b"2")

    def test_notes_are_limited_together(self, ledger: Ledger) -> None:
        claim = win(ledger, "a").claim
        with pytest.raises(LedgerError, match=str(MAX_RESULT)):
            ledger.save_step(claim, "too much", bytes(MAX_RESULT + 1))
        assert ledger.save_step(claim, "half", bytes(MAX_RESULT // 2))
        assert ledger.save_step(claim, "other half", bytes(MAX_RESULT // 2))
        with pytest.raises(LedgerError, match=str(MAX_RESULT)):
            ledger.save_step(claim, "one byte more", b"!")
        assert ledger.save_step(claim, "half", b"now there is room")
        assert ledger.save_step(claim, "one byte more", b"!")
        assert set(entry(ledger, "a").steps) == {"half", "other half", "one byte more"}

    def test_a_note_on_what_is_not_held_is_refused(self, ledger: Ledger) -> None:
        assert not ledger.save_step(Claim("unknown", 1), "step", b"1")
        claim = win(ledger, "a").claim
        assert not ledger.save_step(Claim("a", claim.fence + 1), "step", b"1")
        assert ledger.release([claim]) == [True]
        assert not ledger.save_step(claim, "step", b"1")
        assert ledger.get(["unknown"]) == [None]


class TestRelease:
    def test_each_claim_gets_its_own_answer(self, ledger: Ledger) -> None:
        first, second = win(ledger, "a").claim, win(ledger, "b").claim
        assert finish(ledger, second)
        assert ledger.release([second, first, Claim("unknown", 1)]) == [False, True, False]
        assert isinstance(ask(ledger, "b"), Done)
        assert isinstance(ask(ledger, "a"), Won)

    def test_a_claim_is_given_back_once(self, ledger: Ledger) -> None:
        claim = win(ledger, "a").claim
        assert ledger.release([claim]) == [True]
        assert ledger.release([claim]) == [False]


ZOMBIES: dict[str, Callable[[Ledger, Claim], bool]] = {
    "records": lambda ledger, claim: ledger.record([Completion(claim, result=b"zombie")])[0],
    "rejects": lambda ledger, claim: ledger.record([Completion(claim, Status.REJECTED, b"zombie")])[0],
    "fails": lambda ledger, claim: ledger.release([claim])[0],
    "gives back untried": lambda ledger, claim: ledger.release([claim], tried=False)[0],
    "extends": lambda ledger, claim: ledger.extend([claim], 3600)[0],
    "notes": lambda ledger, claim: ledger.save_step(claim, "step", b"zombie"),
}


@pytest.mark.parametrize("zombie", ZOMBIES.values(), ids=ZOMBIES)
class TestAZombie:
    """A holder whose lease ran out while it slept, and which goes on as if nothing had happened."""

    def test_changes_nothing_under_its_successor(
        self, ledger: Ledger, clock_offset: Shift, zombie: Callable[[Ledger, Claim], bool]
    ) -> None:
        old = win(ledger, "a").claim
        clock_offset.advance(LEASE + 1)
        new = win(ledger, "a").claim
        before = entry(ledger, "a")
        assert zombie(ledger, old) is False
        assert entry(ledger, "a") == before
        assert finish(ledger, new, result=b"successor")

    def test_changes_nothing_after_its_successor_has_recorded(
        self, ledger: Ledger, clock_offset: Shift, zombie: Callable[[Ledger, Claim], bool]
    ) -> None:
        old = win(ledger, "a").claim
        clock_offset.advance(LEASE + 1)
        assert finish(ledger, win(ledger, "a").claim, result=b"successor")
        assert zombie(ledger, old) is False
        assert ask(ledger, "a") == Done("a", Status.DONE, b"successor")

    def test_changes_nothing_after_its_successor_has_failed(
        self, ledger: Ledger, clock_offset: Shift, zombie: Callable[[Ledger, Claim], bool]
    ) -> None:
        old = win(ledger, "a").claim
        clock_offset.advance(LEASE + 1)
        assert ledger.release([win(ledger, "a").claim]) == [True]
        assert zombie(ledger, old) is False
        third = win(ledger, "a")
        assert (third.claim.fence, third.attempt, third.steps) == (3, 3, {})

    def test_changes_nothing_once_the_key_was_forgotten(
        self, ledger: Ledger, zombie: Callable[[Ledger, Claim], bool]
    ) -> None:
        old = win(ledger, "a").claim
        assert ledger.forget(["a"]) == 1
        assert zombie(ledger, old) is False
        assert win(ledger, "a").claim.fence == old.fence + 1
        assert zombie(ledger, old) is False

    def test_changes_nothing_once_the_key_has_expired(
        self, make_ledger: Opener, clock_offset: Shift, zombie: Callable[[Ledger, Claim], bool]
    ) -> None:
        ledger = make_ledger(retention=600)
        old = win(ledger, "a").claim
        clock_offset.advance(601)
        new = win(ledger, "a")
        assert (new.claim.fence, new.attempt, new.taken_over) == (old.fence + 1, 1, False)
        assert zombie(ledger, old) is False
        assert finish(ledger, new.claim)


class TestFencesOnlyGrow:
    def test_through_release_takeover_forget_rejection_and_expiry(
        self, make_ledger: Opener, clock_offset: Shift
    ) -> None:
        ledger = make_ledger(retention=600)
        fences = [win(ledger, "a", source="s1").claim.fence]

        def next_winner(source: str) -> Claim:
            claim = win(ledger, "a", source=source).claim
            assert claim.fence > fences[-1]
            fences.append(claim.fence)
            return claim

        assert ledger.release([Claim("a", fences[-1])]) == [True]
        claim = next_winner("s1")
        clock_offset.advance(LEASE + 1)
        claim = next_winner("s1")
        assert ledger.release([claim], tried=False) == [True]
        claim = next_winner("s1")
        assert finish(ledger, claim, Status.REJECTED)
        claim = next_winner("s2")
        assert finish(ledger, claim)
        assert ledger.forget(["a"]) == 1
        claim = next_winner("s3")
        assert finish(ledger, claim)
        clock_offset.advance(601)
        claim = next_winner("s4")
        assert ledger.forget(["a"]) == 1
        assert ledger.purge() == 0  # what is forgotten has not expired: its fence is still needed
        next_winner("s5")

    @on(FENCES_OUTLIVE_PURGE)
    def test_through_a_purge(self, make_ledger: Opener, clock_offset: Shift) -> None:
        ledger = make_ledger(retention=600)
        assert ledger.release([win(ledger, "a").claim]) == [True]
        old = win(ledger, "a").claim
        clock_offset.advance(601)
        assert ledger.purge() == 1
        new = win(ledger, "a")
        assert new.claim.fence > old.fence
        assert new.attempt == 1
        assert not finish(ledger, old)


class TestForget:
    @pytest.mark.parametrize("state", ["claimed", "free", "done", "rejected"])
    def test_a_forgotten_key_is_as_good_as_new(self, ledger: Ledger, state: str) -> None:
        claim = win(ledger, "a", payload="old", source="s").claim
        assert ledger.save_step(claim, "step", b"1")
        if state == "free":
            assert ledger.release([claim]) == [True]
        elif state != "claimed":
            assert finish(ledger, claim, Status(state), b"result")
        assert ledger.forget(["a"]) == 1
        assert entry(ledger, "a").status is Status.FREE
        assert ask(ledger, "a", payload="new", source="s") == Won(Claim("a", 2), LEASE)

    def test_only_known_keys_count(self, ledger: Ledger) -> None:
        win(ledger, "a")
        win(ledger, "b")
        assert ledger.forget(["a", "unknown", "b"]) == 2
        assert ledger.get(["unknown"]) == [None]


class TestExpiry:
    def test_a_claim_whose_lease_is_not_over_never_expires(self, make_ledger: Opener, clock_offset: Shift) -> None:
        ledger = make_ledger(retention=60)
        claim = win(ledger, "a", lease=3600).claim
        clock_offset.advance(1800)
        assert isinstance(ask(ledger, "a"), Held)
        assert ledger.purge() == 0
        assert ledger.extend([claim], 3600) == [True]
        clock_offset.advance(1900)
        assert ledger.save_step(claim, "step", b"1")
        clock_offset.advance(1600)
        assert ledger.purge() == 0
        assert finish(ledger, claim)

    def test_a_new_life_after_a_key_has_expired_knows_no_notes(self, make_ledger: Opener, clock_offset: Shift) -> None:
        ledger = make_ledger(retention=100)
        assert ledger.save_step(win(ledger, "a", lease=10).claim, "step", b"1")
        clock_offset.advance(101)
        again = win(ledger, "a", payload="another")
        assert (again.attempt, again.steps) == (1, {})
        assert entry(ledger, "a").steps == {}

    def test_what_has_expired_is_not_seen(self, make_ledger: Opener, clock_offset: Shift) -> None:
        ledger = make_ledger(retention=600)
        assert finish(ledger, win(ledger, "a").claim, result=b"old")
        clock_offset.advance(601)
        assert ledger.get(["a"]) == [None]
        assert ledger.forget(["a"]) == 0

    def test_every_write_keeps_the_key_for_longer(self, make_ledger: Opener, clock_offset: Shift) -> None:
        ledger = make_ledger(retention=600)
        claim = win(ledger, "a").claim
        writes: list[Callable[[], bool]] = [
            lambda: ledger.extend([claim], LEASE) == [True],
            lambda: ledger.save_step(claim, "step", b"1"),
            lambda: ledger.release([claim]) == [True],
        ]
        for write in writes:
            clock_offset.advance(400)
            assert write()
        clock_offset.advance(400)
        assert entry(ledger, "a").steps == {"step": b"1"}

    @on(PURGED)
    def test_a_purge_finds_what_is_kept_for_less_time_than_before(
        self, make_ledger: Opener, clock_offset: Shift
    ) -> None:
        ledger, brief = make_ledger(retention=86_400), make_ledger(retention=60)
        claims = {name: win(ledger, name).claim for name in ("record", "keep", "extend", "step", "release", "forget")}
        again = win(ledger, "again", claimant="me")
        assert brief.record([Completion(claims["record"])]) == [True]
        assert (
            ledger.record([Completion(claims["keep"], retention=60), Completion(again.claim, retention=86_400)])
            == [True] * 2
        )
        assert brief.extend([claims["extend"]], LEASE) == [True]
        assert brief.save_step(claims["step"], "step", b"1")
        assert brief.release([claims["release"]]) == [True]
        assert brief.forget(["forget"]) == 1
        clock_offset.advance(61)
        assert ledger.purge() == 6
        assert ledger.get(list(claims)) == [None] * 6
        assert entry(ledger, "again").status is Status.DONE
        assert ledger.purge() == 0

    @on(PURGED)
    def test_a_purge_removes_what_has_expired_and_at_most_what_it_is_told(
        self, make_ledger: Opener, clock_offset: Shift
    ) -> None:
        ledger = make_ledger(retention=600)
        asks = [ClaimRequest(f"old-{n}") for n in range(25)]
        won = [verdict for verdict in ledger.claim(asks, claimant="me", lease=LEASE) if isinstance(verdict, Won)]
        assert all(ledger.record([Completion(it.claim) for it in won[:20]]))
        assert all(ledger.release([it.claim for it in won[20:]]))
        clock_offset.advance(500)
        requests = [ClaimRequest("a"), ClaimRequest("b")]
        results = ledger.claim(requests, claimant="me", lease=LEASE)
        keeps = [result.claim for result in results if isinstance(result, Won)]
        assert ledger.record([Completion(claim) for claim in keeps]) == [True, True]
        assert ledger.purge() == 0
        clock_offset.advance(101)
        assert ledger.purge(limit=10) == 10
        assert ledger.purge(limit=10) == 10
        assert ledger.purge(limit=10) == 5
        assert ledger.purge(limit=10) == 0
        assert [type(ask(ledger, key)) for key in ("a", "b", "old-1")] == [Done, Done, Won]


class TestLook:
    def test_looking_changes_nothing_and_answers_in_order(self, ledger: Ledger) -> None:
        for key in ("a", "b"):
            win(ledger, key)
        first = ledger.get(["b", "unknown", "a", "b"])
        assert [entry.key if entry else None for entry in first] == ["b", None, "a", "b"]
        assert ledger.get(["b", "unknown", "a", "b"]) == first

    def test_first_seen_stays_and_changed_moves(self, ledger: Ledger, clock_offset: Shift) -> None:
        claim = win(ledger, "a").claim
        first = entry(ledger, "a")
        clock_offset.advance(10)
        assert finish(ledger, claim)
        later = entry(ledger, "a")
        assert later.first_seen == first.first_seen
        assert later.changed >= first.changed + 10

    def test_another_process_sees_the_same(self, ledger: Ledger, make_ledger: Opener) -> None:
        win(ledger, "a", payload="p")
        assert make_ledger().get(["a"]) == ledger.get(["a"])
