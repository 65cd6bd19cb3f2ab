"""What the stages of the line have in common: an inbox, a loop, and the threads that run it.

A stage takes chunks of messages from its inbox, does one thing with them, and hands them to the next inbox. Threads
call it in a loop; tests call `run_once`. The number of threads grows with the work, up to a limit, and idle threads
end. No thread dies unnoticed: an exception ends the whole run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from semel.consumer.context import logger

T = TypeVar("T")

IDLE: Final = 30.0  # seconds without work after which a thread that is not needed ends


class Inbox(Generic[T]):
    """A queue between threads, without busy waiting. A put wakes at most one thread, which wakes the next one if items
    are left."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self.closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[T]) -> None:
        # No lock: appending is atomic, and a thread that waits has counted itself before it looked into the inbox.
        self._items.extend(items)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def take(self, most: int, timeout: float | None) -> list[T]:
        """Up to `most` items as soon as there is one; an empty list if none came in time, or if the inbox is closed."""
        if not self._items and timeout != 0:
            self._wait(timeout)
        items: list[T] = []
        try:
            while len(items) < most:
                items.append(self._items.popleft())
        except IndexError:
            pass
        if self._items and self._waiting:
            with self._changed:
                self._changed.notify()
        return items

    def _wait(self, timeout: float | None) -> None:
        ends = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._waiting += 1
            try:
                while not self._items and not self.closed:
                    left = None if ends is None else ends - time.monotonic()
                    if left is not None and left <= 0:
                        return
                    self._changed.wait(left)
            finally:
                self._waiting -= 1

    def close(self) -> None:
        """Every `take`, under way or later, gets what is left and then nothing."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Threads:
    """The threads of one queue, by role. `on_fatal` is called with the exception that ended a thread."""

    def __init__(self, name: str, on_fatal: Callable[[BaseException], None], monotonic: Callable[[], float]) -> None:
        self._name = name
        self._on_fatal = on_fatal
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._by_role: dict[str, list[threading.Thread]] = {}

    def spawn(self, role: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"semel-{role}-{self._name}", daemon=True)
        with self._lock:
            alive = [known for known in self._by_role.get(role, []) if known.is_alive()]
            self._by_role[role] = [*alive, thread]
            thread.start()  # under the lock, so that `join` never meets a thread that has not started

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - logged, and the whole run stops
            logger.exception("a thread of %s ended with an error: this is a bug in Semel", self._name)
            self._on_fatal(error)

    def of(self, role: str) -> list[threading.Thread]:
        """The threads of this role that have not ended."""
        with self._lock:
            return [thread for thread in self._by_role.get(role, []) if thread.is_alive()]

    def alive(self, role: str) -> bool:
        return bool(self.of(role))

    def join(self, role: str, deadline: float) -> None:
        for thread in self.of(role):
            thread.join(max(0.0, deadline - self._monotonic()))


class Stage(Generic[T]):
    """`process` is what a stage does. `at_once`: the maximum number of items in a chunk; `linger`: seconds to wait for
    more items once there are `linger_from`; `most_threads`: the maximum number of threads."""

    role: ClassVar[str]

    def __init__(
        self, threads: Threads, *, at_once: int, linger: float = 0.0, linger_from: int = 1, most_threads: int = 1
    ) -> None:
        self.inbox: Inbox[T] = Inbox()
        self._threads = threads
        self._at_once = at_once
        self._linger = linger
        self._linger_from = linger_from
        self._most_threads = most_threads
        self._count = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._collecting = threading.Lock()

    def process(self, items: Sequence[T]) -> None:
        raise NotImplementedError

    def run_once(self) -> bool:
        """Process one chunk of what is in the inbox now. False: it was empty."""
        items = self.inbox.take(self._at_once, 0)
        if items:
            self.process(items)
        return bool(items)

    # On threads.

    def start(self) -> None:
        self._add_thread()

    def _add_thread(self) -> None:
        with self._lock:
            self._count += 1
        self._threads.spawn(self.role, self._run)

    def _run(self) -> None:
        while True:
            items = self._collect()
            if items:
                self.process(items)
            elif self.inbox.closed or self._leaves():
                return

    def _collect(self) -> list[T]:
        """Collect the next chunk. One thread at a time collects; the others are at work, or wait for their turn."""
        with self._lock:
            self._idle += 1
        try:
            if not self._collecting.acquire(timeout=IDLE):
                return []
            try:
                items = self.inbox.take(self._at_once, IDLE)
                ends = time.monotonic() + self._linger
                while self._linger_from <= len(items) < self._at_once and not self.inbox.closed:
                    left = ends - time.monotonic()
                    if left <= 0:
                        break
                    items += self.inbox.take(self._at_once - len(items), left)
            finally:
                self._collecting.release()
        finally:
            with self._lock:
                self._idle -= 1
                # The more threads there are, the more items must wait before another one is added, as threads compete
                # for Python's lock.
                many = self._at_once * max(1, self._count // 2)
                grow = not self._idle and self._count < self._most_threads and len(self.inbox) >= many
        if grow:
            self._add_thread()
        return items

    def _leaves(self) -> bool:
        """Whether this thread, which has been idle, is not needed and must end."""
        with self._lock:
            if self._count == 1:
                return False
            self._count -= 1
            return True

    def is_dead(self) -> bool:
        return not self._threads.alive(self.role)

    def close(self, deadline: float) -> None:
        """Process what is in the inbox, until the deadline."""
        self.inbox.close()
        self._threads.join(self.role, deadline)
