"""`semel demo handler`: the same faulty queue, processed by the loop from the tutorials and by Semel.

The queue misbehaves as SQS may: it delivers some messages twice and loses some deletes. The loop runs
undisturbed. Semel has two workers; three times, the one that has just charged an order is killed with SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from semel.demo.display import Screen
from semel.demo.processes import CREDENTIALS, Broker, Processes, last_line
from semel.errors import SemelError
from semel.sqs import Client, Entry, Failure

ORDERS: Final = 300
EUROS: Final = 40
FAULTS: Final = {"duplicate": 0.1, "lost-delete": 0.1}
SEED: Final = 1
VISIBILITY: Final = 2
KILLS: Final = 3
PATIENCE: Final = 120.0
LOOP, CHARGES = "loop", "charges"  # the two queues
SET_UP: Final = """\
import os
import time

from semel import App, SqliteLedger

ledger = SqliteLedger("charges.db")
app = App(ledger, concurrency=4, lease=2)

with ledger.transaction() as tx:
    tx.execute("CREATE TABLE IF NOT EXISTS charges (number INTEGER, euros INTEGER, worker INTEGER)")


"""
HANDLER: Final = """\
@app.handler("charges", key="$.number")
def charge(order, tx):
    time.sleep(0.01)  # as if there were something to do
    row = order["number"], order["euros"], os.getpid()
    tx.execute("INSERT INTO charges VALUES (?, ?, ?)", row)
"""
_COUNTS: Final = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of the loop or of Semel. `uncharged`: deliveries that led to no charge."""

    orders: int
    deliveries: int
    kills: int
    charges: int
    uncharged: int
    charged_twice: int  # orders charged more than once
    not_charged: int  # orders
    euros_too_much: int


@dataclass(frozen=True, slots=True)
class Comparison:
    loop: Outcome
    semel: Outcome

    @property
    def problems(self) -> list[str]:
        problems = []
        if self.semel.not_charged:
            problems.append(f"Semel did not charge {self.semel.not_charged} orders")
        if self.semel.charged_twice:
            problems.append(f"Semel charged {self.semel.charged_twice} orders more than once")
        if self.semel.charges != self.semel.orders:
            problems.append(f"the audit does not add up: {self.semel.orders} orders, {self.semel.charges} charges")
        if self.loop.uncharged or self.semel.uncharged < 0:  # the loop charges at every delivery, Semel at most once
            problems.append("the audit does not add up: charges and deliveries do not match")
        return problems

    def plain(self) -> dict[str, Any]:
        return {"loop": asdict(self.loop), "semel": asdict(self.semel), "passed": not self.problems}


def outcome(orders: int, charges: Counter[int], deliveries: int, kills: int = 0) -> Outcome:
    total = charges.total()
    return Outcome(
        orders=orders,
        deliveries=deliveries,
        kills=kills,
        charges=total,
        uncharged=deliveries - total,
        charged_twice=sum(count > 1 for count in charges.values()),
        not_charged=sum(number not in charges for number in range(orders)),
        euros_too_much=(total - len(charges)) * EUROS,
    )


def run(orders: int = ORDERS, *, screen: Screen) -> Comparison:
    """Raises SemelError if a part does not start or does not finish."""
    with (
        tempfile.TemporaryDirectory(prefix="semel-demo-", ignore_cleanup_errors=True) as name,
        Processes() as processes,
    ):
        folder = Path(name)
        broker = Broker(processes, folder, FAULTS, SEED)
        screen.write(f"A queue that behaves as SQS may: it delivers {FAULTS['duplicate']:.0%} of the messages twice,")
        screen.write(
            f"and {FAULTS['lost-delete']:.0%} of the deletes get lost. {orders:,} orders, each to be charged once."
        )
        with Client(broker.url, "us-east-1", access_key="demo", secret_key="demo") as client:
            for queue in (LOOP, CHARGES):
                _fill(client, queue, orders)
            demo = Demo(orders, folder, broker, client, processes, screen)
            comparison = Comparison(demo.loop(), demo.semel())
    screen.write()
    for line in table(comparison):
        screen.write(line)
    screen.write("\nThe same with Spark and a table: semel demo pipeline")
    return comparison


def _fill(client: Client, name: str, orders: int) -> None:
    queue = client.create_queue(name, {"VisibilityTimeout": str(VISIBILITY)})
    sent = queue.send_many([Entry(json.dumps({"number": number, "euros": EUROS})) for number in range(orders)])
    failures = [result for result in sent if isinstance(result, Failure)]
    if failures:
        raise SemelError(f"{len(failures)} of {orders} orders could not be sent: {failures[0].message}")


