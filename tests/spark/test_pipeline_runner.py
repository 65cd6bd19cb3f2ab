"""A whole pipeline: from a queue of the real broker, with its faults, through Spark, into a table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from uuid import uuid4

import orjson
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.errors import SemelError
from semel.spark import crash_points
from semel.spark.pipeline import queues
from semel.spark.pipeline.body_schema import Constraint
from semel.spark.pipeline.config import (
    Dedup,
    DeltaSpec,
    HandlerSpec,
    LogSpec,
    MetricsSpec,
    Mode,
    ParquetSpec,
    Pipeline,
    PostgresSpec,
    RejectSpec,
    RejectTo,
    SchemaSpec,
    SourceSpec,
    SqsSpec,
)
from semel.spark.pipeline.progress import status
from semel.spark.pipeline.progress.snapshot import Snapshot, State, Totals
from semel.spark.pipeline.runner import Report, run
from semel.spark.pipeline.stop_request import Stop
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import LocalStore
from semel.sqs import Client, Entry, Queue
from spark import shops
from suite import slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers import postgres

FIELDS = (pa.field("id", pa.string(), nullable=False), pa.field("amount", pa.int64()))
CONSTRAINTS = (Constraint("amount is positive", "amount", "amount > 0"),)


class Shop:
    """A queue of orders with a dead-letter queue, and a pipeline that makes a table of it."""

    def __init__(self, broker: EmbeddedBroker, client: Client, folder: Path) -> None:
        self.broker, self.client, self.folder = broker, client, folder
        self.dead = client.create_queue("dead")
        policy = {"deadLetterTargetArn": self.dead.arn, "maxReceiveCount": 20}
        self.queue: Queue = client.create_queue(
            "orders", {"RedrivePolicy": json.dumps(policy), "MessageRetentionPeriod": "86400"}
        )
        self.pipeline = Pipeline(
            "orders",
            str(folder / "checkpoint"),
            SourceSpec(
                ("orders",),
                key="$.id",
                dedup=Dedup.SEGMENTS,
                endpoint_url=broker.url,
                visibility=30,
                max_seconds_per_batch=5,
            ),
            SchemaSpec(FIELDS, CONSTRAINTS),
            ParquetSpec(str(folder / "rows")),
        )

    def change(self, **parts: Any) -> None:
        """`source__dedup=…` is an option of a part."""
        for name, value in parts.items():
            part, _, option = name.partition("__")
            inner = replace(getattr(self.pipeline, part), **{option: value}) if option else value
            self.pipeline = replace(self.pipeline, **{part: inner})

    def send(self, *bodies: str) -> None:
        self.queue.send_many([Entry(body) for body in bodies])

    def orders(self, *numbers: int) -> None:
        self.send(*(json.dumps({"id": f"o{n}", "amount": n + 1}) for n in numbers))

    def run(self, **options: Any) -> Report:
        return run(self.pipeline, **{"exit_when_empty": True, "show": "none", **options})

    @property
    def rows(self) -> list[str]:
        ids: list[str] = pq.read_table(self.folder / "rows").column("id").to_pylist()
        return sorted(ids)

    @property
    def status(self) -> Snapshot | None:
        return status.read(LocalStore(self.pipeline.checkpoint))

    def dead_letters(self) -> list[dict[str, Any]]:
        return self.broker.peek("dead", limit=1_000)

    def until(self, met: Callable[[Snapshot], bool], seconds: float = 180.0) -> Snapshot:
        ends = time.monotonic() + seconds
        while (snapshot := self.status) is None or not met(snapshot):
            assert time.monotonic() < ends, snapshot
            time.sleep(0.05)
        return snapshot


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running() as broker, Client(broker.url) as client:
        yield Shop(broker, client, tmp_path)


def named(*numbers: int) -> list[str]:
    return sorted(f"o{n}" for n in numbers)


def test_each_message_becomes_a_row_once_and_what_is_no_row_a_dead_letter(spark: SparkSession, shop: Shop) -> None:
    shop.broker.faults.set("duplicate", 0.05)
    shop.broker.faults.set("lost-delete", 0.05)
    shop.change(source__dedup=Dedup.KEY, source__dedup_partitions=2, source__max_messages_per_batch=400)
    shop.change(log=LogSpec(attempt_log=str(shop.folder / "attempts")))
    shop.orders(*range(1_000))
    shop.send("{", json.dumps({"id": "x", "amount": -1}), json.dumps({"amount": 1}))
    report = shop.run()
    assert report.clean
    assert shop.rows == named(*range(1_000))
    assert len(shop.dead_letters()) == 3

    totals = report.snapshot.totals
    assert report.snapshot.state is State.DONE
    assert totals.batches > 1
    assert totals.rows == 1_000
    assert totals.rejected == 3
    assert totals.rejects["amount is positive"] == 1
    assert totals.received == totals.rows + totals.rejected + totals.duplicates
    assert shop.status is not None
    assert shop.status.totals == totals

    files = (shop.folder / "attempts").rglob("attempts-*.jsonl")
    events = [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]
    steps = Counter(event["step"] for event in events)
    assert steps["recorded"] == 1_000
    assert steps["rejected"] == 3
    assert {event["key"] for event in events if event["step"] == "recorded"} == set(named(*range(1_000)))


@pytest.mark.slow
def test_dedup_by_key_drops_what_a_producer_sends_twice_and_a_second_run_still_knows(
    spark: SparkSession, shop: Shop
) -> None:
    shop.change(source__dedup=Dedup.KEY, source__dedup_partitions=2)
    shop.orders(*range(20), 3, 4)
    first = shop.run()
    shop.orders(5, 19, 20)
    second = shop.run()
    assert shop.rows == named(*range(21))
    assert first.snapshot.totals.same_key == 2
    assert second.snapshot.totals.same_key == 4
    assert second.snapshot.run.same_key == 2
    assert second.snapshot.run.rows == 1
    assert second.snapshot.id == first.snapshot.id


def test_rows_that_spark_would_drop_as_late_stop_the_pipeline_and_are_kept(spark: SparkSession, shop: Shop) -> None:
    """Its watermark is in the checkpoint; here it is made to be a day ahead, as a wrong clock could have done."""
    shop.change(source__dedup=Dedup.KEY, source__retention=60.0)
    shop.orders(1)
    assert shop.run().error is None
    ahead = int(time.time() + 86_400) * 1_000
    for kind, name in (("offsets", "batchWatermarkMs"), ("commits", "nextBatchWatermarkMs")):
        last = max(Path(shop.pipeline.checkpoint, "query", kind).glob("[0-9]*"), key=lambda file: int(file.name))
        version, metadata, *rest = last.read_text().split("\n")
        last.write_text("\n".join([version, json.dumps(json.loads(metadata) | {name: ahead}), *rest]))
    shop.orders(2, 3)
    report = shop.run()
    assert "would drop 2 rows of batch 1 as late" in str(report.error)
    assert report.error is not None
    assert (shop.rows, report.snapshot.totals.same_key) == (named(1), 0)
    log = SegmentLog(LocalStore(f"{shop.pipeline.checkpoint}/segments"))
    sealed = [log.read(segment_id) for segment_id in log.files(2).sealed]
    assert sorted(
        key for segment in sealed if segment is not None for key in segment.table["key"].to_pylist()
    ) == named(2, 3)


@pytest.mark.parametrize("point", ["during-commit", *slow("before-commit", "after-commit")])
def test_a_driver_that_dies_around_the_commit_loses_nothing_doubles_nothing_and_counts_once(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise SemelError(f"died {point}")

    shop.change(source__dedup=Dedup.KEY, source__dedup_partitions=2)
    shop.orders(*range(20))
    shop.send("{")
    monkeypatch.setattr(crash_points, "reached", die)
    died = shop.run()
    assert str(died.error) == f"died {point}"
    assert died.snapshot.totals.rows == 0
    monkeypatch.undo()
    shop.orders(3, 20)
    report = shop.run()
    assert report.error is None
    assert shop.rows == named(*range(21))
    assert len(shop.dead_letters()) == 1
    totals = report.snapshot.totals
    assert (totals.rows, totals.rejected, totals.same_key) == (21, 1, 1)


FILE = """
name = "plain"
checkpoint = "checkpoint"
[source]
queues = ["plain"]
[schema]
ddl = "id STRING NOT NULL"
[sink]
type = "parquet"
path = "rows"
"""


def test_a_run_of_duplicates_and_a_reject_has_not_rejected_every_message() -> None:
    """As after a crash, when another pipeline has taken over what was sealed."""
    run = Totals(received=240, in_ledger=237, rejects={"missing": 3})
    snapshot = Snapshot("one", "1", "table", State.STOPPED, 1, "h", "1", 0.0, 0.0, run=run)
    assert not Report(snapshot).all_rejected
    assert Report(replace(snapshot, run=replace(run, in_ledger=0))).all_rejected


def test_a_run_that_rejects_every_message_exits_with_3_and_says_why_and_where_they_are(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = shop.client.create_queue("plain")
    queue.send_many([Entry(json.dumps({"di": number})) for number in range(3)])
    (shop.folder / "plain.toml").write_text(FILE)
    command = ["pipeline", "run", str(shop.folder / "plain.toml"), "--exit-when-empty"]
    assert main([*command, "--endpoint-url", shop.broker.url]) == 1
    assert "queue plain has no dead-letter queue" in (refusal := capsys.readouterr().err)
    assert "run with --create-dlq" in refusal
    assert main([*command, "--endpoint-url", shop.broker.url, "--create-dlq"]) == 3
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("semel: ")]
    assert "every message was rejected, 3 in all, 3 of them because of: " in sentence
    assert "They went to the queue's own dead-letter queue" in sentence
    assert json.loads(queue.attributes()["RedrivePolicy"])["maxReceiveCount"] in (5, "5")
    assert len(shop.broker.peek("plain-dlq")) == 3
    queue.send(json.dumps({"id": "1"}))
    assert main([*command, "--endpoint-url", shop.broker.url]) == 0


@pytest.mark.slow
def test_rejects_can_go_to_a_table(spark: SparkSession, shop: Shop) -> None:
    shop.change(rejects=RejectSpec(RejectTo.TABLE, str(shop.folder / "rejects")))
    shop.send("{", json.dumps({"id": "o1", "amount": 1}))
    assert shop.run().clean
    (reject,) = pq.read_table(shop.folder / "rejects").to_pylist()
    assert reject["body"] == "{"
    assert reject["queue"] == "orders"
    assert shop.rows == ["o1"]


@pytest.mark.slow
def test_rows_become_a_delta_table(spark: SparkSession, shop: Shop) -> None:
    deltalake = pytest.importorskip("deltalake")
    shop.change(sink=DeltaSpec(str(shop.folder / "delta")))
    shop.orders(1, 2, 3)
    assert shop.run().error is None
    table = deltalake.DeltaTable(str(shop.folder / "delta")).to_pyarrow_table()
    assert sorted(table.column("id").to_pylist()) == named(1, 2, 3)


def test_a_row_that_postgresql_would_refuse_is_rejected_with_its_message(
    spark: SparkSession, shop: Shop, postgres_server: postgres.Server
) -> None:
    table = f"orders_{uuid4().hex[:8]}"
    shop.change(sink=PostgresSpec(postgres_server.url, table, Mode.UPSERT, ("id",)))
    shop.orders(1, 2, 1)
    odd = json.dumps({"id": "a\0b", "amount": 1})
    shop.send(odd)
    report = shop.run()
    assert report.error is None
    assert report.snapshot.totals.rejected == 1
    with psycopg.connect(postgres_server.url) as connection:
        assert sorted(id_ for (id_,) in connection.execute(f"SELECT id FROM {table}")) == named(1, 2)
    assert [message["Body"] for message in shop.dead_letters()] == [odd]


@pytest.mark.slow
def test_rows_become_messages_of_another_queue(spark: SparkSession, shop: Shop) -> None:
    shop.client.create_queue("out")
    shop.change(sink=SqsSpec("out", endpoint_url=shop.broker.url))
    shop.orders(1, 2, 3)
    assert shop.run().error is None
    assert sorted(json.loads(sent["Body"])["id"] for sent in shop.broker.peek("out")) == named(1, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_rows_go_to_the_handlers_of_an_app(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    app = shops.Shop(shop.folder, shop.broker, shop.client)
    orders = shop.queue if queue == "orders" else app.queue(queue)
    shop.change(sink=HandlerSpec(app.app(queue=queue)), source__queues=(queue,))
    shops.send(orders, [{"id": f"o{n}", "group": n % 2} for n in range(6)])
    report = shop.run()
    assert report.error is None
    assert sorted(app.effects()) == named(*range(6))
    assert report.snapshot.totals.rows == 6


RETRYING = """
@app.handler({queue!r}, key="$.id", {options})
def handle(order: dict, ctx: Context, tx: Transaction):
    if ctx.attempt == 1 and order["id"] == "o0":
        raise Retry("not yet", after=3)
    tx.execute("INSERT INTO effects (id, fence) VALUES ({param}, {param})", (order["id"], ctx.fence))
