"""Receiving, with several threads at once, until there is enough, or no more, or no more time.

The rule: whatever was received is handed on, also when a call has failed; nothing that arrived is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from semel.sqs import limits
from semel.sqs.client import Queue, Received
from semel.sqs.errors import SqsError

_log: Final = logging.getLogger("semel.spark")
FIRST_WAIT: Final = 1  # seconds that the first call waits for a message; once some have come, none waits
EMPTY: Final = 2  # so many empty answers in a row end a thread: a short poll may miss what is there


class Arrival(NamedTuple):
    """The messages of one answer. Times are taken before the call, so that the visibility is rather under-estimated."""

    at: float  # seconds since 1970
    hidden_until: float  # monotonic
    messages: list[Received]


class Receiver:
    """One round of receiving from one queue."""

    def __init__(
        self,
        queue: Queue,
        *,
        rows: int,
        size: int,
        until: float,
        visibility: int,
        threads: int,
        first_wait: int = FIRST_WAIT,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.arrivals: list[Arrival] = []
        self.error: SqsError | None = None
        self._wanted = rows
        self._room = size
        self._until = until
        self._first_wait = first_wait
        self._visibility = visibility
        self._threads = max(1, min(threads, -(-rows // limits.MAX_RECEIVE)))
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()

    def run(self) -> list[Arrival]:
        """Raises the error of a call only if nothing at all was received."""
        helpers = [threading.Thread(target=self._receive, daemon=True) for _ in range(self._threads - 1)]
        for helper in helpers:
            helper.start()
        self._receive()
        for helper in helpers:
            helper.join()
        if self.error is not None:
            if not self.arrivals:
                raise self.error
            _log.warning("queue %s: going on with what was received before: %s", self.queue.name, self.error)
        return self.arrivals

    @property
    def enough(self) -> bool:
        """Whether it ended for want of room or time, not of messages."""
        return self._wanted <= 0 or self._room <= 0 or self._monotonic() >= self._until

    def _receive(self) -> None:
        empty = 0
        while empty < EMPTY:
            with self._lock:
                limit = min(limits.MAX_RECEIVE, self._wanted)
                if limit <= 0 or self._room <= 0 or self.error is not None or self._monotonic() >= self._until:
                    return
                self._wanted -= limit
                wait = 0 if self.arrivals else self._first_wait
            got = self._call(limit, wait)
            if got is None:
                return
            empty = 0 if got else empty + 1

    def _call(self, limit: int, wait: int) -> int | None:
        at, began = self._clock(), self._monotonic()
        try:
            messages = self.queue.receive(limit, wait, visibility=self._visibility)
        except SqsError as error:
            with self._lock:
                self.error = self.error or error
            return None
        size = sum(len(message.body) for message in messages)
        with self._lock:
            self._wanted += limit - len(messages)
            self._room -= size
            if messages:
                self.arrivals.append(Arrival(at, began + self._visibility, messages))
        return len(messages)
