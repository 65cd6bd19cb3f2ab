"""One handler, two engines: what `@app.handler` promises on threads is also true in Spark's executors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.consumer import processes
from semel.consumer.app_loader import RunOptions
from semel.errors import SemelError
from semel.ledger.contract import LedgerUnavailable
from semel.spark.pipeline import handler_app
from semel.spark.sinks.contract import Commit, MicroBatch, Written
from semel.spark.sinks.handlers.row_messages import NEEDED, messages
from semel.spark.sinks.handlers.row_queue import RowQueue
from semel.spark.sinks.handlers.sink import HandlerSink
from semel.spark.sinks.handlers.task import BACKLOG, Patience
from semel.sqs import Client, Received
from spark.shops import Shop, all_of, made, rows, send
from spark.sinks_support import committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers import postgres

HASTY = Patience(seconds=0.0)
BATCH = MicroBatch("p", 1)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def shop(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Client(broker.url, "us-east-1") as client:
        yield Shop(tmp_path, broker, client)


def run(shop: Shop, app: str, messages: list[Received], queue: str = "orders", **how: Any) -> dict[str, int]:
    """One task with these messages; what it counted."""
    sink = HandlerSink(shop.place(app), str(shop.folder / "checkpoint"), **how)
    sink.open(NEEDED)
    written = sink.writer(BATCH).write(iter(rows(messages, queue)), 0, "attempt")
    counts: dict[str, int] = written.payload["counts"].get(queue, {})
    return counts


# Once.


def test_each_effect_is_once_whatever_is_doubled_or_replayed(shop: Shop) -> None:
    shop.queue()
    app = shop.app()
    messages = made({"id": place % 60, "message": f"m{place}"} for place in range(100))
    first, second = run(shop, app, messages), run(shop, app, messages)
    assert (first["completed"], first["duplicates_deleted"]) == (60, 40)
    assert second == {"received": 100, "duplicates_deleted": 100, "deleted": 100}
    assert sorted(map(int, shop.effects())) == list(range(60))


def test_a_message_that_comes_twice_to_one_task_is_one(shop: Shop) -> None:
    shop.queue()
    counts = run(shop, shop.app(), made([{"id": 1, "message": "m"}, {"id": 1, "message": "m"}]))
    assert (counts["completed"], counts["duplicate_rows"]) == (1, 1)


def test_what_was_done_on_threads_is_done_for_spark(shop: Shop) -> None:
    queue = shop.queue()
    app = shop.app()
    send(queue, [{"id": place} for place in range(5)])
    report = processes.run(RunOptions(app, endpoint_url=shop.broker.url, exit_when_empty=True))
    assert report.completed == 5
    assert run(shop, app, made({"id": place, "message": f"again {place}"} for place in range(6)))["completed"] == 1
    assert len(shop.effects()) == 6


def test_a_postgresql_transaction_holds_effect_and_record_together(
    shop: Shop, postgres_server: postgres.Server
) -> None:
    shop.queue()
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS effects")
        connection.execute("CREATE TABLE effects (id TEXT, fence BIGINT)")
        app = shop.app(ledger=postgres_server.url)
        messages = made({"id": f"pg{place % 20}", "message": f"m{place}"} for place in range(30))
        assert [run(shop, app, messages).get("completed", 0) for _ in range(2)] == [20, 0]
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM effects").fetchall() == [(20, 20)]
        connection.execute("DROP TABLE effects")


def test_a_batch_handler_gets_batches_and_a_bad_item_fails_alone(shop: Shop) -> None:
    queue = shop.queue()
    app = shop.app(
        """
@app.batch_handler("orders", key="$.id", size=50, max_attempts=1)
def handle(batch: Batch[dict], tx: Transaction):
    with open("calls", "a") as calls:
        print(len(batch), file=calls)
    for order in batch.values:
        if order.get("bad"):
            raise ValueError("a bad order")
    tx.executemany("INSERT INTO effects (id) VALUES (?)", [(order["id"],) for order in batch.values])
