"""`make proof-crashes`: broker, workers, producers and stores under faults for minutes; then the history is checked."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from process_crashes import run, stores
from process_crashes.run import Result

EXAMPLE: Final = """\
example:
  python -m process_crashes                              15 minutes over all stores in turn, then Spark
  python -m process_crashes --minutes 2 --stores redis --no-spark
  python -m process_crashes --minutes 5 --stores postgres --no-spark --seed 7

One seed decides what happens when. What it hits depends on the machine.

exit codes: 0 nothing was lost, doubled, reordered or left; 1 something was: the evidence is kept; 2 wrong usage
"""
SPARK_SINKS: Final = "parquet,append,handler"  # a table of files, one of a database, and effects of handlers
REPOSITORY: Final = Path(__file__).parents[3]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = Random().getrandbits(32) if options.seed is None else options.seed
    seconds = options.minutes * 60 / len(options.stores)
    notify(f"seed {seed}, {seconds:.0f} s for each of {', '.join(options.stores)}")
    results: list[Result] = []
    for store in options.stores:
        notify_of_store = partial(notify, f"{store} ")
        result = run.run(store, seed=seed, seconds=seconds, notify=notify_of_store, keep=options.keep)
        results.append(result)
        notify(
            "\n".join(evidence(result)) if result.complaints else f"{store}: nothing lost, doubled, reordered or left"
        )
    spark = 0
    if options.spark_kills:
        spark = subprocess.run(spark_command(options.spark_kills, seed), check=False).returncode
    print("\n".join(report(results, seed)))
    return 0 if all(result.passed for result in results) and not spark else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m process_crashes",
        description="Kill, stop, restart and cut off real processes, then check the history that they wrote down.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=15.0, metavar="N", help="duration, all stores together (15)")
    parser.add_argument(
        "--stores",
        type=lambda text: text.split(","),
        default=list(stores.NAMES),
        help=f"some of {','.join(stores.NAMES)}",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the faults and their times (random)")
    parser.add_argument(
        "--spark-kills", type=int, default=3, metavar="N", help="kills for each sink and kind of victim on Spark (3)"
    )
    parser.add_argument("--no-spark", dest="spark_kills", action="store_const", const=0, help="leave Spark out")
    parser.add_argument("--keep", action="store_true", help="keep history and logs even if nothing is wrong")
    options = parser.parse_args(arguments)
    if unknown := set(options.stores) - set(stores.NAMES):
        parser.error(f"--stores: there is no {', '.join(sorted(unknown))}; choose from {', '.join(stores.NAMES)}")
    if not options.minutes > 0:
        parser.error("--minutes: give a number above 0")
    return options


def spark_command(kills: int, seed: int) -> list[str]:
    """The command that kills and stops drivers and executors. `make prove-spark` kills more of them, for every sink."""
    victims = "drivers,executors,stopped-drivers,stopped-executors"
    what = ["--sinks", SPARK_SINKS, "--victims", victims, "--kills", str(kills), "--seed", str(seed)]
    return [sys.executable, str(REPOSITORY / "bench" / "crashes.py"), *what]


def evidence(result: Result) -> list[str]:
    return [
        f"{result.store}: FAILED with seed {result.seed}; history and logs are in {result.folder}",
        *(f"  {text[:1000]}" for text in result.complaints[:20]),
        f"  {len(result.complaints)} complaints",
        run.last_lines(result.folder),
    ]


def report(results: list[Result], seed: int) -> list[str]:
    lines = [f"seed {seed}"]
    for result in results:
        survived = Counter(result.survived)
        lines += [
            f"{result.store}: {'passed' if result.passed else 'FAILED'} after {result.seconds / 60:.1f} minutes",
            f"  survived: {', '.join(f'{count:,} {kind}' for kind, count in survived.most_common() if count)}",
            f"  {result.messages:,} messages, {result.deliveries:,} deliveries logged, {result.effects:,} effects, "
            f"of these {result.repeated:,} again under the same key in lease mode",
            f"  {result.duplicates:,} duplicates deleted without being run, "
            f"{result.fenced:,} outcomes of overtaken workers refused",
            f"  drained {result.drain_seconds:.0f} s after the last fault had ended",
        ]
    return lines


def notify(*text: str) -> None:
    print(*text, sep="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
