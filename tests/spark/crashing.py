"""Pipelines in separate processes, which tests kill, and the audit of their sinks afterwards.

A kill hits the driver's whole process group: its Python and its Java. Spark's Python workers are in another process
group. They continue for a moment as zombies, which is intended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import psutil

from semel.broker import EmbeddedBroker, running
from semel.sqs import Client, Entry, Sent
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import check
from semel.verify.verdict import FindingKind

QUEUE, DEAD, OUT = "orders", "orders-dead", "out.fifo"
PATIENCE: Final = 300.0
VISIBILITY: Final = 10
FAULTS: Final = {"duplicate": 0.05, "lost-delete": 0.05, "lost-answer": 0.02, "short-poll": 0.2}
# The crash points, in the order in which a batch reaches them.
NAMED: Final = ("before-seal", "after-seal", "after-delete", "during-commit")
LOOK: Final = 0.1
# Each of these Sparks lives for seconds, so Java's second compiler would cost more time than it saves.
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark allows a Python worker ten seconds to start. On a loaded machine that may not be enough; the test then retries.
STARVED: Final = "Python worker failed to connect back"
# On the PYTHONPATH of drivers and executors: its sitecustomize registers the code that kills them.
CRASH_SITE: Final = Path(__file__).with_name("crash_site")
# The shell fills in its process group, and then becomes the driver (exec), which keeps that group.
_ARMED: Final = 'export SEMEL_SPARK_KILL="$1;group=$$"; shift; exec "$@"'
_COUNTS: Final = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]

PIPELINE: Final = """\
name = "{name}"
checkpoint = "{checkpoint}"

[source]
queues = ["{queue}"]
key = "$.id"
endpoint_url = "{endpoint}"
region = "us-east-1"
visibility = {visibility}
max_seconds_per_batch = 3
max_messages_per_batch = {per_batch}
{source}
[schema]
ddl = "id STRING NOT NULL, euros BIGINT NOT NULL, shop STRING"

[[schema.constraints]]
name = "euros are positive"
field = "euros"
check = "euros > 0"

[rejects]
to = "dead-letter-queue"

[sink]
{sink}

[spark]
{spark}
"""
APP: Final = """\
from semel import App, Transaction

app = App({ledger!r}, endpoint_url={endpoint!r}, region="us-east-1", lease=5)


@app.handler({queue!r}, key="$.id")
def book(order: dict, tx: Transaction) -> None:
    tx.execute("INSERT INTO effects VALUES (?)", (order["id"],))
"""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SPARK_SUBMIT_OPTS": JAVA,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(CRASH_SITE), os.environ.get("PYTHONPATH")))),
        **more,
    }


# What is sent.


class Orders:
    """A queue of orders with its dead-letter queue, and what was sent to it. The seed determines everything."""

    def __init__(self, broker: EmbeddedBroker, *, again: float = 0.0, poison: float = 0.01, seed: int = 7) -> None:
        self.broker, self._again, self._poison = broker, again, poison
        self._random = Random(seed)
        self.client = Client(broker.url, "us-east-1", access_key="test", secret_key="test")
        dead = self.client.create_queue(DEAD)
        policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 1_000}
        self.queue = self.client.create_queue(QUEUE, {"RedrivePolicy": json.dumps(policy)})
        self.ids: set[str] = set()
        self.poison: set[str] = set()
        self.messages = 0

    def send(self, count: int) -> None:
        """Send `count` more orders, some of them twice with the same id, and also some malformed messages."""
        bodies: list[str] = []
        for number in range(len(self.ids), len(self.ids) + count):
            order = json.dumps({"id": f"o{number}", "euros": number % 500 + 1, "shop": f"shop-{number % 7}"})
            bodies += [order] * (2 if self._random.random() < self._again else 1)
            self.ids.add(f"o{number}")
            if self._random.random() < self._poison:
                bodies.append(self._broken(number))
        self._random.shuffle(bodies)
        for outcome in self.queue.send_many([Entry(body) for body in bodies]):
            assert isinstance(outcome, Sent), outcome
        self.messages += len(bodies)

    def _broken(self, number: int) -> str:
        kinds = (
            f"no JSON {number}",
            json.dumps({"id": f"p{number}", "euros": "a lot"}),
            json.dumps({"euros": number}),
            json.dumps({"id": f"p{number}", "euros": -number - 1}),
        )
        made = self._random.choice(kinds)
        self.poison.add(made)
        return made

    def left(self) -> int:
        """Messages in the queue, visible or in flight."""
        counts = self.queue.attributes(*_COUNTS)
        return sum(int(counts[name]) for name in _COUNTS)

    def dead_letters(self) -> Counter[str]:
        """Bodies of the dead-letter messages."""
        return Counter(message["Body"] for message in self.broker.peek(DEAD, limit=100_000))

    def delivered(self) -> int:
        match = re.search(rf'NumberOfMessagesReceived[^\n]*"{QUEUE}"[^\n]* (\d+)', self.broker.metrics(), re.IGNORECASE)
        return int(match[1]) if match else 0


# Where it goes.


class Sink(Protocol):
    def toml(self) -> str:
        """The [sink] section of the pipeline's file."""

    def ids(self) -> list[str]:
        """The ids of all orders in the sink; an order that is there twice is listed twice."""


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    path: Path

    def toml(self) -> str:
        return f'type = "parquet"\npath = "{self.path}"'

    def ids(self) -> list[str]:
        import pyarrow.parquet as pq

        return [id_ for file in self.path.glob("*.parquet") for id_ in pq.read_table(file)["id"].to_pylist()]


