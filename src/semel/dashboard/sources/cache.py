"""Answers that are kept for a moment, so that ten open tabs ask as often as one."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class TtlCache(Generic[T]):
    """At most `most` answers, each good for `seconds`. Those who ask for one that is being fetched wait for it."""

    def __init__(self, seconds: float, *, most: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._fetching: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, fetch: Callable[[], T]) -> T:
        found = self._fresh(key)
        if found is not None:
            return found[1]
        with self._lock:
            turn = self._fetching.setdefault(key, threading.Lock())
        with turn:
            found = self._fresh(key)
            if found is not None:
                return found[1]
            try:
                value = fetch()
                with self._lock:
                    self._kept[key] = (self._clock(), value)
                    self._kept.move_to_end(key)
                    while len(self._kept) > self._most:
                        self._kept.popitem(last=False)
                return value
            finally:
                with self._lock:
                    self._fetching.pop(key, None)

    def forget(self) -> None:
        """What was kept is no longer true: somebody changed something."""
        with self._lock:
            self._kept.clear()

    def _fresh(self, key: Hashable) -> tuple[float, T] | None:
        with self._lock:
            found = self._kept.get(key)
        return found if found is not None and self._clock() - found[0] < self._seconds else None
