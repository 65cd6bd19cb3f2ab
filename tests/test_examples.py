"""The programs in examples/ are starting points for users: each runs unchanged."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semel import PostgresLedger
from semel.broker import EmbeddedBroker
from semel.testing.driver import driving

if TYPE_CHECKING:
    from servers import postgres

ROOT = Path(__file__).parents[1]


EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path, **environment: str) -> str:
    """As a user runs it, without any AWS settings; its files are left in `folder`."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        cwd=folder,
        env={**settings, "HOME": str(folder), **environment},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Imports an example, anew for each test."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("ACCOUNTS_LEDGER", f"sqlite:///{tmp_path / 'example.db'}")

    def load(name: str) -> Any:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def make_queue(broker: EmbeddedBroker, name: str) -> str:
    """A queue with a dead-letter queue."""
    sqs: Any = broker.client()
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    dead = sqs.create_queue(QueueName=f"dead-{name}", Attributes=fifo)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 8})
    return str(sqs.create_queue(QueueName=name, Attributes={**fifo, "RedrivePolicy": policy})["QueueUrl"])


def send(broker: EmbeddedBroker, url: str, body: dict[str, Any], **how: str) -> None:
    sqs: Any = broker.client()
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(body), **how)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_says_in_its_first_lines_how_to_start_it(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert any(line.startswith(f"    python examples/{path.name}") for line in text.splitlines()[1:8])


def test_the_tour_of_the_broker_tells_the_whole_story(tmp_path: Path) -> None:
    output = run("broker_tour.py", tmp_path)
    steps = [line.split("  ")[1].strip() for line in output.splitlines() if line.startswith("  ")]
    assert steps == ["send", "receive", "receive", "redelivery", "dead letter", "redrive", "receive", "delete"]
    assert "orders: 0 visible, 0 in flight · orders-dlq: 0 visible, 0 in flight" in output


def test_the_order_shipper_runs_as_it_stands(tmp_path: Path) -> None:
    output = run("orders.py", tmp_path)
    assert "6 messages for 3 orders." in output
    assert "lamp" in output
    assert "Calls to the warehouse: 4. Messages in orders-dlq: 2." in output  # the second unicorn is rejected, too


def test_the_account_ledger_runs_as_it_stands(tmp_path: Path) -> None:
    output = run("accounts.py", tmp_path)
    assert "6 messages for 3 events, 3 of them done." in output
    assert "anna: 70 cents, bert: 80 cents" in output


def test_the_payment_booker_runs_as_it_stands(tmp_path: Path, postgres_server: postgres.Server) -> None:
    output = run("payments.py", tmp_path, PAYMENTS_LEDGER=postgres_server.url)
    assert output == "6 messages for 3 payments: 3 booked, 3 receipts sent.\n"


def test_the_order_shipper_ships_each_order_once_though_its_worker_dies(
    sqs_broker: EmbeddedBroker, example: Any
) -> None:
    orders = example("orders")
    url = make_queue(sqs_broker, "orders")
    for number, item in enumerate(("lamp", "chair", "sofa", "unicorn")):
        send(sqs_broker, url, {"id": number, "item": item})
        send(sqs_broker, url, {"id": number, "item": item})  # the producer sends twice
    with driving(orders.app, sqs_broker, crash_at="after_work"):
        for _ in range(12):
            orders.app.drain()
            sqs_broker.clock.advance(31)
    assert orders.warehouse.shipped == {"0": "lamp", "1": "chair", "2": "sofa"}
    assert orders.warehouse.calls > 3  # called again after the crash, always with the same key
    assert sqs_broker.peek("orders") == []
    (dead_letter, *others) = sqs_broker.peek("dead-orders")
    assert "no such item" in str(dead_letter)
    assert len(others) <= 1  # its twin


def test_the_payment_booker_books_and_sends_a_receipt_exactly_once(
    sqs_broker: EmbeddedBroker, example: Any, postgres_server: postgres.Server
) -> None:
    payments = example("payments")
    url = make_queue(sqs_broker, "payments")
    sqs_broker.client().create_queue(QueueName="receipts")
    with PostgresLedger(postgres_server.url, schema="example_payments") as ledger:
        with ledger.transaction() as tx:
            tx.execute("DROP TABLE IF EXISTS entries")
            tx.execute(payments.TABLES)
        for number in range(10):
            send(sqs_broker, url, {"id": f"p{number}", "account": "anna", "cents": 100})
        send(sqs_broker, url, {"id": "p3", "account": "anna", "cents": 100})  # sent twice
        send(sqs_broker, url, {"id": "p99", "account": "anna", "cents": -5})
        for crash_at in ("before_commit", "after_record", "before_delete", "after_outbox_send", None):
            with driving(payments.app, sqs_broker, ledger=ledger, crash_at=crash_at):
                payments.app.drain()
                sqs_broker.clock.advance(61)
        with driving(payments.app, sqs_broker, ledger=ledger):
            payments.app.drain()
        with ledger.transaction() as tx:
            rows = tx.execute(
                "SELECT account, count(*), sum(cents) FROM entries GROUP BY account ORDER BY 1"
            ).fetchall()
    assert [tuple(row) for row in rows] == [("anna", 10, 1_000), ("cash", 10, -1_000)]
    # Ten left twice, as the worker died after it had handed them to SQS; each with its one key, for the next consumer.
    receipts = sqs_broker.peek("receipts")
    assert len(receipts) == 20
    keys = Counter(receipt["MessageAttributes"]["semel-key"]["StringValue"] for receipt in receipts)
    assert keys == {f"receipt-p{number}": 2 for number in range(10)}
    assert len(sqs_broker.peek("dead-payments")) == 1
    assert sqs_broker.peek("payments") == []


def test_the_account_ledger_keeps_each_account_in_order(sqs_broker: EmbeddedBroker, example: Any) -> None:
    accounts = example("accounts")
    url = make_queue(sqs_broker, "accounts.fifo")

    def happens(number: int, account: str, kind: str, cents: int) -> None:
        body = {"id": f"e{number}", "account": account, "kind": kind, "cents": cents}
        send(sqs_broker, url, body, MessageGroupId=account, MessageDeduplicationId=str(number))

    happens(1, "anna", "deposit", 100)
    happens(2, "bert", "withdrawal", 50)  # has nothing yet: waits, and so does all of bert's
    happens(3, "bert", "deposit", 80)
    happens(4, "anna", "withdrawal", 30)
    with driving(accounts.app, sqs_broker) as driver:

        def balances() -> dict[str, int]:
            with driver.ledger.transaction() as tx:
                return dict(tx.execute("SELECT account, cents FROM balances").fetchall())

        with driver.ledger.transaction() as tx:
            tx.execute(accounts.TABLES)
        accounts.app.drain()
        assert balances() == {"anna": 70}
        with driver.ledger.transaction() as tx:
            tx.execute("INSERT INTO balances VALUES ('bert', 50)")
        sqs_broker.clock.advance(61)
        accounts.app.drain()
        assert balances() == {"anna": 70, "bert": 80}
    assert sqs_broker.peek("accounts.fifo") == []
