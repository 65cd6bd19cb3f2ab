"""`semel pipeline check`: what would happen, and what prevents it. It changes nothing, and needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from doctor.gatekeeper import Authorisation, gatekeeper
from semel import Client
from semel.broker import EmbeddedBroker
from semel.cli import main
from semel.spark.pipeline import compatibility
from semel.spark.pipeline.body_sql import row_schema
from semel.spark.pipeline.check import Level, as_text, check
from semel.spark.pipeline.checkpoint import Checkpoint, CheckpointError
from semel.spark.pipeline.config import Pipeline
from semel.spark.pipeline.config_file import load
from semel.spark.pipeline.reset import PipelineReset
from semel.spark.pipeline.sink_factory import sink_of
from semel.spark.sinks.contract import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers import postgres

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
SCHEMA = FILE[FILE.index("[schema]") : FILE.index("[sink]")]
PARQUET = '[sink]\ntype = "parquet"\npath = "out"'


@pytest.fixture
def client(sqs_broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(sqs_broker.url, "us-east-1", access_key="test", secret_key="test") as client:
        yield client


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


def problems(spec: Pipeline) -> list[str]:
    return [text for level, text in said(spec) if level is Level.PROBLEM]


def test_a_pipeline_that_can_run_is_told_with_what_it_would_do(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders", MessageRetentionPeriod=86_400)
    client.queue("orders").send("{}")
    report = check(pipeline(tmp_path, sqs_broker))
    assert report.passed
    text = "\n".join(as_text(report))
    assert f"reads     orders at {sqs_broker.url}" in text
    assert "once      each key once for the queue's retention" in text
    assert "rejected unless amount is positive" in text
    assert "rejects   to the queue's own dead-letter queue" in text
    assert f"writes    Parquet files in {tmp_path}/out: each row once" in text
    assert "queue orders: Standard, 1 waiting, kept for 1 days" in text
    assert text.endswith("it can run")
    assert json.loads(json.dumps(report.plain()))["passed"] is True
    assert not (tmp_path / "state").exists()


def test_queues_that_are_missing_are_named_each(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    make_queue(client, "orders")
    spec = pipeline(
        tmp_path,
        sqs_broker,
        ('["orders"]', '["orders", "refunds"]'),
        (PARQUET, '[rejects]\nqueue = "bad"\n[sink]\ntype = "sqs"\nqueue = "clean"'),
    )
    missing = problems(spec)
    for name, text in zip(("refunds", "bad", "clean"), missing, strict=True):
        assert f"queue {name}" in text
    assert all("\n" not in text for text in missing)
    for name in ("bad", "clean", "refunds"):
        make_queue(client, name)
    assert check(spec).passed


def test_an_endpoint_that_does_not_answer_is_one_line(
    tmp_path: Path, sqs_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    spec = pipeline(tmp_path, sqs_broker)
    spec = replace(spec, source=replace(spec.source, endpoint_url="http://127.0.0.1:9"))
    (problem,) = problems(spec)
    assert "127.0.0.1:9" in problem


def test_rejects_need_somewhere_to_go(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    client.create_queue("orders")
    findings = said(pipeline(tmp_path, sqs_broker))
    assert any(level is Level.PROBLEM and "has no dead-letter queue" in text for level, text in findings)
    assert check(pipeline(tmp_path, sqs_broker, ("[sink]", '[rejects]\ntable = "bad"\n[sink]'))).passed


def test_what_weakens_a_promise_is_a_warning(tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client) -> None:
    make_queue(client, "orders.fifo", MessageRetentionPeriod=345_600)
    fifo = ('"orders"]', '"orders.fifo"]\nreceivers = 2\nretention = "1d"')
    report = check(pipeline(tmp_path, sqs_broker, fifo))
    warnings = [finding.text for finding in report.findings if finding.level is Level.WARNING]
    assert any("is FIFO and has several receivers" in text for text in warnings)
    assert any("[source] retention is shorter than the retention" in text for text in warnings)
    assert report.passed
    usual = check(pipeline(tmp_path, sqs_broker, ('"orders"]', '"orders.fifo"]')))
    assert all(finding.level is not Level.WARNING for finding in usual.findings)


def guarded(folder: Path, iam: Authorisation, *changes: tuple[str, str]) -> list[str]:
    file = folder / "orders.toml"
    text = FILE
    for old, new in changes:
        text = text.replace(old, new)
    file.write_text(text)
    return problems(load(file, endpoint_url=iam.url))


def test_permissions_that_are_missing_are_problems_and_no_message_is_touched(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    client.queue("orders").send("{}")
    before = sqs_broker.peek("orders")
    with gatekeeper(sqs_broker) as iam:
        assert guarded(tmp_path, iam) == []
        for operation in ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes"):
            iam.refused = {f"{operation} orders"}
            (problem,) = guarded(tmp_path, iam)
            assert problem.startswith("queue orders: ")
            assert f"The credentials need the permission sqs:{operation} on it" in problem
        iam.refused = {"SendMessage dead"}
        (problem,) = guarded(tmp_path, iam)
        assert problem.startswith("queue dead: SendMessage is not allowed")
    assert sqs_broker.peek("orders") == before
    assert sqs_broker.peek("dead") == []


def test_who_may_send_to_a_target_need_not_be_allowed_to_read_its_attributes(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    sink = (PARQUET, '[sink]\ntype = "sqs"\nqueue = "clean"')
    client.create_queue("clean")
    with gatekeeper(sqs_broker) as iam:
        iam.refused = {"GetQueueAttributes clean"}
        assert guarded(tmp_path, iam, sink) == []
        iam.refused = {"GetQueueAttributes clean", "SendMessage clean"}
        (problem,) = guarded(tmp_path, iam, sink)
        assert problem.startswith("queue clean: SendMessage is not allowed")
    assert sqs_broker.peek("clean") == []


def test_a_dead_letter_queue_that_the_run_will_create_is_told_with_its_max_receive_count(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    client.create_queue("orders")
    report = check(pipeline(tmp_path, sqs_broker), create_dlq=True)
    assert report.passed
    text = "queue orders: its dead-letter queue will be created, with a maxReceiveCount of 5"
    assert text in [finding.text for finding in report.findings]
    assert "RedrivePolicy" not in client.queue("orders").attributes()


@pytest.mark.parametrize(
    ("key", "hint"),
    [("$.idd", "did you mean 'id'?"), ("$.order.id", ""), ("$.id.inner", ""), ("$.lines[0]", "")],
)
def test_a_key_that_the_schema_does_not_have_is_a_problem(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, key: str, hint: str
) -> None:
    make_queue(client, "orders")
    (problem,) = problems(pipeline(tmp_path, sqs_broker, ('dedup = "key"', f'dedup = "key"\nkey = "{key}"')))
    assert problem.startswith(f'[source] key = "{key}": the schema has no such field{"; " if hint else ""}{hint}')
    assert problem.endswith("add it to [schema]")


@pytest.mark.parametrize("key", ["$.id", "$.order.id", "$.lines[0].sku", "$.tags.any", "attribute:order", "message-id"])
def test_a_key_within_the_schema_or_outside_the_body_is_fine(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, key: str
) -> None:
    make_queue(client, "orders")
    ddl = "id STRING NOT NULL, amount BIGINT, order STRUCT<id: STRING>, lines ARRAY<STRUCT<sku: STRING>>, "
    wider = ("id STRING NOT NULL, amount BIGINT", f"{ddl}tags MAP<STRING, STRING>")
    assert problems(pipeline(tmp_path, sqs_broker, wider, ('dedup = "key"', f'dedup = "key"\nkey = "{key}"'))) == []


def test_a_key_that_updates_of_a_row_share_is_a_warning(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    dsn = "postgresql://127.0.0.1:9/shop"
    sink = f'[sink]\ntype = "postgres"\ndsn = "{dsn}"\ntable = "orders"\nmode = "upsert"\nkey = ["id"]'
    by_id = pipeline(tmp_path, sqs_broker, (PARQUET, sink), ('dedup = "key"', 'key = "$.id"'))
    assert any("later ones are dropped as duplicates" in text for level, text in said(by_id) if level is Level.WARNING)
    other = pipeline(tmp_path, sqs_broker, (PARQUET, sink), ('dedup = "key"', 'key = "attribute:event"'))
    assert not any("dropped as duplicates" in text for _, text in said(other))


@pytest.mark.parametrize("name", ["notes.txt", "year=2024/part-0.parquet", "part-0.parquet"])
def test_a_folder_that_belongs_to_something_else_is_a_problem(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, name: str
) -> None:
    make_queue(client, "orders")
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": ["1"], "amount": [2]}), file)
    (problem,) = problems(pipeline(tmp_path, sqs_broker))
    assert f"Parquet table {tmp_path}/out is not this pipeline's: the folder holds {name.split('/')[0]}" in problem
    assert "Choose an empty table" in problem
    rejects = (PARQUET, '[rejects]\ntable = "out"\n[sink]\ntype = "parquet"\npath = "new"')
    (problem,) = problems(pipeline(tmp_path, sqs_broker, rejects))
    assert problem.startswith(f"Parquet table {tmp_path}/out is not this pipeline's")
    assert not (tmp_path / "new").exists()


def test_the_table_of_the_pipeline_itself_is_fine_and_of_one_with_another_checkpoint_is_not(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    for kind in ("parquet", "delta"):
        spec = pipeline(tmp_path, sqs_broker, ('"parquet"', f'"{kind}"'), ('"out"', f'"{kind}"'))
        checkpoint = Checkpoint(spec.checkpoint)
        checkpoint.keep(
            replace(checkpoint.fresh(compatibility.recorded(spec)), base=1)
        )  # what was before is in the table
        record = checkpoint.record()
        assert record is not None
        written(spec, record.id)
        assert problems(spec) == []
        (problem,) = problems(replace(spec, checkpoint=str(tmp_path / f"another for {kind}")))
        assert "is not this pipeline's" in problem
        (tmp_path / "state" / "pipeline.json").unlink()


def written(spec: Pipeline, identity: str) -> None:
    """One batch of one row."""
    batch, sink, schema = MicroBatch(identity, 0), sink_of(spec), row_schema(spec)
    sink.open(schema)
    rows = pa.RecordBatch.from_pylist([{"id": "1", "amount": 2}], schema)
    sink.commit(batch, [sink.writer(batch).write(iter([rows]), 0, "first")])
    sink.close()


def test_a_postgresql_that_does_not_answer_is_a_problem_in_one_line_and_without_the_password(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    sink = '[sink]\ntype = "postgres"\ndsn = "postgresql://me:secret@127.0.0.1:9/shop"\ntable = "orders"'
    (problem,) = problems(pipeline(tmp_path, sqs_broker, (PARQUET, sink)))
    assert problem.startswith("PostgreSQL table orders (shop on 127.0.0.1): no connection")
    assert "check [sink] dsn" in problem
    assert "\n" not in problem
    assert "secret" not in problem


def test_a_postgresql_table_is_looked_at_and_left_as_it_is(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, postgres_server: postgres.Server
) -> None:
    make_queue(client, "orders")
    table = f"checked_{uuid4().hex[:8]}"
    sink = f'[sink]\ntype = "postgres"\ndsn = "{postgres_server.url}"\ntable = "{table}"'
    spec = pipeline(tmp_path, sqs_broker, (PARQUET, sink))
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        assert problems(spec) == []
        assert connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,)
        written(spec, "0" * 32)
        (problem,) = problems(spec)
        assert "is not this pipeline's: another one has written to it" in problem
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE TABLE {table} (id text, amount date)")
        (problem,) = problems(spec)
        assert "column amount: the table has date" in problem
        connection.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize(
    ("packages", "sink", "expected"),
    [
        (("pyspark", "pandas"), PARQUET, "a pipeline needs pyspark and pandas, which are not installed"),
        (("deltalake",), '[sink]\ntype = "delta"\npath = "out"', "pip install 'semel[delta]'"),
        (
            ("psycopg",),
            '[sink]\ntype = "postgres"\ndsn = "postgresql://host/db"\ntable = "orders"',
            "pip install 'semel[postgres]'",
        ),
    ],
)
def test_what_is_not_installed_is_a_problem(
    tmp_path: Path,
    sqs_broker: EmbeddedBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    packages: tuple[str, ...],
    sink: str,
    expected: str,
) -> None:
    make_queue(client, "orders")
    spec = pipeline(tmp_path, sqs_broker, (PARQUET, sink))
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    (problem,) = problems(spec)
    assert expected in problem


def test_a_java_that_cannot_run_spark_is_a_problem(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(client, "orders")
    monkeypatch.setattr("semel.spark.pipeline.requirements.running_spark", lambda: None)  # whoever ran before
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    (problem,) = problems(pipeline(tmp_path, sqs_broker))
    assert problem.startswith(f"JAVA_HOME is {tmp_path}/none, which cannot run Spark")


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("nowhere:app", "[sink] app: there is no module 'nowhere' here"),
        ("shop_to_check:nothing", "[sink] app: 'shop_to_check:nothing' is not an App: there is no such name"),
        ("shop_to_check:app", "[sink] app: shop_to_check:app has no handler for orders; it has refunds"),
        ("shop_to_check:right", None),
    ],
)
def test_an_app_that_has_no_handler_for_the_queue_is_a_problem(
    tmp_path: Path,
    sqs_broker: EmbeddedBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    app: str,
    expected: str | None,
) -> None:
    make_queue(client, "orders")
    code = """
