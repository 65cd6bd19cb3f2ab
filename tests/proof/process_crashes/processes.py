"""Processes that are killed, stopped and started again. Each start (a "life") has a log of its own.

They are forked from a process that has already imported what they need: a process that lives only for seconds should
not spend them on imports.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psutil

from process_crashes.settings import FOLDER_VARIABLE

PROOF: Final = Path(__file__).parents[1]
PATIENCE: Final = 60.0
FROM_WARM: Final = multiprocessing.get_context("forkserver")
FROM_WARM.set_forkserver_preload(
    [
        *("semel.cli.run", "semel.cli.broker", "semel.consumer.processes", "semel.consumer.runtime"),
        *("semel.broker.process", "semel.sqs.client", "semel.ledger.sqlite.ledger", "semel.ledger.postgres.ledger"),
        *("semel.ledger.redis.ledger", "psycopg_pool", "botocore.session", "process_crashes.producer"),
    ]
)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SEMEL_"))}
    return kept | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": os.pathsep.join((str(PROOF.parent), str(PROOF))),
        **more,
    }


def _live(command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
    """Runs in the new process: calls the `main` of a module, as `python -m MODULE ARGUMENTS` would."""
    os.environ.clear()
    os.environ.update(variables)
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), number)
    module, *arguments = command
    main = import_module(module).main
    sys.exit(main(arguments) if module == "semel.cli" else main(*arguments))


class Process:
    """One member of the fleet: a module with its arguments, and the process that runs it now."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._folder, self._environment = list(command), folder, environment(variables)
        self._lives = 0
        self.started_at = 0.0  # by time.time()
        self._process: BaseProcess | None = None
        self.starts_at = 0.0  # while it is down: when to start it, by time.monotonic()
        self.paused = False
        self._stopped: list[psutil.Process] = []
        self.own_ends: list[tuple[int, int]] = []  # lives that ended without being killed: number and exit code

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def family(self) -> list[psutil.Process]:
        """The process and, if it is a supervisor, its workers."""
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
        arguments = (self._command, self._environment, self.log(self._lives))
        self._process = FROM_WARM.Process(target=_live, args=arguments, name=self.name)
        self._process.start()

    def supervise(self) -> None:
        """Start it again if it is down and due. A process that ended by itself is due half a second later."""
        if self._process is not None and (code := self._process.exitcode) is not None:
            self.own_ends.append((self._lives, code))
            self._process, self.starts_at = None, time.monotonic() + 0.5
        if self._process is None and time.monotonic() >= self.starts_at:
            self.start()

    def kill(self, down_for: float = 0.0) -> None:
        """SIGKILL, only for this process: the workers of a supervisor go on for a moment."""
        process, self._process = self._process, None
        self.starts_at = time.monotonic() + down_for
        if process is not None:
            process.kill()
            process.join()
        self.resume()

    def pause(self) -> None:
        """Suspend it, and its workers if it is a supervisor."""
        self.paused = True
        self._stopped = self.family()
        for process in self._stopped:
            with suppress(psutil.Error):
                process.suspend()

    def resume(self) -> None:
        """Resume all that were suspended, also the workers of a supervisor that was killed meanwhile."""
        self.paused = False
        stopped, self._stopped = self._stopped, []
        for process in stopped:
            with suppress(psutil.Error):
                process.resume()

    def stop(self) -> int | None:
        """Send SIGTERM, as an operator does. Returns the exit code; None: it did not end in time, and was killed."""
        if self._process is not None:
            self._process.terminate()
        return self.ends()

    def ends(self) -> int | None:
        """Wait for its end. Returns the exit code; None: it did not end in time, and was killed."""
        if self._process is None:
            return None
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is None:
            self.kill()
        return code


def left_behind(folder: Path) -> list[psutil.Process]:
    """All processes of a run, found by their environment. This includes workers that a killed supervisor has left."""
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_VARIABLE) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                orphans.append(process)
    return orphans


def semel(*arguments: str) -> list[str]:
    return ["semel.cli", *arguments]
