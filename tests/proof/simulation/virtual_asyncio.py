"""The part of asyncio that the consumer uses, in virtual time: it runs the async handlers of simulated workers.

A coroutine runs in the simulator's task that called `run`. It may await pauses, and the end of work on another thread.
As on a real event loop, a cancel reaches it later than it was requested, at a point where the coroutine awaits.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from greenlet import getcurrent, greenlet

from semel.consumer import handler_caller, worker
from semel.user_exceptions import Killed
from simulation.simulator import Process, Simulator

UNTIL_WOKEN: Final = float("inf")


class Pause:
    """`await Pause(3)` takes three seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[float, None, None]:
        yield self.seconds


class VirtualTask:
    """A coroutine and what asyncio knows about it."""

    def __init__(self, simulator: Simulator, coroutine: Coroutine[float, None, Any]) -> None:
        self.process = simulator.task.process
        self._simulator, self._task = simulator, simulator.task
        self._coroutine = coroutine
        self._awaits = self._is_cancelled = self._has_ended = False

    def run(self) -> Any:
        coroutine = self._coroutine
        try:
            seconds = coroutine.send(None)
            while True:
                self._wait(seconds)
                if self._is_cancelled:
                    self._is_cancelled = False
                    seconds = coroutine.throw(CancelledError())
                else:
                    seconds = coroutine.send(None)
        except StopIteration as end:
            return end.value
        finally:
            self._has_ended = True

    def _wait(self, seconds: float) -> None:
        self._awaits = True
        try:
            if seconds == UNTIL_WOKEN:
                self._simulator.sleep_until_woken()
            else:
                self._simulator.sleep(seconds)
        except Killed as killed:
            self._coroutine.throw(killed)
            raise
        finally:
            self._awaits = False

    def cancel(self) -> None:
        if not self._has_ended:
            self._is_cancelled = True
            self.wake()

    def wake(self) -> None:
        if self._awaits:
            self._simulator.wake(self._task)


class VirtualLoop:
    def __init__(self, process: Process) -> None:
        self._process = process

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self._process.spawn("loop", callback)  # type: ignore[arg-type]


class VirtualAsyncio:
    """Replaces the module `asyncio`."""

    CancelledError = CancelledError

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._tasks: dict[greenlet, VirtualTask] = {}

    def run(self, coroutine: Coroutine[float, None, Any]) -> Any:
        caller = getcurrent()
        task = self._tasks[caller] = VirtualTask(self._simulator, coroutine)
        try:
            return task.run()
        finally:
            del self._tasks[caller]

    def current_task(self) -> VirtualTask:
        return self._tasks[getcurrent()]

    def get_running_loop(self) -> VirtualLoop:
        return VirtualLoop(self.current_task().process)

    async def to_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        task = self.current_task()
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(function(*arguments))
            except Exception as error:  # noqa: BLE001 - raised in the coroutine
                future.set_exception(error)
            task.wake()

        task.process.spawn("thread", work)
        while not future.done():
            await Pause(UNTIL_WOKEN)
        return future.result()

    def cancel_all(self, process: Process) -> None:
        for task in list(self._tasks.values()):
            if task.process is process:
                task.cancel()


@contextmanager
def in_virtual_time(virtual: VirtualAsyncio) -> Iterator[None]:
    """Patch the consumer's modules so that they use it as `asyncio`."""
    with patch.object(worker, "asyncio", virtual), patch.object(handler_caller, "asyncio", virtual):
        yield