from semel import App
app, right = App(), App()
@app.handler("refunds")
@right.handler("{url}")
def handle(order: dict) -> None: ...
"""
    (tmp_path / "shop_to_check.py").write_text(code.format(url=client.queue("orders").url))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_to_check", raising=False)
    sink = f'[sink]\ntype = "handler"\napp = "{app}"'
    spec = pipeline(tmp_path, sqs_broker, (PARQUET, sink), ('dedup = "key"', ""), (SCHEMA, ""))
    assert [text.partition(" (")[0] for text in problems(spec)] == ([expected] if expected else [])


def test_changes_under_a_checkpoint_are_told_and_refused(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    spec = pipeline(tmp_path, sqs_broker)
    checkpoint = Checkpoint(spec.checkpoint)
    checkpoint.keep(checkpoint.fresh(compatibility.recorded(spec)))
    assert "checkpoint: the next run continues where the last one ended" in [text for _, text in said(spec)]
    grown = pipeline(tmp_path, sqs_broker, ("amount BIGINT", "amount BIGINT, note STRING"))
    assert (Level.FINE, "[schema] note is new; existing rows have null for it") in said(grown)
    broken = check(pipeline(tmp_path, sqs_broker, ("amount BIGINT", "amount STRING"), ('"out"', '"elsewhere"')))
    assert not broken.passed
    problems = [finding.text for finding in broken.findings if finding.level is Level.PROBLEM]
    assert len(problems) == 2
    assert "2 problems must be fixed before it can run" in as_text(broken)


def test_a_checkpoint_whose_record_was_removed_is_a_problem_and_no_new_one_and_a_reset_says_the_same(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client
) -> None:
    make_queue(client, "orders")
    spec = pipeline(tmp_path, sqs_broker)
    commits = tmp_path / "state" / "query" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    (problem,) = problems(spec)
    assert "state holds the progress of a query but no pipeline.json" in problem
    with ExitStack() as stack, pytest.raises(CheckpointError, match=r"holds the progress of a query but no pipeline"):
        PipelineReset(spec, stack)


def test_spark_looks_at_conditions_if_it_is_asked_to(
    tmp_path: Path, sqs_broker: EmbeddedBroker, client: Client, spark: SparkSession
) -> None:
    make_queue(client, "orders")
    good = check(pipeline(tmp_path, sqs_broker), with_spark=True)
    assert good.findings[-1].text == "constraints: Spark understands all 1"
    bad = check(pipeline(tmp_path, sqs_broker, ("amount > 0", "amont > 0")), with_spark=True)
    assert bad.findings[-1].level is Level.PROBLEM
    assert "`amont` cannot be resolved" in bad.findings[-1].text


def test_the_option_sql_has_spark_look_at_conditions(
    tmp_path: Path,
    sqs_broker: EmbeddedBroker,
    client: Client,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_queue(client, "orders")
    pipeline(tmp_path, sqs_broker, ("amount > 0", "amont > 0"))
    command = ["pipeline", "check", str(tmp_path / "orders.toml"), "--endpoint-url", sqs_broker.url]
    assert main(command) == 0
    assert main([*command, "--sql"]) == 3
    assert "`amont` cannot be resolved" in capsys.readouterr().out


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
