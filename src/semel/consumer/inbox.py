"""Hand-over between the threads of a lane: many put, many take, nobody spins.

One waiting thread is woken for a whole put, and it wakes the next one when it takes something and more is left: at any
time one thread at most is on its way here. So ten messages whose handlers return at once are worked off by one or two
threads, and ten slow ones by ten.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._woken = False  # somebody was woken, and has not come yet
        self.closed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> int:
        """Threads that wait for something to do."""
        return self._waiting

    def put(self, items: Iterable[T]) -> None:
        with self._changed:
            self._items.extend(items)
            self._wake_one()

    def take(self, most: int, timeout: float | None) -> list[T]:
        """Up to `most` items as soon as there is one; an empty list if none came in time, or if it was closed."""
        with self._changed:
            if not self._items and not self.closed and timeout != 0:
                self._wait(timeout)
            items = self._items
            if len(items) <= most:
                taken = list(items)
                items.clear()
            else:
                taken = [items.popleft() for _ in range(most)]
                self._wake_one()
            return taken

    def _wait(self, timeout: float | None) -> None:
        ends = None if timeout is None else time.monotonic() + timeout
        self._waiting += 1
        try:
            while not self._items and not self.closed:
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._changed.wait(left)
                self._woken = False  # also if somebody else was faster: the next put may wake one again
        finally:
            self._waiting -= 1

    def _wake_one(self) -> None:
        if self._waiting and not self._woken and self._items:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        """Whoever waits, or comes later, gets what is left and then nothing."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