@dataclass(frozen=True, slots=True)
class DeltaFolder:
    path: Path

    def toml(self) -> str:
        return f'type = "delta"\npath = "{self.path}"'

    def ids(self) -> list[str]:
        from deltalake import DeltaTable

        if not (self.path / "_delta_log").exists():
            return []
        ids: list[str] = DeltaTable(str(self.path)).to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return ids


@dataclass(frozen=True, slots=True)
class PostgresTable:
    dsn: str
    table: str
    mode: str = "append"

    def toml(self) -> str:
        key = '\nkey = ["id"]' if self.mode == "upsert" else ""
        return f'type = "postgres"\ndsn = "{self.dsn}"\ntable = "{self.table}"\nmode = "{self.mode}"{key}'

    def ids(self) -> list[str]:
        import psycopg

        with psycopg.connect(self.dsn) as connection, suppress(psycopg.errors.UndefinedTable):
            return [id_ for (id_,) in connection.execute(f"SELECT id FROM {self.table}")]
        return []


class FifoQueue:
    def __init__(self, orders: Orders) -> None:
        self._broker = orders.broker
        orders.client.create_queue(OUT)

    def toml(self) -> str:
        return (
            f'type = "sqs"\nqueue = "{OUT}"\ngroup = "shop"\nendpoint_url = "{self._broker.url}"\nregion = "us-east-1"'
        )

    def ids(self) -> list[str]:
        return [json.loads(message["Body"])["id"] for message in self._broker.peek(OUT, limit=100_000)]


class HandlerEffects:
    """A handler that writes its effect to the ledger's own database."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self._database = folder / "ledger.db"
        ledger = f"sqlite:///{self._database}"
        (folder / "crashed_shop.py").write_text(APP.format(ledger=ledger, endpoint=orders.broker.url, queue=QUEUE))
        with self._opened() as connection:
            connection.execute("CREATE TABLE effects (id TEXT)")

    def toml(self) -> str:
        return 'type = "handler"\napp = "crashed_shop:app"'

    def ids(self) -> list[str]:
        with self._opened() as connection:
            return [id_ for (id_,) in connection.execute("SELECT id FROM effects")]

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._database, timeout=30, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()


# Who brings it there.


class Ended(AssertionError):
    """A driver has ended, or did not end, contrary to what the test expects."""


class Driver:
    """One incarnation of a pipeline's driver, in its own process group."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, point: str | None) -> None:
        self.process, self._log, self._point = process, log, point

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its Python and Java are stopped (SIGSTOP) inside the block, and continued (SIGCONT) after it."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGCONT)

    def dies(self) -> None:
        """Wait until it has been killed at its crash point."""
        code = self.ends()
        if code != -signal.SIGKILL:
            raise Ended(f"it was to die {self._point}, and ended with {code}: {self.said()}")

    def stop(self) -> None:
        """Stop it as an operator does; it must end cleanly."""
        self.process.send_signal(signal.SIGTERM)
        code = self.ends()
        if code or "Traceback" in self.said():
            raise Ended(f"it was to stop, and ended with {code}: {self.said()}")

    def ends(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Ended(f"it did not end within {PATIENCE:.0f} s: {self.said()}") from None

    @property
    def java_lives(self) -> bool:
        """Whether any process of its group still runs, even if the driver itself is gone."""
        for process in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError):
                if os.getpgid(process.pid) == self.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
        return False

    @property
    def starved(self) -> bool:
        return STARVED in self.said()

    def said(self) -> str:
        return self._log.read_text(errors="replace")


