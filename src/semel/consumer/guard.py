"""The circuit between polling and the ledger: it opens when the ledger does not answer, and closes by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

from semel.consumer.breaker import Breaker, State
from semel.consumer.context import logger


class Guard:
    """A breaker with a lock and a clock."""

    def __init__(self, monotonic: Callable[[], float], chance: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self._breaker = Breaker()
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._breaker.state(self._monotonic()) is not State.CLOSED

    def heard(self, well: bool) -> None:
        """The ledger answered, or did not."""
        breaker = self._breaker
        if well and not breaker.openings and not breaker.failures:
            return
        with self._lock:
            before, now = self._breaker, self._monotonic()
            self._breaker = before.succeeded(now) if well else before.failed(now, self._chance())
            after = self._breaker
        if after.openings > before.openings:
            logger.error("the ledger does not answer: polling pauses for %.1f s", after.wait(now))
        elif before.openings and not after.openings:
            logger.warning("the ledger answers again: polling goes on")

    def pause(self) -> float:
        """Seconds to wait before a poll; 0: go, and if the circuit is open, as the one who tries."""
        if not self._breaker.openings:
            return 0.0
        with self._lock:
            now = self._monotonic()
            wait = self._breaker.wait(now)
            if wait <= 0:
                self._breaker = self._breaker.asked(now)
            return wait
