"""Processes that are killed, stopped and started again, each life with a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from process_crashes.settings import FOLDER_VARIABLE

PROOF: Final = Path(__file__).parents[1]
PATIENCE: Final = 60.0


def environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SEMEL_"))}
    return kept | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": os.pathsep.join((str(PROOF.parent), str(PROOF))),
        **more,
    }


class Process:
    """One place in the fleet: a command, and the process that runs it now."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._folder, self._environment = [sys.executable, *command], folder, environment(variables)
        self._lives = 0
        self.started_at = 0.0  # by time.time()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts_at = 0.0  # by time.monotonic(), while it is down
        self.paused = False
        self._stopped: list[psutil.Process] = []
        self.own_ends: list[tuple[int, int]] = []  # number of the life and exit code of those that nobody killed

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def family(self) -> list[psutil.Process]:
        """The process, and the workers of a supervisor."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid) if self.runs else None
            return [process, *process.children()] if process else []
        return []

    def log(self, life: int) -> Path:
        return self._folder / f"{self.name}-{life}.log"

    def start(self) -> None:
        assert not self.runs
        self._lives += 1
        self.started_at = time.time()
        with self.log(self._lives).open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._environment
            )

    def supervise(self) -> None:
        """Start it again if it is down and due; one that has ended by itself is due a moment later."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self.own_ends.append((self._lives, code))
            self._process, self.starts_at = None, time.monotonic() + 0.5
        if self._process is None and time.monotonic() >= self.starts_at:
            self.start()

    def kill(self, down_for: float = 0.0) -> None:
        """SIGKILL, for it alone: the workers of a supervisor go on for a moment."""
        process, self._process = self._process, None
        self.starts_at = time.monotonic() + down_for
        if process is not None:
            process.kill()
            process.wait()
        self.resume()

    def pause(self) -> None:
        """It stands still, with the workers that it has."""
        self.paused = True
        self._stopped = self.family()
        for process in self._stopped:
            with suppress(psutil.Error):
                process.suspend()

    def resume(self) -> None:
        """Also the workers of a supervisor that was killed meanwhile."""
        self.paused = False
        stopped, self._stopped = self._stopped, []
        for process in stopped:
            with suppress(psutil.Error):
                process.resume()

    def stop(self) -> int | None:
        """As an operator does. The exit code; None: it did not end in time, and was killed."""
        self._signal(signal.SIGTERM)
        return self.ends()

    def ends(self) -> int | None:
        """Waits for its end. The exit code; None: it did not end in time, and was killed."""
        if self._process is None:
            return None
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)


def left_behind(folder: Path) -> list[psutil.Process]:
    """Processes of a run, by their environment: also those that a killed supervisor has left."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_VARIABLE) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def semel(*arguments: str) -> list[str]:
    return ["-m", "semel.cli", *arguments]
