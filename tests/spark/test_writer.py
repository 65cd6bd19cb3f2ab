"""From rows to messages: what `df.write.format("sqs")` and `writeStream` promise, on a real broker."""

from __future__ import annotations

import datetime
import decimal
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from doctor.gatekeeper import gatekeeper
from semel.broker import EmbeddedBroker, running
from semel.errors import SemelError, Unavailable
from semel.spark.pipeline.query_failures import kind_of
from semel.spark.segments.storage import open_store
from semel.spark.sinks.contract import Commit, MicroBatch, SinkError
from semel.spark.sinks.sqs import Progress, QueueSink
from semel.spark.source import datasource
from semel.spark.writer import datasource as writer_datasource
from semel.spark.writer.encoder import Columns, Outgoing, Rows, as_json
from semel.spark.writer.sender import Sender, SendError, SendPermissionDenied
from semel.sqs import Client, Queue, Received
from semel.sqs.errors import ServerFailed, Throttled, Unreachable
from spark.sinks_support import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

MIB = 1 << 20


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.url, "us-east-1", access_key="test", secret_key="test") as client:
        yield client


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    datasource.register(spark)
    return spark


def to(df: DataFrame, queue: Queue, **options: Any) -> DataFrameWriter:
    options = {"queue": queue.name, "endpointUrl": queue.client.endpoint, "region": "us-east-1"} | options
    return df.write.format("sqs").mode("append").options(**options)


def all_of(queue: Queue) -> list[Received]:
    messages: list[Received] = []
    while received := queue.receive(10, 0, visibility=600):
        messages += received
        queue.delete([message.receipt for message in received])
    return messages


def key_of(message: Received) -> str:
    return str(message.attributes["idempotency-key"].value)


def write(
    client: Client, table: pa.Table, queue: str = "orders", scope: str = "job", **options: str
) -> writer_datasource.TaskResult:
    """What one task does with the rows of `table`, without a Spark around it."""
    options = {"queue": queue, "endpointUrl": client.endpoint, "region": "us-east-1"} | options
    writer = writer_datasource.writer(options, from_arrow_schema(table.schema))
    return writer.send(iter(table.to_batches(max_chunksize=7)), scope, 0)


def ddl(text: str) -> StructType:
    kinds = {"STRING": StringType(), "INT": IntegerType()}
    return StructType([StructField(name, kinds[kind]) for name, kind in (part.split() for part in text.split(", "))])


# Rows and columns.


def test_every_row_becomes_one_message(session: SparkSession, client: Client) -> None:
    queue = client.create_queue("orders")
    df = session.range(257).selectExpr(
        "concat('order ', id) AS body", "map('n', string(id)) AS attributes", "concat('k', id) AS key"
    )
    to(df.repartition(3), queue).save()
    messages = {message.body: message for message in all_of(queue)}
    assert sorted(messages) == sorted(f"order {place}" for place in range(257))
    attributes = {name: value.value for name, value in messages["order 7"].attributes.items()}
    assert attributes == {"n": "7", "idempotency-key": "k7"}


def test_group_and_delay_come_from_their_columns(client: Client) -> None:
    queue = client.create_queue("orders")
    rows = {"body": ["now", "later"], "group_id": ["g1", None], "delay_seconds": pa.array([0, 600], pa.int32())}
    assert write(client, pa.table(rows)).rows == 2
    (message,) = all_of(queue)
    assert (message.body, message.group) == ("now", "g1")
    assert queue.attributes()["ApproximateNumberOfMessagesDelayed"] == "1"


def test_rows_without_a_body_are_sent_as_json(session: SparkSession, client: Client) -> None:
    queue = client.create_queue("orders")
    df = session.sql(
        "SELECT 7 AS id, CAST(1.50 AS DECIMAL(10,2)) AS amount, null AS note, array(1, 2) AS items, "
        "map('a', named_struct('b', null, 'c', 3)) AS more, TIMESTAMP '2026-01-02 03:04:05Z' AS placed, X'00ff' AS raw"
    )
    to(df, queue).save()
    (message,) = all_of(queue)
    assert message.body == (
        '{"id":7,"amount":1.50,"items":[1,2],"more":{"a":{"c":3}},"placed":"2026-01-02T03:04:05Z","raw":"AP8="}'
    )


