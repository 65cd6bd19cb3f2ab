"""A worker process: both ends of the pipe between the supervisor and the worker, and what outlives a worker's death.

The rules: a worker that dies is restarted, more slowly while it keeps dying; what it counted stays in the metrics; a
signal that reaches the supervisor and the worker at once, or twice, is one stop.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import StrEnum
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from semel.consumer import runtime_control
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.context import logger
from semel.consumer.run_report import Report
from semel.consumer.runtime import Runtime
from semel.errors import SemelError, Unavailable
from semel.signals import OnSignals
from semel.telemetry.worker_control import Action, Command, Refused

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MAX_RESTART_DELAY: Final = 30.0
STABLE_AFTER: Final = 60.0  # seconds after which a worker that dies does not count as one that keeps dying
REPLY_TIMEOUT: Final = 2.0
MAX_UNANSWERED: Final = 100  # requests; a worker that owes more replies gets no others, else the pipe would fill up


class Request(StrEnum):
    """What the supervisor asks of a worker, besides control commands."""

    HEALTH = "health"
    METRICS = "metrics"
    STATUS = "status"
    STOP_NOW = "stop now"


class RestartDelay:
    """Seconds from a worker's death to its restart: 0 at first, then 1, 2, 4 … up to 30 while it keeps dying."""

    def __init__(self) -> None:
        self._deaths = 0  # in a row, each within STABLE_AFTER of its start

    def after(self, lifetime: float) -> float:
        """The delay after a death; `lifetime`: seconds from its start to then."""
        self._deaths = 1 if lifetime >= STABLE_AFTER else self._deaths + 1
        return min(MAX_RESTART_DELAY, 2.0 ** (min(self._deaths, 10) - 2)) if self._deaths > 1 else 0.0


class MetricsHistory:
    """The metrics of one worker over all its processes. The counts of a process that has died stay in the sum: a
    counter that falls would look like a restart of the whole app. Takes the space of one process, however many die."""

    def __init__(self) -> None:
        self._ended: list[Metric] = []  # the sum of the counters of the processes that have died
        self._last: list[Metric] = []  # of the current one

    def families(self, reply: list[Metric] | None) -> list[Metric]:
        """`reply`: the current process's own; None if it did not reply."""
        from semel.telemetry import exposition

        self._last = self._last if reply is None else reply
        return exposition.merged([self._ended, exposition.without_gauges(self._last) if reply is None else reply])

    def process_died(self) -> None:
        self._ended, self._last = self.families(None), []


class CommandsInForce:
    """The control commands that a worker which starts now must carry out. Later ones replace earlier ones."""

    def __init__(self) -> None:
        self._commands: dict[tuple[bool, str | None], Command] = {}  # replaced, never changed: readers need no lock

    def add(self, command: Command) -> None:
        sets_concurrency = command.action is Action.CONCURRENCY  # else it pauses or resumes
        others = {
            (kind, queue): old
            for (kind, queue), old in self._commands.items()
            if kind is not sets_concurrency or command.queue not in (None, queue)  # None: of all queues
        }
        self._commands = {**others, (sets_concurrency, command.queue): command}

    def in_order(self) -> tuple[Command, ...]:
        return tuple(self._commands.values())


