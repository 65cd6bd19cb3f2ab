"""The circuit breaker between polling and the ledger: it opens when the ledger does not answer, and closes by itself.

While closed, it lets all polls through. Three failures in a row open it. When its wait is over, a single probe decides
whether it closes or waits longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from semel.consumer.backoff import Exponential
from semel.consumer.context import logger

FAILURES: Final = 3  # in a row, that open it
BACKOFF: Final = Exponential(base=0.5, cap=30.0, jitter="equal")
PROBE_LOST_AFTER: Final = 60.0  # seconds after which a probe without an answer counts as failed


class CircuitBreaker:
    def __init__(self, monotonic: Callable[[], float], chance: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self._lock = threading.Lock()
        self._failures = 0  # in a row, while closed
        self._openings = 0  # in a row, without a success in between
        self._opened_until = 0.0
        self._probing_since: float | None = None

    @property
    def is_open(self) -> bool:
        return self._openings > 0

    def report(self, answered: bool) -> None:
        """Whether the ledger answered a call."""
        if answered and not self._openings and not self._failures:
            return
        with self._lock:
            now = self._monotonic()
            # A call that began before it opened says nothing about now.
            if self._openings and self._probing_since is None and now < self._opened_until:
                return
            if answered:
                closed, self._failures, self._openings, self._probing_since = self._openings > 0, 0, 0, None
            elif not self._openings and self._failures + 1 < FAILURES:
                self._failures += 1
                return
            else:
                self._openings += 1
                self._failures, self._probing_since = 0, None
                wait = BACKOFF.delay(self._openings, self._chance())
                self._opened_until = now + wait
        if not answered:
            logger.error("the ledger does not answer: polling pauses for %.1f s", wait)
        elif closed:
            logger.warning("the ledger answers again: polling continues")

    def pause(self) -> float:
        """Seconds to wait before a poll; 0: poll now, and if the breaker is open, probe the ledger first."""
        if not self._openings:
            return 0.0
        with self._lock:
            now = self._monotonic()
            if not self._openings:
                return 0.0
            ready = self._opened_until if self._probing_since is None else self._probing_since + PROBE_LOST_AFTER
            if now >= ready:
                self._probing_since = now
            return max(0.0, ready - now)
