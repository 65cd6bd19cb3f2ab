"""The cluster that tests of lost executors run on is a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark import cluster

# Each task leaves a mark under its own name and then waits for the word, so that a kill hits it at work.
DRIVER = """
import os, sys, time
from pathlib import Path
from semel.spark.sessions import session

folder = Path(sys.argv[2])

def work(rows):
    from pyspark import TaskContext
    context = TaskContext.get()
    (folder / f"task-{context.partitionId()}-{os.getppid()}-{context.taskAttemptId()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    yield from rows

spark = session("cluster test", master=sys.argv[1], cores=2)
print(sum(row.id for row in spark.range(100, numPartitions=2).mapInArrow(work, "id long").collect()))
spark.stop()
"""


def test_a_job_on_the_cluster_survives_the_kill_of_an_executor(tmp_path: Path) -> None:
    with cluster.running(tmp_path) as running:
        command = [sys.executable, "-c", DRIVER, running.master_url, str(tmp_path)]
        driver = subprocess.Popen(
            command, env=running.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            cluster.wait_until("both tasks are at work", lambda: len(list(tmp_path.glob("task-*"))) == 2)
            first, second = running.executors()
            running.kill_executor(first)
            cluster.wait_until("the lost task has been started again", lambda: len(list(tmp_path.glob("task-*"))) == 3)
            assert first not in running.executors()
            assert second in running.executors()
            (tmp_path / "go").touch()
            output, errors = driver.communicate(timeout=cluster.PATIENCE)
        finally:
            driver.kill()
            driver.wait()
        running.kill_worker(0)
        cluster.wait_until("the master has noticed", lambda: running.alive_workers() == 1)
    assert (output, driver.returncode) == (f"{sum(range(100))}\n", 0), errors + running.logs()
    assert errors == ""
    assert running.executors() == []
