"""An app in an executor: imported by its name, once per worker process, with its client and its ledger.

The rule: an executor runs the app as the driver would. So each task carries the folder that the driver was started
in, the environment variables that configure handlers, and the options of the command line. It carries no tokens: an
executor serves nothing. Connections are opened here, and kept for the next task.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from semel.consumer.app import App
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.handler import Handler
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.consumer.settings import OPTIONS, Settings
from semel.errors import SemelError
from semel.ledger.contract import Ledger, LedgerError
from semel.sqs import Client, Queue
from semel.telemetry import logs

_log: Final = logging.getLogger("semel.spark")
PURGE_EVERY: Final = 60.0
# The variables of the driver's environment that an executor needs.
VARIABLES: Final = (
    "SEMEL_LEDGER",
    "SEMEL_ATTEMPT_LOG",
    *(f"SEMEL_{name.upper()}" for name, option in OPTIONS.items() if option.environment),
)


@dataclass(frozen=True, slots=True)
class AppReference:
    """Where and how an app is run; a value that is sent to the executors."""

    app: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    ledger: str | None = field(default=None, repr=False)  # it may hold a password, and so may SEMEL_LEDGER
    attempt_log: str | None = None
    folder: str = ""
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    options: tuple[tuple[str, Any], ...] = ()
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: str = "info"

    @classmethod
    def here(cls, app: str, **fields: Any) -> AppReference:
        """The app as this process would run it."""
        variables = tuple((name, os.environ[name]) for name in VARIABLES if name in os.environ)
        return cls(app, folder=os.getcwd(), variables=variables, **fields)

    def run_options(self) -> RunOptions:
        return RunOptions(
            self.app,
            endpoint_url=self.endpoint_url,
            region=self.region,
            profile=self.profile,
            ledger=self.ledger,
            attempt_log=self.attempt_log,
        )


def queues_of(app: str) -> tuple[str, ...]:
    """The queues that the app has handlers for, as the app names them. The app is imported in this process."""
    return tuple(load_app(RunOptions(app)).handlers)


@dataclass(frozen=True, slots=True)
class Parts:
    """What is needed to consume a queue, besides the rows and tools of one task."""

    handler: Handler
    settings: Settings
    queue: Queue
    dead_letters: Queue | None
    attributes: dict[str, str]


class LoadedApp:
    """The app in one worker process. Spark gives a worker one task at a time."""

    def __init__(self, reference: AppReference) -> None:
        self.reference = reference
        self.app = self._imported()
        self.client: Client = self.app.client()
        self.ledger: Ledger = self.app.ledger(ExitStack())  # closed with the process
        self._parts: dict[str, Parts] = {}
        self._purged = time.monotonic()

    def _imported(self) -> App:
        reference = self.reference
        os.environ.update(reference.variables)
        if os.path.isdir(reference.folder):  # it exists on this machine: the app's relative paths start there
            os.chdir(reference.folder)
            if reference.folder not in sys.path:
                sys.path.insert(0, reference.folder)
        try:
            return load_app(reference.run_options())
        except SemelError as error:
            raise SemelError(
                f"{error}; on the executors ({os.getcwd()}). The app's modules must be importable there: install them, "
                "or hand them over with spark.submit.pyFiles"
            ) from error

    def parts(self, name: str) -> Parts:
        """The parts for the queue with this name."""
        if name not in self._parts:
            self._parts[name] = self._looked_up(name)
        return self._parts[name]

    def _looked_up(self, name: str) -> Parts:
        for reference in self.app.handlers:
            if self.client.queue(reference).name == name:
                (setup,) = self.app.queue_setups(
                    self.client, self.ledger, Tools(), only={reference}, **dict(self.reference.options)
                )
                return Parts(setup.handler, setup.settings, setup.queue, setup.dead_letters, setup.queue.attributes())
        handled = ", ".join(sorted(self.app.handlers))
        raise SemelError(f"{self.reference.app} has no handler for the queue {name!r}; it has {handled}")

    def setup(self, parts: Parts, queue: object, tools: Tools) -> QueueSetup:
        """Without `delete_linger`: deletes of rows in memory need not wait until they fill a call."""
        rows, dead_letters = cast(Queue, queue), parts.dead_letters
        return QueueSetup(parts.handler, parts.settings, rows, dead_letters, self.ledger, tools, delete_linger=0.0)

    def purge(self) -> None:
        """Removes expired entries from the ledger, at most every `PURGE_EVERY` seconds."""
        if time.monotonic() - self._purged > PURGE_EVERY:
            self._purged = time.monotonic()
            try:
                self.ledger.purge()
            except LedgerError as error:
                _log.warning("cleaning up the ledger failed: %s", error)


_loaded: dict[AppReference, LoadedApp] = {}
_loading = threading.Lock()


def loaded(reference: AppReference) -> LoadedApp:
    with _loading:
        if reference not in _loaded:
            _loaded[reference] = LoadedApp(reference)
        return _loaded[reference]


def configure_logs(reference: AppReference) -> None:
    """Sets logs up as `semel run` does, in a worker process of Spark, whose standard error is the executor's."""
    if reference not in _loaded:
        logs.configure(reference.log_format, reference.log_level)
