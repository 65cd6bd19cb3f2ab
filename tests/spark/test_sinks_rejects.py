"""Rejected messages go to the dead-letter queue as the consumer writes them, or to a table, and none is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semel.errors import Unavailable
from semel.messages import dead_letter_attributes
from semel.spark.sinks.contract import Commit, MicroBatch, SinkError
from semel.spark.sinks.rejects import TABLE, RejectQueue, RejectTable, by_url_and_name, dead_letter_entry
from semel.sqs import Attribute, Client, Queue, Received
from semel.sqs.limits import MAX_MESSAGE_BYTES
from spark.sinks_support import NOON, PIPELINE, UTC_TIME, batch, committed, put, put_by_spark, read_parquet, run, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semel.broker import EmbeddedBroker

MESSAGE = pa.struct(
    [
        ("message_id", pa.string()),
        ("body", pa.string()),
        ("key", pa.string()),
        ("group_id", pa.string()),
        ("sequence_number", pa.string()),
        ("sent_at", UTC_TIME),
        ("receive_count", pa.int32()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("queue", pa.string()),
    ]
)
REJECTED = pa.schema([("reason", pa.string()), ("field", pa.string()), ("message", MESSAGE)])
REASON = "not a DECIMAL(12,2): 'much'"


def message(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "message_id": f"m-{number}",
        "body": f'{{"amount": "much", "nr": {number}}}',
        "key": f"order-{number}",
        "group_id": None,
        "sequence_number": None,
        "sent_at": NOON,
        "receive_count": 2,
        "attributes": {"trace": "xyz"},
        "queue": "orders",
    } | changes


def rejected(*messages: dict[str, Any], flat: bool = False, reason: str = REASON) -> pa.RecordBatch:
    rows = [{"reason": reason, "field": "amount", "message": message} for message in messages]
    rejects = pa.RecordBatch.from_pylist(rows, schema=REJECTED)
    if not flat:
        return rejects
    parts = rejects.column("message").flatten()
    return pa.RecordBatch.from_arrays(
        [*parts, rejects.column("reason"), rejects.column("field")],
        [*(field.name for field in MESSAGE), "reason", "field"],
    )


@pytest.fixture
def client(sqs_broker: EmbeddedBroker, credentials: None) -> Iterator[Client]:
    with Client(sqs_broker.url, "us-east-1") as client:
        yield client


class DeadLetterQueue:
    """A dead-letter queue and the pipeline's way to it; `driver()` is a driver that has just started."""

    def __init__(self, client: Client, checkpoint: Path, name: str) -> None:
        self.client, self.checkpoint = client, checkpoint
        self.queue: Queue = client.create_queue(name)

    def driver(self, **options: Any) -> RejectQueue:
        options = options or {"queue": self.queue.name}
        sink = RejectQueue(str(self.checkpoint), endpoint_url=self.client.endpoint, region="us-east-1", **options)
        sink.open()
        return sink

    def received(self) -> list[Received]:
        messages: list[Received] = []
        while received := self.queue.receive(wait=0):
            messages += received
            self.queue.delete([message.receipt for message in received])
        return sorted(messages, key=lambda message: message.body)

    def bodies(self) -> list[int]:
        return sorted(json.loads(message.body)["nr"] for message in self.received())


@pytest.fixture
def dead(client: Client, tmp_path: Path) -> DeadLetterQueue:
    return DeadLetterQueue(client, tmp_path, "orders-dlq")


@pytest.fixture
def dead_fifo(client: Client, tmp_path: Path) -> DeadLetterQueue:
    return DeadLetterQueue(client, tmp_path, "orders-dlq.fifo")


# The queue.


@pytest.mark.parametrize("flat", [False, True])
def test_a_rejected_message_is_a_dead_letter_as_the_consumers_are(dead: DeadLetterQueue, flat: bool) -> None:
    put(dead.driver(), 0, [rejected(message(1), flat=flat)])
    (dead_letter,) = dead.received()
    details, own = dead_letter_attributes.read(dead_letter.attributes)
    assert dead_letter.body == message(1)["body"]
    assert own == {"trace": Attribute("String", "xyz")}
    assert details == dead_letter_attributes.DeadLetterDetails(
        key="order-1",
        reason="not a DECIMAL(12,2)",
        error="field amount: 'much'",
        attempts=2,
        message_id="m-1",
        queue="orders",
    )


