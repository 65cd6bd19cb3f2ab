"""The pipelines in examples/ are what users start from: each runs as it is, on good and bad orders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest

from semel.broker import EmbeddedBroker, running
from semel.spark.pipeline.file import load
from semel.spark.pipeline.run import run
from semel.sqs import Client, Entry
from spark.shops import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers import postgres

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
COUNTRIES = ("DE", "FR", "IN")
BAD = ("no JSON", '{"id": "b-1", "amount": -3, "country": "FR"}')


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    with running() as found:
        with Client(found.url) as client:
            dead = client.create_queue("orders-dlq")
            client.create_queue("bad-orders")
            client.create_queue("orders-clean.fifo")
            policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 20})
            queue = client.create_queue("orders", {"RedrivePolicy": policy})
            bodies = [json.dumps({"id": f"o-{n}", "amount": n + 0.5, "country": COUNTRIES[n % 3]}) for n in range(30)]
            queue.send_many([Entry(body) for body in (*bodies, bodies[7])])
        yield found


def ran(broker: EmbeddedBroker, name: str, *more: str) -> Any:
    if more:
        with Client(broker.url) as client:
            client.queue("orders").send_many([Entry(body) for body in more])
    pipeline = load(EXAMPLES / f"{name}.toml", endpoint_url=broker.url)
    report = run(pipeline, available_now=True, show="none")
    assert report.error is None
    return pipeline


ORDERS = sorted(f"o-{n}" for n in range(30))


def test_parquet(spark: SparkSession, broker: EmbeddedBroker) -> None:
    pipeline = ran(broker, "parquet", *BAD)
    assert sorted(pq.read_table(pipeline.sink.path).column("id").to_pylist()) == ORDERS
    assert sorted(pq.read_table(pipeline.rejects.target).column("body").to_pylist()) == sorted(BAD)


def test_delta(spark: SparkSession, broker: EmbeddedBroker) -> None:
    from deltalake import DeltaTable

    pipeline = ran(broker, "delta", *BAD)
    table: Any = DeltaTable(pipeline.sink.path).to_pyarrow_table()
    assert sorted(table.column("id").to_pylist()) == ORDERS
    assert len(broker.peek("bad-orders")) == 2


def test_postgres(
    spark: SparkSession, broker: EmbeddedBroker, postgres_server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DSN", postgres_server.url)
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders")
        ran(broker, "postgres", BAD[0])
        rows = connection.execute("SELECT id FROM orders").fetchall()
        connection.execute("DROP TABLE orders")
    assert sorted(row[0] for row in rows) == ORDERS
    assert len(broker.peek("orders-dlq")) == 1


def test_sqs(spark: SparkSession, broker: EmbeddedBroker) -> None:
    ran(broker, "sqs", BAD[0])
    sent = [json.loads(message["Body"])["id"] for message in broker.peek("orders-clean.fifo")]
    assert sorted(sent) == ORDERS
    assert len(broker.peek("orders-dlq")) == 1


def test_handler(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(broker.url) as client:
        shop = Shop(tmp_path, broker, client)
        monkeypatch.setenv("ORDERS_APP", shop.app())
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        ran(broker, "handler")
        assert sorted(shop.effects()) == ORDERS
