"""Ending a call from another thread. A set `Cancel` stays set: the calls that run end now, later ones at once."""

from __future__ import annotations

import threading
from typing import Protocol


class Interruptible(Protocol):
    def interrupt(self) -> None:
        """Makes whoever waits for this connection's answer see its end. Called from another thread."""


class Cancel:
    """Given to `receive`, it lets any thread end a long poll: `cancel.set()`.

    One `Cancel` may be shared by many calls. The call that is ended raises `Cancelled`; a message that SQS was just
    about to hand out may then stay hidden until its visibility timeout ends, as with any connection that breaks.

    >>> from threading import Timer
    >>> from semel.sqs import Cancel, Cancelled, Client
    >>> cancel = Cancel()
    >>> Timer(0.1, cancel.set).start()
    >>> try:
    ...     messages = Client().create_queue("orders").receive(wait=20, cancel=cancel)
    ... except Cancelled:
    ...     print("cancelled")
    cancelled
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._running: set[Interruptible] = set()

    def set(self) -> None:
        """Ends the calls that run with it, and every later call at once."""
        with self._lock:
            self._event.set()
            for connection in self._running:
                connection.interrupt()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits for at most so long; returns whether it is set."""
        return self._event.wait(seconds)

    def begin(self, connection: Interruptible) -> bool:
        """Internal. A call starts to use the connection; False if it must not start any more."""
        with self._lock:
            if self._event.is_set():
                return False
            self._running.add(connection)
            return True

    def end(self, connection: Interruptible) -> None:
        """Internal. The call no longer uses the connection; from here on it is not interrupted."""
        with self._lock:
            self._running.discard(connection)
