"""Any sequence of calls: every store answers like the model in plain Python, and no fence ever decreases."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import suite
from ledger.model import Model
from ledger.stores import FENCES_OUTLIVE_PURGE, PURGED, Shift, StoreUnderTest
from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, Held, Status, Won

# Far apart, so that the time that the test itself takes changes nothing.
LEASE: Final = 3_000.0
RETENTION: Final = 60_000.0
STEPS: Final = (700.0, 3_200.0, 64_000.0)
EXAMPLES: Final = {"sqlite": 300, "redis": 40, "postgres": 25, "dynamodb": 4}

KEYS = st.sampled_from("abc")
ASKS = st.lists(
    st.builds(ClaimRequest, KEYS, st.sampled_from(["", "one", "two"]), st.sampled_from(["s1", "s2"])),
    min_size=1,
    max_size=4,
    unique_by=lambda ask: ask.key,
)
NUMBERS = st.lists(st.integers(0, 20), min_size=1, max_size=3)
BYTES = st.binary(max_size=6)


def alike(verdict: ClaimResult) -> Any:
    """What must be the same; how long a key is still held depends on the clock."""
    if isinstance(verdict, Held):
        return Held, verdict.key
    if isinstance(verdict, Won):  # of a repeated call, a store may or may not remember that it took over
        return Won, verdict.claim, verdict.lease, verdict.attempt, dict(verdict.steps)
    return verdict


class Machine(RuleBasedStateMachine):
    """A ledger and the model, asked the same."""

    place: StoreUnderTest  # set by the test

    def __init__(self) -> None:
        super().__init__()
        self.store, self.clock_offset, self.model = self.place.another(), Shift(), Model(RETENTION)
        unsynced: dict[str, Any] = (
            {"synchronous": "OFF"} if self.store.name == "sqlite" else {}
        )  # nothing here survives anyway
        self.ledger = self.store.open(self.clock_offset, retention=RETENTION, **unsynced)
        self.claims: list[Claim] = []
        self.calls: list[tuple[list[ClaimRequest], float]] = []
        self.fences: dict[str, int] = {}
        self.purged = False

    def teardown(self) -> None:
        self.ledger.close()
        self.store.drop()

    def chosen(self, numbers: list[int]) -> list[Claim]:
        """Some of the claims that were ever won."""
        return list(dict.fromkeys(self.claims[number % len(self.claims)] for number in numbers if self.claims))

    @rule(asks=ASKS, lease=st.sampled_from([LEASE, 2 * LEASE]))
    def claim(self, asks: list[ClaimRequest], lease: float) -> None:
        self.calls.append((asks, lease))
        self.call(len(self.calls) - 1)

    @precondition(lambda self: self.calls)
    @rule(number=st.integers(0, 5))
    def claim_again(self, number: int) -> None:
        """A call whose answer was lost is repeated, perhaps much later."""
        self.call(len(self.calls) - 1 - number % len(self.calls))

    def call(self, number: int) -> None:
        asks, lease = self.calls[number]
        verdicts = self.ledger.claim(asks, claimant=str(number), lease=lease)
        for ask, verdict in zip(asks, verdicts, strict=True):
            expected = self.model.ask(ask, str(number), lease)
            if isinstance(verdict, Won) and isinstance(expected, Won):
                self.see_fence(verdict.claim)
                expected = Won(verdict.claim, lease, expected.attempt, steps=expected.steps)
            assert alike(verdict) == alike(expected)

    def see_fence(self, claim: Claim) -> None:
        known, before = self.model.keys[claim.key], self.fences.get(claim.key, 0)
        if self.purged:  # then the next fence is not known; that it does not fall is
            assert claim.fence >= before or self.store.name not in FENCES_OUTLIVE_PURGE
            known.fence = claim.fence
        assert claim.fence == known.fence
        if claim not in self.claims:
            assert claim.fence > before or self.purged
            self.claims.append(claim)
        self.fences[claim.key] = claim.fence

    @rule(numbers=NUMBERS)
    def extend(self, numbers: list[int]) -> None:
        claims = self.chosen(numbers)
        assert self.ledger.extend(claims, LEASE) == [self.model.extend(claim, LEASE) for claim in claims]

    @rule(numbers=NUMBERS, name=st.sampled_from(["x", "y"]), value=BYTES)
    def save_step(self, numbers: list[int], name: str, value: bytes) -> None:
        for claim in self.chosen(numbers[:1]):
            assert self.ledger.save_step(claim, name, value) == self.model.save_step(claim, name, value)

    @rule(
        numbers=NUMBERS,
        status=st.sampled_from([Status.DONE, Status.REJECTED]),
        result=BYTES,
        retention=st.sampled_from([None, 10_000.0]),
    )
    def record(self, numbers: list[int], status: Status, result: bytes, retention: float | None) -> None:
        finishes = [Completion(claim, status, result, retention) for claim in self.chosen(numbers)]
        assert self.ledger.record(finishes) == [self.model.record(finish) for finish in finishes]

    @rule(numbers=NUMBERS, tried=st.booleans())
    def release(self, numbers: list[int], tried: bool) -> None:
        claims = self.chosen(numbers)
        assert self.ledger.release(claims, tried=tried) == [self.model.release(claim, tried) for claim in claims]

    @rule(keys=st.sets(KEYS, min_size=1))
    def forget(self, keys: set[str]) -> None:
        assert self.ledger.forget(sorted(keys)) == self.model.forget(keys)

    @rule(seconds=st.sampled_from(STEPS))
    def pass_time(self, seconds: float) -> None:
        self.clock_offset.advance(seconds)
        self.model.now += seconds

    @rule()
    def purge(self) -> None:
        expired = list(self.model.expired())
        removed = self.ledger.purge()
        if self.store.name in PURGED:
            assert removed == len(expired)
            for key in expired:
                del self.model.keys[key]
            self.purged |= bool(expired)

    @invariant()
    def they_look_alike(self) -> None:
        for key, entry in zip("abc", self.ledger.get(list("abc")), strict=True):
            known = self.model.find(key)
            assert (entry is None) == (known is None)
            if entry is not None and known is not None:
                assert (entry.status, entry.fence, entry.attempt) == (known.status, known.fence, known.attempt)
                assert (entry.payload, entry.source) == (known.payload, known.source)
                assert (entry.result, dict(entry.steps)) == (known.result, known.steps)


def test_any_sequence_of_calls_is_answered_as_by_the_model(store: StoreUnderTest) -> None:
    how = settings(
        max_examples=suite.effort(fast=EXAMPLES[store.name] // 5, full=EXAMPLES[store.name]),
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    machine = type("MachineOnOneStore", (Machine,), {"place": store})
    run_state_machine_as_test(machine, settings=how)
