"""No password in what Spark shows, in a traceback, or unnecessarily in what is sent to executors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from semel.broker import running
from semel.spark.pipeline.config import SourceSpec
from semel.spark.sinks.handlers.executor_app import AppReference
from semel.spark.sinks.postgres.staging import PostgresWriter
from semel.spark.sinks.postgres.table import Table
from semel.spark.source.options import OptionError, ReadOptions, read_options
from semel.sqs import Client, Entry

PROGRAM: Final = Path(__file__).with_name("secret_program.py")
SECRET: Final = "hunter2"
ADDRESS: Final = f"postgresql://shop:{SECRET}@host/db"


@pytest.mark.slow
def test_spark_shows_the_ledgers_address_nowhere(tmp_path: Path) -> None:
    """Plans, progress, UI, REST, event log, and the traceback of a query that fails."""
    (tmp_path / "events").mkdir()
    with running() as broker:
        queue = Client(broker.url, "us-east-1", access_key="test", secret_key="test").create_queue("orders")
        queue.send_many([Entry('{"id": 1}')])
        ledger = f"ledgerUrl=sqlite:///{tmp_path}/{SECRET}.db"
        command = [sys.executable, str(PROGRAM), broker.url, str(tmp_path), "dedup=ledger", ledger]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown["rows"] == 1
    assert "ledgerUrl=*********(redacted)" in shown["plans"]
    assert "no number" in shown["traceback"]
    assert not [name for name, text in shown.items() if SECRET in str(text)]
    assert SECRET not in done.stderr


def test_the_address_of_a_ledger_is_an_option_that_spark_hides() -> None:
    with pytest.raises(OptionError, match="no option 'ledger'; did you mean 'ledgerUrl'") as error:
        read_options({"queue": "orders", "dedup": "ledger", "ledger": ADDRESS})
    assert SECRET not in str(error.value)
    assert read_options({"queue": "orders", "dedup": "ledger", "ledgerUrl": ADDRESS}).ledger == ADDRESS


def test_a_pipeline_gives_its_ledger_to_spark_as_an_option_that_spark_hides() -> None:
    options = SourceSpec(queues=("orders",), ledger=ADDRESS).options("/checkpoint")
    assert [name for name, value in options.items() if SECRET in value] == ["ledgerUrl"]


@pytest.mark.parametrize(
    "value",
    [
        ReadOptions(("orders",), ledger=ADDRESS),
        SourceSpec(queues=("orders",), ledger=ADDRESS),
        PostgresWriter(ADDRESS, "PostgreSQL", Table("public", "orders", ()), ("a", "b"), pa.schema([]), ()),
        AppReference("shop:app", ledger=ADDRESS, variables=(("SEMEL_LEDGER", ADDRESS),)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_a_password_does_not_show_it_in_a_traceback(value: object) -> None:
    assert SECRET not in repr(value)
    assert SECRET not in f"{value}"


def test_executors_get_the_variables_that_handlers_are_run_by_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTROL_TOKEN", "TOKEN", "READ_ONLY_TOKEN", "STATE", "DASHBOARD", "SPARK_KILL"):
        monkeypatch.setenv(f"SEMEL_{name}", SECRET)
    monkeypatch.setenv("SEMEL_LEDGER", ADDRESS)
    monkeypatch.setenv("SEMEL_CONCURRENCY", "4")
    monkeypatch.delenv("SEMEL_ATTEMPT_LOG", raising=False)
    shipped = dict(AppReference.here("shop:app").variables)
    assert shipped == {"SEMEL_LEDGER": ADDRESS, "SEMEL_CONCURRENCY": "4"}