def test_a_message_without_a_key_and_a_reason_without_more_are_fine(dead: DeadLetterQueue) -> None:
    put(dead.driver(), 0, [rejected(message(1, key=None, attributes=None), reason="no key")])
    (dead_letter,) = dead.received()
    details, own = dead_letter_attributes.read(dead_letter.attributes)
    assert details is not None
    assert (details.key, details.reason, details.error, own) == ("", "no key", "field amount: no key", {})


@pytest.mark.parametrize(("key", "attributes"), [("m-1", {}), ("m-0", {"semel-message-id": "m-0"})])
def test_a_message_id_does_not_become_a_key_that_comes_before_every_rule(
    dead: DeadLetterQueue, key: str, attributes: dict[str, str]
) -> None:
    put(dead.driver(), 0, [rejected(message(1, key=key, attributes=attributes))])
    (dead_letter,) = dead.received()
    assert dead_letter_attributes.carried_key(dead_letter.attributes) == ""
    assert dead_letter_attributes.original_id(dead_letter.attributes, dead_letter.message_id) == "m-1"


def test_on_a_fifo_queue_dead_letters_keep_their_group_and_are_not_doubled_in_doubt(dead_fifo: DeadLetterQueue) -> None:
    sink = dead_fifo.driver()
    rows = [rejected(message(1, group_id="g"), message(2))]
    write(sink, 0, rows)
    for mark in dead_fifo.checkpoint.glob("rejects/b*"):  # it died between sending and noting that
        mark.unlink()
    put(dead_fifo.driver(), 0, rows)
    assert [(dead_letter.group, json.loads(dead_letter.body)["nr"]) for dead_letter in dead_fifo.received()] == [
        ("g", 1),
        ("dead-letters", 2),
    ]


def test_the_dead_letters_of_another_batch_under_the_same_number_are_an_error(dead: DeadLetterQueue) -> None:
    sink = dead.driver()
    first, second = (MicroBatch(PIPELINE, 0, f"log/{n}/a") for n in (1, 2))
    written = run(sink.writer(first), [rejected(message(1))])
    sink.commit(first, [written])
    assert dead.driver().last(PIPELINE) == Commit(0, "log/1/a")
    with pytest.raises(SinkError, match="holds another batch 0"):
        sink.commit(second, [written])


def test_a_replay_after_the_note_sends_nothing(dead: DeadLetterQueue) -> None:
    rows = [rejected(message(1), message(2))]
    write(dead.driver(), 0, rows, [rejected(message(3))])
    after = dead.driver()
    assert not committed(after, batch(0))
    put(after, 0, rows, [rejected(message(3))])
    assert dead.bodies() == [1, 2, 3]
    assert committed(after, batch(0))
    put(dead.driver(), 0, rows, [rejected(message(3))])
    assert dead.bodies() == []


def test_a_replay_that_rejects_more_than_before_sends_what_is_new(dead: DeadLetterQueue) -> None:
    write(dead.driver(), 0, [rejected(message(1))])
    put(dead.driver(), 0, [rejected(message(1), message(2)), rejected(message(3))])
    assert dead.bodies() == [1, 2, 3]


def test_a_task_of_a_driver_that_was_overtaken_sends_nothing(dead: DeadLetterQueue) -> None:
    zombie = dead.driver().writer(batch(0))
    after = dead.driver()
    put(after, 0, [rejected(message(1))])
    put(after, 1, [rejected(message(2))])
    run(zombie, [rejected(message(1))])
    assert dead.bodies() == [1, 2]


def test_notes_do_not_pile_up(dead: DeadLetterQueue) -> None:
    sink = dead.driver()
    for number in range(3):
        put(sink, number, [rejected(message(number))], [])
    assert [path.name for path in (dead.checkpoint / "rejects").iterdir()] == ["commits"]
    (dead.checkpoint / "rejects" / "b0000000001-t0000").write_text("[]")
    (dead.checkpoint / "rejects" / "b0000000003-t0000").write_text('["m-3"]')
    put(dead.driver(), 3, [rejected(message(3))])
    assert [path.name for path in (dead.checkpoint / "rejects").iterdir()] == ["commits"]
    assert dead.bodies() == [0, 1, 2]


