"""The worker stage: threads that take what the scheduler gives them and call the handler.

A handler of single messages is called by as many threads as it needs, up to the concurrency. A handler that returns
within 0.1 ms needs one thread: more would only compete for Python's lock. A second thread then stands by, and takes
over when a call lasts longer than a few milliseconds, so that no message waits behind a slow one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final

from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.handler_caller import HandlerCaller
from semel.consumer.in_flight import InFlight
from semel.consumer.scheduler import Scheduler
from semel.consumer.stage import IDLE, Threads

FAST: Final = 0.0001  # seconds
STALE: Final = 0.003  # seconds after which a waiting thread takes over from one whose handler has not returned
VOTES: Final = 20  # the highest count of slow calls, which fast calls bring down again


class Worker:
    role = "work"

    def __init__(
        self,
        in_flight: InFlight,
        threads: Threads,
        scheduler: Scheduler,
        caller: HandlerCaller,
        *,
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
        on_fatal: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        """`loop`: where async handlers run."""
        self._setup = in_flight.setup
        self._handler = in_flight.setup.handler
        self._in_flight = in_flight
        self._threads = threads
        self._scheduler = scheduler
        self._caller = caller
        self._loop = loop
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self._count = 0  # threads
        self._active = 0  # of those, the ones that have a message
        self._standby = False  # whether a thread stands by, to take over from a call that lasts too long
        self._last_start = 0.0
        self._slow_votes = 0
        self._collecting = threading.Lock()
        self._started = False
        self._tasks: set[asyncio.Task[None]] = set()
        scheduler.on_put = self._is_wanted

    @property
    def calls_on_loop(self) -> bool:
        return self._handler.is_async and not self._handler.is_batch

    # Without threads.

    def run_once(self) -> bool:
        """Handle what a thread would take next. False: nothing can start now."""
        with self._scheduler.changed:
            chunk = self._scheduler.take(self._setup.settings.size if self._handler.is_batch else 1)
        if chunk:
            if self._handler.is_batch:
                self._caller.handle_batch(chunk)
            elif self._handler.is_async:
                asyncio.run(self._caller.handle_async(chunk[0]))
            else:
                self._caller.handle(chunk[0])
        return bool(chunk)

    # On threads.

    def start(self) -> None:
        self._started = True
        self.fit()

    def fit(self) -> None:
        """Start as many threads as batches may be handled at a time. For single messages start one thread that waits,
        which adds others."""
        if not self._started:
            return
        if self.calls_on_loop:
            run, wanted = self._start_tasks, 1
        elif self._handler.is_batch:
            run, wanted = self._run_batches, 1 if self._setup.fifo else self._in_flight.concurrency
        else:
            run, wanted = self._run, 1
        while True:
            with self._lock:
                if self._count >= wanted:
                    break
                self._count += 1
            self._threads.spawn("start" if self.calls_on_loop else self.role, run)
        if run == self._run and not self._scheduler.waiting:
            self._add_thread()
        self._scheduler.wake_all()

    def _run(self) -> None:
        scheduler = self._scheduler
        while (delivery := self._take()) is not None:
            self._handle(delivery)
            while not self._setup.fifo and self._count <= self._in_flight.concurrency:
                following = scheduler.take_now()
                if following is None:
                    break
                self._handle(following)
            with scheduler.changed:
                self._active -= 1

    def _handle(self, delivery: Delivery) -> None:
        self._last_start = self._setup.tools.monotonic()
        self._caller.handle(delivery)
        slow = delivery.finished_at - delivery.started_at > FAST
        votes = self._slow_votes
        self._slow_votes = min(votes + 1, VOTES) if slow else max(votes - 1, 0)

    @property
    def _is_fast(self) -> bool:
        return self._slow_votes < VOTES // 2

    def _is_wanted(self) -> bool:
        """Under the scheduler's lock: whether a waiting thread has something to do, or is to stand by."""
        return not self._active or not self._standby or not self._is_fast

    def _take(self) -> Delivery | None:
        """The next message; None if this thread is to end."""
        scheduler, monotonic = self._scheduler, self._setup.tools.monotonic
        with scheduler.changed:
            while True:
                if self._is_surplus():
                    return None
                fast = bool(self._active) and self._is_fast and monotonic() - self._last_start < STALE
                if len(scheduler) and not fast and (chunk := scheduler.take(1)):
                    self._active += 1
                    self._last_start = monotonic()
                    if scheduler.waiting:
                        if len(scheduler) and self._is_wanted():
                            scheduler.changed.notify()
                    else:
                        self._add_thread()
                    return chunk[0]
                if scheduler.closed and not len(scheduler):
                    return None
                if not self._wait(fast) and not len(scheduler) and self._leaves():
                    return None

    def _wait(self, fast: bool) -> bool:
        """Under the scheduler's lock. False: nothing happened for a long time."""
        scheduler = self._scheduler
        stands_by = fast and not self._standby and len(scheduler) > 0
        if stands_by:
            self._standby = True
        scheduler.waiting += 1
        try:
            return scheduler.changed.wait(STALE if stands_by else IDLE) or stands_by
        finally:
            scheduler.waiting -= 1
            if stands_by:
                self._standby = False

    def _add_thread(self) -> None:
        with self._lock:
            if self._count >= self._in_flight.concurrency:
                return
            self._count += 1
        self._threads.spawn(self.role, self._run)

    def _is_surplus(self) -> bool:
        """Whether this thread is one too many, because the concurrency was lowered. It must then end."""
        with self._lock:
            if self._count <= self._in_flight.concurrency:
                return False
            self._count -= 1
            return True

    def _leaves(self) -> bool:
        """Under the scheduler's lock: whether this thread, which has been idle, is not needed and must end. The last
        thread that waits stays, because the others may be busy for a long time."""
        with self._lock:
            if not self._scheduler.waiting:
                return False
            self._count -= 1
            return True

    def _run_batches(self) -> None:
        while True:
            with self._collecting:
                if not self._setup.fifo and self._is_surplus():
                    return
                chunk = self._collect()
            if chunk:
                self._caller.handle_batch(chunk)
            elif self._scheduler.closed:
                return

    def _collect(self) -> list[Delivery]:
        """A batch, once it is full or its first message has waited for `linger`; empty if this thread is to end."""
        scheduler, settings, monotonic = self._scheduler, self._setup.settings, self._setup.tools.monotonic
        ends: float | None = None
        with scheduler.changed:
            while True:
                if len(scheduler) and ends is None:
                    ends = monotonic() + settings.linger
                left = IDLE if ends is None else ends - monotonic()
                if len(scheduler) and (left <= 0 or scheduler.fills(settings.size) or scheduler.closed):
                    if chunk := scheduler.take(settings.size):
                        return chunk
                    ends = None
                    continue
                if scheduler.closed:
                    return []
                if not self._setup.fifo and self._count > self._in_flight.concurrency:
                    return []
                scheduler.waiting += 1
                try:
                    scheduler.changed.wait(left)
                finally:
                    scheduler.waiting -= 1

    def _start_tasks(self) -> None:
        """Hands messages to the event loop, no more than the concurrency at a time."""
        scheduler = self._scheduler
        assert self._loop is not None
        loop = self._loop()
        while True:
            with scheduler.changed:
                while not scheduler.closed and not (len(scheduler) and self._active < self._in_flight.concurrency):
                    scheduler.waiting += 1
                    scheduler.changed.wait(IDLE)
                    scheduler.waiting -= 1
                free = len(scheduler) if scheduler.closed else self._in_flight.concurrency - self._active
                chunk = [delivery for _ in range(max(0, free)) for delivery in scheduler.take(1)]
                self._active += len(chunk)
                if not chunk and scheduler.closed and not len(scheduler):
                    return
            loop.call_soon_threadsafe(self._create_tasks, chunk)

    def _create_tasks(self, chunk: Sequence[Delivery]) -> None:
        for delivery in chunk:
            task = asyncio.get_running_loop().create_task(self._caller.handle_async(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with self._scheduler.changed:
            self._active -= 1
            self._scheduler.changed.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of %s ended with an error: this is a bug in Semel", self._setup.name, exc_info=error)
            self._on_fatal(error)

    def cancel_tasks(self) -> None:
        """Cancel async handlers that did not finish in time."""
        if self._loop is not None:
            self._loop().call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def is_dead(self) -> bool:
        return self.calls_on_loop and not self._threads.alive("start")

    def close(self, deadline: float) -> None:
        """Start nothing more. This does not wait for the handlers that run."""
        self._scheduler.close()
        if self.calls_on_loop:
            self._threads.join("start", deadline)
