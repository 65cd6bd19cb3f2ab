"""A pipeline on a real standalone cluster, whose executors are killed and whose tasks fail, straggle and run twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from semel.broker import running
from spark import cluster, crashing
from spark.cluster import Cluster
from spark.crashing import Orders, ParquetFolder, Trial

pytestmark = pytest.mark.timeout(600)
ORDERS: Final = 2_000
NOBODY: Final = 2**30  # no process group has this number
# A twin is started for whatever takes longer than the others do, or for a second.
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.speculation.task.duration.threshold": "1s",
}


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
    """Where Spark writes down that a batch is done."""
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
    # The Python workers of one executor end between the seal and the delete: their tasks fail and are run again.
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
    # A task that has received stands still before its seal, long enough for its twin; and about one call in each batch
    # takes its time, and with it the task.
    still = f"point=before-seal;group={NOBODY};linger=7;once={tmp_path}/stood-still;when={commits(tmp_path)}/1"
    settings = SPECULATION | {"spark.executorEnv.SEMEL_SPARK_KILL": still}
    trial = trial_on(spark_cluster, orders, tmp_path, spark=settings)
    orders.broker.faults.set("latency", 0.02, queue=crashing.QUEUE, milliseconds=2_500)
    with trial.driver() as driver:
        crashing.wait_until(trial.is_done, driver)
        driver.stop()
    audit = crashing.audited(orders, trial.sink)
    assert audit.passed, audit
    assert (tmp_path / "stood-still").exists()
    assert audit.delivered > audit.sent  # the losers of races gave theirs back