"""
    )
    counts = run(shop, app, made({"id": place, "bad": place == 33} for place in range(100)))
    assert (counts["completed"], counts["rejected"]) == (99, 1)
    assert sorted(map(int, shop.effects())) == [place for place in range(100) if place != 33]
    assert max(map(int, (shop.folder / "calls").read_text().split())) > 1
    assert len(all_of(queue.client.queue("orders-dlq"))) == 1


def test_an_async_handler_runs_too(shop: Shop) -> None:
    shop.queue()
    app = shop.app(
        """
@app.handler("orders", key="$.id")
async def handle(order: dict):
    await asyncio.sleep(0)
    with open("done", "a") as done:
        print(order["id"], file=done)
"""
    )
    assert run(shop, app, made({"id": place} for place in range(20)))["completed"] == 20
    assert sorted(map(int, (shop.folder / "done").read_text().split())) == list(range(20))


def test_a_handler_that_takes_longer_than_its_lease_keeps_its_claim(shop: Shop) -> None:
    shop.queue()
    app = shop.app(
        """
@app.handler("orders", key="$.id", lease=1)
def handle(order: dict, ctx: Context):
    setup = ctx._delivery.setup
    while setup.metrics.heartbeat_ok.count < 4:
        ctx.check()
"""
    )
    counts = run(shop, app, made([{"id": 1}]))
    assert (counts["completed"], counts.get("heartbeat_lost", 0)) == (1, 0)


def test_what_a_transaction_sends_is_sent_before_the_task_ends(shop: Shop) -> None:
    shop.queue()
    receipts = shop.client.create_queue("receipts")
    app = shop.app(
        """
@app.handler("orders", key="$.id")
def handle(order: dict, tx: Transaction):
    tx.send("receipts", {"for": order["id"]})
"""
    )
    run(shop, app, made({"id": place} for place in range(15)))
    assert sorted(json.loads(message.body)["for"] for message in all_of(receipts)) == list(range(15))


def test_a_task_leaves_no_thread_behind(shop: Shop) -> None:
    """A worker process of Spark's lives on for the next thousand tasks."""
    shop.queue()
    app = shop.app()
    before = set(threading.enumerate())
    for start in (0, 50):
        run(shop, app, made({"id": start + place} for place in range(50)))
    deadline = time.monotonic() + 20
    while left := {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("semel-")}:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


# What fails.


def test_a_message_that_always_fails_becomes_a_dead_letter_with_its_reason(shop: Shop) -> None:
    queue = shop.queue()
    counts = run(shop, shop.app(), made({"id": place, "bad": place == 3} for place in range(10)))
    assert (counts["completed"], counts["retried"], counts["rejected"]) == (9, 2, 1)
    (dead_letter,) = all_of(queue.client.queue("orders-dlq"))
    attributes = {name: value.value for name, value in dead_letter.attributes.items()}
    assert (attributes["semel-key"], attributes["semel-reason"]) == ("3", "out of attempts")
    assert (attributes["semel-error"], attributes["semel-attempts"]) == ("ValueError: a bad order", "3")


def test_a_message_that_sqs_would_move_at_its_next_receive_is_dead_lettered_with_its_reason(shop: Shop) -> None:
    queue = shop.queue()
    (message,) = made([{"id": 1, "bad": True}])
    message.system["ApproximateReceiveCount"] = "3"  # the queue's maxReceiveCount
    assert run(shop, shop.app(options="max_attempts=9"), [message])["rejected"] == 1
    (dead,) = all_of(queue.client.queue("orders-dlq"))
    assert dead.attributes["semel-reason"].value == "out of receives"


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_message_that_waits_for_long_is_returned_to_its_queue(shop: Shop, queue: str) -> None:
    shop.queue(queue)
    app = shop.app(
        """
@app.handler({queue!r}, key="$.id", retry=Fixed(100))
def handle(order: dict, ctx: Context, tx: Transaction):
    if order["id"] == "b1":
        raise Retry("not yet")
    tx.execute("INSERT INTO effects (id) VALUES (?)", (order["id"],))
""",
        queue=queue,
    )
    sink = HandlerSink(shop.place(app), str(shop.folder / "checkpoint"), patience=HASTY)
    sink.open(NEEDED)
    messages = made(({"id": id_, "message": id_, "group": id_[0]} for id_ in ("a1", "b1", "b2")), "group")
    written = sink.writer(BATCH).write(iter(rows(messages, queue)), 0, "attempt")
    sink.commit(BATCH, [written])
    waiting = ["b1"] if queue == "orders" else ["b1", "b2"]  # the rest of its group waits for it
    assert sorted(shop.effects()) == sorted({"a1", "b1", "b2"} - set(waiting))
    assert list(sink.returned) == waiting
    assert all(90 < due - time.time() <= 100 for due in sink.returned.values())
    assert written.payload["counts"][queue]["returned"] == len(waiting)


