"""`format("sqs")` in a real Spark, with the real broker."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semel.broker import EmbeddedBroker, running
from semel.spark import once
from semel.spark.segments.segment_log import counts
from semel.sqs import Client, Entry, Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def queue(broker: EmbeddedBroker) -> Iterator[Queue]:
    with Client(broker.url) as client:
        yield client.create_queue("orders")


def send(queue: Queue, ids: range, **extra: Any) -> None:
    queue.send_many(
        [
            Entry(
                json.dumps({"id": n, **extra}),
                group=f"g{n % 3}" if queue.fifo else None,
                dedup=str(n) if queue.fifo else None,
            )
            for n in ids
        ]
    )


class Stream:
    """A query from a queue into a Parquet folder, which can be run again and again."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, **options: Any) -> None:
        self.spark, self.folder = spark, folder
        self.options = {
            "queue": "orders",
            "endpointUrl": broker.url,
            "segments": f"{folder}/checkpoint/segments",
            "visibility": 30,
            "maxSecondsPerBatch": 5,
            **options,
        }

    def source(self) -> DataFrame:
        return self.spark.readStream.format("sqs").options(**self.options).load()

    def run(self, df: DataFrame | None = None) -> StreamingQuery:
        """What is waiting now; returns the query when it has ended."""
        query = (
            (self.source() if df is None else df)
            .writeStream.format("parquet")
            .option("path", f"{self.folder}/out")
            .option("checkpointLocation", f"{self.folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert not query.isActive
        return query

    def rows(self) -> DataFrame:
        return self.spark.read.parquet(f"{self.folder}/out")

    def ids(self) -> list[int]:
        return sorted(json.loads(row.body)["id"] for row in self.rows().select("body").collect())


def test_a_queue_becomes_rows_and_is_empty_afterwards(
    spark: SparkSession, broker: EmbeddedBroker, queue: Queue, tmp_path: Path
) -> None:
    queue.send('{"id": 7}', attributes={"country": "FR", "n": 3, "raw": b"\x01"})
    stream = Stream(spark, broker, tmp_path, key="$.id")
    stream.run()
    (row,) = stream.rows().collect()
    assert (row.body, row.key, row.queue, row.receive_count) == ('{"id": 7}', "7", "orders", 1)
    assert row.attributes == {"country": "FR", "n": "3", "raw": "AQ=="}
    assert row.group_id is None
    assert row.sent_at <= row.received_at
    assert row.planned_at <= row.received_at
    assert row.first_received_at is not None
    assert queue.attributes("ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "0"}


@pytest.mark.slow
def test_runs_go_on_where_the_last_ended(
    spark: SparkSession, broker: EmbeddedBroker, queue: Queue, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path, maxMessagesPerBatch=100, receivers=2)
    send(queue, range(250))
    first = stream.run()
    assert [progress.numInputRows for progress in first.recentProgress if progress.numInputRows] == [100, 100, 50]
    send(queue, range(250, 300))
    stream.run()
    assert stream.ids() == list(range(300))
    idle = stream.run()
    assert sum(progress.numInputRows for progress in idle.recentProgress) == 0
    assert counts(stream.options["segments"]).rows == 300


@pytest.mark.slow
def test_an_idle_queue_makes_no_batches_and_a_message_wakes_it(
    spark: SparkSession, broker: EmbeddedBroker, queue: Queue, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path)
    batch_sizes: list[int] = []
    query = (
        stream.source()
        .writeStream.foreachBatch(lambda df, number: batch_sizes.append(df.count()))
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .start()
    )
    try:
        while query.status["message"] in ("Initializing sources", "Starting"):
            query.awaitTermination(1)
        query.processAllAvailable()
        query.awaitTermination(2)
        assert batch_sizes == [0]  # Spark begins every new query with a batch, whatever its source says
        send(queue, range(3))
        query.processAllAvailable()
        assert batch_sizes == [0, 3]
    finally:
        query.stop()


@pytest.mark.slow
def test_once_drops_every_second_copy_by_key_across_runs(
    spark: SparkSession, broker: EmbeddedBroker, queue: Queue, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path, key="$.id")
    send(queue, range(20))
    send(queue, range(10), again=True)  # a producer sends twice
    broker.faults.set("duplicate", 0.3)
    broker.faults.set("lost-delete", 0.3)
    stream.run(once(stream.source()))
    send(queue, range(30))
    stream.run(once(stream.source()))
    assert stream.ids() == list(range(30))


def test_once_loses_no_row_if_the_clock_of_an_executor_was_ahead(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of four batches as the source gives them out; the executor of the first was an hour ahead."""
    arrivals, planned = (
        ["13:00:00", "12:00:10", "12:00:20", "12:00:30"],
        ["12:00:00", "12:00:10", "12:00:20", "12:00:30"],
    )
    (tmp_path / "in").mkdir()
    for number, (received_at, planned_at) in enumerate(zip(arrivals, planned, strict=True)):
        row = {"queue": "orders", "key": f"k{number // 2 * 2}", "message_id": f"m{number}"}
        times = {"received_at": f"2026-05-01T{received_at}Z", "planned_at": f"2026-05-01T{planned_at}Z"}
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps(row | times))
        os.utime(tmp_path / "in" / f"{number}.json", (number, number))
    schema = "queue STRING, key STRING, message_id STRING, received_at TIMESTAMP, planned_at TIMESTAMP"
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(f"{tmp_path}/in")
    query = (
        once(rows, within=60)
        .writeStream.format("parquet")
        .option("path", f"{tmp_path}/out")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert sorted(row.message_id for row in spark.read.parquet(f"{tmp_path}/out").collect()) == ["m0", "m2"]


def test_fifo_groups_are_in_order_in_their_partition(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with Client(broker.url) as client:
        send(client.create_queue("orders.fifo"), range(60))
    batches: list[list[tuple[str, str]]] = []
    stream = Stream(spark, broker, tmp_path, queue="orders.fifo")
    query = (
        stream.source()
        .writeStream.foreachBatch(
            lambda df, number: batches.append([(r.group_id, r.sequence_number) for r in df.collect()])
        )
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    rows = [row for batch in batches for row in batch]
    assert len(rows) == 60
    for group in ("g0", "g1", "g2"):
        numbers = [number for name, number in rows if name == group]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20


def test_several_queues_in_one_source(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Client(broker.url) as client:
        for name, ids in (("orders", range(5)), ("refunds", range(5, 9))):
            send(client.create_queue(name), ids)
    stream = Stream(spark, broker, tmp_path, queue="orders, refunds", columns="queue, body")
    stream.run()
    assert stream.rows().columns == ["queue", "body"]
    assert Counter(row.queue for row in stream.rows().collect()) == {"orders": 5, "refunds": 4}


def test_a_batch_read_looks_without_taking(spark: SparkSession, broker: EmbeddedBroker, queue: Queue) -> None:
    send(queue, range(15))
    df = spark.read.format("sqs").option("queue", "orders").option("endpointUrl", broker.url).load()
    assert df.count() == 15
    assert queue.attributes("ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "15"}


def test_a_batch_read_with_a_folder_takes_and_gives_the_same_again(
    spark: SparkSession, broker: EmbeddedBroker, queue: Queue, tmp_path: Path
) -> None:
    send(queue, range(15))
    df = spark.read.format("sqs").options(queue="orders", endpointUrl=broker.url, segments=f"{tmp_path}/taken").load()
    ids = sorted(row.message_id for row in df.collect())
    send(queue, range(15, 20))
    assert sorted(row.message_id for row in df.collect()) == ids
    assert len(set(ids)) == 15
    assert queue.attributes("ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "5"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": ""}, "option 'queue' is missing"),
        ({"segments": ""}, "option 'segments' is missing"),
        ({"recievers": "2"}, "no option 'recievers'; did you mean 'receivers'"),
        ({"visibility": "5"}, "option 'visibility' is 5: it must be from 10"),
        ({"visibility": "x"}, "option 'visibility' is 'x', which is no number"),
        ({"maxSecondsPerBatch": "60"}, "visibility 30 s is too short"),
        ({"ack": "never"}, "possible are sealed, committed"),
        ({"dedup": "ledger"}, "needs the option 'ledgerUrl'"),
        ({"columns": "body,keys"}, "no column 'keys'; did you mean 'key'"),
    ],
)
def test_a_wrong_option_is_named(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        Stream(spark, broker, tmp_path, **options).run()


def test_a_batch_read_cannot_wait_for_a_commit(
    spark: SparkSession, broker: EmbeddedBroker, queue: Queue, tmp_path: Path
) -> None:
    options = {"queue": "orders", "endpointUrl": broker.url, "segments": f"{tmp_path}/taken", "ack": "committed"}
    with pytest.raises(Exception, match="'ack' is 'committed', which is for streams"):
        spark.read.format("sqs").options(**options).load().collect()


def test_a_queue_that_does_not_exist_is_named(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match="nowhere"):
        Stream(spark, broker, tmp_path, queue="nowhere").run()
