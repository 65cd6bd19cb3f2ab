"""The processes of a run: a broker on disk, workers and a producer. And what they use of memory, files and disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import psutil

from semel import Client
from soak.app import QUEUE, AppSettings
from soak.figures import Sample

SEMEL: Final = str(Path(sys.executable).with_name("semel"))
PROOF: Final = Path(__file__).parent.parent
PATIENCE: Final = 60.0
DEAD: Final = f"{QUEUE}-dead"
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment for a process of the run: the path to this package, credentials, a state folder in `folder`."""
    path = os.pathsep.join(filter(None, [str(PROOF), os.environ.get("PYTHONPATH")]))
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**os.environ, **keys, "PYTHONPATH": path, "SEMEL_STATE": str(folder / "state"), **more}


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.02)


class Process:
    """A process with its output in a file of the folder."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, **more: str) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment(folder, **more)
            )
        self.pid = self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = PATIENCE) -> int:
        """Send this signal, unless the process has ended by itself. Returns its exit code."""
        if self.is_running:
            self._process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = PATIENCE) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {seconds:g} s: {self.last_words()}") from None

    def kill(self) -> None:
        """Kill it and all its children."""
        if self.is_running:
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        return self.log.read_bytes()[-2_000:].decode(errors="replace")


class BrokerProcess(Process):
    """`semel broker` on a data folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        ready = folder / "broker.json"
        self.data = folder / "broker-data"
        command = [SEMEL, "broker", "--port", "0", "--data", str(self.data), "--ready-file", str(ready), *options]
        super().__init__("broker", command, folder)
        until(lambda: ready.exists() or not self.is_running, "the start of the broker")
        if not self.is_running:
            raise RuntimeError(f"the broker did not start: {self.last_words()}")
        self.url = str(json.loads(ready.read_text())["url"])

    def set_fault(self, kind: str, rate: float, milliseconds: float | None = None) -> None:
        self._ask("PUT", {"kind": kind, "rate": rate, "milliseconds": milliseconds})

    def clear_faults(self) -> dict[str, int]:
        """Switch all faults off. Returns how often each was injected."""
        return dict(self._ask("DELETE")["injected"])

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.url}/_semel/faults", data, method=method), timeout=PATIENCE) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content

    def client(self) -> Client:
        return Client(self.url, "us-east-1", access_key="test", secret_key="test")


class Fleet(Process):
    """`semel run` with the app: one worker process, or several under a supervisor."""

    def __init__(self, folder: Path, settings: AppSettings, workers: int) -> None:
        command = [SEMEL, "run", "soak.app:app", "--processes", str(workers), "--log-level", "warning"]
        super().__init__("workers", command, folder, **settings.environment())
        self._count = workers

    def workers(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        if self._count == 1:
            return [parent]
        children = sorted(parent.children(), key=lambda child: child.create_time())
        return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())][: self._count]


def samples(at: float, broker: BrokerProcess | None, fleet: Fleet | None) -> Iterator[Sample]:
    """What each process uses now. Processes that have just ended are left out."""
    named = [("broker", psutil.Process(broker.pid))] if broker is not None and broker.is_running else []
    if fleet is not None and fleet.is_running:
        named += [(f"worker {place}", process) for place, process in enumerate(fleet.workers(), 1)]
    for name, process in named:
        try:
            yield Sample(at, name, process.memory_info().rss, process.num_fds(), process.num_threads())
        except psutil.NoSuchProcess:
            continue


def folder_size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def counts(client: Client, queue: str) -> tuple[int, int, int]:
    """The number of messages that are visible, in flight, and delayed."""
    attributes = client.queue(queue).attributes(*_COUNTS)
    visible, in_flight, delayed = (int(attributes[name]) for name in _COUNTS)
    return visible, in_flight, delayed


def create_queues(client: Client) -> None:
    dead = client.create_queue(DEAD)
    client.create_queue(QUEUE, {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 20})})


@contextmanager
def ended(*started: Process) -> Iterator[None]:
    """Kills these processes at the end of the block, however it ends."""
    try:
        yield
    finally:
        for process in started:
            process.kill()


def produce(broker: BrokerProcess, folder: Path, sends: Path, *options: str) -> Process:
    """Starts a producer for the app's queue."""
    command = [sys.executable, "-m", "soak.producer", "--endpoint", broker.url, "--queue", QUEUE]
    return Process("producer", [*command, "--sends", str(sends), *options], folder)