def test_if_the_ledger_does_not_answer_the_task_fails_and_nothing_is_returned(shop: Shop) -> None:
    shop.queue()
    app = shop.app(
        """
from semel import SqliteLedger
from semel.ledger.contract import LedgerUnavailable

class Away(SqliteLedger):
    def claim(self, asks, **how):
        self.ask()
        return super().claim(asks, **how)

    def get(self, keys):
        self.ask()
        return super().get(keys)

    def ask(self):
        if pathlib.Path("away").exists():
            raise LedgerUnavailable("it is away")

app._ledger = Away("ledger.db")

@app.handler("orders", key="$.id", retry=Fixed(100))
def handle(order: dict, tx: Transaction):
    tx.execute("INSERT INTO effects (id) VALUES (?)", (order["id"],))
"""
    )
    (shop.folder / "away").touch()
    messages = made({"id": place} for place in range(5))
    with pytest.raises(LedgerUnavailable, match="the batch is run again"):
        run(shop, app, messages, patience=Patience(ledger=0.1))
    (shop.folder / "away").unlink()
    assert run(shop, app, messages)["completed"] == 5


def test_a_queue_without_a_handler_is_named(shop: Shop) -> None:
    shop.queue()
    with pytest.raises(SemelError, match="has no handler for the queue 'other'; it has orders"):
        run(shop, shop.app(), made([{"id": 1}]), "other")


# FIFO.


def test_a_group_keeps_its_order_whatever_the_shuffle_did_to_it(shop: Shop) -> None:
    shop.queue("orders.fifo")
    app = shop.app(queue="orders.fifo")
    sink = HandlerSink(shop.place(app), str(shop.folder / "checkpoint"))
    sink.open(NEEDED)
    messages = made(({"id": id_, "message": id_, "group": id_[0]} for id_ in ("a1", "b1", "a2", "a3", "b2")), "group")
    shuffled = [rows(messages[place::2], "orders.fifo")[0] for place in (1, 0)]
    sink.writer(BATCH).write(iter(shuffled), 0, "attempt")
    effects = shop.effects()
    assert [id_ for id_ in effects if id_[0] == "a"] == ["a1", "a2", "a3"]
    assert [id_ for id_ in effects if id_[0] == "b"] == ["b1", "b2"]


def test_a_group_that_waits_waits_as_a_whole_however_long_it_is(shop: Shop) -> None:
    shop.queue("orders.fifo")
    app = shop.app(
        """
@app.handler("orders.fifo", key="$.id", retry=Fixed(100))
def handle(order: dict, ctx: Context, tx: Transaction):
    if order["id"] == 0:
        raise Retry("not yet")
    tx.execute("INSERT INTO effects (id) VALUES (?)", (order["id"],))
"""
    )
    messages = made(({"id": place, "message": str(place), "group": "a"} for place in range(BACKLOG + 500)), "group")
    counts = run(shop, app, messages, "orders.fifo", patience=HASTY)
    assert (counts["returned"], shop.effects()) == (BACKLOG + 500, [])


# The queue in memory.


def fifo_queue(client: Client) -> RowQueue:
    return RowQueue(client.queue("q.fifo"), {}, threading.Condition(), lambda: 100.0)


def receive_ids(queue: RowQueue, most: int = 10) -> list[str]:
    return [message.message_id for message in queue.receive(most, 0)]


