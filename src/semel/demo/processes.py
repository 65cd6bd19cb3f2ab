"""The commands that a demo runs, each as a user would run it.

The rule: no process outlives the demo. Ctrl-C and SIGTERM raise KeyboardInterrupt once, and never while a process is
being started. However the demo ends, it kills all its processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Final
from urllib.request import ProxyHandler, build_opener

from semel.errors import SemelError

SEMEL: Final = (sys.executable, "-m", "semel.cli")
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_NO_PROXY: Final = build_opener(ProxyHandler({}))
_END: Final = 30.0  # seconds for a process that was asked to end


class Processes:
    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._former: dict[signal.Signals, Any] = {}
        self._starting = False
        self._interrupted = False

    def __enter__(self) -> Processes:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set signal handlers
            self._former = {number: signal.signal(number, self._interrupt) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupted = True  # signals are ignored from here on
        for process in list(self._running):
            self.kill(process)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        again, self._interrupted = self._interrupted, True
        if not again and not self._starting:
            raise KeyboardInterrupt

    def start(
        self,
        *arguments: str,
        output: IO[bytes],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts `semel` with these arguments in a session of its own, so that Ctrl-C reaches only the demo."""
        self._starting = True
        process = subprocess.Popen(
            [*SEMEL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._running.append(process)
        self._starting = False
        if self._interrupted:
            raise KeyboardInterrupt
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Sends SIGKILL to the process and to those that it has started."""
        _kill_session(process.pid)
        process.wait()
        self._running.remove(process)

    def end(self, process: subprocess.Popen[bytes], what: str, seconds: float = _END) -> int:
        """Sends SIGTERM and waits; returns the exit code."""
        process.terminate()
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SemelError(f"{what} did not end within {seconds:.0f} s after SIGTERM") from None
        _kill_session(process.pid)  # Spark's Java takes a moment longer
        self._running.remove(process)
        return code


def _kill_session(leader: int) -> None:
    """Kills all processes of the session and waits until they have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    until = time.monotonic() + _END
    while (members := _session(leader)) and time.monotonic() < until:
        for pid in members:  # Spark's Python workers are in a process group of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _session(leader: int) -> list[int]:
    """The living processes of a session, on systems with /proc. Elsewhere, orphaned processes end by themselves."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, session, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(session) == leader and state not in "ZX":
                members.append(int(path.parent.name))
    return members


class Broker:
    """`semel serve` with faults, on a free port."""

    def __init__(self, processes: Processes, folder: Path, faults: Mapping[str, float], seed: int) -> None:
        chosen = [part for kind, rate in faults.items() for part in ("--fault", f"{kind}={rate}")]
        data = str(folder / "queue")
        log = folder / "broker.log"
        with log.open("wb") as lines:
            arguments = ("serve", "--port", "0", "--data", data, "--fault-seed", str(seed), *chosen)
            process = processes.start(*arguments, output=lines)
        while (address := re.search(r"http://\S+(?=\s)", log.read_text())) is None:
            if process.poll() is not None:
                raise SemelError(f"the broker did not start: {last_line(log)}")
            time.sleep(0.02)
        self.url = address[0]

    def deliveries(self, queue: str) -> int:
        """How many messages of a queue the broker has handed out, duplicates included."""
        with _NO_PROXY.open(f"{self.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        count = re.search(rf'NumberOfMessagesReceived_total{{QueueName="{queue}"}} (\d+)', text)
        return int(count[1]) if count else 0


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("semel: ") if lines else "it gave no reason"
