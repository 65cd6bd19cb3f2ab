"""The Spark source in simulation: thousands of schedules of crashes, retries, twins, zombies, second drivers, outages,
lost answers, wrong clocks, older copies and resets, of which none may lose, double or silently drop a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.choices import Choices
from simulation.search import Failure, World, first_failure, shrink
from simulation.spark_mutants import MUTANTS
from simulation.spark_queries import queries_world
from simulation.spark_world import spark_world

import suite

SEEDS = suite.effort(fast=100, full=3_000)
MUTANT_SEEDS = 2_000
QUICKLY_FOUND = (
    "a message is deleted before its segment is sealed",
    "a commit is known by its number only",
    "a reset drops what is sealed and in no table",
)


def check(world: World, seeds: range) -> None:
    found = first_failure(world, seeds)
    if found is not None:
        _, seed, outcome = found
        pytest.fail(str(Failure(world.__name__, seed, outcome, shrink(world, outcome))))


def test_whatever_happens_to_drivers_tasks_store_queue_and_sink_each_message_is_in_the_table_once_or_it_is_said() -> (
    None
):
    check(spark_world, range(SEEDS))


def test_of_two_queries_on_one_log_one_is_refused_and_no_message_is_lost() -> None:
    check(queries_world, range(SEEDS // 3))


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_the_simulation_finds_a_bug_that_is_easy_to_see(name: str) -> None:
    find(name, 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_each_bug_on_purpose(name: str) -> None:
    find(name, MUTANT_SEEDS)


def find(name: str, seeds: int) -> None:
    with MUTANTS[name]():
        found = first_failure(spark_world, range(seeds))
    assert found is not None, f"{name}: not found in {seeds} schedules"
    number, _, outcome = found
    print(f"{name}: found in schedule {number}: {outcome.violations[0].kind}")


def test_a_failing_schedule_is_made_shorter_and_still_shows_the_same() -> None:
    with MUTANTS["a commit is known by its number only"]():
        found = first_failure(spark_world, range(200))
        assert found is not None
        _, _, outcome = found
        shrunk = shrink(spark_world, outcome, seconds=3.0)
        again = spark_world(Choices(replay=shrunk.choices))
    assert len(shrunk.choices) < len(outcome.choices)
    assert again.violations[0].kind == shrunk.violations[0].kind == outcome.violations[0].kind
    assert again.text == shrunk.text


def test_a_schedule_without_choices_is_a_pipeline_in_which_nothing_goes_wrong() -> None:
    outcome = spark_world(Choices(replay=()))
    assert not outcome.violations
    assert "stops:" not in outcome.text
    assert "fails:" not in outcome.text


DIGESTS = """
from simulation.choices import Choices
from simulation.spark_queries import queries_world
from simulation.spark_world import spark_world
print(*[spark_world(Choices(seed)).digest for seed in range(12)])
"""


def test_the_same_seed_gives_the_same_history_to_the_byte_also_in_another_process() -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join((str(tests), str(tests / "proof")))
    there = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert there.split() == [spark_world(Choices(seed)).digest for seed in range(12)]