def test_other_columns_can_be_named_for_key_and_group(client: Client) -> None:
    queue = client.create_queue("orders.fifo")
    rows = pa.table({"customer": ["c1"], "id": ["o1"], "amount": [3]})
    write(client, rows, queue.name, keyColumn="id", groupColumn="customer")
    (message,) = all_of(queue)
    assert (message.group, message.dedup, key_of(message)) == ("c1", "o1", "o1")
    assert json.loads(message.body) == {"customer": "c1", "id": "o1", "amount": 3}


def test_what_was_read_from_one_queue_can_be_written_to_another(client: Client) -> None:
    queue = client.create_queue("orders")
    write(client, pa.table({"body": ["b"], "key": ["k"], "message_id": ["m"], "receive_count": [2], "queue": ["old"]}))
    assert [key_of(message) for message in all_of(queue)] == ["k"]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("body STRING, amount INT", {}, "amount would not be sent"),
        ("body INT", {}, "column 'body' is INT; as bodyColumn it must be STRING"),
        ("body STRING, attributes STRING", {}, "must be MAP<STRING, STRING>"),
        ("body STRING, delay_seconds STRING", {}, "must be INT"),
        ("body STRING", {"groupColum": "g"}, "did you mean 'groupColumn'"),
        ("body STRING", {"groupColumn": "bodi"}, "there is no column 'bodi'; did you mean 'body'"),
        ("body STRING", {"threads": "many"}, "option 'threads' is 'many'"),
        ("body STRING", {"oversized": "ignore"}, "possible are fail, reject"),
        ("body STRING", {"oversized": "reject"}, "needs the option 'rejects'"),
        ("body STRING", {"rejects": "/tmp/x"}, "oversized is 'fail'"),
        ("body STRING", {"queue": ""}, "option 'queue' is missing"),
        ("body STRING", {"queue": "orders.fifo"}, "is a FIFO queue: give a column 'group_id'"),
        (
            "body STRING, group_id STRING, delay_seconds INT",
            {"queue": "orders.fifo"},
            "delays all its messages",
        ),
        ("body STRING", {"queue": "nowhere"}, "nowhere"),
    ],
)
def test_a_wrong_option_or_column_is_named_before_anything_is_sent(
    client: Client, columns: str, options: dict[str, str], says: str
) -> None:
    client.create_queue("orders")
    client.create_queue("orders.fifo")
    options = {"queue": "orders", "endpointUrl": client.endpoint, "region": "us-east-1"} | options
    with pytest.raises(SemelError) as raised:
        writer_datasource.writer(options, ddl(columns))
    assert says in str(raised.value)


def test_a_queue_cannot_be_overwritten() -> None:
    with pytest.raises(SemelError, match="mode\\('append'\\)"):
        writer_datasource.writer({"queue": "orders"}, ddl("body STRING"), overwrite=True)


# What cannot be sent.


def test_a_row_that_is_too_large_fails_the_job_with_its_number_size_and_key(
    session: SparkSession, client: Client
) -> None:
    queue = client.create_queue("orders")
    df = session.sql(f"SELECT 'ok' AS body, 'k1' AS key UNION ALL SELECT repeat('x', {2 * MIB}), 'k2'").coalesce(1)
    with pytest.raises(Exception, match=r"cannot be sent") as raised:
        to(df, queue).save()
    text = str(raised.value)
    assert "row 1 of task 0 cannot be sent to orders" in text
    assert f"it has {2 * MIB + 23} bytes with its attributes" in text
    assert "key k2" in text
    assert "'oversized', 'reject'" in text


