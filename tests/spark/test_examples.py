"""The pipelines in examples/ are starting points for users: each runs unchanged, with good and bad orders."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest

from semel.broker import EmbeddedBroker, running
from semel.spark.pipeline.config_file import load
from semel.spark.pipeline.runner import run
from semel.sqs import Client, Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers import postgres

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNTRIES = ("DE", "FR", "IN")
BAD = ("no JSON", '{"id": "b-1", "amount": -3, "country": "FR"}')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The examples, where they may write: their paths are meant from where their files lie."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        with Client(broker.url) as client:
            client.create_queue("bad-orders")
            client.create_queue("orders-clean.fifo")
            queue = client.create_queue("orders")
            bodies = [json.dumps({"id": f"o-{n}", "amount": n + 0.5, "country": COUNTRIES[n % 3]}) for n in range(30)]
            queue.send_many([Entry(body) for body in (*bodies, bodies[7])])
        yield broker


def ran(folder: Path, broker: EmbeddedBroker, name: str, *more: str) -> Any:
    if more:
        with Client(broker.url) as client:
            client.queue("orders").send_many([Entry(body) for body in more])
    pipeline = load(folder / "pipelines" / f"{name}.toml", endpoint_url=broker.url)
    report = run(pipeline, exit_when_empty=True, show="none", create_dlq=True)
    assert report.error is None
    return pipeline


ORDERS = sorted(f"o-{n}" for n in range(30))


def test_parquet(spark: SparkSession, folder: Path, broker: EmbeddedBroker) -> None:
    pipeline = ran(folder, broker, "parquet", *BAD)
    assert sorted(pq.read_table(pipeline.sink.path).column("id").to_pylist()) == ORDERS
    assert sorted(pq.read_table(pipeline.rejects.target).column("body").to_pylist()) == sorted(BAD)


def test_delta(spark: SparkSession, folder: Path, broker: EmbeddedBroker) -> None:
    from deltalake import DeltaTable

    pipeline = ran(folder, broker, "delta", *BAD)
    table: Any = DeltaTable(pipeline.sink.path).to_pyarrow_table()
    assert sorted(table.column("id").to_pylist()) == ORDERS
    assert len(broker.peek("bad-orders")) == 2


def test_postgres(
    spark: SparkSession,
    folder: Path,
    broker: EmbeddedBroker,
    postgres_server: postgres.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORDERS_DSN", postgres_server.url)
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders")
        ran(folder, broker, "postgres", BAD[0])
        rows = connection.execute("SELECT id FROM orders").fetchall()
        connection.execute("DROP TABLE orders")
    assert sorted(row[0] for row in rows) == ORDERS
    assert len(broker.peek("orders-dlq")) == 1


def test_sqs(spark: SparkSession, folder: Path, broker: EmbeddedBroker) -> None:
    ran(folder, broker, "sqs", BAD[0])
    sent = [json.loads(message["Body"])["id"] for message in broker.peek("orders-clean.fifo")]
    assert sorted(sent) == ORDERS
    assert len(broker.peek("orders-dlq")) == 1


def test_handler(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    with running() as broker, Client(broker.url) as client:
        queue = client.create_queue("orders")
        queue.send_many([Entry(json.dumps({"id": n, "item": "lamp"})) for n in (*range(10), 3)])
        ran(folder, broker, "handler")
        assert broker.peek("orders-dlq") == []
    with sqlite3.connect(folder / "orders-ledger.db") as ledger:
        (done,) = ledger.execute("SELECT count(*) FROM semel_ledger WHERE status = 'done'").fetchone()
    ledger.close()
    assert done == 10


def test_each_example_says_how_to_run_it_and_needs_no_variable_but_a_password() -> None:
    for file in (EXAMPLES / "pipelines").glob("*.toml"):
        text = file.read_text()
        assert f"semel pipeline run {'examples/' if file.stem != 'handler' else ''}pipelines/{file.name}" in text
        assert "${" not in text.replace("${ORDERS_DSN}", "")
        assert load(file, environment={"ORDERS_DSN": "postgresql://host/db"}).source.queues == ("orders",)
