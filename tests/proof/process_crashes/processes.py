"""Processes that are killed, stopped and started again, each life with a log of its own.

They are forked from a process that has loaded all they need: one that lives for seconds should spend them at work.
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
    """In the new process: call the `main` of a module, as `python -m MODULE ARGUMENTS` would."""
    os.environ.clear()
    os.environ.update(variables)
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), number)
    module, *arguments = command
    main = import_module(module).main
    sys.exit(main(arguments) if module == "semel.cli" else main(*arguments))


class Process:
    """One place in the fleet: a module with its arguments, and the process that runs it now."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._folder, self._environment = list(command), folder, environment(variables)
        self._lives = 0
        self.started_at = 0.0  # by time.time()
        self._process: BaseProcess | None = None
        self.starts_at = 0.0  # by time.monotonic(), while it is down
        self.paused = False
        self._stopped: list[psutil.Process] = []
        self.own_ends: list[tuple[int, int]] = []  # number of the life and exit code of those that nobody killed

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.is_alive()

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
        arguments = (self._command, self._environment, self.log(self._lives))
        self._process = FROM_WARM.Process(target=_live, args=arguments, name=self.name)
        self._process.start()

    def supervise(self) -> None:
        """Start it again if it is down and due; one that has ended by itself is due a moment later."""
        if self._process is not None and (code := self._process.exitcode) is not None:
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
            process.join()
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
        if self._process is not None:
            self._process.terminate()
        return self.ends()

    def ends(self) -> int | None:
        """Waits for its end. The exit code; None: it did not end in time, and was killed."""
        if self._process is None:
            return None
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is None:
            self.kill()
        return code


def left_behind(folder: Path) -> list[psutil.Process]:
    """Processes of a run, by their environment: also those that a killed supervisor has left."""
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_VARIABLE) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                orphans.append(process)
    return orphans


def semel(*arguments: str) -> list[str]:
    return ["semel.cli", *arguments]