def test_rows_that_cannot_be_sent_are_put_aside_with_their_reason_once(client: Client, tmp_path: Path) -> None:
    queue = client.create_queue("orders", {"MaximumMessageSize": 2048})
    rows: dict[str, Any] = {
        "body": ["ok", "x" * 3000, "a\0b", None, "y", "y", "z", "z"],
        "key": ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8"],
        "attributes": [
            *[None] * 4,
            {"AWS.x": "1"},
            {"e": ""},
            {str(place): "v" for place in range(10)},
            {str(place): "v" for place in range(9)},
        ],
    }
    rows["attributes"] = pa.array(
        [None if attributes is None else list(attributes.items()) for attributes in rows["attributes"]],
        pa.map_(pa.string(), pa.string()),
    )
    for _ in range(2):  # the second time is a task that is run again
        sent = write(client, pa.table(rows), oversized="reject", rejects=str(tmp_path))
        assert (sent.rows, sent.rejected) == (2, 6)
    assert {key_of(message) for message in all_of(queue)} == {"k1", "k8"}
    rejects = {row["key"]: row for row in pq.read_table(str(tmp_path)).to_pylist()}
    assert pq.read_table(str(tmp_path)).num_rows == 6
    assert rejects["k2"]["reason"] == "it has 3023 bytes with its attributes; the queue takes at most 2048"
    assert (rejects["k2"]["body"], rejects["k2"]["row"], rejects["k2"]["bytes"]) == ("x" * 3000, 1, 3023)
    assert "U+0000" in rejects["k3"]["reason"]
    assert rejects["k4"]["reason"] == "its body is null"
    assert "not a valid attribute name" in rejects["k5"]["reason"]
    assert rejects["k6"]["reason"] == "its attribute 'e' is empty"
    assert "10 attributes" in rejects["k7"]["reason"]


def test_a_row_that_only_sqs_itself_refuses_is_found_among_the_ten_of_its_call(client: Client) -> None:
    queue = client.create_queue("orders", {"MaximumMessageSize": 2048})
    rows = Rows(Columns(body="body"), "job", fifo=False)  # knows nothing of the queue's own limit
    sent: list[str] = []
    refused: list[tuple[int, str]] = []
    sender = Sender(
        queue,
        2,
        lambda messages: sent.extend(message.entry.body for message in messages),
        lambda message, reason: refused.append((message.number, reason)),
    )
    bodies = [f"{place}" if place != 4 else "x" * 3000 for place in range(9)]
    sender.send(rows.messages(pa.record_batch({"body": bodies})))
    sender.close()
    assert sorted(sent) == sorted(body for body in bodies if len(body) == 1)
    assert [number for number, _ in refused] == [4]


def test_a_call_that_sqs_refuses_as_a_whole_is_made_for_each_row(client: Client) -> None:
    queue = client.create_queue("orders.fifo")
    rows = Rows(Columns(body="body", group="group"), "job", fifo=True)
    refused: list[int] = []
    sender = Sender(queue, 1, lambda _: None, lambda message, _: refused.append(message.number))
    groups = ["g", "g", None, "g"]  # without a group, SQS refuses all ten
    encoded = rows.messages(pa.record_batch({"body": ["a", "b", "c", "d"], "group": groups}))
    sender.send(message._replace(problem="") for message in encoded)
    sender.close()
    assert [message.body for message in all_of(queue)] == ["a", "b", "d"]
    assert refused == [2]


def send(queue: Queue, count: int = 1) -> list[str]:
    sent: list[str] = []

    def refuse(message: Outgoing, reason: str) -> None:
        raise AssertionError(reason)

    sender = Sender(queue, 1, lambda messages: sent.extend(message.entry.body for message in messages), refuse)
    rows = Rows(Columns(body="body"), "job", fifo=queue.fifo)
    sender.send(rows.messages(pa.record_batch({"body": [str(number) for number in range(count)]})))
    sender.close()
    return sent


@pytest.mark.parametrize(("fault", "kind"), [("throttle", Throttled), ("server-error", ServerFailed)])
def test_a_refusal_that_waiting_may_fix_stays_one(broker: EmbeddedBroker, fault: str, kind: type[SemelError]) -> None:
    with Client(broker.url, "us-east-1", access_key="test", secret_key="test", max_attempts=1) as client:
        queue = client.create_queue("orders")
        broker.faults.set(fault, 1.0)
        with pytest.raises(kind, match="orders"):
            send(queue)
        broker.faults.clear()
        assert send(queue) == ["0"]


