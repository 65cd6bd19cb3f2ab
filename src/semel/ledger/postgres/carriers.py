"""A few threads, each with a connection of its own, that carry the requests of all others to PostgreSQL.

While a round trip is under way, what is asked meanwhile collects; the next trip takes all of one kind along as one
statement. A commit costs the same for one key as for hundreds, so this is where the throughput comes from.
The rule kept here: no caller waits longer than `timeout`, whatever became of the server.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors

from semel.ledger.contract import LedgerError, LedgerUnavailable

Work = Callable[["psycopg.Connection[Any]", list[Any]], list[Any]]
MOST: Final = 2_000  # items that one statement takes along from several callers

# The server is there but cannot do it now, or not here: worth another try later, with a new connection.
PASSING: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
)
# Safe and worthwhile to repeat at once.
REPEATABLE: Final = (errors.DeadlockDetected, errors.SerializationFailure)


def translated(error: psycopg.Error, where: str) -> LedgerError:
    """What a driver's error means to somebody who only knows the ledger."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.LockNotAvailable):
        return LedgerUnavailable(
            f"the ledger in {where} waited in vain for a row that an open transaction has locked: {text}"
        )
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return LedgerUnavailable(
            f"{where} is read-only, a standby perhaps: list all hosts in the address, and add "
            "target_session_attrs=read-write to it"
        )
    if isinstance(error, PASSING):
        return LedgerUnavailable(f"{where} cannot be reached: {text}")
    return LedgerError(f"{where} refused a statement of the ledger: {text}")


class Request:
    __slots__ = ("answers", "carrier", "done", "error", "items", "work")

    def __init__(self, work: Work, items: list[Any]) -> None:
        self.work = work
        self.items = items
        self.answers: list[Any] = []
        self.error: Exception | None = None
        self.carrier: Carrier | None = None  # who has it under way
        self.done = threading.Event()


class Carrier:
    """One connection, opened when it is needed and again after it broke; used by one thread, cut by any."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._connection: psycopg.Connection[Any] | None = None
        self._guard = threading.Lock()  # so that nobody cuts a file descriptor that already belongs to another

    def run(self, work: Work, items: list[Any]) -> list[Any]:
        for again in (True, False):
            connection = self._connection or self._open()
            try:
                return work(connection, items)
            except psycopg.Error as error:
                lost = connection.broken or connection.closed or isinstance(error, errors.ReadOnlySqlTransaction)
                if lost:
                    self.close()
                if not (again and (lost or isinstance(error, REPEATABLE))):
                    raise
        raise AssertionError

    def _open(self) -> psycopg.Connection[Any]:
        connection = self._connect()
        with self._guard:
            self._connection = connection
        return connection

    def close(self) -> None:
        with self._guard:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def cut(self) -> None:
        """End what is under way: whoever waits for the server is told that the connection broke."""
        with self._guard:
            if self._connection is None or self._connection.closed:
                return
            with socket.socket(fileno=os.dup(self._connection.fileno())) as wire:
                try:
                    wire.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return


class Carriers:
    """Hands requests to the threads that carry them. Thread-safe."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], *, where: str, count: int, timeout: float
    ) -> None:
        self._where = where
        self._timeout = timeout
        self._queue: deque[Request] = deque()
        self._arrived = threading.Condition(threading.Lock())
        self._closed = False
        self._carriers = [Carrier(connect) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._serve, args=(carrier,), name=f"semel-ledger-{number}", daemon=True)
            for number, carrier in enumerate(self._carriers)
        ]
        self._started = False

    def carry(self, work: Work, items: Sequence[Any]) -> list[Any]:
        """What `work` answers to these items, in their order. Others' items of the same work may go along."""
        if not items:
            return []
        request = Request(work, list(items))
        with self._arrived:
            if self._closed:
                raise LedgerError(f"the ledger in {self._where} is closed; open a new one")
            if not self._started:
                self._started = True
                for thread in self._threads:
                    thread.start()
            self._queue.append(request)
            self._arrived.notify()
        if not request.done.wait(self._timeout):
            self._give_up(request)
        if isinstance(request.error, psycopg.Error):
            raise translated(request.error, self._where) from request.error
        if request.error is not None:
            raise request.error
        return request.answers

    def _give_up(self, request: Request) -> None:
        with self._arrived:
            if request.done.is_set():
                return
            if request in self._queue:
                self._queue.remove(request)
            carrier = request.carrier
        if carrier is not None:
            carrier.cut()
        raise LedgerUnavailable(f"the ledger in {self._where} gave no answer within {self._timeout:g} seconds")

    def _serve(self, carrier: Carrier) -> None:
        while requests := self._next(carrier):
            self._run(carrier, requests)
        carrier.close()

    def _next(self, carrier: Carrier) -> list[Request]:
        """The oldest request, and those that can go along. Nothing: closed."""
        with self._arrived:
            while not self._queue:
                if self._closed:
                    return []
                self._arrived.wait()
            first = self._queue.popleft()
            taken, left, room = [first], deque[Request](), MOST - len(first.items)
            for request in self._queue:
                if request.work == first.work and len(request.items) <= room:
                    taken.append(request)
                    room -= len(request.items)
                else:
                    left.append(request)
            self._queue = left
            for request in taken:
                request.carrier = carrier
            return taken

    def _run(self, carrier: Carrier, requests: list[Request]) -> None:
        try:
            answers = carrier.run(requests[0].work, [item for request in requests for item in request.items])
        except Exception as error:  # noqa: BLE001 - it belongs to the callers, and this thread must go on
            if len(requests) > 1 and (isinstance(error, errors.LockNotAvailable) or not isinstance(error, PASSING)):
                for request in requests:  # one of them is to blame: the others must not suffer
                    self._run(carrier, [request])
                return
            for request in requests:
                request.error = error
        else:
            at = 0
            for request in requests:
                request.answers = answers[at : at + len(request.items)]
                at += len(request.items)
        with self._arrived:
            for request in requests:
                request.carrier = None
                request.done.set()

    def close(self) -> None:
        """What is under way is finished, within the time that a call may take."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
            if not self._started:
                return
        deadline = time.monotonic() + self._timeout
        for thread, carrier in zip(self._threads, self._carriers, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                carrier.cut()
                thread.join(1.0)
