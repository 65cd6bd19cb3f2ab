"""Semel's ledger: one call claims a whole batch, and one call records it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable

from ledger_bench.harness import Options, Step, drive, expect
from semel.ledger.contract import ClaimRequest, Completion, Ledger, Won


def main() -> None:
    options = Options.read()
    with Ledger.connect(options.url) as ledger:
        numbers = itertools.count()
        process = uuid.uuid4().hex

        def step_for(_number: int) -> Step:
            def step(keys: list[str], done: Callable[[int], None]) -> None:
                asks = [ClaimRequest(key, source=key) for key in keys]
                verdicts = ledger.claim(asks, claimant=f"{process}-{next(numbers)}", lease=60.0)
                won = [Completion(verdict.claim) for verdict in verdicts if isinstance(verdict, Won)]
                expect(len(won) == len(keys), f"only {len(won)} of {len(keys)} new keys were won")
                expect(all(ledger.record(won)), "a record was refused")
                done(len(keys))

            return step

        drive(options, step_for)


if __name__ == "__main__":
    main()
