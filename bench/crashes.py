"""Pipelines killed at random moments: `make prove-spark`.

For each sink: a broker with faults, a producer that sends some orders twice and some that are none, and
`semel pipeline run` in a process of its own, killed with SIGKILL 20 times and started again each time. Half of the
kills come soon after the query runs, wherever it is then; the other half soon after it has committed a batch, so that
it gets on. Then everything that was sent is compared with what is in the sink. By seed: the moments, the orders and
the faults are drawn anew from it; what they hit depends on the machine.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the harness that the tests use

from broker_bench import machine
from broker_bench.progress import Progress
from peer_bench.arguments import names
from peer_bench.tables import Table, as_markdown, laid_out
from semel.broker import running
from spark import crashing
from spark.crashing import Audit, Driver, Ended, Orders, Sink, Trial

EXAMPLE = """\
example:
  python bench/crashes.py                                  all sinks, 20 kills each: some 40 minutes
  python bench/crashes.py --sinks parquet,delta --kills 5
  python bench/crashes.py --sinks handler --seed 11

exit codes: 0 nothing was lost or doubled; 1 something was, or a driver ended by itself; 2 wrong usage
"""
FAULTS = {**crashing.FAULTS, "early-visibility": 0.01}
ENOUGH = 1_500  # messages in the queue: more are sent when there are fewer
PER_LIFE = 400  # orders sent before each start, if so
AGAIN = 0.02  # of orders are sent twice
SOON = 4.0  # seconds within which a kill follows


@dataclass(frozen=True)
class Place:
    """What a sink is made with."""

    orders: Orders
    folder: Path
    postgres: Callable[[], str]


@dataclass(frozen=True)
class Case:
    label: str
    sink: Callable[[Place], Sink]
    source: dict[str, str | int]


KEY: dict[str, str | int] = {"dedup": "key"}
CASES = {
    "parquet": Case("Parquet", lambda at: crashing.ParquetFolder(at.folder / "table"), KEY),
    "committed": Case(
        "Parquet, ack=committed", lambda at: crashing.ParquetFolder(at.folder / "table"), {**KEY, "ack": "committed"}
    ),
    "delta": Case("Delta", lambda at: crashing.DeltaFolder(at.folder / "table"), KEY),
    "append": Case("PostgreSQL append", lambda at: crashing.PostgresTable(at.postgres(), "appended"), KEY),
    "upsert": Case("PostgreSQL upsert", lambda at: crashing.PostgresTable(at.postgres(), "upserted", "upsert"), {}),
    "sqs": Case("SQS FIFO queue", lambda at: crashing.FifoQueue(at.orders), KEY),
    "handler": Case("handler, SQLite ledger", lambda at: crashing.HandlerEffects(at.folder, at.orders), {}),
}


@dataclass(frozen=True)
class Outcome:
    label: str
    kills: int
    audit: Audit
    seconds: float
    failure: str = ""

    @property
    def passed(self) -> bool:
        return self.audit.passed and not self.failure


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress.expect(len(options.sinks) * (options.kills + 1))
    try:
        with opened(progress) as site:
            outcomes = [prove(CASES[name], options, site) for name in options.sinks]
    except KeyboardInterrupt:
        progress.say("interrupted; everything is stopped")
        return 130
    finally:
        progress.finish()
    head = header(options.kills, options.seed)
    table = table_of(outcomes)
    print("\n".join(head), laid_out(table), *verdict(outcomes), sep="\n\n")
    if options.markdown:
        text = ["# Drivers killed at random moments", "\n".join(f"- {line}" for line in head), as_markdown(table)]
        options.markdown.write_text("\n\n".join([*text, *verdict(outcomes)]) + "\n")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/crashes.py",
        description="Kill the drivers of pipelines at random moments, then compare what was sent with what is there.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sinks", type=names(CASES), default=list(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="how often each driver is killed (20)")
    parser.add_argument(
        "--seed", type=int, default=7, metavar="N", help="of the moments, the orders and the faults (7)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown")
    found = parser.parse_args(arguments)
    if found.kills < 0:
        parser.error("--kills: 0 is the least")
    return found


@dataclass(frozen=True)
class Site:
    """`java`: options for the drivers' Java. `postgres`: the address of a server, started when first asked for."""

    java: str
    postgres: Callable[[], str]
    progress: Progress


