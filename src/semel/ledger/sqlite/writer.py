"""One writer at a time, and one wait for the disk for all who came meanwhile.

A thread that wants to write queues its work. If nobody is writing it leads: it runs everything that is queued in one
transaction and wakes the others with their answers. Who arrives while the disk is waited for forms the next group.
A user's transaction is a turn of its own in the same queue, so that threads of one process never find the file locked.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.sqlite.schema import BUSY, Connection, code_of, explained, patiently

Returned = TypeVar("Returned")
Work = Callable[[sqlite3.Cursor], Any]

_GATHER: Final = 8  # how often a leader lets other threads go first, as long as that brings more work
_SHARED_FOR: Final = 1.0  # seconds for which room is made after another process was seen writing
_ROOM: Final = 0.001


class _Place(enum.Enum):
    WAITS = enum.auto()
    DRAWN = enum.auto()  # another thread is writing it
    LEADS = enum.auto()  # this thread writes, and hands on when it is done
    SERVED = enum.auto()


class _Turn:
    """One thread's place in the queue. Without work, it asks for the connection itself."""

    __slots__ = ("error", "place", "result", "wake", "work")

    def __init__(self, work: Work | None = None) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.place = _Place.WAITS
        self.wake = threading.Lock()  # let go once: when this turn leads or is served
        self.wake.acquire()

    def end(self, error: BaseException | None = None) -> None:
        self.error = error
        self.place = _Place.SERVED


class Writer:
    """Owns the connection that writes. `timeout` bounds each wait: for a turn, and for other processes."""

    def __init__(self, connection: Connection, path: str, timeout: float) -> None:
        self.connection = connection
        self._cursor: sqlite3.Cursor = connection.cursor()
        self._path = path
        self._timeout = timeout
        self._process = os.getpid()
        self._mutex = threading.Lock()  # guards the queue, every turn's place, and the four below
        self._queue: deque[_Turn] = deque()
        self._busy = False
        self._closing = False
        self._close_late = False  # nobody waits for the close: the last to write does it
        self._owner: int | None = None  # the thread whose transaction is open
        self._shared_till = 0.0
        self._data_version = 0

    def run(self, work: Callable[[sqlite3.Cursor], Returned]) -> Returned:
        """What `work` returns, once it is committed. It may run twice, the first time in vain."""
        turn = _Turn(work)
        if self._leads(turn):
            group = [turn]
            try:
                self._gather()
                group += self._drawn()
                self._serve(group)
            finally:
                self._hand_on()
                for other in group[1:]:
                    if other.place is not _Place.SERVED:
                        other.end(LedgerUnavailable(f"the ledger {self._path}: the write was interrupted; try again"))
                    other.wake.release()
        if turn.error is not None:
            raise turn.error
        result: Returned = turn.result
        return result

    def take(self) -> sqlite3.Cursor:
        """The connection, inside a new transaction, for this thread alone until it calls `give_back`."""
        self._leads(_Turn())
        with self._mutex:
            self._owner = threading.get_ident()
        try:
            self._begin()
        except BaseException:
            self.give_back()
            raise
        return self._cursor

    def give_back(self) -> None:
        self.connection.close_cursors(but=self._cursor)
        with self._mutex:
            self._owner = None
        self._hand_on()

    def close(self) -> None:
        """Comes after all that is queued; whoever comes later is refused."""
        with self._mutex:
            if self._owner == threading.get_ident():
                raise LedgerError(f"the ledger {self._path} cannot be closed inside one of its own transactions")
            if self._closing:
                return
        turn = _Turn()
        try:
            self._leads(turn, closing=True)
        except LedgerUnavailable:
            with self._mutex:
                self._close_late = self._busy
                if self._close_late:
                    return
        self.connection.close()

    def check_open(self) -> None:
        with self._mutex:
            self._check_open()

    def _leads(self, turn: _Turn, *, closing: bool = False) -> bool:
        """Wait for the turn. True: this thread writes now; False: another one has done it for us."""
        with self._mutex:
            self._check_usable()
            self._closing = closing
            if not self._busy:
                self._busy = True
                turn.place = _Place.LEADS
                return True
            self._queue.append(turn)
        if not turn.wake.acquire(timeout=self._timeout):
            with self._mutex:
                if turn.place is _Place.WAITS:
                    self._queue.remove(turn)
                    raise LedgerUnavailable(
                        f"the ledger {self._path}: a transaction of this process has kept others waiting for "
                        f"{self._timeout:g} s; keep SQLite transactions short, or allow a longer `timeout`"
                    )
            turn.wake.acquire()  # just now it was drawn, or given the lead
        return turn.place is _Place.LEADS

    def _check_open(self) -> None:
        if self._closing:
            raise LedgerError(f"the ledger {self._path} is closed")
        if self._process != os.getpid():
            raise LedgerError(
                f"the ledger {self._path} was opened before this process was forked: open one in each process"
            )

    def _check_usable(self) -> None:
        self._check_open()
        if self._owner == threading.get_ident():
            raise LedgerError(
                f"the ledger {self._path} was asked inside one of its own transactions, which would wait for itself: "
                "use the transaction's own methods there"
            )

    def _gather(self) -> None:
        """After a group was served all its threads come back at once: let them queue before the disk is waited for."""
        for _ in range(_GATHER):
            waiting = len(self._queue)
            time.sleep(0)
            if len(self._queue) == waiting:
                return

    def _drawn(self) -> list[_Turn]:
        group: list[_Turn] = []
        with self._mutex:
            while self._queue and self._queue[0].work is not None:
                turn = self._queue.popleft()
                turn.place = _Place.DRAWN
                group.append(turn)
        return group

    def _hand_on(self) -> None:
        with self._mutex:
            if self._queue:
                turn = self._queue.popleft()
                turn.place = _Place.LEADS
                turn.wake.release()
                return
            self._busy = False
            if not self._close_late:
                return
        self.connection.close()

    def _serve(self, group: Sequence[_Turn]) -> None:
        """One transaction for all; if that fails, one for each, so that nobody fails for a neighbour's mistake."""
        try:
            self._begin()
        except LedgerError as error:
            for turn in group:
                turn.end(type(error)(*error.args))
            return
        try:
            for turn in group:
                assert turn.work is not None
                turn.result = turn.work(self._cursor)
            self._cursor.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is raised in the thread whose work it was
            self.rollback()
            if len(group) == 1:
                group[0].end(explained(error, self._path) if isinstance(error, sqlite3.Error) else error)
                return
            for turn in group:
                self._serve([turn])
        except BaseException:
            self.rollback()
            raise
        else:
            for turn in group:
                turn.end()

    def _begin(self) -> None:
        if self.connection.in_transaction:  # a rollback that failed for want of a disk
            self.rollback()
        try:
            self._make_room()
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if code_of(error) not in BUSY:
                    raise
                self._shared_till = time.monotonic() + _SHARED_FOR
                patiently(lambda: self._cursor.execute("BEGIN IMMEDIATE"), self._timeout)
        except sqlite3.Error as error:
            raise explained(error, self._path) from error

    def _make_room(self) -> None:
        """While other processes write too, leave them a gap: what waits for the file only looks now and then."""
        ((version,),) = self._cursor.execute("PRAGMA data_version").fetchall()
        if version != self._data_version:
            if self._data_version:
                self._shared_till = time.monotonic() + _SHARED_FOR
            self._data_version = version
        if self._shared_till and time.monotonic() < self._shared_till:
            time.sleep(_ROOM)

    def rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._cursor.execute("ROLLBACK")