@dataclass(frozen=True, slots=True)
class Audit:
    """What was sent, compared with what is there. `dead_letters_again`: duplicate copies, which are allowed."""

    orders: int
    sent: int
    delivered: int
    rows: int
    lost: list[str]
    doubled: list[str]
    strange: list[str]
    dead_letters: int
    dead_letters_lost: list[str]
    dead_letters_again: int
    left: int

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.strange or self.dead_letters_lost)

    @property
    def passed(self) -> bool:
        return self.exact and not self.left


def are_there(orders: Orders, *sinks: Sink) -> bool:
    """Whether every order is in a sink and every malformed message is in the dead-letter queue."""
    return orders.ids <= {id_ for sink in sinks for id_ in sink.ids()} and orders.poison <= set(orders.dead_letters())


def history(orders: Orders, *sinks: Sink) -> Iterator[HistoryEvent]:
    """What was sent and what happened to it, as `semel verify` reads it. The key of a malformed message is its body."""
    for key in (*sorted(orders.ids), *sorted(orders.poison)):
        yield HistoryEvent(EventKind.SEND, key=key, queue=QUEUE)
    for sink in sinks:
        for id_ in sink.ids():
            yield HistoryEvent(EventKind.EFFECT, key=id_, queue=QUEUE, worker=type(sink).__name__)
    for body in orders.dead_letters().elements():
        yield HistoryEvent(EventKind.DEAD_LETTER, key=body, queue=QUEUE)


def audited(orders: Orders, *sinks: Sink) -> Audit:
    events = list(history(orders, *sinks))
    findings = check(events, logged=EventKind, limit=len(events)).findings
    keys = {kind: sorted(finding.key for finding in findings if finding.kind is kind) for kind in FindingKind}
    dead_letters = Counter(event.key for event in events if event.kind is EventKind.DEAD_LETTER)
    return Audit(
        orders=len(orders.ids),
        sent=orders.messages,
        delivered=orders.delivered(),
        rows=sum(event.kind is EventKind.EFFECT for event in events),
        lost=[key for key in keys[FindingKind.LOST] if key in orders.ids],
        doubled=keys[FindingKind.DOUBLED],
        strange=keys[FindingKind.UNKNOWN] + sorted(set(dead_letters) - orders.poison),
        dead_letters=dead_letters.total(),
        dead_letters_lost=[key for key in keys[FindingKind.LOST] if key not in orders.ids],
        dead_letters_again=dead_letters.total() - len(dead_letters),
        left=orders.left(),
    )


