"""A real standalone cluster on this machine, from the PySpark wheel. Tests kill its executors.

A driver needs its own process, because the tests' process has the shared session. Start it with `environment`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import psutil
import pyspark

from semel.spark import java

TESTS: Final = Path(__file__).parents[1]
SPARK: Final = Path(pyspark.__file__).parent
PATIENCE: Final = 120.0
HOSTS: Final = ("127.0.0.1", "localhost")  # two names: Spark starts a speculative copy of a task only on another host
SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def wait_until(what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    ends = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < ends, f"waited {patience:.0f} seconds in vain until {what}"
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Cluster:
    master_url: str
    page: str
    workers: list[subprocess.Popen[bytes]]
    environment: dict[str, str]
    folder: Path

    def executors(self) -> list[int]:
        """Process ids of the running executors, those of the first worker first."""
        return [pid for worker in self.workers for pid in executors_of(worker)]

    def kill_executor(self, pid: int) -> None:
        assert pid in self.executors()
        os.kill(pid, signal.SIGKILL)

    @contextmanager
    def stopped_executor(self, pid: int) -> Iterator[None]:
        """The executor is stopped (SIGSTOP) inside the block, and continued (SIGCONT) after it."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def alive_workers(self) -> int:
        """The number of workers that the master considers alive."""
        return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])

    def state(self) -> dict[str, Any]:
        with urlopen(f"{self.page}/json/", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
            return state

    def logs(self) -> str:
        return "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))


@contextmanager
def running(folder: Path, *, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """A cluster that is ready for jobs. At the end all its processes are gone, whatever was killed in between."""
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(
        f"spark.executor.memory 512m\nspark.executor.extraJavaOptions {SMALL_JAVA}\n"
    )
    environment = os.environ | {
        "JAVA_HOME": str(java.spark_home(java.find())),
        "SPARK_HOME": str(SPARK),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{SMALL_JAVA} -Dspark.deploy.maxExecutorRetries=-1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS / "spark" / "crash_site"))),
    }
    port, page_port = free_ports(2)
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ["master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", str(page_port)]
        stack.enter_context(daemon(master, folder / "master.log", environment))
        # The memory that a worker offers is not reserved; each executor asks for 512 MB.
        offer = ["--webui-port", "0", "--cores", str(cores), "--memory", "2g", url]
        started = [
            stack.enter_context(
                daemon(
                    ["worker.Worker", "--host", HOSTS[number % 2], *offer], folder / f"worker-{number}.log", environment
                )
            )
            for number in range(workers)
        ]
        cluster = Cluster(url, f"http://127.0.0.1:{page_port}", started, environment, folder)

        def ready() -> bool:
            assert all(process.poll() is None for process in started), cluster.logs()
            with suppress(OSError, ValueError):  # the page does not answer, or is still empty
                return cluster.alive_workers() == workers
            return False

        wait_until("the workers are registered", ready)
        yield cluster


@contextmanager
def daemon(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    name, *options = arguments
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a daemon and its executors, which are in its process group. Their Python workers end with them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def executors_of(worker: subprocess.Popen[bytes]) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(worker.pid).children() if is_executor(child)]
    return []


def is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline()
    return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
