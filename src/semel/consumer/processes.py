"""An app by its name, in this process or in several: the parent starts workers, passes signals and commands on, and
adds up.

Workers share nothing but the queue and the ledger. One that dies is started again; its messages come back when their
visibility ends, and the ledger knows how far they were. What an operator told the others, it begins with.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, Literal

from semel.consumer import control
from semel.consumer.app import App
from semel.consumer.context import logger
from semel.consumer.runtime import Report, Runtime
from semel.errors import SemelError
from semel.signals import OnSignals
from semel.telemetry import endpoint
from semel.telemetry.control import Action, Command, Identity, Refused, done, page
from semel.telemetry.health_server import Health

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LONGEST_PAUSE: Final = 30.0  # between two starts of a worker that keeps dying
PATIENCE: Final = 2.0  # seconds for a worker to answer
MOST_UNANSWERED: Final = 100  # questions that a worker may owe an answer to; it gets no more, the pipe would fill up


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `semel run` was asked for."""

    app: str
    endpoint_url: str | None = None
    queues: tuple[str, ...] | None = None
    region: str | None = None
    profile: str | None = None
    processes: int = 1
    burst: bool = False
    drain: str | float | None = None
    create_dlq: bool = False
    health: str | None = None
    control_token: str | None = field(default=None, repr=False)
    attempt_log: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: str = "info"


class NotFound(SemelError):
    """There is no such module, app or handler."""


def load(name: str) -> App:
    """The app that `module:attribute` names; the current folder is looked in first."""
    module_name, separator, attribute = name.partition(":")
    if not separator or not attribute:
        raise NotFound(f"{name!r} does not name an app: write it as module:app, for example shop:app")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise NotFound(f"there is no module {module_name!r} here ({os.getcwd()})") from None
        raise SemelError(f"the module {module_name!r} cannot be imported: {error}") from None
    except SemelError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise SemelError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise NotFound(f"{name!r} is not an App: {'there is no such name' if app is None else type(app).__name__}")
    return app


def run(wanted: Wanted) -> Report:
    if wanted.processes == 1:
        return prepared(wanted).run(
            burst=wanted.burst,
            health=wanted.health,
            control_token=wanted.control_token,
            name=wanted.app,
            drain=wanted.drain,
            create_dlq=wanted.create_dlq,
            queues=chosen(wanted),
            **wanted.options,
        )
    report = _Parent(wanted).run()
    logger.info("stopped, %s", report)
    return report


def prepared(wanted: Wanted) -> App:
    app = load(wanted.app)
    if wanted.endpoint_url or wanted.region or wanted.profile:
        app.connect_to(wanted.endpoint_url, wanted.region, wanted.profile)
    if wanted.attempt_log:
        app.log_to(wanted.attempt_log)
    for queue in wanted.queues or ():
        if queue not in app.handlers:
            raise NotFound(f"{wanted.app} has no handler for {queue!r}; it has {', '.join(sorted(app.handlers))}")
    return app


def chosen(wanted: Wanted) -> dict[str, None] | None:
    return None if wanted.queues is None else dict.fromkeys(wanted.queues)