"""


@pytest.mark.slow
def test_what_a_handler_wants_to_see_again_is_returned_to_its_queue_and_comes_in_order(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    app = shops.Shop(shop.folder, shop.broker, shop.client)
    shops.send(app.queue("orders.fifo"), [{"id": f"o{n}", "group": 1} for n in range(3)])
    shop.change(sink=HandlerSpec(app.app(RETRYING, queue="orders.fifo")), source__queues=("orders.fifo",))
    stop, reports = Stop(), list[Report]()
    thread = threading.Thread(target=lambda: reports.append(shop.run(exit_when_empty=False, stop=stop)))
    thread.start()
    try:
        shop.until(lambda snapshot: snapshot.totals.rows == 3)
        shop.until(lambda _: len(app.effects()) == 3 or not thread.is_alive())
    finally:
        stop.ask()
        thread.join()
    assert reports[0].error is None
    assert app.effects() == ["o0", "o1", "o2"]
    assert reports[0].snapshot.totals.batches >= 2


def test_a_pipeline_runs_until_it_is_stopped_and_can_be_looked_at_meanwhile(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.change(metrics=MetricsSpec("127.0.0.1:0"))
    shop.orders(*range(5))
    stop, reports = Stop(), list[Report]()
    thread = threading.Thread(target=lambda: reports.append(shop.run(exit_when_empty=False, stop=stop, show="lines")))
    thread.start()
    try:
        running_ = shop.until(lambda snapshot: snapshot.totals.rows == 5 and snapshot.state is State.RUNNING)
        assert status.show(shop.pipeline)
        with urlopen(f"{running_.health}/metrics") as answer:
            assert b'semel_completed_total{pipeline="orders",queue="orders"} 5.0' in answer.read()
        with urlopen(f"{running_.health}/health/ready") as answer:
            assert answer.status == 200
        with pytest.raises(SemelError, match=f"in use by pid {os.getpid()}"):
            shop.run()
        shop.orders(5, 6)
        shop.until(lambda snapshot: snapshot.totals.rows == 7)
    finally:
        stop.ask()
        thread.join()
    assert (reports[0].clean, reports[0].snapshot.state) == (True, State.STOPPED)
    assert shop.rows == named(*range(7))
    assert status.show(shop.pipeline)
    said = capsys.readouterr().out
    assert "orders: stopped" in said
    assert "Traceback" not in said


def test_a_change_that_would_break_exactly_once_is_refused_before_anything_is_received(
    spark: SparkSession, shop: Shop
) -> None:
    shop.orders(1)
    shop.run()
    shop.orders(2)
    shop.change(source__queues=("returns",))
    with pytest.raises(SemelError, match="orders"):
        shop.run()
    assert int(shop.queue.attributes("ApproximateNumberOfMessages")["ApproximateNumberOfMessages"]) == 1


def test_a_sink_that_refuses_leaves_the_record_as_it_was(spark: SparkSession, shop: Shop) -> None:
    (shop.folder / "rows").touch()
    report = shop.run()
    assert report.error is not None
    assert str(shop.folder / "rows") in str(report.error)
    assert shop.status is not None
    assert shop.status.state is State.FAILED
    assert not (shop.folder / "checkpoint" / "pipeline.json").exists()


def test_a_queue_that_is_not_there_is_named_in_one_line(spark: SparkSession, shop: Shop) -> None:
    shop.change(source__queues=("nowhere",), rejects=RejectSpec(RejectTo.TABLE, str(shop.folder / "rejects")))
    report = shop.run()
    assert report.error is not None
    assert "nowhere" in str(report.error)
    assert "\n" not in str(report.error)
    assert "Traceback" not in str(report.error)


def test_keys_are_remembered_for_the_longest_retention_of_the_queues(shop: Shop) -> None:
    assert queues.retention(shop.pipeline.source) == 86_400
    assert queues.retention(replace(shop.pipeline.source, queues=("orders", "dead"))) == 345_600


def test_the_backlog_is_what_waits(shop: Shop) -> None:
    shop.orders(1, 2, 3)
    backlogs: list[dict[str, int]] = []
    queues.Backlog(shop.pipeline.source, backlogs.append).look()
    queues.Backlog(replace(shop.pipeline.source, endpoint_url="http://127.0.0.1:9"), backlogs.append).look()
    assert backlogs == [{"orders": 3}]


# As a process of its own, as the command line runs it.

SCRIPT = """
import logging, pickle, sys
from semel.spark.pipeline.runner import run
logging.basicConfig(level=logging.INFO)
report = run(pickle.load(open(sys.argv[1], "rb")), show="lines", cores=2)
sys.exit(0 if report.clean else 1)
"""


@pytest.fixture
def process(shop: Shop) -> Iterator[subprocess.Popen[str]]:
    import pickle

    (shop.folder / "pipeline.pickle").write_bytes(pickle.dumps(shop.pipeline))
    arguments = [sys.executable, "-c", SCRIPT, str(shop.folder / "pipeline.pickle")]
    shop.orders(*range(5))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            shop.until(lambda snapshot: snapshot.totals.rows == 5)
            yield started
        finally:
            started.kill()


@pytest.mark.slow
def test_sigterm_ends_a_pipeline_in_order(shop: Shop, process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "orders stopped" in said
    assert "Traceback" not in said
    assert shop.until(lambda snapshot: snapshot.state.ended).state is State.STOPPED


@pytest.mark.slow
def test_a_killed_java_is_told_in_one_line(shop: Shop, process: subprocess.Popen[str]) -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    java = [int(child) for child in children if "java" in Path(f"/proc/{child}/comm").read_text()]
    os.kill(java[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Spark's Java process has ended" in said
    assert "Traceback" not in said
    assert not status.show(shop.pipeline)
