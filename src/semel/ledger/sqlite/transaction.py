"""The user's writes, the outgoing messages and the ledger's record, in one commit of one SQLite file.

The write lock is taken by the first statement, not when the block begins: a handler that computes before it writes
keeps nobody waiting. From the first statement on all other writers wait, so the rest should be short.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from semel.ledger import outgoing
from semel.ledger.contract import (
    Completion,
    LedgerError,
    OutboxStatus,
    OutcomeUnknown,
    Outgoing,
    Transaction,
    check_completions,
)
from semel.ledger.sqlite import operations
from semel.ledger.sqlite.schema import code_of, explained
from semel.ledger.sqlite.writer import Writer

_SEND: Final = """
    INSERT INTO semel_outbox (queue, body, key, delay, grp, attributes, taken_till) VALUES (?, ?, ?, ?, ?, ?, 0)
"""
# A message of a group waits for all earlier messages of the group.
_DUE: Final = """
    SELECT number, queue, body, key, delay, grp, attributes, attempts, error FROM semel_outbox AS it
    WHERE taken_till <= :now AND NOT EXISTS (
        SELECT 1 FROM semel_outbox AS earlier
        WHERE earlier.queue = it.queue AND earlier.grp = it.grp AND earlier.number < it.number
            AND earlier.taken_till > :now
    )
    ORDER BY number LIMIT :limit
"""
_ANY_DUE: Final = "SELECT EXISTS (SELECT 1 FROM semel_outbox WHERE taken_till <= ?)"
_TAKE: Final = "UPDATE semel_outbox SET taken_till = ? WHERE number = ?"
_REFUSED: Final = """
    UPDATE semel_outbox SET taken_till = ?, attempts = attempts + 1, error = ? WHERE number = ?
"""
_COUNT: Final = "SELECT count(*), count(*) FILTER (WHERE attempts > 0) FROM semel_outbox"
_EXAMPLES: Final = """
    SELECT number, queue, body, key, delay, grp, attributes, attempts, error FROM semel_outbox
    WHERE attempts > 0 ORDER BY number LIMIT ?
"""
_SENT: Final = "DELETE FROM semel_outbox WHERE number = ?"

# After these errors it is unknown whether the commit reached the disk.
_UNSURE: Final = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)


class SqliteTransaction(Transaction):
    """Open from its first statement until the block of `SqliteLedger.transaction` ends."""

    def __init__(self, writer: Writer, path: str, now: Callable[[], float], retention: float) -> None:
        self._writer, self._path, self._now, self._retention = writer, path, now, retention
        self._cursor: sqlite3.Cursor | None = None
        self._factories: tuple[Any, Any] = (None, str)
        self._over = False
        self._points = 0

    @property
    def connection(self) -> sqlite3.Connection:
        self._begun()
        return self._writer.connection

    def execute(self, query: Any, parameters: Any = (), /) -> sqlite3.Cursor:
        return self.connection.execute(query, parameters)

    def executemany(self, query: Any, parameters: Any, /) -> sqlite3.Cursor:
        return self.connection.executemany(query, parameters)

    def send(
        self,
        queue: str,
        body: Any,
        *,
        key: str = "",
        delay: int | None = None,
        group: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        it = outgoing.checked(queue, body, key, delay, group, attributes)
        packed = orjson.dumps(dict(it.attributes)).decode()
        self._begun().execute(_SEND, (it.queue, it.body, it.key, it.delay, it.group, packed))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        cursor = self._begun()
        self._points += 1
        name = f"semel_{self._points}"
        cursor.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            cursor.execute(f"ROLLBACK TO {name}")
            cursor.execute(f"RELEASE {name}")
            raise
        cursor.execute(f"RELEASE {name}")

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        if not completions:
            return []
        check_completions(completions)
        cursor = self._begun()
        chosen, self._writer.connection.text_factory = self._writer.connection.text_factory, str
        try:
            return operations.record(cursor, completions, self._now(), self._retention)
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
        finally:
            self._writer.connection.text_factory = chosen

    def commit(self) -> None:
        self._over = True
        if self._cursor is None:
            return
        try:
            if not self._writer.connection.in_transaction:
                raise LedgerError(
                    f"the transaction on {self._path} was ended inside its block: do not use COMMIT, ROLLBACK or "
                    "executescript in it; the block commits by itself"
                )
            self._cursor.execute("COMMIT")
        except sqlite3.IntegrityError:  # a deferred constraint of the user's own
            self._writer.rollback()
            raise
        except sqlite3.Error as error:
            self._writer.rollback()
            if code_of(error) in _UNSURE:
                raise OutcomeUnknown(
                    f"the ledger {self._path}: the disk failed while a transaction was being committed ({error}); "
                    "look its keys up before doing anything else"
                ) from error
            raise explained(error, self._path) from error
        except BaseException:
            self._writer.rollback()
            raise
        finally:
            self._give_back()

    def rollback(self) -> None:
        self._over = True
        if self._cursor is not None:
            self._writer.rollback()
            self._give_back()

    def _begun(self) -> sqlite3.Cursor:
        if self._over:
            raise LedgerError(f"the transaction on {self._path} is over: open another one")
        if self._cursor is None:
            self._cursor = self._writer.take()
            connection = self._writer.connection
            self._factories = connection.row_factory, connection.text_factory
        return self._cursor

    def _give_back(self) -> None:
        # Settings that the user has made on the connection must not affect the ledger's own statements.
        self._writer.connection.row_factory, self._writer.connection.text_factory = self._factories
        self._cursor = None
        self._writer.give_back()


def any_due(db: sqlite3.Cursor, now: float) -> bool:
    ((due,),) = db.execute(_ANY_DUE, (now,)).fetchall()
    return bool(due)


def status(db: sqlite3.Cursor, identity: str, examples: int) -> OutboxStatus:
    ((waiting, refused),) = db.execute(_COUNT).fetchall()
    rows = db.execute(_EXAMPLES, (examples,)).fetchall() if refused else []
    return OutboxStatus(waiting, refused, tuple(_outgoing(identity, row) for row in rows))


def take_outgoing(db: sqlite3.Cursor, identity: str, limit: int, lease: float, now: float) -> list[Outgoing]:
    due = db.execute(_DUE, {"now": now, "limit": limit}).fetchall()
    db.executemany(_TAKE, [(now + lease, number) for number, *_ in due])
    return [_outgoing(identity, row) for row in due]


def _outgoing(identity: str, row: tuple[Any, ...]) -> Outgoing:
    number, queue, body, key, delay, group, attributes, attempts, error = row
    id = f"{identity}-{number}"
    return Outgoing(queue, body, key, delay, group, orjson.loads(attributes), id, attempts, error)


def refused_outgoing(db: sqlite3.Cursor, identity: str, ids: Sequence[str], error: str, till: float) -> None:
    db.executemany(_REFUSED, [(till, error, number) for number in _numbers(identity, ids)])


def sent_outgoing(db: sqlite3.Cursor, identity: str, ids: Sequence[str]) -> None:
    db.executemany(_SENT, [(number,) for number in _numbers(identity, ids)])


def _numbers(identity: str, ids: Sequence[str]) -> list[int]:
    ours = (it.removeprefix(f"{identity}-") for it in ids if it.startswith(f"{identity}-"))
    return [int(number) for number in ours if number.isdigit()]
