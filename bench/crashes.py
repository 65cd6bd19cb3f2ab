"""Pipelines killed or stopped at random moments: `make prove-spark`.

For each sink there is a broker with faults, a producer that sends some orders twice and some malformed ones, and
`semel pipeline run` in its own process. First its driver is killed with SIGKILL 20 times and restarted each time. Half
of the kills come soon after the query has started, whatever it is doing; the other half soon after it has committed a
batch, so that the pipeline makes progress. Then, on a standalone cluster with two workers, 20 executors are killed
while the driver keeps running. `--victims stopped-drivers,stopped-executors` instead stops processes with SIGSTOP until
the visibility timeouts of their messages have ended, and then continues them. After each sink, the messages that were
sent are compared with the rows in the sink, by the rules of `semel verify`. The seed determines the moments, the orders
and the faults; what they hit depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the harness that the tests use

from broker_bench import machine
from broker_bench.progress import Progress
from peer_bench.arguments import names
from peer_bench.tables import Table, as_markdown, laid_out
from semel.broker import running
from spark import cluster as spark_cluster
from spark import crashing
from spark.cluster import Cluster
from spark.crashing import Audit, Driver, Ended, Orders, Sink, Trial

EXAMPLE = """\
example:
  python bench/crashes.py                        all sinks, 20 drivers and 20 executors each
  python bench/crashes.py --sinks parquet,delta --kills 5
  python bench/crashes.py --victims executors
  python bench/crashes.py --victims stopped-drivers,stopped-executors --kills 3
  python bench/crashes.py --sinks handler --seed 11

