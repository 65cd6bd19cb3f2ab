"""`format("sqs")` in a user's own session when another `python3` is first on the PATH: cron, IDEs, notebooks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from semel.broker import running
from semel.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `python3` is a Python that knows neither Spark nor Semel."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    return f"{other.parent}{os.pathsep}{os.environ['PATH']}"


def ran(code: str, path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_importing_semel_spark_has_spark_start_this_python(path: str) -> None:
    done = ran("import os, semel.spark; print(os.environ['PYSPARK_PYTHON'])", path)
    assert done.stdout.strip() == sys.executable, done.stderr


def test_a_python_that_the_user_has_named_is_kept(path: str) -> None:
    code = "import os; os.environ['PYSPARK_PYTHON'] = 'mine'; import semel.spark; print(os.environ['PYSPARK_PYTHON'])"
    assert ran(code, path).stdout.strip() == "mine"


def test_a_spark_that_was_started_with_another_python_knows_the_format_once_it_is_registered(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "python3")  # as Spark has it if PYSPARK_PYTHON was not set
    monkeypatch.setenv("PATH", path)
    with running() as broker:
        broker.client().create_queue(QueueName="orders")
        session = spark.newSession()
        register(session)
        assert context.pythonExec == sys.executable
        rows = session.read.format("sqs").option("queue", "orders").option("endpointUrl", broker.url).load()
        assert rows.count() == 0


OWN_SESSION: Final = """
import sys
if sys.argv[2] == "before":
    import semel.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
if sys.argv[2] == "after":
    import semel.spark
rows = spark.read.format("sqs").option("queue", "orders").option("endpointUrl", sys.argv[1]).load()
print("bodies:", [row.body for row in rows.collect()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["before", "after"])
def test_a_session_of_the_users_own_reads_a_queue_wherever_semel_is_imported(path: str, imported: str) -> None:
    from semel.spark import java

    with running() as broker, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java.spark_home(java.find())))
        sqs = broker.client()
        sqs.send_message(QueueUrl=sqs.create_queue(QueueName="orders")["QueueUrl"], MessageBody="hello")
        done = ran(OWN_SESSION, path, broker.url, imported)
    assert "bodies: ['hello']" in done.stdout, done.stderr[-2000:]
