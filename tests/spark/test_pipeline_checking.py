"""`semel pipeline check`: what would happen, and what stands in the way; it changes nothing, and needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semel import Client
from semel.broker import EmbeddedBroker
from semel.spark.pipeline import evolution
from semel.spark.pipeline.checking import Level, check, told
from semel.spark.pipeline.checkpoint import Checkpoint
from semel.spark.pipeline.file import load
from semel.spark.pipeline.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
name = "orders"
checkpoint = "state"
[source]
queues = ["orders"]
dedup = "key"
[schema]
ddl = "id STRING NOT NULL, amount BIGINT"
[[schema.constraints]]
name = "amount is positive"
field = "amount"
check = "amount > 0"
[sink]
type = "parquet"
path = "out"
"""


@pytest.fixture
def client(sqs_broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(sqs_broker.url, "us-east-1", access_key="test", secret_key="test") as found:
        yield found


def make_queue(client: Client, name: str, **attributes: object) -> None:
    fifo = ".fifo" if name.endswith(".fifo") else ""
    dead = client.create_queue(f"dead{fifo}")
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5}
    client.create_queue(name, {"RedrivePolicy": policy, **attributes})


def pipeline(folder: Path, broker: EmbeddedBroker, *changes: tuple[str, str]) -> Pipeline:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "orders.toml"
    file.write_text(text)
    return load(file, endpoint_url=broker.url)


def said(spec: Pipeline) -> list[tuple[Level, str]]:
    return [(finding.level, finding.text) for finding in check(spec).findings]


def test_a_pipeline_that_can_run_is_told_with_what_it_would_do(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders", MessageRetentionPeriod=86_400)
    client.queue("orders").send("{}")
    found = check(pipeline(tmp_path, sqs_broker))
    assert found.passed
    text = "\n".join(told(found))
    assert f"reads     orders at {sqs_broker.url}" in text
    assert "once      each key once for the queue's retention" in text
    assert "rejected unless amount is positive" in text
    assert "rejects   to the queue's own dead-letter queue" in text
    assert f"writes    Parquet files in {tmp_path}/out: each row once" in text
    assert "queue orders: Standard, 1 waiting, kept for 1 days" in text
    assert text.endswith("it can run")
    assert json.loads(json.dumps(found.plain()))["passed"] is True
    assert not (tmp_path / "state").exists()


def test_queues_that_are_missing_are_named_each(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    make_queue(client, "orders")
    spec = pipeline(
        tmp_path,
        sqs_broker,
        ('["orders"]', '["orders", "refunds"]'),
        ('[sink]\ntype = "parquet"\npath = "out"', '[rejects]\nqueue = "bad"\n[sink]\ntype = "sqs"\nqueue = "clean"'),
    )
    problems = [text for level, text in said(spec) if level is Level.PROBLEM]
    assert [text.split(":")[0] for text in problems] == ["queue refunds", "queue bad", "queue clean"]
    assert all("\n" not in text for text in problems)
    for name in ("bad", "clean", "refunds"):
        make_queue(client, name)
    assert check(spec).passed


def test_an_endpoint_that_does_not_answer_is_one_line(
    tmp_path: Path, sqs_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    spec = pipeline(tmp_path, sqs_broker)
    spec = replace(spec, source=replace(spec.source, endpoint_url="http://127.0.0.1:9"))
    ((level, text), _) = said(spec)
    assert level is Level.PROBLEM
    assert "127.0.0.1:9" in text


def test_rejects_need_somewhere_to_go(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    client.create_queue("orders")
    found = said(pipeline(tmp_path, sqs_broker))
    assert any(level is Level.PROBLEM and "has no dead-letter queue" in text for level, text in found)
    assert check(pipeline(tmp_path, sqs_broker, ("[sink]", '[rejects]\ntable = "bad"\n[sink]'))).passed


def test_what_weakens_a_promise_is_a_warning(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    make_queue(client, "orders.fifo", MessageRetentionPeriod=345_600)
    fifo = ('"orders"]', '"orders.fifo"]\nreceivers = 2\nremember = "1d"')
    found = check(pipeline(tmp_path, sqs_broker, fifo))
    warnings = [finding.text for finding in found.findings if finding.level is Level.WARNING]
    assert any("is FIFO and has several receivers" in text for text in warnings)
    assert any("remember is shorter than the retention" in text for text in warnings)
    assert found.passed
    usual = check(pipeline(tmp_path, sqs_broker, ('"orders"]', '"orders.fifo"]')))
    assert all(finding.level is not Level.WARNING for finding in usual.findings)


def test_changes_under_a_checkpoint_are_told_and_refused(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    spec = pipeline(tmp_path, sqs_broker)
    checkpoint = Checkpoint(spec.checkpoint)
    checkpoint.keep(checkpoint.fresh(evolution.recorded(spec)))
    assert "checkpoint: goes on where it was" in [text for _, text in said(spec)]
    grown = pipeline(tmp_path, sqs_broker, ("amount BIGINT", "amount BIGINT, note STRING"))
    assert (Level.FINE, "[schema] note is new; rows that are in have null for it") in said(grown)
    broken = check(pipeline(tmp_path, sqs_broker, ("amount BIGINT", "amount STRING"), ('"out"', '"elsewhere"')))
    assert not broken.passed
    problems = [finding.text for finding in broken.findings if finding.level is Level.PROBLEM]
    assert len(problems) == 2
    assert "2 to mend before it can run" in told(broken)


def test_spark_looks_at_conditions_if_it_is_asked_to(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, spark: SparkSession
) -> None:
    make_queue(client, "orders")
    good = check(pipeline(tmp_path, sqs_broker), with_spark=True)
    assert good.findings[-1].text == "constraints: Spark understands all 1"
    bad = check(pipeline(tmp_path, sqs_broker, ("amount > 0", "amont > 0")), with_spark=True)
    assert bad.findings[-1].level is Level.PROBLEM
    assert "`amont` cannot be resolved" in bad.findings[-1].text


def test_a_check_does_not_even_import_pyspark(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    make_queue(client, "orders")
    (tmp_path / "orders.toml").write_text(FILE)
    code = (
        "import sys; from semel.cli import main; "
        f"code = main(['pipeline', 'check', {str(tmp_path / 'orders.toml')!r}, '--endpoint-url', {sqs_broker.url!r}]); "
        "sys.exit(code or 5 * ('pyspark' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