def test_an_sqs_that_does_not_answer_is_an_outage() -> None:
    with running() as gone, Client(gone.url, "us-east-1", access_key="x", secret_key="y", max_attempts=1) as other:
        queue = other.create_queue("orders")
    with pytest.raises(Unreachable, match="orders"):
        send(queue)


def test_missing_permissions_and_queues_are_errors_with_the_way_out(broker: EmbeddedBroker) -> None:
    with gatekeeper(broker) as iam, Client(iam.url, "us-east-1", access_key="x", secret_key="y") as client:
        queue = client.create_queue("orders")
        iam.refused.add("SendMessageBatch")
        with pytest.raises(SendPermissionDenied, match=r"cannot be sent to orders.*permission sqs:SendMessage on it"):
            send(queue)
        iam.refused.clear()
        queue.drop()
        with pytest.raises(SendError, match=r"cannot be sent to orders.*semel queues create orders") as raised:
            send(queue)
    assert kind_of(raised.value) == "other"
    assert kind_of(SendPermissionDenied("no")) == "permission"


def test_a_queue_that_is_not_there_is_an_error_of_the_driver_with_the_way_out(client: Client) -> None:
    options = {"queue": "nowhere", "endpointUrl": client.endpoint, "region": "us-east-1"}
    with pytest.raises(SendError, match=r"cannot be sent to nowhere.*semel queues create nowhere"):
        writer_datasource.writer(options, ddl("body STRING"))


# Ids.


def messages(bodies: list[str], scope: str = "job/0") -> list[Outgoing]:
    rows = Rows(Columns(body="body"), scope, fifo=True)
    return [message for half in (bodies[:3], bodies[3:]) for message in rows.messages(pa.record_batch({"body": half}))]


def test_ids_do_not_depend_on_the_order_of_rows() -> None:
    bodies = ["a", "b", "a", "c", "a", "b"]
    first, second = messages(bodies), messages(sorted(bodies, reverse=True))
    assert Counter((m.entry.body, m.id) for m in first) == Counter((m.entry.body, m.id) for m in second)


def test_no_two_rows_share_an_id_however_equal_they_are() -> None:
    ids = [m.entry.dedup for scope in ("q/1/0", "q/1/1", "q/2/0") for m in messages(["a"] * 5, scope)]
    assert len(set(ids)) == 15


def test_values_have_the_form_that_sparks_to_json_gives_them() -> None:
    day = datetime.date(2026, 1, 2)
    value = {"d": decimal.Decimal("1E+3"), "day": day, "n": None, "l": [None, {"x": None}], "s": datetime.timedelta(1)}
    assert as_json(value) == '{"d":1000,"day":"2026-01-02","l":[null,{}],"s":86400.0}'


# Once.


def test_a_task_that_fails_and_is_retried_sends_nothing_twice_to_a_fifo_queue(
    session: SparkSession, client: Client, tmp_path: Path
) -> None:
    queue = client.create_queue("orders.fifo")
    flag = str(tmp_path / "failed")

    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        yield from batches
        if not Path(flag).exists():
            Path(flag).touch()
            raise RuntimeError("half-way")

    df = session.range(60, numPartitions=1).selectExpr(
        "concat('order ', id) AS body", "concat('g', id % 3) AS group_id"
    )
    write = to(df.mapInArrow(failing_once, df.schema), queue)
    write.save()  # Spark retries the task
    assert Path(flag).exists()
    messages = all_of(queue)
    assert sorted(message.body for message in messages) == sorted(f"order {place}" for place in range(60))
    for group in ("g0", "g1", "g2"):
        numbers = [int(message.body.removeprefix("order ")) for message in messages if message.group == group]
        assert numbers == sorted(numbers)


