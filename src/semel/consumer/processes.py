"""An app by its name, in this process or in several: the parent starts workers, passes signals on, and adds up.

Workers share nothing but the queue and the ledger. One that dies is started again; its messages come back when their
visibility ends, and the ledger knows how far they were.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Final

from semel.consumer.app import App
from semel.consumer.context import logger
from semel.consumer.health import Health, HealthServer
from semel.consumer.metrics import merge_texts, without_gauges
from semel.consumer.runtime import Report, Runtime
from semel.errors import SemelError

LONGEST_PAUSE: Final = 30.0  # between two starts of a worker that keeps dying


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `semel run` was asked for."""

    app: str
    endpoint_url: str | None = None
    queues: tuple[str, ...] | None = None
    processes: int = 1
    burst: bool = False
    drain: str | float | None = None
    create_dlq: bool = False
    health: str | None = None
    attempt_log: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def load(name: str) -> App:
    """The app that `module:attribute` names; the current folder is looked in first."""
    module_name, separator, attribute = name.partition(":")
    if not separator or not attribute:
        raise SemelError(f"{name!r} does not name an app: write it as module:app, for example shop:app")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise SemelError(f"there is no module {module_name!r} here ({os.getcwd()})") from None
        raise SemelError(f"the module {module_name!r} cannot be imported: {error}") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise SemelError(f"{name!r} is not an App: {'there is no such name' if app is None else type(app).__name__}")
    return app


def run(wanted: Wanted) -> Report:
    if wanted.processes < 1:
        raise SemelError(f"--processes {wanted.processes} is not possible: 1 is the least")
    if wanted.processes == 1:
        return prepared(wanted).run(
            burst=wanted.burst,
            health=wanted.health,
            drain=wanted.drain,
            create_dlq=wanted.create_dlq,
            queues=chosen(wanted),
            **wanted.options,
        )
    return _Parent(wanted).run()


def prepared(wanted: Wanted) -> App:
    app = load(wanted.app)
    if wanted.endpoint_url:
        app.connect_to(wanted.endpoint_url)
    if wanted.attempt_log:
        app.log_to(wanted.attempt_log)
    for queue in wanted.queues or ():
        if queue not in app.handlers:
            raise SemelError(f"{wanted.app} has no handler for {queue!r}; it has {', '.join(sorted(app.handlers))}")
    return app


def chosen(wanted: Wanted) -> dict[str, None] | None:
    return None if wanted.queues is None else dict.fromkeys(wanted.queues)


class _Worker:
    """One child. Over its pipe it is asked for health and metrics, and at its end it says what it came to."""

    def __init__(self, wanted: Wanted, place: int) -> None:
        self.place = place
        self._wanted = wanted
        self.starts = 0
        self.started_at = 0.0
        self._lock = threading.Lock()
        self.report: Report | None = None
        self.last_metrics = ""
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.starts += 1
        self.signals = 0  # those it was sent
        self.last_metrics = ""
        self.started_at = time.monotonic()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(self._wanted, theirs), name=f"semel-{self.place}")
        self.process.start()
        theirs.close()

    def ask(self, question: str) -> Any:
        with self._lock:
            try:
                self._pipe.send(question)
                while self._pipe.poll(2.0):
                    kind, answer = self._pipe.recv()
                    if kind == "report":
                        self.report = answer
                    elif kind == question:
                        return answer
            except (OSError, EOFError):
                pass
        return None

    def collect(self) -> None:
        """Read the last word of a worker that has ended."""
        with self._lock:
            try:
                while self._pipe.poll(0):
                    kind, answer = self._pipe.recv()
                    if kind == "report":
                        self.report = answer
            except (OSError, EOFError):
                pass