def test_of_a_group_nothing_is_handed_out_while_one_of_it_is_out(broker: EmbeddedBroker) -> None:
    with Client(broker.url, "us-east-1") as client:
        queue = fifo_queue(client)
        queue.put(made(({"message": f"{g}{n}", "g": g} for n in range(3) for g in "ab"), "g"))
        assert receive_ids(queue, 4) == ["a0", "a1", "a2", "b0"]
        assert receive_ids(queue) == []
        queue.hide([("1", 0.0)])  # b0
        assert receive_ids(queue) == ["b0", "b1", "b2"]
        queue.hide([("2", 50.0)])  # a1
        queue.delete(["0", "4"])  # a0, a2
        assert receive_ids(queue) == []
        assert queue.next_due() == 150.0
        queue.delete(["1", "3", "5"])
        assert (queue.left, queue.out) == (1, 0)
        assert [(message.message_id, wait) for message, wait in queue.drain()] == [("a1", 50.0)]
        assert queue.left == 0


def test_what_a_consumer_has_let_go_of_without_a_word_is_handed_out_again(broker: EmbeddedBroker) -> None:
    now = [0.0]
    with Client(broker.url, "us-east-1") as client:
        queue = RowQueue(client.queue("q"), {}, threading.Condition(), lambda: now[0])
        queue.put(made([{"message": "kept"}, {"message": "lost"}]))
        assert receive_ids(queue) == ["kept", "lost"]
        assert queue.find_lost({"kept": None}, 1.0) == 0  # it may be on its way into the consumer's table
        now[0] = 2.0
        assert queue.find_lost({"kept": None}, 1.0) == 1
        now[0] = 3.0
        assert receive_ids(queue) == ["lost"]


def test_rows_of_the_source_become_the_messages_that_they_were() -> None:
    row = {
        "message_id": "m",
        "body": "{}",
        "group_id": "g",
        "dedup_id": "d",
        "sequence_number": "7",
        "sent_at": 1_700_000_000_123_000,
        "receive_count": 4,
        "attributes": [("colour", "red"), ("semel-key", "k")],
        "queue": "orders",
    }
    ((queue, message),) = messages(pa.RecordBatch.from_pylist([row], NEEDED))
    assert (queue, message.message_id, message.group, message.dedup) == ("orders", "m", "g", "d")
    assert (message.sequence, message.sent_at, message.receive_count) == ("7", 1_700_000_000.123, 4)
    assert {name: value.value for name, value in message.attributes.items()} == {"colour": "red", "semel-key": "k"}


# The sink.


def written(task: int, **returned: float) -> Written:
    return Written(task, "a", 0, 0, {"counts": {}, "returned": returned})


def test_a_driver_that_was_overtaken_commits_nothing(shop: Shop) -> None:
    place = shop.place(shop.app())
    old, new = HandlerSink(place, str(shop.folder / "c")), HandlerSink(place, str(shop.folder / "c"))
    old.open(NEEDED)
    new.open(NEEDED)
    with pytest.raises(SemelError, match="another run of handlers of"):
        old.commit(MicroBatch("p", 1), [written(0)])
    for number in range(1, 6):
        new.commit(MicroBatch("p", number), [written(0)])
    with pytest.raises(SemelError, match="another run"):  # also when the versions in between are gone
        old.commit(MicroBatch("p", 1), [written(0)])
    assert committed(new, MicroBatch("p", 5))


def test_rows_without_the_columns_of_the_source_are_refused(shop: Shop) -> None:
    sink = HandlerSink(shop.place(shop.app()), str(shop.folder / "c"))
    with pytest.raises(SemelError, match="the source's own columns; message_id"):
        sink.open(pa.schema([("id", pa.string())]))


# On Spark.


def on_spark(shop: Shop, app: str, **how: Any) -> handler_app.Report:
    return handler_app.run(
        app, endpoint_url=shop.broker.url, checkpoint=str(shop.folder / "ck"), exit_when_empty=True, **how
    )