@pytest.mark.slow
def test_a_replayed_batch_sends_nothing_twice_to_a_fifo_queue_and_the_same_keys_to_a_standard_one(
    session: SparkSession, client: Client, tmp_path: Path
) -> None:
    fifo, standard = client.create_queue("orders.fifo"), client.create_queue("orders")
    (tmp_path / "in").mkdir()

    def run(queue: Queue, checkpoint: Path) -> None:
        rows = session.readStream.schema("body STRING, group_id STRING").json(str(tmp_path / "in"))
        query = (
            rows.writeStream.format("sqs")
            .options(queue=queue.name, endpointUrl=client.endpoint, region="us-east-1")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_last(checkpoint: Path) -> None:
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
        last.unlink()

    messages: dict[str, list[Received]] = {}
    for batch in range(2):  # equal rows in two batches are two messages each
        lines = [json.dumps({"body": f"order {place % 4}", "group_id": "g"}) for place in range(8)]
        (tmp_path / "in" / f"{batch}.json").write_text("\n".join(lines))
        for queue in (fifo, standard):
            run(queue, tmp_path / queue.name)
            forget_last(tmp_path / queue.name)
            run(queue, tmp_path / queue.name)
            messages.setdefault(queue.name, []).extend(all_of(queue))
    assert len(messages["orders.fifo"]) == 16
    assert len(messages["orders"]) == 32
    assert len({key_of(message) for message in messages["orders"]}) == 16


def test_nothing_more_is_sent_after_a_failure(client: Client) -> None:
    queue = client.create_queue("orders.fifo")

    def refuse(message: Outgoing, reason: str) -> None:
        raise SendError(reason)

    def broken(messages: object) -> None:
        raise SendError("the disk is full")

    sender = Sender(queue, 3, broken, refuse)
    rows = Rows(Columns(body="body", group="group"), "job", fifo=True)
    batch = pa.record_batch({"body": [str(n) for n in range(10_000)], "group": [str(n % 7) for n in range(10_000)]})
    with pytest.raises(SendError, match="the disk is full"):
        sender.send(rows.messages(batch))
    sender.abandon()
    assert len(all_of(queue)) <= 30  # the calls of three threads that were under way


# The sink of a pipeline.

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("_message_id", pa.string())])
WIDE = pa.schema([*ORDERS, *((f"note{number}", pa.string()) for number in range(10))])


def orders(count: int, customer: str = "c") -> pa.RecordBatch:
    rows = [{"id": place, "customer": f"{customer}{place % 3}", "_message_id": f"m{place}"} for place in range(count)]
    return pa.RecordBatch.from_pylist(rows, ORDERS)


def sink(queue: Queue, folder: Path, schema: pa.Schema = ORDERS, **options: Any) -> QueueSink:
    made = QueueSink(queue.name, str(folder), endpoint_url=queue.client.endpoint, region="us-east-1", **options)
    made.open(schema)
    return made