exit codes: 0 nothing was lost or doubled; 1 something was, or a driver ended by itself; 2 wrong usage
"""
FAULTS = {**crashing.FAULTS, "early-visibility": 0.01}
ENOUGH = 1_500  # messages in the queue; if there are fewer, more are sent
PER_LIFE = 400  # orders that are sent then
AGAIN = 0.02  # the share of orders that are sent twice
SOON = 4.0  # a kill follows within this number of seconds
STOPPED = (1.1, 1.6)  # for how many visibility timeouts a process is stopped
VICTIMS = ("drivers", "executors", "stopped-drivers", "stopped-executors")
KILLED = ["drivers", "executors"]


@dataclass(frozen=True)
class Place:
    """What is needed to create a sink."""

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
    progress.expect(len(options.victims) * len(options.sinks) * (options.kills + 1))
    try:
        with opened(progress) as site:
            outcomes = [
                prove(CASES[name], victim, options, site) for victim in options.victims for name in options.sinks
            ]
    except KeyboardInterrupt:
        progress.report("interrupted; everything is stopped")
        return 130
    finally:
        progress.finish()
    head = header(options.kills, options.seed)
    table = table_of(outcomes)
    print("\n".join(head), laid_out(table), *verdict(outcomes), sep="\n\n")
    if options.markdown:
        text = [
            "# Drivers and executors killed or stopped at random moments",
            "\n".join(f"- {line}" for line in head),
            as_markdown(table),
        ]
        options.markdown.write_text("\n\n".join([*text, *verdict(outcomes)]) + "\n")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/crashes.py",
        description="Kill drivers and executors at random moments, then compare the sink with what was sent.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sinks", type=names(CASES), default=list(CASES), help=f"a subset of {','.join(CASES)}")
    parser.add_argument(
        "--victims", type=names(VICTIMS), default=KILLED, help=f"a subset of {','.join(VICTIMS)} (drivers,executors)"
    )
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="kills or stops for each sink (20)")
    parser.add_argument(
        "--seed", type=int, default=7, metavar="N", help="seed for the moments, the orders and the faults (7)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown")
    options = parser.parse_args(arguments)
    if options.kills < 0:
        parser.error("--kills: 0 is the least")
    return options


@dataclass(frozen=True)
class Site:
    """`java`: JVM options for the drivers. `postgres` and `cluster` are started on their first use."""

    java: str
    postgres: Callable[[], str]
    cluster: Callable[[], Cluster]
    progress: Progress


@contextmanager
def opened(progress: Progress) -> Iterator[Site]:
    from servers import postgres

    with ExitStack() as stack:

        @cache
        def url() -> str:
            return stack.enter_context(postgres.running()).url

        @cache
        def cluster() -> Cluster:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-crashes-cluster-"))
            os.environ |= {name: value for name, value in crashing.environment().items() if name.startswith("AWS_")}
            return stack.enter_context(spark_cluster.running(Path(folder)))

        archive = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-crashes-java-")))
        progress.report("Spark is started once in peace, so that it starts faster from then on ...")
        yield Site(crashing.with_archive(archive), url, cluster, progress)


def prove(case: Case, victim: str, options: argparse.Namespace, site: Site) -> Outcome:
    """Test one sink. If something is wrong, its folder is kept."""
    kills, seed, progress = options.kills, options.seed, site.progress
    label = f"{case.label}, {victim}"
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="semel-crashes-"))
    with running(faults=FAULTS, fault_seed=seed) as broker:
        orders = Orders(broker, again=AGAIN, seed=seed)
        sink = case.sink(Place(orders, folder, site.postgres))
        trial = trial_for(victim, orders, sink, folder, case, site)
        died = 0
        try:
            for died, said in enumerate(strike(victim, site)(trial, Random(seed), kills), 1):
                progress.step(f"{label}: {died} of {kills} {said}")
            audit, failure = trial.finish(), ""
        except Ended as error:
            audit, failure = crashing.audited(orders, trial.sink), str(error).strip()
    outcome = Outcome(label, died, audit, time.monotonic() - began, failure)
    text = f"{label}: {audit.rows:,} rows, lost {len(audit.lost)}, doubled {len(audit.doubled)}"
    progress.step(text, kills + 1 - died)
    if outcome.passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        progress.report(f"{label}: {failure or audit}; what there is of it is in {folder}")
    return outcome


def strike(victim: str, site: Site) -> Callable[[Trial, Random, int], Iterator[str]]:
    """The function that kills or stops victims of this kind."""
    kinds: dict[str, Callable[[Trial, Random, int], Iterator[str]]] = {
        "drivers": drivers,
        "executors": partial(executors, site.cluster),
        "stopped-drivers": stopped_drivers,
        "stopped-executors": partial(stopped_executors, site.cluster),
    }
    return kinds[victim]


def trial_for(victim: str, orders: Orders, sink: Sink, folder: Path, case: Case, site: Site) -> Trial:
    if victim in ("drivers", "stopped-drivers"):
        return Trial(orders, sink, folder, source=case.source, variables={"SPARK_SUBMIT_OPTS": site.java})
    cluster = site.cluster()
    variables = cluster.environment | {"SPARK_SUBMIT_OPTS": site.java}
    arguments = ("--master", cluster.master_url, "--cores", "2")
    return Trial(orders, sink, folder, source=case.source, variables=variables, arguments=arguments)


def executors(cluster: Callable[[], Cluster], trial: Trial, chance: Random, kills: int) -> Iterator[str]:
    """Run one driver and kill its executors at random moments; yields the progress of the pipeline after each kill."""
    with trial.driver() as driver:
        for _ in range(kills):
            cluster().kill_executor(an_executor(cluster, trial, driver, chance))
            yield progress_of(trial)
        driver.stop()


def stopped_executors(cluster: Callable[[], Cluster], trial: Trial, chance: Random, stops: int) -> Iterator[str]:
    """Run one driver; stop its executors at random moments and continue them."""
    with trial.driver() as driver:
        for _ in range(stops):
            with cluster().stopped_executor(an_executor(cluster, trial, driver, chance)):
                time.sleep(crashing.VISIBILITY * chance.uniform(*STOPPED))
            yield progress_of(trial)
        driver.stop()


def stopped_drivers(trial: Trial, chance: Random, stops: int) -> Iterator[str]:
    """Run one driver; stop it at random moments and continue it."""
    with trial.driver() as driver:
        for _ in range(stops):
            await_progress(trial, driver)
            time.sleep(chance.uniform(0, SOON))
            with driver.stopped():
                time.sleep(crashing.VISIBILITY * chance.uniform(*STOPPED))
            yield progress_of(trial)
        driver.stop()


def an_executor(cluster: Callable[[], Cluster], trial: Trial, driver: Driver, chance: Random) -> int:
    """The process id of a random executor, at a random moment after the next batch."""
    await_progress(trial, driver)
    time.sleep(chance.uniform(0, SOON))
    crashing.wait_until(lambda: bool(cluster().executors()), driver)
    return chance.choice(cluster().executors())


def await_progress(trial: Trial, driver: Driver) -> None:
    """Wait for the next batch, with enough messages in the queue."""
    send_enough(trial)
    if not crashing.wait_until(partial(committed_since, trial, trial.committed()), driver):
        raise Ended(f"nothing happened for {crashing.PATIENCE:.0f} s: {driver.said()}")


def send_enough(trial: Trial) -> None:
    if trial.orders.left() < ENOUGH:
        trial.orders.send(PER_LIFE)


def progress_of(trial: Trial) -> str:
    return f"in batch {trial.committed() + 1}, {trial.orders.left():,} messages in the queue"


def committed_since(trial: Trial, batch: int) -> bool:
    return trial.committed() > batch


def drivers(trial: Trial, chance: Random, kills: int) -> Iterator[str]:
    """Run drivers one after the other and kill each at a random moment; yields the progress after each kill."""
    for _ in range(kills):
        send_enough(trial)
        gets_on, moment, before = chance.random() < 0.5, chance.uniform(0, SOON), trial.committed()

        def killed(driver: Driver, gets_on: bool = gets_on, moment: float = moment, before: int = before) -> None:
            if not crashing.wait_until(lambda: trial.committed() > before if gets_on else trial.runs(driver), driver):
                raise Ended(f"nothing happened for {crashing.PATIENCE:.0f} s: {driver.said()}")
            time.sleep(moment)
            if driver.ended:
                raise Ended(f"it ended by itself: {driver.said()}")
            driver.kill()

        trial.with_driver(killed)
        yield progress_of(trial)


def header(kills: int, seed: int) -> list[str]:
    faults = ", ".join(f"{name} {rate:.0%}" for name, rate in FAULTS.items())
    return [
        *(f"{name}: {value}" for name, value in machine.description().items()),
        f"{kills} for each sink and kind of victim, seed {seed}; visibility {crashing.VISIBILITY} s",
        f"faults of the broker: {faults}; {AGAIN:.0%} of the orders are sent twice",
    ]


def table_of(outcomes: list[Outcome]) -> Table:
    table: Table = [
        ("sink", "victims", "orders", "sent", "delivered", "rows", "dead letters", "lost", "doubled", "minutes")
    ]
    for outcome in outcomes:
        audit = outcome.audit
        counts = (audit.orders, audit.sent, audit.delivered, audit.rows, audit.dead_letters)
        wrong = (len(audit.lost) + len(audit.dead_letters_lost), len(audit.doubled))
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
