"""The one connection that writes to a SQLite ledger. Writes that are made at the same time share one transaction and
one wait for the disk.

A user's transaction borrows the connection when its turn comes, so that the threads of one process never find the file
locked by one another.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from semel.ledger.combiner import Call, Closed, Combiner, NoTurn, copied
from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.forks import OwningProcess
from semel.ledger.sqlite.schema import BUSY, TROUBLE, Connection, code_of, explained, patiently

Returned = TypeVar("Returned")

_SHARED_FOR: Final = 1.0  # seconds for which gaps are left after another process was seen writing
_ROOM: Final = 0.001  # seconds of a gap
_MOST_CALLS: Final = 256  # in one transaction


class Writer:
    """Owns the connection that writes. `timeout` bounds each wait: for a turn, and for other processes."""

    def __init__(self, connection: Connection, path: str, timeout: float) -> None:
        self.connection = connection
        self._cursor: sqlite3.Cursor = connection.cursor()
        self._path = path
        self._timeout = timeout
        self._process = OwningProcess(f"the ledger {path}")
        self._combiner = Combiner(
            [connection], self._serve, dispose=sqlite3.Connection.close, most=_MOST_CALLS, gather=True
        )
        self._closed = False
        self._owner: int | None = None  # the thread whose transaction is open
        self._shared_till = 0.0
        self._data_version = 0

    def run(self, work: Callable[[sqlite3.Cursor], Returned], timeout: float | None = None) -> Returned:
        """Run `work` in a transaction, and return its result after the commit. `work` runs twice if a shared
        transaction was rolled back. Work with a timeout of its own shares its transaction only with work that has the
        same timeout, so that neither waits for the other's."""
        self._check_usable()
        patience = self._timeout if timeout is None else min(timeout, self._timeout)
        call = Call(work, kind=("write", timeout), deadline=time.monotonic() + patience)
        with self._turns(patience):
            result: Returned = self._combiner.run(call)
            return result

    def take(self) -> sqlite3.Cursor:
        """Begin a transaction for this thread alone, until it calls `give_back`. Returns its cursor."""
        self._check_usable()
        with self._turns(self._timeout):
            self._combiner.borrow(time.monotonic() + self._timeout)
        self._owner = threading.get_ident()
        try:
            self._begin(time.monotonic() + self._timeout)
        except BaseException:
            self.give_back()
            raise
        return self._cursor

    def give_back(self) -> None:
        self.connection.close_cursors(but=self._cursor)
        self._owner = None
        self._combiner.give_back(self.connection)

    def close(self) -> bool:
        """Close when the calls that are queued have ended; later calls are refused. False: another process opened the
        ledger, so it is not closed here."""
        if not self._process.is_this():
            return False
        if self._owner == threading.get_ident():
            raise LedgerError(f"the ledger {self._path} cannot be closed inside one of its own transactions")
        self._closed = True
        self._combiner.close(self._timeout)
        return True

    def check_open(self) -> None:
        self._process.check()
        if self._closed:
            raise self._is_closed()

    def _check_usable(self) -> None:
        self.check_open()
        if self._owner == threading.get_ident():
            raise LedgerError(
                f"the ledger {self._path} was asked inside one of its own transactions, which would wait for itself: "
                "use the transaction's own methods there"
            )

    def _is_closed(self) -> LedgerError:
        return LedgerError(f"the ledger {self._path} is closed")

    @contextlib.contextmanager
    def _turns(self, patience: float) -> Iterator[None]:
        try:
            yield
        except Closed:
            raise self._is_closed() from None
        except NoTurn:
            raise LedgerUnavailable(
                f"the ledger {self._path}: a transaction of this process has kept others waiting for "
                f"{patience:g} s; keep SQLite transactions short, or allow a longer `timeout`"
            ) from None

    def _serve(self, connection: Connection, calls: list[Call]) -> None:
        """One transaction for all calls; if it fails, one for each, so that no call fails because of another one."""
        _, own_timeout = calls[0].kind
        deadlines = [call.deadline for call in calls]
        try:
            self._begin(max(deadlines) if own_timeout is None else min(deadlines))
        except LedgerError as error:
            for call in calls:
                call.end(error=copied(error))
            return
        try:
            results = [call.work(self._cursor) for call in calls]
            self._cursor.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is raised in the thread whose work it was
            self.rollback()
            if len(calls) > 1:
                for call in calls:
                    self._serve(connection, [call])
                return
            calls[0].end(error=explained(error, self._path) if isinstance(error, TROUBLE) else error)
        except BaseException:
            self.rollback()
            raise
        else:
            for call, result in zip(calls, results, strict=True):
                call.end(result)

    def _begin(self, deadline: float) -> None:
        if self.connection.in_transaction:  # an earlier rollback has failed, such as on a full disk
            self.rollback()
        try:
            self._make_room()
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if code_of(error) not in BUSY:
                    raise
                self._shared_till = time.monotonic() + _SHARED_FOR
                patiently(lambda: self._cursor.execute("BEGIN IMMEDIATE"), deadline - time.monotonic())
        except TROUBLE as error:
            raise explained(error, self._path) from error

    def _make_room(self) -> None:
        """While other processes write too, leave them a gap: they wait for the file by trying now and then."""
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
