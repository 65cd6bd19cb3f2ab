"""The servers that are attacked: the broker, the dashboard and a worker's endpoint, each on a port of this machine."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import urlsplit

from intruders.wire import PATIENCE, ask, get
from semel.broker.connections import Limits
from semel.broker.embedded_broker import _serve
from semel.broker.startup import Options, Running
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.worker_control import Command

INTRUSION: Final = 3 * PATIENCE  # seconds
SEMEL: Final = str(Path(sys.executable).with_name("semel"))
HEALTH: Final = {"broker": "/_semel/health", "dashboard": "/health", "worker": "/health"}


@dataclass(frozen=True, slots=True)
class Target:
    """A server. `health` is a path that answers 200 to everybody."""

    name: str
    port: int

    @property
    def health(self) -> str:
        return HEALTH[self.name]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_well(self) -> bool:
        """Whether another client gets an answer within `wire.PATIENCE`. That is much longer than a busy machine takes,
        and much shorter than the time for which a server waits for an intruder (at least `INTRUSION`)."""
        return ask(self.port, get(self.health)).statuses == [200]


def target(name: str, url: str) -> Target:
    return Target(name, urlsplit(url).port or 0)


@contextmanager
def broker(limits: Limits | None = None, **options: Any) -> Iterator[Target]:
    """A broker in this process, in memory."""
    broker_options = Options(**{"port": 0, "data": None, "limits": limits or Limits(), **options})
    ready: Future[tuple[Running, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=_serve, args=(broker_options, ready), daemon=True)
    thread.start()
    started, loop, stop = ready.result()
    try:
        yield target("broker", started.url)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@dataclass
class Worker:
    """A worker that keeps a list of the commands that it gets."""

    commands: list[Command] = field(default_factory=list)

    def workers(self) -> dict[str, Any]:
        return {"id": "worker-1", "keys": ["order-secret-key"]}

    def do(self, command: Command) -> dict[str, Any]:
        self.commands.append(command)
        return {"done": "yes"}


@contextmanager
def endpoint(worker: Worker | None = None, token: str | None = None) -> Iterator[Target]:
    """A worker's endpoint, for health, metrics and control."""
    with HealthServer(
        "127.0.0.1",
        0,
        health=lambda: Health(True, True),
        metrics=lambda: "up 1\n",
        control=worker or Worker(),
        token=token,
    ) as server:
        yield Target("worker", server.port)


@dataclass
class Program:
    """A running `semel` command. `output` and `errors` are files with its standard output and standard error."""

    process: subprocess.Popen[bytes]
    target: Target
    output: Path
    errors: Path

    @property
    def memory(self) -> int:
        """Bytes of memory that it uses now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def program(
    folder: Path,
    name: str,
    *arguments: str,
    ready: str,
    environment: Mapping[str, str] | None = None,
    open_files: int | None = None,
) -> Iterator[Program]:
    """Runs it until the end of the block. `ready`: the text before the address in the line that shows it listens."""

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    output, errors = folder / f"{name}.out", folder / f"{name}.err"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [SEMEL, *arguments],
            cwd=folder,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env=None if environment is None else dict(environment),
            preexec_fn=limit,
        )
    try:
        line = wait_for(lambda: _line_with(output, ready), lambda: errors.read_text() + output.read_text(), process)
        yield Program(process, target(name, line.partition(ready)[2].split()[0]), output, errors)
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def wait_for(
    condition: Callable[[], Any], said: Callable[[], str] = str, process: subprocess.Popen[bytes] | None = None
) -> Any:
    ends = monotonic() + 60
    while not (answer := condition()):
        assert process is None or process.poll() is None, said()
        assert monotonic() < ends, said()
        sleep(0.01)
    return answer


def _line_with(file: Path, text: str) -> str:
    return next((line for line in file.read_text().splitlines() if text in line), "")
