"""How many messages this process may hold: the only limit on receiving.

A receive asks for no more than there are free slots, so nothing waits in a hidden buffer. Bytes are limited too: no
receive is made while the bodies in memory, and those that other receives are expected to bring, exceed their limit. A
message has its slot until its outcome is recorded; its body counts until it is deleted.

There is a slot for each handler that may run, and for messages received ahead, so that handlers need not wait for SQS
and the ledger. How many ahead follows from measurements: what the handlers can start within twice the time that a
message spends outside of its handler (receive, claim, record). Fast handlers get hundreds, those that run for seconds
none: their messages stay in the queue, where another worker can start them. None are received ahead before the first
handler has returned, and for a minute after a worker was found to have died.
"""

from __future__ import annotations

import threading
from typing import Final

MOMENT: Final = 0.02  # seconds
MOST_AHEAD: Final = 480  # messages
LEAD: Final = (0.05, 1.0)  # seconds of work that is received ahead: at least, at most
LEASE_SHARE: Final = 1 / 10  # of the lease: what waits for longer than this may be lost before it starts
SUSPENDED: Final = 60.0  # seconds
WEIGHT: Final = 0.2  # of a new measurement


class Admission:
    def __init__(self, handlers: int, max_bytes: int, *, ahead: int = 0) -> None:
        """`handlers`: how many messages can be at work at a time; `ahead`: how many more are received ahead."""
        self.handlers = handlers
        self.count = handlers + ahead
        self._max_bytes = max_bytes
        self._free = self.count
        self._bytes = 0
        self._asked = 0  # messages that receives under way have asked for
        self._size = 0.0  # bytes of a message, on average
        self._waiting = 0
        self._changed = threading.Condition(threading.Lock())

    @property
    def free(self) -> int:
        return max(0, self._free)

    @property
    def in_use(self) -> int:
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
            slots = max(0, min(most, self._free))  # `resize` may have removed some meanwhile
            self._free -= slots
            self._asked += slots
            return slots

    def receive_ended(self, slots: int, kept: int = 0, size: int = 0) -> None:
        """The receive for which `slots` were taken has ended, with `kept` new messages of `size` bytes in all."""
        with self._changed:
            self._asked -= slots
            self._free += slots - kept
            self._bytes += size
            if kept:
                self._size += (size / kept - self._size) * (WEIGHT if self._size else 1.0)
            self._wake_if_ready()

    def resize(self, handlers: int, ahead: int) -> None:
        """Change the number of slots. While more than that are in use, none is given out."""
        count = handlers + ahead
        with self._changed:
            self.handlers = handlers
            grown = count > self.count
            self._free += count - self.count
            self.count = count
            if grown:
                self._changed.notify_all()

    def _await(self, least: int, timeout: float) -> None:
        if timeout > 0 and not self._ready(least):
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._ready(least), timeout)
            finally:
                self._waiting -= 1

    def _ready(self, least: int) -> bool:
        return self._free >= least and self._bytes + self._asked * self._size < self._max_bytes

    def give(self, count: int, size: int = 0) -> None:
        with self._changed:
            self._free += count
            self._bytes -= size
            self._wake_if_ready()

    def _wake_if_ready(self) -> None:
        if self._waiting and self._ready(1):  # threads that wake up in vain compete for Python's lock
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Prefetch:
    """How many messages to receive ahead, from measurements. `limit`: the user's own; None is automatic."""

    def __init__(self, *, lease: float, limit: int | None = None) -> None:
        self._limit = limit
        self._longest_lead = min(LEAD[1], lease * LEASE_SHARE)
        self._suspended_until = 0.0
        self.running = 0.0  # seconds for which the handlers at work have run already, on average
        self._handler: float | None = None  # seconds of a message in its handler
        self._overhead = 0.0  # seconds of a message between its receipt and its record, outside of its handler
        self._receive = 0.0  # seconds of a receive that does not wait

    def observe(self, handler: float, overhead: float) -> None:
        """Seconds that messages were in their handler, and outside of it, on average."""
        if self._handler is None:
            self._handler, self._overhead = handler, overhead
        else:
            self._handler += WEIGHT * (handler - self._handler)
            self._overhead += WEIGHT * (overhead - self._overhead)

    def observe_receive(self, seconds: float) -> None:
        """A receive that brought messages. The shortest ones show how long a round trip takes; others have waited."""
        self._receive = min(seconds, self._receive * 1.1 + 0.001) if self._receive else seconds

    def suspend(self, now: float) -> None:
        """A message was taken over from a worker that died. If the message has killed the worker, as few others as
        possible should be in flight, because SQS counts each of their receives."""
        self._suspended_until = now + SUSPENDED

    def ahead(self, handlers: int, now: float = 0.0) -> int:
        """How many messages to receive ahead of this number of handlers."""
        if self._limit is not None:
            return self._limit
        if self._handler is None or now < self._suspended_until:
            return 0
        lead = min(max(LEAD[0], 2 * (self._overhead + self._receive)), self._longest_lead)
        seconds = max(self._handler, self.running)
        return MOST_AHEAD if seconds * MOST_AHEAD <= handlers * lead else int(handlers * lead / seconds)
