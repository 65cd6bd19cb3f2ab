"""`python -m simulation`: runs many schedules on all cores, shows progress, and prints a report.

Each schedule has a number, its seed: `--first 4711 --schedules 1` runs a single one again. A schedule that breaks a
promise is shrunk and printed as a timeline, and the exit code is 1. `--mutants` searches for each bug that was put in
on purpose.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from simulation.choices import Choices
from simulation.consumer_world import SILENT
from simulation.search import Failure, first_failure, shrink
from simulation.spark_mutants import RARE
from simulation.worlds import MUTANTS, WORLDS

CHUNK: Final = 250
SHOWN: Final = 3  # failures
PROGRESS_EVERY: Final = 10.0  # seconds
GC_THRESHOLD: Final = (50_000, 20, 50)
COLLECT_EVERY: Final = 10  # schedules: each leaves reference cycles, but constant collection takes a tenth of the time


@dataclass
class Result:
    """The results of some schedules of one world."""

    world: str
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0  # of CPU time
    facts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.facts.update(other.facts)
        self.failures += other.failures

    @property
    def rate(self) -> float:
        return self.schedules / self.seconds if self.seconds else 0.0


def run_chunk(job: tuple[str, int, int]) -> Result:
    name, first, last = job
    world, result = WORLDS[name], Result(name)
    began = time.process_time()
    gc.disable()
    gc.collect()
    gc.freeze()  # the collections below need not scan what earlier chunks have imported and cached
    for seed in range(first, last):
        outcome = world(Choices(seed))
        if seed % COLLECT_EVERY == 0:
            gc.collect()
        result.schedules += 1
        result.steps += len(outcome.timeline)
        result.facts.update(outcome.facts)
        if outcome.violations and len(result.failures) < SHOWN:
            gc.enable()  # shrinking runs thousands of schedules
            result.failures.append(Failure(name, seed, outcome, shrink(world, outcome)))
            gc.disable()
    result.seconds = time.process_time() - began
    return result


def run_mutant(job: tuple[str, str, int]) -> tuple[str, int | None, str]:
    """The number of schedules until the mutant was found, or None, and the kind of violation."""
    world, name, most = job
    with MUTANTS[world][name]():
        failure = first_failure(WORLDS[world], range(most))
    return f"{world}: {name}", failure[0] if failure else None, str(failure[2].violations[0].kind) if failure else ""


def prepare() -> None:
    logging.getLogger("semel").setLevel(SILENT)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def jobs(worlds: list[str], first: int, schedules: int) -> Iterator[tuple[str, int, int]]:
    for start in range(first, first + schedules, CHUNK):
        for world in worlds:
            yield world, start, min(start + CHUNK, first + schedules)


def search(arguments: argparse.Namespace) -> int:
    worlds = list(WORLDS) if arguments.world == "all" else [arguments.world]
    each = -(-arguments.schedules // len(worlds))
    results = {world: Result(world) for world in worlds}
    began = shown = time.monotonic()
    with multiprocessing.get_context("fork").Pool(arguments.processes, prepare) as pool:
        for result in pool.imap_unordered(run_chunk, jobs(worlds, arguments.first, each)):
            results[result.world].add(result)
            for failure in result.failures:  # the report has their timelines
                print(f"{failure.world}, seed {failure.seed}: {failure.outcome.violations[0]}", flush=True)
            if result.failures or time.monotonic() - shown > PROGRESS_EVERY:
                shown = time.monotonic()
                done = sum(total.schedules for total in results.values())
                failed = sum(len(total.failures) for total in results.values())
                print(
                    f"{done:,} of {each * len(worlds):,} schedules, {failed} failures, {shown - began:.0f} s",
                    flush=True,
                )
    return report(list(results.values()), time.monotonic() - began)


def report(results: list[Result], seconds: float) -> int:
    for result in results:
        print(f"\n{result.world}: {result.schedules:,} schedules, {result.rate:,.0f} a second and core")
        print(f"  {result.steps:,} steps; " + ", ".join(f"{n:,} {name}" for name, n in sorted(result.facts.items())))
        for failure in result.failures[:SHOWN]:
            print(f"\n{failure}")
    failed = sum(len(result.failures) for result in results)
    print(f"\n{sum(r.schedules for r in results):,} schedules in {seconds:,.0f} s: {failed} failures")
    return 1 if failed else 0


def look_for_mutants(arguments: argparse.Namespace) -> int:
    worlds = list(WORLDS) if arguments.world == "all" else [arguments.world]
    wanted = [
        (world, name, arguments.schedules * (10 if name in RARE else 1))
        for world in worlds
        for name in MUTANTS.get(world, ())
    ]
    missed = 0
    with multiprocessing.get_context("fork").Pool(arguments.processes, prepare, maxtasksperchild=1) as pool:
        for name, schedules, kind in pool.imap_unordered(run_mutant, wanted):
            missed += schedules is None
            print(f"{schedules if schedules else 'NOT FOUND':>10}  {name} ({kind})", flush=True)
    rare = sum(name in RARE for _, name, _ in wanted)
    print(f"\n{len(wanted) - missed} of {len(wanted)} mutants found within {arguments.schedules:,} schedules")
    if rare:
        print(f"({rare} of them are rare, and have ten times as many)")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="number, or maximum for each mutant")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--world", choices=["all", *WORLDS], default="all")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--mutants", action="store_true", help="search for the bugs that were put in on purpose")
    arguments = parser.parse_args()
    return look_for_mutants(arguments) if arguments.mutants else search(arguments)


if __name__ == "__main__":
    sys.exit(main())