@contextmanager
def opened(progress: Progress) -> Iterator[Site]:
    from servers import postgres

    with ExitStack() as stack:

        @cache
        def url() -> str:
            return stack.enter_context(postgres.running()).url

        archive = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-crashes-java-")))
        progress.say("Spark is started once in peace, so that it starts faster from then on ...")
        yield Site(crashing.with_archive(archive), url, progress)


def prove(case: Case, options: argparse.Namespace, site: Site) -> Outcome:
    """One sink. What is left of it stays on the disk if something is wrong."""
    kills, seed, progress = options.kills, options.seed, site.progress
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="semel-crashes-"))
    with running(faults=FAULTS, fault_seed=seed) as broker:
        orders = Orders(broker, again=AGAIN, seed=seed)
        sink = case.sink(Place(orders, folder, site.postgres))
        trial = Trial(orders, sink, folder, source=case.source, variables={"SPARK_SUBMIT_OPTS": site.java})
        died = 0
        try:
            for died, said in enumerate(lives(trial, Random(seed), kills), 1):
                progress.step(f"{case.label}: kill {died} of {kills} {said}")
            audit, failure = trial.finish(), ""
        except Ended as error:
            audit, failure = crashing.audited(orders, trial.sink), str(error).strip()
    outcome = Outcome(case.label, died, audit, time.monotonic() - began, failure)
    text = f"{case.label}: {audit.rows:,} rows, lost {len(audit.lost)}, doubled {len(audit.doubled)}"
    progress.step(text, kills + 1 - died)
    if outcome.passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        progress.say(f"{case.label}: {failure or audit}; what there is of it is in {folder}")
    return outcome


def lives(trial: Trial, chance: Random, kills: int) -> Iterator[str]:
    """Drivers, each killed at a moment by chance; says of each how far the pipeline had got."""
    for _ in range(kills):
        if trial.orders.left() < ENOUGH:
            trial.orders.send(PER_LIFE)
        gets_on, moment, before = chance.random() < 0.5, chance.uniform(0, SOON), trial.committed()

        def killed(driver: Driver, gets_on: bool = gets_on, moment: float = moment, before: int = before) -> None:
            if not crashing.wait_until(lambda: trial.committed() > before if gets_on else trial.runs(driver), driver):
                raise Ended(f"nothing happened for {crashing.PATIENCE:.0f} s: {driver.said()}")
            time.sleep(moment)
            if driver.ended:
                raise Ended(f"it ended by itself: {driver.said()}")
            driver.kill()

        trial.with_driver(killed)
        yield f"in batch {trial.committed() + 1}, {trial.orders.left():,} messages in the queue"


def header(kills: int, seed: int) -> list[str]:
    faults = ", ".join(f"{name} {rate:.0%}" for name, rate in FAULTS.items())
    return [
        *(f"{name}: {value}" for name, value in machine.description().items()),
        f"{kills} kills with SIGKILL for each sink, seed {seed}; visibility {crashing.VISIBILITY} s",
        f"faults of the broker: {faults}; {AGAIN:.0%} of the orders are sent twice",
    ]


def table_of(outcomes: list[Outcome]) -> Table:
    table: Table = [
        ("sink", "kills", "orders", "sent", "delivered", "rows", "dead letters", "lost", "doubled", "minutes")
    ]
    for outcome in outcomes:
        found = outcome.audit
        counts = (found.orders, found.sent, found.delivered, found.rows, found.letters)
        wrong = (len(found.lost) + len(found.letters_lost), len(found.doubled))
        figures = [f"{count:,}" for count in (outcome.kills, *counts, *wrong)]
        table.append((outcome.label, *figures, f"{outcome.seconds / 60:.1f}"))
    return table


def verdict(outcomes: list[Outcome]) -> list[str]:
    bad = [outcome for outcome in outcomes if not outcome.passed]
    if not bad:
        return ["lost 0, doubled 0"]
    return [f"FAILED: {outcome.label}: {outcome.failure or outcome.audit}" for outcome in bad]


if __name__ == "__main__":
    sys.exit(main())
