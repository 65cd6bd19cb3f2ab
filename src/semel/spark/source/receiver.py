"""Receives with several threads, until there are enough messages, or no more, or no time is left.

The rule: all messages that were received are handed on, even if a call has failed; nothing that arrived is dropped.
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
FIRST_WAIT: Final = 1  # seconds that calls wait for the first message; once some have come, no call waits
EMPTY: Final = 2  # empty answers in a row that end a thread: a short poll may miss messages


class Arrival(NamedTuple):
    """The messages of one answer. Times are taken before the call, so that `hidden_until` is never too late."""

    at: float  # seconds since 1970
    hidden_until: float  # monotonic
    messages: list[Received]


class Receiver:
    """One round of receiving from one queue: up to `rows` messages with `size` bytes of bodies."""

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
        self._error: BaseException | None = None
        self._rows_left = rows
        self._bytes_left = size
        self._until = until
        self._first_wait = first_wait
        self._visibility = visibility
        self._threads = max(1, min(threads, -(-rows // limits.MAX_RECEIVE)))
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()

    def run(self) -> list[Arrival]:
        """Raises the error of a call to SQS only if nothing was received. Any other error is always raised."""
        helpers = [threading.Thread(target=self._receive, daemon=True) for _ in range(self._threads - 1)]
        for helper in helpers:
            helper.start()
        self._receive()
        for helper in helpers:
            helper.join()
        if self._error is not None:
            if not self.arrivals or not isinstance(self._error, SqsError):
                raise self._error
            _log.warning("queue %s: continuing with what was received before: %s", self.queue.name, self._error)
        return self.arrivals

    @property
    def enough(self) -> bool:
        """Whether it ended because a limit or the time was reached, and not because no more messages came."""
        return self._rows_left <= 0 or self._bytes_left <= 0 or self._monotonic() >= self._until

    def _receive(self) -> None:
        empty = 0
        try:
            while empty < EMPTY and (limit := self._reserve()):
                empty = 0 if self._call(limit) else empty + 1
        except BaseException as error:  # noqa: BLE001  raised by `run`, which ends the other threads first
            with self._lock:
                self._error = self._error or error

    def _reserve(self) -> int:
        """How many messages this thread may ask for now; 0 ends it."""
        with self._lock:
            if self._error is not None or self.enough:
                return 0
            limit = min(limits.MAX_RECEIVE, self._rows_left)
            self._rows_left -= limit
            return limit

    def _call(self, limit: int) -> int:
        at, began = self._clock(), self._monotonic()
        wait = 0 if self.arrivals else self._first_wait
        messages = self.queue.receive(limit, wait, visibility=self._visibility)
        size = sum(_bytes(message.body) for message in messages)
        with self._lock:
            self._rows_left += limit - len(messages)
            self._bytes_left -= size
            if messages:
                self.arrivals.append(Arrival(at, began + self._visibility, messages))
        return len(messages)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