def test_batches_without_rejects_leave_no_note(dead: DeadLetterQueue) -> None:
    put(dead.driver(), 0, [], [rejected()])
    assert not (dead.checkpoint / "rejects").exists()


def test_each_source_has_its_own_dead_letter_queue(dead: DeadLetterQueue, client: Client) -> None:
    other = client.create_queue("returns-dlq")
    for name, target in (("orders", dead.queue), ("returns", other)):
        client.create_queue(name, {"RedrivePolicy": {"deadLetterTargetArn": target.arn, "maxReceiveCount": 3}})
    sink = dead.driver(sources=["orders", "returns"])
    put(sink, 0, [rejected(message(1), message(2, queue="returns"))])
    assert dead.bodies() == [1]
    assert [json.loads(dead_letter.body)["nr"] for dead_letter in other.receive(wait=0)] == [2]


def test_the_source_of_a_message_is_known_by_its_url_and_by_its_name(dead: DeadLetterQueue, client: Client) -> None:
    redrive = {"RedrivePolicy": {"deadLetterTargetArn": dead.queue.arn, "maxReceiveCount": 3}}
    url = client.create_queue("orders", redrive).url
    put(dead.driver(sources=[url]), 0, [rejected(message(1), message(2, queue=url))])
    assert dead.bodies() == [1, 2]


def test_a_name_that_queues_of_two_accounts_have_decides_nothing(dead: DeadLetterQueue) -> None:
    urls = [f"https://sqs.us-east-1.amazonaws.com/{account}/orders" for account in ("111111111111", "222222222222")]
    targets = by_url_and_name({urls[0]: "dlq-1", urls[1]: "dlq-2", "https://sqs/1/returns": "dlq-3"})
    assert targets == {urls[0]: "dlq-1", urls[1]: "dlq-2", "https://sqs/1/returns": "dlq-3", "returns": "dlq-3"}
    writer = replace(dead.driver().writer(batch(0)), targets=targets)
    with pytest.raises(SinkError, match=r"message m-1 came from queue orders, which is not .* exactly one source"):
        run(writer, [rejected(message(1))])


def test_a_check_finds_a_dead_letter_queue_that_is_missing_and_sends_nothing(
    dead: DeadLetterQueue, client: Client
) -> None:
    def sink(**options: Any) -> RejectQueue:
        return RejectQueue(str(dead.checkpoint), endpoint_url=client.endpoint, region="us-east-1", **options)

    sink(queue=dead.queue.name).check(None, None)
    assert dead.received() == []
    with pytest.raises(SinkError, match="not-there"):
        sink(queue="not-there").check(None, None)
    source = client.create_queue("orders")
    with pytest.raises(SinkError, match="queue orders has no dead-letter queue"):
        sink(sources=["orders"]).check(None, None)
    policy = json.dumps({"deadLetterTargetArn": dead.queue.arn, "maxReceiveCount": 3})
    client.call("SetQueueAttributes", {"QueueUrl": source.url, "Attributes": {"RedrivePolicy": policy}})
    sink(sources=["orders"]).check(None, None)
    dead.queue.drop()
    with pytest.raises(SinkError, match="orders-dlq"):
        sink(sources=["orders"]).check(None, None)


def test_a_source_without_a_dead_letter_queue_is_said_at_the_start(dead: DeadLetterQueue, client: Client) -> None:
    client.create_queue("orders")
    with pytest.raises(SinkError, match="queue orders has no dead-letter queue"):
        dead.driver(sources=["orders"])
    with pytest.raises(SinkError, match="cannot be used"):
        dead.driver(queue="not-there")