def test_a_batch_that_is_replayed_sends_only_what_is_not_known_to_be_sent(client: Client, tmp_path: Path) -> None:
    queue = client.create_queue("out")
    out, batch = sink(queue, tmp_path, group="customer", attributes=("id",)), MicroBatch("p" * 32, 3)

    def dying(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield rows
        raise MemoryError

    with pytest.raises(MemoryError):
        out.writer(batch).write(dying(orders(1_200)), 0, "first")
    before = all_of(queue)
    assert len(before) >= 1_000  # many were sent, and written down
    written = (
        sink(queue, tmp_path, group="customer", attributes=("id",))
        .writer(batch)
        .write(iter([orders(1_200).take(pa.array(range(1_199, -1, -1)))]), 0, "second")
    )
    after = all_of(queue)
    assert written.rows == 1_200
    assert written.payload == {"left_out": len(before)}
    assert {key_of(message) for message in before}.isdisjoint(key_of(message) for message in after)
    assert sorted(int(m.attributes["id"].value) for m in before + after) == list(range(1_200))
    assert json.loads(before[0].body).keys() == {"id", "customer", "_message_id"}
    assert {message.group for message in before} == {"c0", "c1", "c2"}
    out.commit(batch, [written])
    assert committed(out, batch)
    assert not committed(out, MicroBatch("p" * 32, 4))
    assert not list((tmp_path / "sent").rglob("0*-*"))


def test_another_batch_under_the_number_of_one_that_was_sent_is_an_error(client: Client, tmp_path: Path) -> None:
    queue = client.create_queue("out")
    sink(queue, tmp_path).commit(MicroBatch("p" * 32, 3, "log/3/a"), [])
    again = sink(queue, tmp_path)
    assert again.last("p" * 32) == Commit(3, "log/3/a")
    with pytest.raises(SemelError, match="holds another batch 3"):
        again.commit(MicroBatch("p" * 32, 3, "log/9/b"), [])


def test_equal_rows_of_two_batches_or_tasks_are_different_messages(client: Client, tmp_path: Path) -> None:
    queue = client.create_queue("out.fifo")
    out = sink(queue, tmp_path, group="customer", body="customer")
    for number, task in ((1, 0), (1, 1), (2, 0), (2, 0)):
        out.writer(MicroBatch("p" * 32, number)).write(iter([orders(9)]), task, "only")
    assert len(all_of(queue)) == 27


def test_rows_that_the_queue_would_refuse_are_told_beforehand(client: Client, tmp_path: Path) -> None:
    queue = client.create_queue("out.fifo", {"MaximumMessageSize": 1024})
    out = sink(queue, tmp_path, group="customer", body="_message_id")
    rows = pa.RecordBatch.from_pylist(
        [
            {"id": 1, "customer": "c", "_message_id": "m"},
            {"id": 2, "customer": None, "_message_id": "m"},
            {"id": 3, "customer": "c", "_message_id": "m" * 1_024},
        ],
        ORDERS,
    )
    odd = out.writer(MicroBatch("p" * 32, 1)).invalid_rows(rows)
    assert [(invalid_row.row, invalid_row.field, invalid_row.reason.split(";")[0]) for invalid_row in odd] == [
        (1, "_message_id", "its group is null"),
        (2, "_message_id", f"it has {1_024 + 53} bytes with its attributes"),
    ]


def test_sent_ids_are_noted_after_a_second_even_if_they_are_few(tmp_path: Path) -> None:
    now = 0.0
    store = open_store(str(tmp_path))
    progress = Progress(store, 0, 0, lambda: now)
    rows = Rows(Columns(body="body"), "job", fifo=False)
    first, second = rows.messages(pa.record_batch({"body": ["a", "b"]}))
    progress.sent([first])
    assert store.names() == []
    now = 1.5
    progress.sent([second])
    assert Progress(store, 0, 0).known() == {first.id, second.id}


def test_a_queue_that_does_not_answer_is_an_outage_of_the_sink(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.spark.writer.sender.MAX_ATTEMPTS", 1)
    writer = sink(client.create_queue("out"), tmp_path).writer(MicroBatch("p", 0))
    away = replace(
        writer, queue="http://127.0.0.1:1/000000000000/out", address=("http://127.0.0.1:1", "us-east-1", None)
    )
    with pytest.raises(Unavailable):
        away.write(iter([pa.RecordBatch.from_pylist([{"id": 1, "customer": "a"}], schema=ORDERS)]), 0, "a")


def test_a_check_of_the_sink_sends_nothing_and_finds_a_queue_that_is_missing(client: Client, tmp_path: Path) -> None:
    queue = client.create_queue("out")
    sink(queue, tmp_path).check(ORDERS, None)
    assert queue.receive(wait=0) == []
    missing = QueueSink("not-there", str(tmp_path), endpoint_url=client.endpoint, region="us-east-1")
    with pytest.raises(SinkError, match="not-there"):
        missing.check(ORDERS, None)


@pytest.mark.parametrize(
    ("queue", "spec", "says"),
    [
        ("out", {"body": "bodi"}, "body names 'bodi'; there are id, customer"),
        ("out", {"body": "id"}, "is not a text"),
        ("out.fifo", {}, "is a FIFO queue"),
        ("out", {"attributes": tuple(WIDE.names[-10:])}, "nine are possible"),
    ],
)
def test_a_sink_that_cannot_work_says_so_before_the_first_batch(
    client: Client, tmp_path: Path, queue: str, spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(SemelError) as raised:
        sink(client.create_queue(queue), tmp_path, WIDE, **spec)
    assert says in str(raised.value)
