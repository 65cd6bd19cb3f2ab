"""A cache whose values are valid for some seconds, so that ten open tabs send as many requests as one."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class TtlCache(Generic[T]):
    """At most `size` values, each valid for `seconds`. A value is fetched once, however many threads ask for it."""

    def __init__(self, seconds: float, *, size: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._size, self._clock = seconds, size, clock
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._fetching: dict[Hashable, threading.Lock] = {}
        self._generation = 0

    def get(self, key: Hashable, fetch: Callable[[], T]) -> T:
        entry = self._fresh(key)
        if entry is not None:
            return entry[1]
        with self._lock:
            fetch_lock = self._fetching.setdefault(key, threading.Lock())
            generation = self._generation
        with fetch_lock:
            entry = self._fresh(key)
            if entry is not None:
                return entry[1]
            try:
                value = fetch()
                with self._lock:
                    if generation == self._generation:  # otherwise the value may be older than the change
                        self._values[key] = (self._clock(), value)
                        self._values.move_to_end(key)
                        while len(self._values) > self._size:
                            self._values.popitem(last=False)
                return value
            finally:
                with self._lock:
                    self._fetching.pop(key, None)

    def forget(self) -> None:
        with self._lock:
            self._values.clear()
            self._generation += 1

    def _fresh(self, key: Hashable) -> tuple[float, T] | None:
        with self._lock:
            entry = self._values.get(key)
        return entry if entry is not None and self._clock() - entry[0] < self._seconds else None
