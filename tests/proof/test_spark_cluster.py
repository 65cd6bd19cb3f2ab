"""Pipelines on a real standalone cluster. Executors are killed; tasks fail, straggle and run twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from semel.broker import running
from semel.spark.segments.model import task_count
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import open_store
from spark import cluster, crashing
from spark.cluster import Cluster
from spark.crashing import Driver, Orders, ParquetFolder, Trial
from spark.sinks_support import s3_server

pytestmark = pytest.mark.timeout(600)
ORDERS: Final = 2_000
NOBODY: Final = 2**30  # no process group has this number
# Spark starts a second attempt (a twin) of any task that takes longer than the others, or longer than a second.
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.speculation.task.duration.threshold": "1s",
}

# Segments in S3, but Spark's own checkpoint on a disk, because these tests have no Hadoop connector for S3.
QUERY: Final = """\
import signal, sys
from semel.spark import session

master, endpoint, segments, folder, *settings = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
spark = session("orders", master=master, cores=2, **dict(setting.split("=", 1) for setting in settings))
options = {"queue": "orders", "key": "$.id", "segments": segments, "endpointUrl": endpoint, "region": "us-east-1"}
limits = {"visibility": 20, "maxSecondsPerBatch": 3, "maxMessagesPerBatch": 250}
rows = spark.readStream.format("sqs").options(**options, **limits).load()


def write(batch, number):
    batch.selectExpr("key AS id").write.mode("overwrite").parquet(f"{folder}/table/{number}")


query = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").start()
while not stopped:
    query.awaitTermination(1)
query.stop()
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class BatchFolders:
    """A folder for each batch. A batch that is written again replaces its folder."""

    path: Path

    def toml(self) -> str:
        raise NotImplementedError

    def ids(self) -> list[str]:
        return [id_ for folder in self.path.glob("[0-9]*") for id_ in ParquetFolder(folder).ids()]


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, each with room for one task."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in crashing.environment().items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        with cluster.running(tmp_path_factory.mktemp("cluster")) as started:
            yield started


@pytest.fixture
def orders() -> Iterator[Orders]:
    with running() as broker:
        made = Orders(broker)
        made.send(ORDERS)
        yield made


def commits(folder: Path) -> Path:
    """The folder in which Spark writes that a batch is done."""
    return folder / "orders-checkpoint" / "query" / "commits"


def trial_on(started: Cluster, orders: Orders, folder: Path, **how: Any) -> Trial:
    arguments = ("--master", started.master_url, "--cores", "2")
    sink = ParquetFolder(folder / "table")
    return Trial(orders, sink, folder, arguments=arguments, variables=started.environment, **how)


@pytest.mark.slow
def test_killed_executors_and_a_task_that_fails_half_way_lose_and_double_nothing(
    spark_cluster: Cluster, orders: Orders, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"
    # The Python workers of one executor die between the seal and the delete: their tasks fail and are run again.
    half_way = f"point=after-seal;group=0;once={failed};when={commits(tmp_path)}/0"
    trial = trial_on(
        spark_cluster, orders, tmp_path, source={"dedup": "key"}, spark={"spark.executorEnv.SEMEL_SPARK_KILL": half_way}
    )
    killed: list[int] = []
    with trial.driver() as driver:
        for batch in (2, 4):
            assert crashing.wait_until((commits(tmp_path) / str(batch)).exists, driver)
            killed.append(spark_cluster.executors()[0])
            spark_cluster.kill_executor(killed[-1])
        crashing.wait_until(trial.is_done, driver)
        driver.stop()
    audit = crashing.audited(orders, trial.sink)
    assert audit.passed, audit
    assert failed.exists()
    assert len(set(killed)) == 2


@pytest.mark.slow
def test_twins_that_race_for_a_seal_lose_and_double_nothing(
    spark_cluster: Cluster, orders: Orders, tmp_path: Path
) -> None:
    # One task stands still between its receive and its seal, until its twin has sealed. And about one call in each
    # batch is slow, which makes its task slow.
    stands_still, goes_on = tmp_path / "stands-still", tmp_path / "goes-on"
    still = (
        f"point=before-seal;group={NOBODY};once={stands_still};when={commits(tmp_path)}/1;linger=120;until={goes_on}"
    )
    settings = SPECULATION | {"spark.executorEnv.SEMEL_SPARK_KILL": still}
    trial = trial_on(spark_cluster, orders, tmp_path, spark=settings)
    orders.broker.faults.set("latency", 0.02, queue=crashing.QUEUE, milliseconds=2_500)
    log = SegmentLog(open_store(str(trial.checkpoint / "segments")))

    def twin_has_sealed() -> bool:
        plan = log.plan(3)  # of Spark's batch 2; it is dropped after the commit
        if plan is None:
            return log.through() >= 3
        return len({segment_id.task for segment_id in log.files(3).all}) == task_count(plan)

    with trial.driver() as driver:
        assert crashing.wait_until(stands_still.exists, driver)
        assert crashing.wait_until(twin_has_sealed, driver)
        goes_on.touch()
        crashing.wait_until(trial.is_done, driver)
        driver.stop()
    audit = crashing.audited(orders, trial.sink)
    assert audit.passed, audit
    assert audit.delivered > audit.sent  # attempts that lost a race returned their messages


@contextmanager
def query_with_segments_in(
    segments: str, started: Cluster, orders: Orders, folder: Path, **settings: str
) -> Iterator[Driver]:
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    script, log = folder / "query.py", folder / "query.log"
    script.write_text(QUERY)
    there = {"spark.executorEnv.AWS_ENDPOINT_URL_S3": endpoint} | settings
    arguments = [f"{name}={value}" for name, value in there.items()]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, script, started.master_url, orders.broker.url, segments, folder, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=crashing.environment(**started.environment, AWS_ENDPOINT_URL_S3=endpoint),
            start_new_session=True,
        )
    driver = Driver(process, log, None)
    try:
        yield driver
    finally:
        driver.kill()


@pytest.mark.slow
def test_an_executor_killed_during_a_batch_whose_segments_are_in_s3_loses_and_doubles_nothing(
    spark_cluster: Cluster, tmp_path: Path
) -> None:
    commits, sealed = tmp_path / "checkpoint" / "commits", tmp_path / "sealed"
    # A task stands still between its seal and its delete, long enough for an executor to be killed meanwhile.
    still = f"point=after-seal;group={NOBODY};linger=7;once={sealed};when={commits}/1"
    settings = {"spark.executorEnv.SEMEL_SPARK_KILL": still}
    with running() as broker, s3_server() as bucket:
        orders, sink = Orders(broker, poison=0.0), BatchFolders(tmp_path / "table")
        orders.send(ORDERS)
        with query_with_segments_in(f"{bucket}/log", spark_cluster, orders, tmp_path, **settings) as driver:
            assert crashing.wait_until(sealed.exists, driver)
            spark_cluster.kill_executor(spark_cluster.executors()[0])
            crashing.wait_until(lambda: not orders.left() and crashing.are_there(orders, sink), driver)
            driver.stop()
        audit = crashing.audited(orders, sink)
        assert SegmentLog(open_store(f"{bucket}/log")).committed().through > 2
    assert audit.passed, audit
