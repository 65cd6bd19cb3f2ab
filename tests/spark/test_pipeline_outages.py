"""A temporary outage does not end a pipeline: its query is started again until it works."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pyarrow.parquet as pq
import pytest

from semel.broker import EmbeddedBroker, running
from semel.errors import SemelError
from semel.ledger.contract import LedgerUnavailable
from semel.spark.pipeline.config import Dedup, ParquetSpec, Pipeline, PostgresSpec, RejectSpec, RejectTo, SourceSpec
from semel.spark.pipeline.progress import status
from semel.spark.pipeline.progress.snapshot import Snapshot
from semel.spark.pipeline.runner import GIVE_UP, PAUSE, Report, Runner, run
from semel.spark.pipeline.stop_request import Stop
from semel.spark.pipeline.stream import End
from semel.spark.pipeline.streaming_query import PipelineQuery
from semel.spark.segments.storage import LocalStore, StorageUnavailable
from semel.spark.sinks.contract import SinkError, SinkUnavailable
from semel.sqs import Client, Entry
from semel.sqs.errors import AccessDenied, Unreachable
from servers import postgres
from spark.cluster import wait_until
from spark.pipelines import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The rule, without Spark: time passes only where the runner waits.


class Clock(Stop):
    """The runner's time. `stop_at`: when somebody asks it to stop."""

    def __init__(self, stop_at: float | None = None) -> None:
        super().__init__()
        self.now, self._stop_at = 0.0, stop_at

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        if self._stop_at is not None and self.now >= self._stop_at:
            self.ask()
        return self.asked


@dataclass
class Batches:
    last: int | None = None
    busy: bool = False

    def stop(self) -> None: ...


@dataclass
class Attempt:
    """One start of a query: it runs for `seconds`, has committed a batch or not, and ends with `error`."""

    error: SemelError | None = None
    seconds: float = 0.0
    commits: bool = False
    ends_at: float = 0.0
    clock: Clock = field(default_factory=Clock)
    batches: Batches = field(default_factory=Batches)

    @property
    def active(self) -> bool:
        self.batches.last = 0 if self.commits else None
        return self.clock.now < self.ends_at

    def end(self, stop: Stop) -> End:
        return End(self.error)

    def wait_for_batch(self, *_: object) -> None: ...

    def halt(self, stop: Stop) -> End:
        return End(stopped=True)

    def close(self) -> None: ...


class Scripted:
    """A query whose attempts end as the script says; one more that it does not have ends well."""

    name = "orders"

    def __init__(self, clock: Clock, *attempts: Attempt, opens: dict[int, SemelError] | None = None) -> None:
        self._clock, self._attempts, self._opens = clock, list(attempts), opens or {}
        self.stream: Attempt | None = None
        self.started: list[float] = []
        self.waited_for: list[tuple[str, float]] = []
        self._opened = 0

    def open(self) -> None:
        self._opened += 1
        if self._opened in self._opens:
            raise self._opens[self._opened]

    def start(self, spark: object) -> None:
        self.started.append(self._clock.now)
        self.stream = self._attempts.pop(0) if self._attempts else Attempt()
        self.stream.clock, self.stream.ends_at = self._clock, self._clock.now + self.stream.seconds

    def wait_for(self, outage: SemelError, pause: float) -> None:
        self.waited_for.append((str(outage), pause))

    def set_state(self, *_: object) -> None: ...


def ended(query: Scripted, clock: Clock, **how: Any) -> End:
    runner = Runner([cast("PipelineQuery", query)], clock, monotonic=lambda: clock.now, **how)
    return runner.run(cast("Any", None))[0]


OUTAGES = [
    SinkUnavailable("PostgreSQL does not answer"),
    StorageUnavailable("S3 does not answer"),
    LedgerUnavailable("Redis does not answer"),
    Unreachable("SQS does not answer"),
]


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: type(outage).__name__)
def test_whatever_is_away_the_query_is_started_again(outage: SemelError) -> None:
    clock = Clock()
    query = Scripted(clock, Attempt(outage), Attempt(outage))
    assert ended(query, clock) == End()
    assert [pause for _, pause in query.waited_for] == [1.0, 2.0]
    assert query.waited_for[0][0] == str(outage)
    assert len(query.started) == 3


def test_pauses_grow_up_to_a_limit_and_an_outage_of_ten_minutes_is_waited_out() -> None:
    clock = Clock()
    query = Scripted(clock, *(Attempt(OUTAGES[0]) for _ in range(30)))
    assert ended(query, clock) == End()
    pauses = [pause for _, pause in query.waited_for]
    assert pauses[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, PAUSE[1]]
    assert set(pauses[5:]) == {PAUSE[1]}
    assert query.started[-1] > 600


def test_after_a_committed_batch_the_next_outage_begins_with_a_short_pause() -> None:
    clock = Clock()
    outage = OUTAGES[0]
    query = Scripted(clock, Attempt(outage), Attempt(outage), Attempt(outage, seconds=5, commits=True))
    assert ended(query, clock) == End()
    assert [pause for _, pause in query.waited_for] == [1.0, 2.0, 1.0]


def test_after_a_minute_without_an_error_the_outage_is_over_also_if_no_message_came() -> None:
    clock = Clock()
    outage = OUTAGES[0]
    query = Scripted(clock, Attempt(outage), Attempt(outage), Attempt(outage, seconds=61))
    assert ended(query, clock, exit_when_empty=True) == End()
    assert [pause for _, pause in query.waited_for] == [1.0, 2.0, 1.0]


