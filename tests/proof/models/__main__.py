"""`python -m models`: explores all states of every model, finds every mutant, and prints the number of states.

python -m models             a few minutes
python -m models --quick     two faults for the workers, one switch and one fault for the drivers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from models import batches, batches_mutants, claims, claims_mutants
from models.batches import Batches
from models.claims import Claims
from models.driver import Driver
from models.explorer import Exploration, explore

NO_FAULTS = batches.Faults(0, 0, 0, 0, 0, 0)
ONE_FAULT = batches.Faults(total=1)
Explorer = Callable[[], Exploration[Any]]


def models(quick: bool) -> Iterator[tuple[str, Explorer]]:
    faults = claims.Faults(total=2 if quick else 5)
    for mode, transaction in (("lease mode", False), ("transaction mode", True)):
        model = Claims(transaction=transaction, faults=faults)
        yield f"two workers, {mode}, {faults.total} faults", lambda model=model: explore(model)  # type: ignore[misc]
    for ack in ("sealed", "committed"):
        explored = {
            "one message, all interleavings": Batches(Driver(ack), faults=NO_FAULTS, messages=1),
            "two messages, 1 fault, 1 switch": Batches(Driver(ack), faults=ONE_FAULT, switches=1),
        }
        if not quick:
            explored |= {
                "two messages, all interleavings": Batches(Driver(ack), faults=NO_FAULTS),
                "two messages, 1 fault, 2 switches": Batches(Driver(ack), faults=ONE_FAULT, switches=2),
                "one message, 1 fault, all interleavings": Batches(Driver(ack), faults=ONE_FAULT, messages=1),
            }
        for name, drivers in explored.items():
            yield f"two drivers, ack={ack}, {name}", lambda drivers=drivers: explore(drivers, live=False)  # type: ignore[misc]


def mutants() -> Iterator[tuple[str, Explorer]]:
    for mistake, claim in claims_mutants.MUTANTS.items():
        yield mistake, lambda claim=claim: explore(claim())  # type: ignore[misc]
    for mistake, batch in batches_mutants.MUTANTS.items():
        yield mistake, lambda batch=batch: explore(batch(), live=False)  # type: ignore[misc]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    states = broken = 0
    for name, explorer in models(quick):
        began = time.monotonic()
        exploration = explorer()
        states += exploration.states
        print(
            f"{name}: {exploration.states:,} states, {exploration.steps:,} steps, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        if exploration.violation is not None:
            broken += 1
            print(exploration.violation, flush=True)
    all_mutants = list(mutants())
    missed = [mistake for mistake, explorer in all_mutants if explorer().violation is None]
    found_mutants = f"{len(all_mutants) - len(missed)} of {len(all_mutants)} mutants found"
    print(f"{states:,} states, {broken} broken rules; {found_mutants}")
    for mistake in missed:
        print(f"not found: {mistake}")
    return 1 if broken or missed else 0


if __name__ == "__main__":
    sys.exit(main())