class Demo:
    def __init__(
        self, orders: int, folder: Path, broker: Broker, client: Client, processes: Processes, screen: Screen
    ) -> None:
        self.orders, self.folder, self.broker = orders, folder, broker
        self.client, self.processes, self.screen = client, processes, screen

    def loop(self) -> Outcome:
        """Receives, charges and deletes with botocore, the library under boto3."""
        self.screen.write("\nThe loop from the tutorials: receive, charge, delete. Nobody disturbs it.")
        sqs, url = _botocore(self.broker.url), self.client.queue(LOOP).url
        charges: Counter[int] = Counter()
        until = time.monotonic() + PATIENCE
        while self._is_filled(LOOP, until):
            answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            for message in answer.get("Messages", ()):
                charges[json.loads(message["Body"])["number"]] += 1
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            self.screen.progress(len(charges), self.orders, f"{charges.total():,} charges")
        return self._report(outcome(self.orders, charges, self.broker.deliveries(LOOP)))

    def semel(self) -> Outcome:
        """The handler in two workers; as soon as one is killed, another one is started."""
        (self.folder / "charges.py").write_text(SET_UP + HANDLER)
        self.screen.write("\nSemel: semel run charges:app, in two workers. The handler in charges.py is\n")
        self.screen.write(textwrap.indent(HANDLER, "    "))
        self.screen.write("Now and then, the worker that has just charged an order is killed with SIGKILL.")
        log = self.folder / "workers.log"
        arguments = ("run", "charges:app", "--endpoint-url", self.broker.url, "--log-level", "error")
        with log.open("ab") as lines:

            def worker() -> subprocess.Popen[bytes]:
                return self.processes.start(*arguments, output=lines, environment=CREDENTIALS, folder=self.folder)

            workers, kills, until = (
                {(process := worker()).pid: process for _ in range(2)},
                0,
                time.monotonic() + PATIENCE,
            )
            while self._is_filled(CHARGES, until):
                ended = [process for process in workers.values() if process.poll() is not None]
                if ended:
                    raise SemelError(f"a worker ended with code {ended[0].returncode}: {last_line(log)}")
                charges, last = self._charges()
                self.screen.progress(len(charges), self.orders, f"{charges.total():,} charges, {kills} workers killed")
                # Kills at a quarter, a half and three quarters of the work, on a fast or slow machine.
                due = self.orders * (kills + 1) // (KILLS + 1)
                if kills < KILLS and due <= len(charges) < self.orders and last in workers:
                    self.processes.kill(workers.pop(last))
                    kills += 1
                    fresh = worker()
                    workers[fresh.pid] = fresh
                time.sleep(0.02)
            for process in workers.values():
                self.processes.end(process, "a worker")
        charges, _ = self._charges()
        return self._report(outcome(self.orders, charges, self.broker.deliveries(CHARGES), kills))

    def _charges(self) -> tuple[Counter[int], int | None]:
        """How often each order was charged, and the process that has charged the last one."""
        with contextlib.closing(sqlite3.connect(self.folder / "charges.db", timeout=30)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'charges'").fetchall():
                return Counter(), None  # no worker is ready yet
            rows = database.execute("SELECT number, worker FROM charges ORDER BY rowid").fetchall()
        return Counter(number for number, _ in rows), rows[-1][1] if rows else None

    def _is_filled(self, name: str, until: float) -> bool:
        if time.monotonic() > until:
            raise SemelError(f"queue {name} was not empty within {PATIENCE:.0f} s")
        return any(int(count) for count in self.client.queue(name).attributes(*_COUNTS).values())

    def _report(self, done: Outcome) -> Outcome:
        charged = done.orders - done.not_charged
        self.screen.write(
            f"  {charged:,} of {done.orders:,} orders charged, {done.charged_twice:,} of them more than once: "
            f"{done.charges:,} charges"
        )
        return done


def _botocore(url: str) -> Any:
    from botocore.config import Config
    from botocore.session import get_session

    return get_session().create_client(
        "sqs",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="demo",
        aws_secret_access_key="demo",
        config=Config(proxies={}),
    )


def table(comparison: Comparison) -> list[str]:
    """Both results side by side, as text."""

    def line(text: str, loop: int, semel: int, unit: str = "") -> str:
        return f"  {text:<40}{f'{loop:,}{unit}':>16}{f'{semel:,}{unit}':>16}"

    loop, semel = comparison.loop, comparison.semel
    return [
        f"  {'':<40}{'tutorial':>16}{'Semel':>16}",
        line("orders", loop.orders, semel.orders),
        line("workers killed", loop.kills, semel.kills),
        line("deliveries by SQS", loop.deliveries, semel.deliveries),
        line("    that led to a charge", loop.charges, semel.charges),
        line("    that led to none", loop.uncharged, semel.uncharged),
        line("orders charged more than once", loop.charged_twice, semel.charged_twice),
        line("orders not charged", loop.not_charged, semel.not_charged),
        line("charged too much", loop.euros_too_much, semel.euros_too_much, " €"),
    ]
