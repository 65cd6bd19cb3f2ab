"""`semel run`: an app in this process, or in several worker processes under a supervisor.

Workers share nothing but the queues and the ledger. The supervisor restarts a worker that dies, forwards signals and
control commands, and merges health, metrics and reports. A restarted worker begins with the commands that are in force.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from semel import signals
from semel.consumer import preflight, runtime_control
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.context import logger
from semel.consumer.run_report import Report
from semel.consumer.worker_process import CommandsInForce, Request, WorkerProcess
from semel.errors import SemelError
from semel.telemetry import endpoint
from semel.telemetry.health_server import Health
from semel.telemetry.worker_control import Action, Command, Identity, Refused, done, page

POLL_EVERY: Final = 0.05

T = TypeVar("T")


def run(options: RunOptions) -> Report:
    if options.processes > 1:
        report = Supervisor(options).run()
        logger.info("stopped, %s", report)
        return report
    return load_app(options).run(
        exit_when_empty=options.exit_when_empty,
        health=options.health,
        control_token=options.control_token,
        name=options.app,
        drain=options.drain,
        create_dlq=options.create_dlq,
        queues=options.queues,
        **options.handler_options,
    )


class Supervisor:
    """Runs the worker processes until all have ended."""

    def __init__(self, options: RunOptions) -> None:
        app = load_app(options)  # whatever is wrong with the app is raised here, once
        with ExitStack() as stack:
            ledger = app.ledger(stack)
            preflight.check_ledger_is_shared(ledger)
            self._setups = app.queue_setups(  # to know the queues and their settings: only the workers receive
                app.client(),
                ledger,
                app.tools(stack),
                create_dlq=options.create_dlq,
                only=options.queues,
                **options.handler_options,
            )
            app.announce(self._setups, ledger, app.client(), f"{options.app} in {options.processes} processes")
        self._options = options
        self._identity = Identity.new(options.app)
        self._stops = 0  # how often we were asked to stop; the second time means at once
        self._workers: list[WorkerProcess] = []
        self._commands = CommandsInForce()
        self._command_lock = threading.Lock()  # so that all workers get commands in the same order

    def run(self) -> Report:
        # The handler only counts: it may run while a worker is being started, which would then miss the signal.
        handlers = {number: signal.signal(number, self._count_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with ExitStack() as stack:
                self._serve_health(stack)  # first: its port may be taken
                options = replace(self._options, health=None, control_token=None, processes=1)
                for number in range(self._options.processes):
                    with self._command_lock:  # a command is in force before a worker starts, or is sent to it after
                        self._workers.append(WorkerProcess(number, options, self._commands))
                running = self._workers
                while running := [worker for worker in running if worker.poll(self._stops)]:
                    time.sleep(POLL_EVERY)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self._report()

    def _count_stop(self, number: int, _frame: object) -> None:
        signals.received.add(number)
        self._stops += 1

    def _report(self) -> Report:
        reports = []
        for worker in self._workers:
            if worker.report is not None:
                reports.append(worker.report)
            elif not self._stops or worker.exit_code != -signal.SIGTERM:
                error = SemelError(f"worker {worker.number} ended without a report (exit code {worker.exit_code})")
                reports.append(Report(error=error))
            # Otherwise SIGTERM came before it had begun: it has nothing to report.
        return Report.sum(reports)

    def _serve_health(self, stack: ExitStack) -> None:
        if self._options.health is not None:
            endpoint.serve(
                stack,
                self._options.health,
                self._identity,
                [setup.name for setup in self._setups],
                health=self._health,
                metrics=self._metrics,
                control=self,
                token=self._options.control_token,
                processes=self._options.processes,
            )

    def _health(self) -> Health:
        replies = [reply for reply in self._request_all(Request.HEALTH) if isinstance(reply, Health)]
        return Health(
            live=len(replies) == self._options.processes and all(health.live for health in replies),
            ready=any(health.ready for health in replies),
            details={"workers": [health.details for health in replies], "alive": len(replies)},
        )

    def _metrics(self) -> str:
        from semel.telemetry import exposition

        return exposition.text(exposition.merged(self._ask_all(WorkerProcess.metrics)))

    # Control: see semel.telemetry.worker_control.

    def workers(self) -> dict[str, Any]:
        return page(self._identity, self._status())

    def do(self, command: Command) -> dict[str, Any]:
        with self._command_lock:
            names = runtime_control.check(command, self._setups)
            if command.action is Action.STOP:
                self._stops += 1  # as a signal would
            elif self._stops:
                raise Refused("the worker is stopping: there is nothing left to change", 409)
            else:
                self._commands.add(command)
                self._request_all(command)
            answer = done(command, names, self._status())
        logger.info("control command: %s", answer["done"])
        return answer

    def _status(self) -> list[dict[str, Any]]:
        return [reply for reply in self._request_all(Request.STATUS) if isinstance(reply, dict)]

    def _request_all(self, request: Request | Command) -> list[Any]:
        return self._ask_all(lambda worker: worker.request(request))

    def _ask_all(self, ask: Callable[[WorkerProcess], T]) -> list[T]:
        """In parallel: a worker that is slow to reply does not delay the others."""
        with ThreadPoolExecutor(self._options.processes, "semel-ask") as pool:
            return list(pool.map(ask, self._workers))
