"""The Spark source in simulation: thousands of schedules of crashes, retries, twins, zombies, second drivers, outages,
lost answers, wrong clocks, restored copies and resets. None may lose, double or silently drop a message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import suite
from simulation.choices import Choices
from simulation.search import Failure, World, first_failure, shrink
from simulation.spark_handlers import handler_world
from simulation.spark_mutants import HANDLER_MUTANTS, MUTANTS, PARQUET_MUTANTS, RARE
from simulation.spark_parquet import parquet_world
from simulation.spark_plan import DESTRUCTIVE, EVENTS
from simulation.spark_queries import queries_world
from simulation.spark_world import spark_world

SEEDS = suite.effort(fast=100, full=3_000)
MUTANT_SEEDS = 2_000
QUICKLY_FOUND = (
    "a message is deleted before its segment is sealed",
    "a commit is known by its number only",
    "a reset drops what is sealed and in no table",
)


def check(world: World, seeds: range) -> None:
    failure = first_failure(world, seeds)
    if failure is not None:
        _, seed, outcome = failure
        pytest.fail(str(Failure(world.__name__, seed, outcome, shrink(world, outcome))))


def test_whatever_happens_to_drivers_tasks_store_queue_and_sink_each_message_is_in_the_table_once_or_it_is_said() -> (
    None
):
    check(spark_world, range(SEEDS))


def test_whatever_happens_each_message_is_in_the_files_of_a_parquet_table_once() -> None:
    check(parquet_world, range(SEEDS // 2))


def test_whatever_happens_to_a_checkpoint_each_message_is_handled_once_in_order_and_then_deleted() -> None:
    check(handler_world, range(SEEDS // 2))


def test_of_two_queries_on_one_log_one_is_refused_and_no_message_is_lost() -> None:
    check(queries_world, range(SEEDS // 3))


def test_schedules_of_spark_are_full_of_trouble() -> None:
    """The tests above would prove nothing if nothing happened."""
    facts: Counter[str] = Counter()
    for seed in range(60):
        facts.update(spark_world(Choices(seed)).facts)
    also = {"resets", "refusals", "killed", "taken for dead", "twins", "rows"}
    assert {*EVENTS, *DESTRUCTIVE, *also} <= {name for name, count in facts.items() if count}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICKLY_FOUND else pytest.mark.slow)
        for name in MUTANTS
        if name not in RARE
    ],
)
def test_every_bug_that_is_put_into_the_source_on_purpose_is_found(name: str) -> None:
    with MUTANTS[name]():
        failure = first_failure(spark_world, range(MUTANT_SEEDS))
    assert failure is not None, f"not found in {MUTANT_SEEDS} schedules"
    print(f"{name}: found after {failure[0]} schedules: {failure[2].violations[0]}")


@pytest.mark.parametrize(
    ("name", "world"),
    [
        *((name, parquet_world) for name in PARQUET_MUTANTS),
        *((name, handler_world) for name in HANDLER_MUTANTS if name not in RARE),
    ],
)
def test_every_bug_in_the_commits_of_sinks_is_found(name: str, world: World) -> None:
    with {**PARQUET_MUTANTS, **HANDLER_MUTANTS}[name]():
        assert first_failure(world, range(MUTANT_SEEDS)) is not None, f"not found in {MUTANT_SEEDS} schedules"


def test_a_failing_schedule_is_made_shorter_and_still_shows_the_same() -> None:
    with MUTANTS["a commit is known by its number only"]():
        failure = first_failure(spark_world, range(200))
        assert failure is not None
        _, _, outcome = failure
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
from simulation.spark_plan import DESTRUCTIVE, EVENTS
from simulation.spark_queries import queries_world
from simulation.spark_world import spark_world
print(*[spark_world(Choices(seed)).digest for seed in range(12)])
"""


def test_the_same_seed_gives_the_same_history_to_the_byte_also_in_another_process() -> None:
    proof = Path(__file__).parents[1]
    path = os.pathsep.join((str(proof.parent), str(proof)))
    there = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert there.split() == [spark_world(Choices(seed)).digest for seed in range(12)]
