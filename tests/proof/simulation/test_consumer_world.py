"""The consumer in simulation: no schedule breaks a promise, the same seed gives the same history, mutants are found.

To run a failing seed again: `python -m simulation --world consumer --first SEED --schedules 1`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

import suite
from ledger.stores import STORES, Shift, StoreUnderTest
from semel.ledger.contract import Ledger
from simulation.choices import Choices
from simulation.consumer_mutants import ASYNC_MUTANTS, MUTANTS
from simulation.consumer_plan import EVENTS
from simulation.consumer_world import Store, async_world, consumer_world
from simulation.search import Outcome, first_failure, shrink

PROOF = Path(__file__).parents[1]
EASY = ("acknowledged before it is recorded", "no fence check at the record", "the broker answers before it has synced")
SEEDS = 2_000  # within which every mutant must be found


def checked(outcome: Outcome) -> Outcome:
    assert not outcome.violations, f"{outcome.violations[0]}\n{outcome.text}"
    return outcome


@pytest.mark.parametrize("part", range(4))
def test_whatever_happens_nothing_is_lost_doubled_reordered_or_stuck(part: int) -> None:
    count = suite.effort(fast=60, full=1_500)
    for seed in range(part * count, (part + 1) * count):
        checked(consumer_world(Choices(seed)))


def test_whatever_happens_to_async_handlers_nothing_is_lost_or_stuck() -> None:
    cancelled = 0
    for seed in range(suite.effort(fast=100, full=2_000)):
        cancelled += checked(async_world(Choices(seed))).facts.get("cancelled", 0)
    assert cancelled


def test_schedules_are_full_of_trouble() -> None:
    """The tests above would prove nothing if nothing happened."""
    facts: Counter[str] = Counter()
    for seed in range(150):
        facts.update(consumer_world(Choices(seed)).facts)
    assert {*EVENTS, "takeovers", "records refused", "duplicates"} <= {name for name, count in facts.items() if count}


def test_the_same_seed_gives_the_same_history_to_the_byte_in_any_process() -> None:
    program = (
        "from simulation.choices import Choices; from simulation.consumer_world import consumer_world; "
        "print(*[consumer_world(Choices(seed)).digest for seed in range(8)])"
    )
    path = os.pathsep.join([str(PROOF.parent), str(PROOF)])
    digests = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hashes}
        )
        for hashes in ("1", "2")
    }
    digests.add((" ".join(consumer_world(Choices(seed)).digest for seed in range(8)) + "\n").encode())
    assert len(digests) == 1


def test_a_failure_is_shrunk_to_a_short_schedule_of_the_same_kind() -> None:
    with MUTANTS["the record is not part of the transaction"]():
        failure = first_failure(consumer_world, range(SEEDS))
        assert failure is not None
        outcome = failure[2]
        shrunk = shrink(consumer_world, outcome, seconds=3)
        again = consumer_world(Choices(replay=shrunk.choices))
    assert outcome.violations[0].kind in {violation.kind for violation in shrunk.violations}
    assert again.text == shrunk.text
    assert len(shrunk.choices) < len(outcome.choices)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EASY else pytest.mark.slow) for name in MUTANTS]
)
def test_every_bug_that_is_put_in_on_purpose_is_found(name: str) -> None:
    with MUTANTS[name]():
        failure = first_failure(consumer_world, range(SEEDS))
    assert failure is not None, f"not found in {SEEDS} schedules"
    print(f"{name}: found after {failure[0]} schedules: {failure[2].violations[0]}")


@pytest.mark.parametrize("name", ASYNC_MUTANTS)
def test_every_bug_in_the_calls_of_async_handlers_is_found(name: str) -> None:
    with ASYNC_MUTANTS[name]():
        failure = first_failure(async_world, range(SEEDS))
    assert failure is not None, f"not found in {SEEDS} schedules"


@pytest.mark.parametrize("name", suite.slow("postgres", "redis", "dynamodb"))
def test_the_decisions_of_every_store_keep_the_same_promises(name: str, request: pytest.FixtureRequest) -> None:
    first = STORES[name](request)

    def open_ledger(place: StoreUnderTest, clock: Callable[[], float]) -> Ledger:
        return place.open(cast(Shift, clock))

    for seed in range({"postgres": 60, "redis": 300, "dynamodb": 20}[name]):
        place = first.another()
        store = Store(
            partial(open_ledger, place), transactions=bool(place.effects), table=place.effects, value=place.placeholder
        )
        checked(consumer_world(Choices(seed), store))
        place.drop()