class _Wishes:
    """What was told to all workers, for those that are started later. The last word on a queue counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: dict[tuple[bool, str | None], Command] = {}

    def add(self, command: Command) -> None:
        about = command.action is Action.CONCURRENCY
        with self._lock:
            if command.queue is None:  # what was said of single queues is over
                self._commands = {known: old for known, old in self._commands.items() if known[0] is not about}
            self._commands.pop((about, command.queue), None)
            self._commands[about, command.queue] = command

    def all(self) -> tuple[Command, ...]:
        """In the order to carry them out."""
        with self._lock:
            return tuple(self._commands.values())


class _Worker:
    """One child. Over its pipe it is asked and told, and at its end it says what it came to.

    A question has a number, and its answer too: an answer that came too late is not taken for that to the next one."""

    def __init__(self, wanted: Wanted, place: int, wishes: _Wishes) -> None:
        self.place = place
        self._wanted = wanted
        self._wishes = wishes
        self._asked = self._answered = 0
        self.starts = 0
        self.started_at = 0.0
        self._lock = threading.Lock()
        self._pipe: Connection | None = None
        self.report: Report | None = None
        self.last_metrics: list[Metric] = []

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.starts += 1
        self.signals = 0  # those it was sent
        self.last_metrics = []
        self.started_at = time.monotonic()
        with self._lock:  # a command is either among its wishes, or comes over its own pipe
            self._answered = self._asked
            self._pipe, theirs = context.Pipe()
            given = (self._wanted, self._wishes.all(), theirs)
            self.process = context.Process(target=_work, args=given, name=f"semel-{self.place}")
            # Ctrl-C goes to all processes of a terminal. A worker hears of it from us, also while it is starting: it
            # begins with SIGINT blocked. One that comes meanwhile reaches us right after.
            resource_tracker.ensure_running()  # first: where it starts that process, it lets SIGINT through again
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self.process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def ask(self, question: str | Command) -> Any:
        """Its answer; None if there was none in time. A command that it has not answered is still carried out."""
        with self._lock:
            if self._pipe is None or self._asked - self._answered >= MOST_UNANSWERED:
                return None
            self._asked += 1
            try:
                self._pipe.send((self._asked, question))
            except OSError:
                return None
            return self._read(self._pipe, self._asked, PATIENCE)

    def _read(self, pipe: Connection, wanted: int, patience: float) -> Any:
        """What has come, up to the answer that is wanted."""
        ends = time.monotonic() + patience
        try:
            while pipe.poll(max(0.0, ends - time.monotonic())):
                number, answer = pipe.recv()
                if number is None:
                    self.report = answer
                    continue
                self._answered = number
                if number == wanted:
                    return answer
        except (OSError, EOFError):
            pass
        return None

    def collect(self, *, ended: bool) -> None:
        """Read what nobody waits for: its last word, and answers that came too late and are in the way of it."""
        if self._lock.acquire(blocking=ended):
            try:
                if self._pipe is not None:
                    self._read(self._pipe, 0, 0)
            finally:
                self._lock.release()


class _Parent:
    def __init__(self, wanted: Wanted) -> None:
        app = prepared(wanted)  # whatever is wrong is said once, here
        with ExitStack() as stack:
            ledger = app.ledger(stack)
            lanes = app.lanes(
                app.client(),
                ledger,
                app.tools(stack),
                create_dlq=wanted.create_dlq,
                only=chosen(wanted),
                **wanted.options,
            )
            app.announce(lanes, ledger, app.client(), f"{wanted.app} in {wanted.processes} processes")
        self._lanes = lanes  # only to know what there is: they are worked on by the workers
        self._wanted = wanted
        self._wishes = _Wishes()
        self._telling = threading.Lock()  # one command at a time, so that all workers hear them in the same order
        self._identity = Identity.new(wanted.app)
        quiet = replace(wanted, health=None, control_token=None, processes=1)
        self._workers = [_Worker(quiet, place, self._wishes) for place in range(wanted.processes)]
        self._signals = 0  # how often we were asked to stop
        self._ended: list[Metric] = []  # what was counted by workers that have died

    def run(self) -> Report:
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with ExitStack() as stack:
                self._serve_health(stack)  # first: it may not find its port
                for worker in self._workers:
                    worker.start()
                self._watch()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._added_up()

    def _signalled(self, _number: int, _frame: object) -> None:
        # Passed on by `_watch`: a handler may run while a worker is half-way started, and would miss it.
        self._signals += 1

    def _pass_on(self, worker: _Worker) -> None:
        """Tell a worker to stop, and to stop at once if we were told twice. That goes over its pipe: a second SIGTERM
        may come from whoever sent us ours, as systemd does to all processes of a service."""
        if self._signals and not worker.signals and worker.process.pid:
            worker.signals = 1
            os.kill(worker.process.pid, signal.SIGTERM)
        elif self._signals > 1 and worker.signals == 1:
            worker.signals = 2
            worker.ask("stop now")

    def _watch(self) -> None:
        """Until all have ended: restart those that died, more slowly the more often they do."""
        while True:
            alive = 0
            for worker in self._workers:
                if worker.process.is_alive():
                    alive += 1
                    self._pass_on(worker)
                    worker.collect(ended=False)
                    continue
                worker.collect(ended=True)
                died = worker.report is None and worker.process.exitcode not in (0, None)
                if died and not self._signals:
                    alive += 1
                    pause = min(LONGEST_PAUSE, 0.5 * 2 ** min(worker.starts, 10)) if worker.starts > 1 else 0.0
                    if time.monotonic() - worker.started_at >= pause:
                        logger.error("worker %d died (%s): starting it again", worker.place, worker.process.exitcode)
                        self._keep_counts(worker)
                        worker.start()
            if not alive:
                return
            time.sleep(0.05)

    def _keep_counts(self, worker: _Worker) -> None:
        """Of one that died: they stay in the sum, because a counter that falls would be taken for a restart of all."""
        if worker.last_metrics:
            from semel.telemetry import exposition

            self._ended = exposition.merged([self._ended, exposition.without_gauges(worker.last_metrics)])

    def _serve_health(self, stack: ExitStack) -> None:
        if self._wanted.health is not None:
            endpoint.serve(
                stack,
                self._wanted.health,
                self._identity,
                [lane.name for lane in self._lanes],
                health=self._health,
                metrics=self._metrics,
                control=self,
                token=self._wanted.control_token,
                processes=self._wanted.processes,
            )

    def _health(self) -> Health:
        found = [answer for answer in self._ask_all("health") if isinstance(answer, Health)]
        details = {"workers": [health.details for health in found], "alive": len(found)}
        return Health(
            live=len(found) == len(self._workers) and all(health.live for health in found),
            ready=any(health.ready for health in found),
            details=details,
        )

    def _metrics(self) -> str:
        from semel.telemetry import exposition

        processes = [self._ended]
        for worker, answer in zip(self._workers, self._ask_all("metrics"), strict=True):
            if isinstance(answer, list):
                worker.last_metrics = answer
                processes.append(answer)
        return exposition.text(exposition.merged(processes))

    # Control.

    def workers(self) -> dict[str, Any]:
        return page(self._identity, self._views())

    def _views(self) -> list[dict[str, Any]]:
        return [answer for answer in self._ask_all("view") if isinstance(answer, dict)]

    def do(self, command: Command) -> dict[str, Any]:
        with self._telling:
            names = control.check(command, self._lanes)
            if command.action is Action.STOP:
                self._signals += 1  # passed on as if it had been a signal to us
            elif self._signals:
                raise Refused("the worker is stopping: there is nothing left to change", 409)
            else:
                self._wishes.add(command)
                self._ask_all(command)
            answer = done(command, names, self._views())
        logger.info("operator command: %s", answer["done"])
        return answer

    def _ask_all(self, question: str | Command) -> list[Any]:
        """Side by side: one that is slow to answer does not keep the others waiting."""
        with ThreadPoolExecutor(len(self._workers), "semel-ask") as pool:
            return list(pool.map(lambda worker: worker.ask(question), self._workers))

    def _added_up(self) -> Report:
        reports = []
        for worker in self._workers:
            if worker.report is not None:
                reports.append(worker.report)
            elif not self._signals or worker.process.exitcode != -signal.SIGTERM:
                error = SemelError(f"worker {worker.place} ended with {worker.process.exitcode}, without a word")
                reports.append(Report(error=error))
            # Otherwise it was told to stop before it had begun, by us or by whoever told us: it had nothing in hand.
        return Report.sum(reports)


def _work(wanted: Wanted, wishes: tuple[Command, ...], pipe: Connection) -> None:
    """A worker process."""
    from semel.telemetry import logs

    signal.signal(signal.SIGINT, lambda _number, _frame: None)  # the parent passes it on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    logs.configure(wanted.log_format, wanted.log_level)
    sending = threading.Lock()
    try:
        app = prepared(wanted)
        with ExitStack() as stack:
            runtime = app.prepare(
                stack, burst=wanted.burst, drain=wanted.drain, queues=chosen(wanted), **wanted.options
            )
            OnSignals(runtime.stop_once, (signal.SIGTERM,)).listen()  # until this process has ended
            for command in wishes:
                control.carry_out(runtime, command)
            threading.Thread(target=_answer, args=(runtime, pipe, sending), daemon=True).start()
            report = runtime.run()
    except SemelError as error:
        report = Report(error=error)
    with sending:
        pipe.send((None, replace(report, error=SemelError(str(report.error)) if report.error else None)))


def _answer(runtime: Runtime, pipe: Connection, sending: threading.Lock) -> None:
    while True:
        try:
            number, question = pipe.recv()
            answer = _answer_to(runtime, question)
            with sending:
                pipe.send((number, answer))
        except (OSError, EOFError):
            runtime.stop()  # the parent is gone
            return


def _answer_to(runtime: Runtime, question: str | Command) -> Any:
    if isinstance(question, Command):
        try:
            return control.carry_out(runtime, question)
        except Refused as error:
            return error
    if question == "view":
        return control.view(runtime)
    if question == "stop now":
        runtime.stop_once()
        return runtime.stop()
    return runtime.health() if question == "health" else runtime.tools.metrics.families()
