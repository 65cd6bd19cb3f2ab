"""Ends calls from another thread. A set `Cancel` stays set: calls in progress end now, and later ones end at once."""

from __future__ import annotations

import threading
from typing import Protocol


class Interruptible(Protocol):
    def interrupt(self) -> None:
        """Ends the wait for this connection's answer. Called from another thread."""


class Cancel:
    """Pass it to `receive`, and any thread can end the long poll with `cancel.set()`.

    Many calls may share one `Cancel`. A call that is ended raises `Cancelled`. A message that SQS was just about to
    hand out may then stay hidden until its visibility timeout ends, as with any broken connection.

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
        """Ends the calls in progress that use it, and every later call at once."""
        with self._lock:
            self._event.set()
            for connection in self._running:
                connection.interrupt()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits for at most `seconds`; returns whether it is set."""
        return self._event.wait(seconds)

    def begin(self, connection: Interruptible) -> bool:
        """Internal. A call starts to use the connection; False if it must not start any more."""
        with self._lock:
            if self._event.is_set():
                return False
            self._running.add(connection)
            return True

    def end(self, connection: Interruptible) -> None:
        """Internal. The call no longer uses the connection, which is not interrupted from now on."""
        with self._lock:
            self._running.discard(connection)