def test_spark_runs_the_handlers_of_an_app_each_effect_once(spark: SparkSession, shop: Shop) -> None:
    orders, dead = shop.queue(), shop.client.queue("orders-dlq")
    ledger_log = str(shop.folder / "attempts")
    app = shop.app()
    send(orders, [{"id": place % 80, "bad": place == 33} for place in range(100)])
    report = on_spark(shop, app, max_messages=60, attempt_log=ledger_log)
    assert report.error is None
    assert (report.completed, report.unfinished, report.waiting) == (79, (), {})
    assert (report.counts["orders"]["duplicates_deleted"], report.counts["orders"]["rejected"]) == (20, 1)
    assert sorted(map(int, shop.effects())) == [place for place in range(80) if place != 33]
    assert [message.attributes["semel-reason"].value for message in all_of(dead)] == ["out of attempts"]
    events = [json.loads(line) for file in Path(ledger_log).rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert sum(event["step"] == "recorded" for event in events) == 79
    # Another checkpoint, and messages that were sent a second time: the ledger knows them.
    send(orders, [{"id": place, "bad": False} for place in range(40, 90)])
    again = handler_app.run(
        app, endpoint_url=shop.broker.url, checkpoint=str(shop.folder / "ck2"), exit_when_empty=True
    )
    assert (again.error, again.completed) == (None, 10)
    assert len(shop.effects()) == 89


def test_on_spark_no_message_is_deleted_before_its_handler_has_run(spark: SparkSession, shop: Shop) -> None:
    queue = shop.queue()
    app = shop.app(
        """
@app.handler("orders", key="$.id")
def handle(order: dict, ctx: Context, tx: Transaction):
    attributes = app.client().queue("orders").attributes()
    there = sum(int(attributes["ApproximateNumberOfMessages" + kind]) for kind in ("", "NotVisible"))
    tx.execute("INSERT INTO effects (id) VALUES (?)", (there,))
"""
    )
    send(queue, [{"id": place} for place in range(20)])
    assert on_spark(shop, app).completed == 20
    assert shop.effects() == ["20"] * 20
    left = queue.attributes()
    assert [left[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible")] == ["0", "0"]


@pytest.mark.slow
def test_messages_that_wait_for_another_attempt_outlive_a_lost_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without a volume, that is restarted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with running(clock="manual") as broker, Client(broker.url, "us-east-1") as client:
        shop = Shop(tmp_path, broker, client)
        queue = shop.queue("orders.fifo")
        app = shop.app(
            """
@app.handler("orders.fifo", key="$.id", retry=Fixed(600), max_attempts=5)
def handle(order: dict, ctx: Context, tx: Transaction):
    if order["id"] == "a2" and ctx.attempt < 2:
        raise Retry("not yet")
    tx.execute("INSERT INTO effects (id) VALUES (?)", (order["id"],))
"""
        )
        send(queue, [{"id": f"a{place}", "group": "a"} for place in (1, 2, 3)])
        report = on_spark(shop, app)
        assert (report.error, report.waiting) == (None, {"orders.fifo": 2})
        assert shop.effects() == ["a1"]
        shutil.rmtree(shop.folder / "ck")
        broker.clock.advance(601)
        report = on_spark(shop, app)
        assert (report.error, report.waiting) == (None, {})
        assert shop.effects() == ["a1", "a2", "a3"]
        left = queue.attributes()
        assert [left[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible")] == ["0", "0"]


def test_what_a_batch_has_returned_is_known_to_the_driver_that_comes_after_it(shop: Shop) -> None:
    reference = shop.place(shop.app())
    sink = HandlerSink(reference, str(shop.folder / "checkpoint"))
    sink.open(NEEDED)
    sink.commit(BATCH, [written(0, a2=50.0), written(1, b7=60.0)])
    after = HandlerSink(reference, str(shop.folder / "checkpoint"))
    after.open(NEEDED)
    assert after.returned == {"a2": 50.0, "b7": 60.0}
    after.commit(MicroBatch("p", 2), [written(0)])
    assert after.returned == {}


def test_handlers_whose_query_was_removed_get_every_new_message(
    spark: SparkSession, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    orders, app = shop.queue(), shop.app()
    send(orders, [{"id": "first"}])
    assert on_spark(shop, app).error is None
    shutil.rmtree(shop.folder / "ck/orders/query")
    send(orders, [{"id": "second"}])
    assert on_spark(shop, app).error is None
    assert shop.effects() == ["first", "second"]
    assert "a new query is started" in caplog.text


def test_another_batch_under_the_number_of_one_that_is_done_is_an_error(shop: Shop) -> None:
    sink = HandlerSink(shop.place(shop.app()), str(shop.folder / "c"))
    sink.open(NEEDED)
    sink.commit(MicroBatch("p", 1, "log/1/a"), [written(0)])
    assert sink.last("p") == Commit(1, "log/1/a")
    with pytest.raises(SemelError, match="holds another batch 1"):
        sink.commit(MicroBatch("p", 1, "log/2/b"), [written(0)])


@pytest.mark.slow
def test_spark_keeps_the_order_of_groups_over_batches_and_retries(spark: SparkSession, shop: Shop) -> None:
    queue = shop.queue("orders.fifo")
    app = shop.app(
        """
@app.handler("orders.fifo", key="$.id", retry=Fixed(3), max_attempts=5)
def handle(order: dict, ctx: Context, tx: Transaction):
    if order["id"] == "g1-2" and ctx.attempt < 2:
        raise Retry("not yet")
    tx.execute("INSERT INTO effects (id) VALUES (?)", (order["id"],))
"""
    )
    send(queue, [{"id": f"g{place % 4}-{place // 4}", "group": place % 4} for place in range(40)])
    report = on_spark(shop, app, max_messages=16, patience=HASTY)
    assert report.error is None
    deadline = time.monotonic() + 60
    while len(shop.effects()) < 40 and time.monotonic() < deadline:  # what waits is tried by the next start
        report = on_spark(shop, app, patience=Patience(seconds=5.0))
        assert report.error is None
    effects = shop.effects()
    for group in range(4):
        assert [effect for effect in effects if effect.startswith(f"g{group}-")] == [f"g{group}-{n}" for n in range(10)]


def test_a_ledger_that_is_given_to_the_run_is_used_by_the_executors(spark: SparkSession, shop: Shop) -> None:
    send(shop.queue(), [{"id": 1}])
    shop.app()  # makes the table of effects
    report = on_spark(shop, shop.app(ledger="sqlite://"), ledger=f"sqlite:///{shop.database}")
    assert (report.error, report.completed) == (None, 1)
    assert len(shop.effects()) == 1


def test_an_app_that_cannot_run_on_spark_says_why_before_it_starts(shop: Shop) -> None:
    shop.queue()
    for ledger, how, says in (
        ("sqlite://", {}, "a ledger in memory belongs to one process"),
        (f"sqlite:///{shop.database}", {"master": "spark://host:7077"}, "use a PostgreSQL, Redis or DynamoDB ledger"),
    ):
        app = shop.app(text='@app.handler("orders")\ndef handle(order: dict): pass\n', ledger=ledger)
        with pytest.raises(SemelError, match=says):
            on_spark(shop, app, **how)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "spark", "--processes", "2"], "--processes is for threads"),
        (["--checkpoint", "ck"], "--checkpoint is for Spark: add --on spark"),
        (["--master", "local[2]"], "--master is for Spark"),
    ],
)
def test_options_of_the_other_engine_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "shop:app", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_worker_that_dies_and_a_sigterm_cost_nothing(shop: Shop) -> None:
    """As a user runs it: `semel run --on spark` in a process of its own."""
    queue = shop.queue()
    app = shop.app(
        """
@app.handler("orders", key="$.id", lease=2)
def handle(order: dict, ctx: Context, tx: Transaction):
    tx.execute("INSERT INTO effects (id) VALUES (?)", (order["id"],))
    if order["id"] == 20:
        try:
            os.close(os.open("died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os._exit(9)
"""
    )
    send(queue, [{"id": place} for place in range(60)])
    command = [sys.executable, "-m", "semel.cli", "run", app, "--on", "spark", "--endpoint-url", shop.broker.url]
    process = subprocess.Popen(
        [*command, "--checkpoint", "ck", "--output", "jsonl"],
        cwd=shop.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 150
        while len(shop.effects()) < 60:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "the orders were not handled in time"
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert (shop.folder / "died").exists()
    assert sorted(map(int, shop.effects())) == list(range(60))
    assert json.loads(out.splitlines()[-1])["error"] == ""
