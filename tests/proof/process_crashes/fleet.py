"""The processes of one run and the proxies between them: a broker, workers, producers, and a store for the ledger."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from process_crashes import stores
from process_crashes.disks import Disk, make_disk
from process_crashes.plan import PRODUCERS, WORKERS, Line
from process_crashes.processes import Process, left_behind, semel
from process_crashes.proxy import HOST, Proxy, ProxyLoop
from process_crashes.settings import LEASE_QUEUES, TRANSACTION_QUEUES, WorkerSettings, at_work_file
from process_crashes.stores import Store
from semel import Client, SemelError
from waiting import free_port

PATIENCE: Final = 60.0
_COUNTS: Final = tuple(f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed"))
# Faults of SQS itself, in addition to what happens to the processes.
FAULTS: Final = ("duplicate=0.02", "lost-delete=0.02", "lost-answer=0.01", "early-visibility=0.01")
WORKER: Final = tuple(semel("run", "process_crashes.app:app"))


@dataclass
class Fleet:
    """`worker_command`: what each worker runs instead of `semel run`."""

    folder: Path
    store: Store
    broker_disk: Disk
    ledger_disk: Disk | None
    proxies: ProxyLoop
    rate: float
    worker_command: tuple[str, ...] = WORKER
    lines: dict[Line, list[Proxy]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._port = free_port()
        self.queues = [*LEASE_QUEUES, *(TRANSACTION_QUEUES if self.store.transactional else ())]
        self.lines[Line.WORKER_BROKER] = [self.proxies.proxy(self._port) for _ in range(WORKERS)]
        self.lines[Line.PRODUCER_BROKER] = [self.proxies.proxy(self._port) for _ in range(PRODUCERS)]
        if self.store.port is not None:
            self.lines[Line.WORKER_STORE] = [self.proxies.proxy(self.store.port) for _ in range(WORKERS)]
        self._logs = self.folder / "logs"
        self._logs.mkdir()
        (self.folder / "at-work").mkdir()
        data = str(self.broker_disk.folder / "data")
        faults = [option for fault in FAULTS for option in ("--fault", fault)]
        self.broker = self._process("broker", semel("broker", "--port", str(self._port), "--data", data, *faults), {})
        self.workers = [self._worker(number) for number in range(WORKERS)]
        self.producers = [self._producer(number) for number in range(PRODUCERS)]
        self.client = Client(_url(self._port), "us-east-1", access_key="test", secret_key="test")

    @property
    def processes(self) -> list[Process]:
        return [self.broker, *self.workers, *self.producers]

    def start(self) -> None:
        self.broker.start()
        _until_it_listens(self._port)
        for queue in self.queues:
            self.client.create_queue(queue, {"FifoQueue": "true"} if queue.endswith(".fifo") else {})
        for process in (*self.workers, *self.producers):
            process.start()

    def is_at_work(self, process: Process) -> bool:
        """Whether it has done something since its start. A process that is starting is left alone: otherwise it might
        never get up."""
        if process in self.producers:
            file = self.folder / f"{process.name}.jsonl"
            return file.exists() and file.stat().st_mtime > process.started_at
        if process in self.workers:
            return any(at_work_file(self.folder, member.pid).exists() for member in process.family())
        return process.runs

    def left(self) -> dict[str, int]:
        """The number of messages in each queue, in any state."""
        sizes: dict[str, int] = {}
        for queue in self.queues:
            counts = self.client.queue(queue).attributes(*_COUNTS)
            sizes[queue] = sum(int(counts[name]) for name in _COUNTS)
        return sizes

    def is_empty(self) -> bool:
        try:
            return not any(self.left().values())
        except SemelError:  # the broker is starting
            return False

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for orphan in left_behind(self.folder):
            with suppress(psutil.Error):
                orphan.kill()
        self.client.close()

    def _process(self, name: str, command: list[str], variables: dict[str, str]) -> Process:
        return Process(name, command, self._logs, {"SEMEL_STATE": str(self.folder / "state"), **variables})

    def _worker(self, number: int) -> Process:
        store_line = self.lines.get(Line.WORKER_STORE)
        settings = WorkerSettings(
            self.store.url(store_line[number].port if store_line else None),
            _url(self.lines[Line.WORKER_BROKER][number].port),
            self.folder,
            self.store.transactional,
        )
        command = list(self.worker_command)
        if (
            self.worker_command == WORKER and number == 0
        ):  # a supervisor with worker processes, which outlive it when it is killed
            command += ["--processes", "2"]
        return self._process(f"worker-{number}", command, settings.to_environment())

    def _producer(self, number: int) -> Process:
        file = self.folder / f"producer-{number}.jsonl"
        endpoint = _url(self.lines[Line.PRODUCER_BROKER][number].port)
        command = ["process_crashes.producer", endpoint, str(file), str(self.rate / PRODUCERS), *self.queues]
        return self._process(f"producer-{number}", command, {})


@contextmanager
def running(store_name: str, folder: Path, *, rate: float, worker_command: tuple[str, ...] = WORKER) -> Iterator[Fleet]:
    """A fleet whose processes have been started. At the end, all of them are gone."""
    fleet: Fleet | None = None
    with ExitStack() as stack:
        proxies = ProxyLoop()
        stack.callback(proxies.close)
        broker_disk = make_disk(folder / "broker", lambda: _pids(fleet.broker) if fleet else ())
        stack.callback(broker_disk.close)
        ledger_disk: Disk | None = None
        if store_name == "sqlite":
            ledger_disk = make_disk(folder / "ledger", lambda: _pids(*fleet.workers) if fleet else ())
            stack.callback(ledger_disk.close)
        store = stack.enter_context(stores.running(store_name, folder / "ledger"))
        fleet = Fleet(folder, store, broker_disk, ledger_disk, proxies, rate, worker_command)
        stack.callback(fleet.close)
        fleet.start()
        yield fleet


def _pids(*processes: Process) -> list[int]:
    return [process.pid for process in processes if process.pid is not None]


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _until_it_listens(port: int) -> None:
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((HOST, port), 5).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