@dataclass
class Trial:
    """A pipeline from a queue of orders to a sink, and its drivers, one after the other."""

    orders: Orders
    sink: Sink
    folder: Path
    name: str = "orders"
    per_batch: int = 250
    source: Mapping[str, str | int] = field(default_factory=dict)  # more options for [source]
    spark: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ("--cores", "2")
    incarnations: int = 0

    def __post_init__(self) -> None:
        source = {"dedup": "segments", **self.source}
        text = PIPELINE.format(
            name=self.name,
            checkpoint=self.checkpoint,
            queue=QUEUE,
            endpoint=self.orders.broker.url,
            visibility=VISIBILITY,
            per_batch=self.per_batch,
            source="".join(f"{name} = {json.dumps(value)}\n" for name, value in source.items()),
            sink=self.sink.toml(),
            spark="".join(f'"{name}" = "{value}"\n' for name, value in self.spark.items()),
        )
        self.file.write_text(text)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.toml"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}-checkpoint"

    @contextmanager
    def driver(self, kill: str | None = None, *, after_batch: int | None = None, linger: int = 20) -> Iterator[Driver]:
        """`kill`: the crash point at which it dies, the first time that it gets there; with `after_batch`, only after
        Spark has committed that batch. `linger`: seconds that a Python worker waits there, until Spark's daemon ends
        it; with 0 it continues."""
        self.incarnations += 1
        command = [sys.executable, "-m", "semel.cli", "pipeline", "run", str(self.file), *self.arguments]
        if kill is not None:
            once = self.folder / f"{self.name}-killed-{self.incarnations}"
            armed = f"point={kill};once={once};linger={linger}"
            if after_batch is not None:
                armed += f";when={self.checkpoint}/query/commits/{after_batch}"
            command = ["sh", "-c", _ARMED, "sh", armed, *command]
        log = self.folder / f"{self.name}-{self.incarnations}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=environment(**self.variables),
                start_new_session=True,
            )
        driver = Driver(process, log, kill)
        try:
            yield driver
        finally:
            driver.kill()

    def status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self.checkpoint / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return status

    def committed(self) -> int:
        """The last batch that Spark has committed; -1 before the first."""
        commits = (self.checkpoint / "query/commits").glob("[0-9]*")
        return max((int(file.name) for file in commits), default=-1)

    def runs(self, driver: Driver) -> bool:
        """Whether this driver's query is running."""
        status = self.status()
        return status.get("pid") == driver.process.pid and status.get("state") == "running"

    def is_done(self) -> bool:
        """Whether the queue is empty and everything is where it should be."""
        return not self.orders.left() and are_there(self.orders, self.sink)

    def with_driver(self, act: Callable[[Driver], None], **how: Any) -> None:
        while True:
            with self.driver(**how) as driver:
                try:
                    return act(driver)
                except Ended:
                    if not driver.starved:
                        raise

    def dies(self, point: str, **how: Any) -> None:
        """Run one driver that is killed at a crash point."""
        self.with_driver(Driver.dies, kill=point, **how)

    def finish(self) -> Audit:
        """Run one more driver until everything is in the sink, then stop it as an operator does."""
        self.with_driver(self._finish)
        return audited(self.orders, self.sink)

    def _finish(self, driver: Driver) -> None:
        wait_until(self.is_done, driver)
        driver.stop()


def with_archive(folder: Path) -> str:
    """Java options with which a driver starts faster: they use an archive of Spark's loaded classes (class data
    sharing), which a driver has written at its end. If this Java cannot do that, the usual options."""
    archive = folder / "spark.jsa"
    with running() as broker:
        orders = Orders(broker)
        orders.send(100)
        writing = {"SPARK_SUBMIT_OPTS": f"{JAVA} -Xlog:disable -XX:ArchiveClassesAtExit={archive}"}
        trial = Trial(orders, ParquetFolder(folder / "table"), folder, source={"dedup": "key"}, variables=writing)
        with trial.driver() as driver:
            wait_until(trial.is_done, driver)
            driver.stop()
            wait_until(lambda: not driver.java_lives)
    return f"{JAVA} -Xlog:disable -XX:SharedArchiveFile={archive}" if archive.exists() else JAVA


def wait_until(condition: Callable[[], bool], *drivers: Driver, patience: float = PATIENCE) -> bool:
    """Wait for the condition; returns whether it became true. If not, the audit shows what is missing."""
    ends = time.monotonic() + patience
    while not condition():
        for driver in drivers:
            if driver.ended:
                raise Ended(f"it ended by itself: {driver.said()}")
        if time.monotonic() > ends:
            return False
        time.sleep(LOOK)
    return True