class WorkerProcess:
    """One worker, and the pipe to its current process.

    Requests and replies are numbered, so that a late reply is not mistaken for the reply to the next request. The last
    thing that a process sends is its report, without a number.
    """

    def __init__(self, number: int, options: RunOptions, commands: CommandsInForce) -> None:
        self.number = number
        self._options = options
        self._commands = commands
        self._lock = threading.Lock()  # of the pipe and all that is counted with it
        self._metrics = MetricsHistory()
        self._delay = RestartDelay()
        self._restart_at: float | None = None  # set while it is dead
        self._sent = self._replied = 0  # numbers of the last request and the last reply
        self._stops_sent = 0
        self.report: Report | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._started_at = time.monotonic()
        self._restart_at = None
        with self._lock:  # a command is either in force already, or comes over the pipe
            self._replied = self._sent
            self._pipe, child_pipe = context.Pipe()
            arguments = (self._options, self._commands.in_order(), child_pipe)
            self._process = context.Process(target=_work, args=arguments, name=f"semel-{self.number}")
            # A terminal sends Ctrl-C to all its processes. The supervisor forwards it, so a worker starts with SIGINT
            # blocked. The tracker is started first: its own start would unblock SIGINT.
            resource_tracker.ensure_running()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            child_pipe.close()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def poll(self, stops: int) -> bool:
        """Forward the stops that it has not had yet, read what it sent, restart it if it died. False: it has ended."""
        if self._process.is_alive():
            self._forward(stops)
            self._read_unrequested(wait_for_lock=False)
            return True
        self._read_unrequested(wait_for_lock=True)
        if stops or self.report is not None or self.exit_code == 0:
            return False
        now = time.monotonic()
        if self._restart_at is None:
            delay = self._delay.after(now - self._started_at)
            self._restart_at = now + delay
            logger.error("worker %d died (exit code %s): restarting it in %g s", self.number, self.exit_code, delay)
            with self._lock:
                self._metrics.process_died()
        if now >= self._restart_at:
            self._start()
        return True

    def _forward(self, stops: int) -> None:
        """The first stop is a SIGTERM, the second one goes over the pipe: a worker may get SIGTERM twice for one stop,
        from us and from whoever sent us ours, as systemd does to all processes of a service."""
        if stops and not self._stops_sent:
            self._stops_sent = 1
            self._process.terminate()
        elif stops > 1 and self._stops_sent == 1:
            self._stops_sent = 2
            self.request(Request.STOP_NOW)

    def request(self, request: Request | Command) -> Any:
        """The reply; None if there was none in time. The worker carries the request out all the same."""
        with self._lock:
            return self._request(request)

    def metrics(self) -> list[Metric]:
        with self._lock:
            return self._metrics.families(self._request(Request.METRICS))

    def _request(self, request: Request | Command) -> Any:
        if self._sent - self._replied >= MAX_UNANSWERED:
            return None
        self._sent += 1
        try:
            self._pipe.send((self._sent, request))
        except OSError:
            return None
        return self._read(until=self._sent, timeout=REPLY_TIMEOUT)

    def _read(self, *, until: int | None, timeout: float) -> Any:
        """Read what was sent, up to the reply with this number."""
        ends = time.monotonic() + timeout
        try:
            while self._pipe.poll(max(0.0, ends - time.monotonic())):
                number, content = self._pipe.recv()
                if number is None:
                    self.report = content
                    continue
                self._replied = number
                if number == until:
                    return content
        except (OSError, EOFError):
            pass
        return None

    def _read_unrequested(self, *, wait_for_lock: bool) -> None:
        """Read the report, and late replies that are in front of it."""
        if self._lock.acquire(blocking=wait_for_lock):
            try:
                self._read(until=None, timeout=0)
            finally:
                self._lock.release()


# In the worker's process.


def _work(options: RunOptions, commands: tuple[Command, ...], pipe: Connection) -> None:
    from semel.telemetry import logs

    signal.signal(signal.SIGINT, lambda _number, _frame: None)  # the supervisor forwards it as SIGTERM
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    logs.configure(options.log_format, options.log_level)
    lock = threading.Lock()  # of sending
    try:
        app = load_app(options)
        with ExitStack() as stack:
            runtime = app.prepare(
                stack,
                exit_when_empty=options.exit_when_empty,
                drain=options.drain,
                queues=options.queues,
                **options.handler_options,
            )
            OnSignals(runtime.stop_once, (signal.SIGTERM,)).listen()  # until this process has ended
            for command in commands:
                runtime_control.carry_out(runtime, command)
            threading.Thread(target=_reply_to_requests, args=(runtime, pipe, lock), daemon=True).start()
            report = runtime.run()
    except Unavailable as error:  # an outage passes: without a report, the supervisor starts this worker again
        logger.error("a worker could not start: %s", error)
        sys.exit(1)
    except SemelError as error:
        report = Report(error=error)
    with lock, suppress(OSError):  # the supervisor is gone: nobody waits for the report
        pipe.send((None, replace(report, error=SemelError(str(report.error)) if report.error else None)))


def _reply_to_requests(runtime: Runtime, pipe: Connection, lock: threading.Lock) -> None:
    while True:
        try:
            number, request = pipe.recv()
            reply = _reply(runtime, request)
            with lock:
                pipe.send((number, reply))
        except (OSError, EOFError):
            runtime.stop()  # the supervisor is gone
            return


def _reply(runtime: Runtime, request: Request | Command) -> Any:
    match request:
        case Request.HEALTH:
            return runtime.health()
        case Request.METRICS:
            return runtime.tools.metrics.families()
        case Request.STATUS:
            return runtime_control.view(runtime)
        case Request.STOP_NOW:
            runtime.stop_once()
            return runtime.stop()
        case Command():
            try:
                return runtime_control.carry_out(runtime, request)
            except Refused as error:
                return error