def test_dead_letters_that_cannot_be_sent_stop_the_batch(dead: DeadLetterQueue, client: Client) -> None:
    sink = dead.driver()
    client.call("SetQueueAttributes", {"QueueUrl": dead.queue.url, "Attributes": {"MaximumMessageSize": "1024"}})
    with pytest.raises(SinkError, match=r"message m-1 of orders .* cannot be sent to orders-dlq"):
        write(sink, 0, [rejected(message(1, body="x" * 2_000))])
    assert not committed(sink, batch(0))
    dead.queue.drop()
    with pytest.raises(SinkError, match="orders-dlq"):
        write(sink, 0, [rejected(message(1))])


@pytest.mark.parametrize(
    "own",
    [
        {},
        {f"a{number}": "x" for number in range(10)},
        {"grown": "x" * 200_000},  # was bytes, and is longer as text
    ],
    ids=["none", "ten", "grown"],
)
@pytest.mark.parametrize("room", [0, 20, 200, 2_000])
def test_a_message_as_long_as_can_be_still_becomes_a_dead_letter(
    dead: DeadLetterQueue, room: int, own: dict[str, str]
) -> None:
    body = "x" * (MAX_MESSAGE_BYTES - room)
    put(dead.driver(), 0, [rejected(message(1, body=body, attributes=own))])
    (dead_letter,) = dead.received()
    assert dead_letter.body == body


def test_a_rejected_message_without_its_body_is_an_error_and_not_lost(dead: DeadLetterQueue) -> None:
    with pytest.raises(SinkError, match="without its body"):
        write(dead.driver(), 0, [rejected(message(1, body=None))])


def test_a_dead_letter_is_sent_again_under_the_same_dedup_id() -> None:
    row = {"reason": "r", "field": None} | message(1, group_id="g")
    assert dead_letter_entry(row, fifo=True) == dead_letter_entry(row, fifo=True)
    assert dead_letter_entry(row, fifo=True).dedup == "m-1"
    assert dead_letter_entry(row, fifo=False).group is None


def test_sqs_that_does_not_answer_is_an_outage(dead: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.spark.writer.sender.MAX_ATTEMPTS", 1)
    away = ("http://127.0.0.1:1", "us-east-1", None)
    sink = RejectQueue(str(dead.checkpoint), "dlq", endpoint_url=away[0], region=away[1])
    with pytest.raises(Unavailable):
        sink.open()
    writer = replace(dead.driver().writer(batch(0)), address=away, targets={"": "http://127.0.0.1:1/000000000000/dlq"})
    with pytest.raises(Unavailable):
        run(writer, [rejected(message(1))])


# The table.


@pytest.mark.parametrize("flat", [False, True])
def test_a_rejected_message_is_a_row_of_the_table(tmp_path: Path, flat: bool) -> None:
    path = str(tmp_path / "rejects")
    sink = RejectTable(path)
    sink.open()
    put(sink, 0, [rejected(message(1), flat=flat)])
    (row,) = read_parquet(path)
    assert list(row) == TABLE.names
    assert row.pop("rejected_at") is not None
    assert row == message(1) | {"reason": REASON, "field": "amount"}


def test_a_replay_puts_no_message_into_the_table_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "rejects")
    for _ in range(2):
        sink = RejectTable(path)
        sink.open()
        write(sink, 0, [rejected(message(1))])
        put(sink, 0, [rejected(message(1))], [], [rejected(message(2))])
        assert committed(sink, batch(0))
    assert sorted(row["message_id"] for row in read_parquet(path)) == ["m-1", "m-2"]


def test_spark_writes_rejects_to_a_queue_and_to_a_table(
    dead: DeadLetterQueue, spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.range(0, 25, 1, 2).selectExpr(
        "'odd: ' || id AS reason",
        "'amount' AS field",
        """named_struct('message_id', 'm-' || id, 'body', '{"nr": ' || id || '}', 'key', 'k', 'group_id',
            CAST(NULL AS STRING), 'sequence_number', CAST(NULL AS STRING), 'sent_at', now(), 'receive_count', 1,
            'attributes', map('a', 'b'), 'queue', 'orders') AS message""",
    )
    table = RejectTable(str(tmp_path / "rejects"))
    table.open()
    put_by_spark(table, 0, df)
    assert len(read_parquet(str(tmp_path / "rejects"))) == 25
    put_by_spark(dead.driver(), 0, df)
    assert dead.bodies() == list(range(25))
