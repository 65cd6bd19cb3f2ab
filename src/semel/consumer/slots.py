"""How many messages may be in this process's hands: the only brake on receiving.

A receive asks for no more than there are free slots, so nothing waits in a hidden buffer. Bytes are bounded too: once
the bodies in hand exceed their limit, no further receive is made until some have gone.
"""

from __future__ import annotations

import threading
from typing import Final

MOMENT: Final = 0.02  # seconds


class Slots:
    def __init__(self, count: int, max_bytes: int) -> None:
        self.count = count
        self._max_bytes = max_bytes
        self._free = count
        self._bytes = 0
        self._waiting = 0
        self._changed = threading.Condition(threading.Lock())

    @property
    def free(self) -> int:
        return max(0, self._free)

    @property
    def taken(self) -> int:
        return self.count - self._free

    @property
    def bytes(self) -> int:
        return self._bytes

    def take(self, most: int, timeout: float) -> int:
        """Up to `most` slots; 0 if none came free in time.

        Once there is one, waits a moment for half of what is wanted: a receive costs the same for one as for ten.
        """
        half = max(1, min(most, self.count) // 2)
        with self._changed:
            self._await(1, timeout)
            if not self._ready(1):
                return 0
            if timeout > 0:
                self._await(half, min(timeout, MOMENT))
            taken = max(0, min(most, self._free))  # while it waited there may have become fewer than are taken
            self._free -= taken
            return taken

    def resize(self, count: int) -> None:
        """From now on there are so many. With more than that taken, none is given out until enough have come back."""
        with self._changed:
            self._free += count - self.count
            self.count = count
            self._changed.notify_all()

    def _await(self, least: int, timeout: float) -> None:
        if timeout > 0 and not self._ready(least):
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._ready(least), timeout)
            finally:
                self._waiting -= 1

    def _ready(self, least: int) -> bool:
        return self._free >= least and self._bytes < self._max_bytes

    def add_bytes(self, size: int) -> None:
        with self._changed:
            self._bytes += size

    def give(self, count: int, size: int = 0) -> None:
        with self._changed:
            self._free += count
            self._bytes -= size
            if self._waiting:
                self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