def test_what_is_still_away_when_the_sinks_are_opened_again_is_waited_for() -> None:
    clock = Clock()
    query = Scripted(clock, Attempt(OUTAGES[0]), opens={1: OUTAGES[1]})
    assert ended(query, clock) == End()
    assert [text for text, _ in query.waited_for] == [str(OUTAGES[0]), str(OUTAGES[1])]


@pytest.mark.parametrize("error", [SinkError("the table has no column x"), AccessDenied("no"), SemelError("a mistake")])
def test_what_waiting_cannot_fix_ends_the_run(error: SemelError) -> None:
    clock = Clock()
    query = Scripted(clock, Attempt(error))
    assert ended(query, clock).error is error
    assert query.waited_for == []


def test_a_run_that_is_to_end_gives_up_after_a_while() -> None:
    clock = Clock()
    query = Scripted(clock, *(Attempt(OUTAGES[0]) for _ in range(1_000)))
    assert ended(query, clock, exit_when_empty=True).error is OUTAGES[0]
    assert GIVE_UP < clock.now < GIVE_UP + 2 * PAUSE[1]


def test_a_stop_does_not_wait_for_the_end_of_an_outage() -> None:
    clock = Clock(stop_at=20.0)
    query = Scripted(clock, *(Attempt(OUTAGES[0]) for _ in range(100)))
    assert ended(query, clock) == End(stopped=True)
    assert clock.now < 21


def test_an_error_of_one_queue_ends_the_others_in_order() -> None:
    clock = Clock()
    failing = Scripted(clock, Attempt(SemelError("a mistake")))
    other = Scripted(clock, Attempt(seconds=1_000.0))
    runner = Runner([cast("PipelineQuery", failing), cast("PipelineQuery", other)], clock, monotonic=lambda: clock.now)
    first, second = runner.run(cast("Any", None))
    assert (str(first.error), second) == ("a mistake", End(stopped=True))


# With the real parts.


class Shop:
    """A queue in a durable broker that can be stopped and started again, and a pipeline that runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: Any
        self._broker: EmbeddedBroker
        self.start_broker(0)
        self.port = int(self.url.rpartition(":")[2])
        with Client(self.url, "us-east-1") as client:
            client.create_queue("orders")

    def start_broker(self, port: int | None = None) -> None:
        self._running = running(data=self.folder / "broker", port=self.port if port is None else port)
        self._broker = self._running.__enter__()

    def stop_broker(self) -> None:
        self._running.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return self._broker.url

    def pipeline(self, sink: Any, **source: Any) -> Pipeline:
        return Pipeline(
            name="orders",
            checkpoint=str(self.folder / "checkpoint"),
            source=SourceSpec(
                queues=("orders",), key="$.id", endpoint_url=self.url, visibility=30, max_seconds_per_batch=5, **source
            ),
            schema=SCHEMA,
            sink=sink,
            rejects=RejectSpec(RejectTo.TABLE, str(self.folder / "rejects")),
        )

    def send(self, *ids: str) -> None:
        with Client(self.url, "us-east-1") as client:
            client.queue("orders").send_many([Entry(json.dumps({"id": id_, "amount": 1})) for id_ in ids])

    @contextmanager
    def run(self, pipeline: Pipeline) -> Iterator[list[Report]]:
        stop, reports = Stop(), list[Report]()
        thread = threading.Thread(target=lambda: reports.append(run(pipeline, show="none", stop=stop)))
        thread.start()
        try:
            yield reports
        finally:
            stop.ask()
            thread.join()

    @property
    def status(self) -> Snapshot | None:
        return status.read(LocalStore(str(self.folder / "checkpoint")))

    def until_rows(self, count: int) -> None:
        wait_until(f"there are {count} rows", lambda: (now := self.status) is not None and now.totals.rows >= count)

    def until_it_waits(self) -> None:
        wait_until("the pipeline waits", lambda: (now := self.status) is not None and now.state.value == "waiting")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    try:
        yield shop
    finally:
        shop.stop_broker()


@pytest.mark.slow
def test_a_pipeline_waits_for_postgresql_and_goes_on(spark: SparkSession, shop: Shop) -> None:
    with postgres.running() as server:
        with shop.run(shop.pipeline(PostgresSpec(dsn=server.url, table="orders"))) as reports:
            shop.send("a", "b")
            shop.until_rows(2)
            server.stop()
            shop.send("c")
            shop.until_it_waits()
            server.start()
            shop.until_rows(3)
        assert reports[0].clean
        with psycopg.connect(server.url) as connection:
            rows = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
    assert rows == [("a",), ("b",), ("c",)]


@pytest.mark.slow
def test_a_pipeline_waits_for_sqs_and_goes_on(spark: SparkSession, shop: Shop) -> None:
    with shop.run(shop.pipeline(ParquetSpec(path=str(shop.folder / "rows")))) as reports:
        shop.send("a", "b")
        shop.until_rows(2)
        shop.stop_broker()
        shop.until_it_waits()
        shop.start_broker()
        shop.send("c")
        shop.until_rows(3)
    assert reports[0].error is None
    assert sorted(pq.read_table(shop.folder / "rows").column("id").to_pylist()) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_pipeline_waits_for_the_ledger_and_goes_on(spark: SparkSession, shop: Shop) -> None:
    with postgres.running() as server:
        source = {"dedup": Dedup.LEDGER, "ledger": server.url}
        with shop.run(shop.pipeline(ParquetSpec(path=str(shop.folder / "rows")), **source)) as reports:
            shop.send("a", "b")
            shop.until_rows(2)
            server.stop()
            shop.send("c", "a")
            shop.until_it_waits()
            server.start()
            shop.until_rows(3)
    assert reports[0].error is None
    assert sorted(pq.read_table(shop.folder / "rows").column("id").to_pylist()) == ["a", "b", "c"]
