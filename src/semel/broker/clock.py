"""The broker's clock: the system's, or a manual one that moves only on request."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    manual: bool

    def now(self) -> int:
        """Milliseconds since 1970; never less than it was before."""
        ...


class SystemClock:
    """The wall clock; if it is set back, broker time stands still until it has caught up."""

    manual = False

    def __init__(self) -> None:
        self._latest = 0

    def now(self) -> int:
        self._latest = max(self._latest, time.time_ns() // 1_000_000)
        return self._latest


class ManualClock:
    """Starts at the wall clock's time and moves only by `advance`."""

    manual = True

    def __init__(self) -> None:
        self._now = time.time_ns() // 1_000_000

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        if not 0 <= seconds < 1e9:
            raise ValueError(f"the clock can be advanced by 0 to a billion seconds, not by {seconds}")
        self._now += round(seconds * 1000)
