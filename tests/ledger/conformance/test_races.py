"""Concurrency: threads of one process, and ledgers of several, with the same keys."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.conftest import Opener
from ledger.stores import PURGED, Shift, StoreUnderTest, on
from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, Done, Held, Ledger, Status, Won

THREADS = 16


def claims_of(verdicts: list[ClaimResult]) -> list[Claim]:
    return [verdict.claim for verdict in verdicts if isinstance(verdict, Won)]


def test_of_sixteen_threads_over_the_same_keys_one_wins_each(
    ledger: Ledger, make_ledger: Opener, store: StoreUnderTest
) -> None:
    keys = [f"order-{n}" for n in range(240 if store.slow else 2_000)]
    ledgers = [ledger, make_ledger()]
    share = len(keys) // 4 if store.slow else len(keys)  # then four threads ask for each key, not all sixteen

    def worker(number: int) -> Callable[[], list[Claim]]:
        def work() -> list[Claim]:
            start = number * share % len(keys)
            mine, won = random.Random(number).sample(keys[start : start + share], share), list[Claim]()
            for start in range(0, len(mine), 250):
                asks = [ClaimRequest(key) for key in mine[start : start + 250]]
                won += claims_of(ledgers[number % 2].claim(asks, claimant=f"{number}/{start}", lease=3600))
            return won

        return work

    won = [claim for part in at_once([worker(n) for n in range(THREADS)]) for claim in part]
    assert Counter(claim.key for claim in won) == Counter(keys)
    assert {claim.fence for claim in won} == {1}


def test_overlapping_batches_in_opposite_orders_do_not_block_each_other(
    ledger: Ledger, make_ledger: Opener, store: StoreUnderTest
) -> None:
    keys = [f"order-{n:02}" for n in range(10 if store.slow else 40)]
    ledgers = [ledger, make_ledger()]

    def worker(number: int) -> Callable[[], int]:
        def work() -> int:
            order = keys if number % 2 else keys[::-1]
            total = 0
            for turn in range(1 if store.slow else 10):
                asks = [ClaimRequest(key) for key in order]
                won = claims_of(ledgers[number % 2].claim(asks, claimant=f"{number}/{turn}", lease=LEASE))
                total += sum(ledgers[number % 2].extend(won, LEASE))
                assert all(ledgers[number % 2].release(won))
            return total

        return work

    total = sum(at_once([worker(n) for n in range(8)]))
    assert total > 0
    fences = [entry.fence for entry in ledger.get(keys) if entry]
    assert sum(fences) == total  # every win raised one fence by one


def test_a_lease_that_ends_is_taken_over_by_one_of_many(
    ledger: Ledger, make_ledger: Opener, clock_offset: Shift, store: StoreUnderTest
) -> None:
    keys = [f"order-{n}" for n in range(15 if store.slow else 50)]
    old = claims_of(ledger.claim([ClaimRequest(key) for key in keys], claimant="old", lease=30))
    clock_offset.advance(31)
    ledgers = [ledger, make_ledger()]

    def worker(number: int) -> Callable[[], list[ClaimResult]]:
        asks = [ClaimRequest(key) for key in (keys if number % 2 else keys[::-1])]
        return lambda: ledgers[number % 2].claim(asks, claimant=str(number), lease=30)

    verdicts = [verdict for part in at_once([worker(n) for n in range(8)]) for verdict in part]
    won = [verdict for verdict in verdicts if isinstance(verdict, Won)]
    assert Counter(it.claim.key for it in won) == Counter(keys)
    assert all(it.taken_over and it.claim.fence == 2 and it.attempt == 2 for it in won)
    assert all(isinstance(verdict, Won | Held) for verdict in verdicts)
    assert not any(ledger.record([Completion(claim) for claim in old]))


def test_of_a_zombie_and_its_successor_one_records(
    ledger: Ledger, make_ledger: Opener, clock_offset: Shift, store: StoreUnderTest
) -> None:
    """The successor's claim and the zombie's record come at the same time: whichever is first, the other sees it."""
    other = make_ledger()

    def take_over(key: str) -> bool:
        verdict = ask(other, key)
        return isinstance(verdict, Won) and finish(other, verdict.claim, result=b"successor")

    def record_late(zombie: Claim) -> bool:
        return finish(ledger, zombie, result=b"zombie")

    for turn in range(5 if store.slow else 20):
        key = f"order-{turn}"
        zombie = win(ledger, key).claim
        clock_offset.advance(LEASE + 1)

        took_over, recorded_late = at_once([partial(take_over, key), partial(record_late, zombie)])
        assert took_over != recorded_late
        assert entry(ledger, key).result == (b"successor" if took_over else b"zombie")


def test_work_that_fails_at_random_is_done_once_each(
    ledger: Ledger, make_ledger: Opener, store: StoreUnderTest
) -> None:
    """Workers that win, fail, release and record: in the end each key was recorded by exactly one of them."""
    keys = [f"order-{n}" for n in range(20 if store.slow else 60)]
    ledgers = [ledger, make_ledger()]
    recorded: Counter[str] = Counter()
    counting = threading.Lock()

    def worker(number: int) -> Callable[[], None]:
        def work() -> None:
            chance, mine, left, turn = random.Random(number), ledgers[number % 2], set(keys), 0
            while left:
                turn += 1
                batch = chance.sample(sorted(left), min(10, len(left)))
                verdicts = mine.claim([ClaimRequest(key) for key in batch], claimant=f"{number}/{turn}", lease=3600)
                left -= {verdict.key for verdict in verdicts if isinstance(verdict, Done)}
                won = claims_of(verdicts)
                failed = {claim for claim in won if chance.random() < 0.3}
                assert all(mine.release(list(failed)))
                finished = [claim for claim in won if claim not in failed]
                assert all(mine.record([Completion(claim, result=str(number).encode()) for claim in finished]))
                with counting:
                    recorded.update(claim.key for claim in finished)

        return work

    at_once([worker(n) for n in range(8)])
    assert recorded == Counter(keys)
    assert all(entry is not None and entry.status is Status.DONE for entry in ledger.get(keys))


def test_a_thousand_keys_in_one_call(ledger: Ledger, store: StoreUnderTest) -> None:
    size = 60 if store.slow else 1_000
    asks = [ClaimRequest(f"order-{n}", payload="p" * 32, source=f"orders/{n}") for n in range(size)]
    won = claims_of(ledger.claim(asks, claimant="me", lease=LEASE))
    assert len(won) == size
    assert ledger.extend(won, LEASE) == [True] * size
    assert ledger.record([Completion(claim, result=claim.key.encode()) for claim in won]) == [True] * size
    verdicts = ledger.claim(asks, claimant="another", lease=LEASE)
    assert verdicts == [Done(it.key, Status.DONE, it.key.encode()) for it in asks]


@on(PURGED)
def test_purging_and_claiming_at_the_same_time_lose_nothing(make_ledger: Opener, clock_offset: Shift) -> None:
    ledger = make_ledger(retention=600)
    old = [ClaimRequest(f"old-{n}") for n in range(200)]
    assert all(ledger.record([Completion(claim) for claim in claims_of(ledger.claim(old, claimant="me", lease=LEASE))]))
    clock_offset.advance(601)
    over = threading.Event()

    def purge() -> list[Claim]:
        while not over.is_set():
            ledger.purge(limit=20)
        return []

    def work() -> list[Claim]:
        try:
            won = list[Claim]()
            for start in range(0, 200, 20):
                claims = claims_of(ledger.claim(old[start : start + 20], claimant=f"again/{start}", lease=LEASE))
                assert all(ledger.record([Completion(claim, result=b"new") for claim in claims]))
                won += claims
            return won
        finally:
            over.set()

    _, won = at_once([purge, work])
    assert len(won) == 200
    assert all(entry is not None and entry.result == b"new" for entry in ledger.get([it.key for it in old]))