class _Parent:
    def __init__(self, wanted: Wanted) -> None:
        app = prepared(wanted)  # whatever is wrong is said once, here
        with ExitStack() as stack:
            ledger = app.ledger(stack)
            app.lanes(app.client(), ledger, app.tools(stack), create_dlq=wanted.create_dlq, **wanted.options)
        self._wanted = wanted
        self._signals = 0  # how often we were asked to stop
        self._ended: list[str] = []  # what was counted by workers that have died

    def run(self) -> Report:
        quiet = replace(self._wanted, health=None, processes=1)
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        server = None
        try:
            self._workers = [_Worker(quiet, place) for place in range(self._wanted.processes)]
            server = self._serve_health()
            self._watch()
        finally:
            if server is not None:
                server.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._added_up()

    def _signalled(self, _number: int, _frame: object) -> None:
        # Passed on by `_watch`: a handler may run while a worker is half-way started, and would miss it.
        self._signals += 1

    def _pass_on(self, worker: _Worker) -> None:
        """Tell a worker to stop, once for each time that we were told: the second time means at once."""
        while worker.signals < self._signals and worker.process.pid:
            worker.signals += 1
            os.kill(worker.process.pid, signal.SIGTERM)

    def _watch(self) -> None:
        """Until all have ended: restart those that died, more slowly the more often they do."""
        while True:
            alive = 0
            for worker in self._workers:
                if worker.process.is_alive():
                    alive += 1
                    self._pass_on(worker)
                    continue
                worker.collect()
                died = worker.report is None and worker.process.exitcode not in (0, None)
                if died and not self._signals:
                    alive += 1
                    pause = min(LONGEST_PAUSE, 0.5 * 2 ** min(worker.starts, 10)) if worker.starts > 1 else 0.0
                    if time.monotonic() - worker.started_at >= pause:
                        logger.error("worker %d died (%s): starting it again", worker.place, worker.process.exitcode)
                        if worker.last_metrics:
                            # Its counts stay in the sum: a counter that falls would be taken for a restart of all.
                            self._ended.append(without_gauges(worker.last_metrics))
                        worker.start()
            if not alive:
                return
            time.sleep(0.05)

    def _serve_health(self) -> HealthServer | None:
        if self._wanted.health is None:
            return None
        host, _, port = self._wanted.health.rpartition(":")
        return HealthServer(host or "127.0.0.1", int(port), health=self._health, metrics=self._metrics)

    def _health(self) -> Health:
        answers = [worker.ask("health") for worker in self._workers]
        found = [answer for answer in answers if isinstance(answer, Health)]
        details = {"workers": [health.details for health in found], "alive": len(found)}
        return Health(
            live=len(found) == len(self._workers) and all(health.live for health in found),
            ready=any(health.ready for health in found),
            details=details,
        )

    def _metrics(self) -> str:
        texts = list(self._ended)
        for worker in self._workers:
            answer = worker.ask("metrics")
            if isinstance(answer, str):
                worker.last_metrics = answer
                texts.append(answer)
        return merge_texts(texts)

    def _added_up(self) -> Report:
        completed, left, errors = 0, dict[str, int](), []
        for worker in self._workers:
            report = worker.report
            if report is None:
                if worker.signals and worker.process.exitcode == -signal.SIGTERM:
                    continue  # told to stop before it had begun: it had nothing in hand
                errors.append(SemelError(f"worker {worker.place} ended with {worker.process.exitcode}, without a word"))
                continue
            completed += report.completed
            for name, count in report.left.items():
                left[name] = left.get(name, 0) + count
            if report.error is not None:
                errors.append(SemelError(str(report.error)))
        return Report(completed, left, errors[0] if errors else None)


def _work(wanted: Wanted, pipe: Connection) -> None:
    """A worker process."""
    from semel.consumer import logs

    logs.configure()
    try:
        app = prepared(wanted)
        with ExitStack() as stack:
            runtime = app.prepare(
                stack, burst=wanted.burst, drain=wanted.drain, queues=chosen(wanted), **wanted.options
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda _number, _frame: runtime.stop())
            threading.Thread(target=_answer, args=(runtime, pipe), daemon=True).start()
            report = runtime.run()
    except SemelError as error:
        report = Report(error=error)
    pipe.send(("report", replace(report, error=SemelError(str(report.error)) if report.error else None)))


def _answer(runtime: Runtime, pipe: Connection) -> None:
    while True:
        try:
            question = pipe.recv()
            pipe.send((question, runtime.health() if question == "health" else runtime.tools.metrics.text()))
        except (OSError, EOFError):
            runtime.stop()  # the parent is gone
            return
