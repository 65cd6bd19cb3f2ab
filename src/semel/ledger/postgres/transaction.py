"""The user's writes, the ledger's record and the messages to send, in one PostgreSQL transaction.

The rules: a connection is taken by the first statement, not when the block begins. Errors say what is known: the user's
own SQL errors are passed on unchanged; a lost connection is LedgerUnavailable, because nothing was committed; only if
it was lost after COMMIT was sent, it is OutcomeUnknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import psycopg
from psycopg import pq, sql
from psycopg.types.json import Jsonb

from semel.ledger import outgoing
from semel.ledger.contract import (
    Completion,
    LedgerError,
    LedgerUnavailable,
    OutcomeUnknown,
    Transaction,
    check_completions,
)
from semel.ledger.postgres.queries import Queries
from semel.ledger.postgres.query_runner import translated

ENDED: Final = (
    "the transaction was ended inside its block: leave COMMIT and ROLLBACK to the block, which commits by itself"
)
FAILED: Final = (
    "a statement of the transaction failed and its error was caught: PostgreSQL then commits nothing of it; "
    "put what may fail into `with tx.savepoint():`"
)


# A connection, with a transaction open on it.
Begun = tuple["psycopg.Connection[Any]", AbstractContextManager[psycopg.Transaction]]


class PostgresTransaction(Transaction):
    """Open from its first statement until the block of `PostgresLedger.transaction` ends: a handler occupies no
    connection before it writes."""

    def __init__(self, begin: Callable[[], Begun], *, where: str, queries: Queries) -> None:
        self._begin = begin
        self.begun: Begun | None = None
        self._where = where
        self._queries = queries
        self.over = False

    @property
    def connection(self) -> psycopg.Connection[Any]:
        if self.over:  # by now the connection may be another transaction's
            raise LedgerError(f"the transaction in {self._where} is over: open another one")
        if self.begun is None:
            self.begun = self._begin()
        return self.begun[0]

    def execute(self, query: Any, parameters: Any = (), /) -> psycopg.Cursor[Any]:
        with self._connected() as connection:
            # Without parameters a % in the statement is just a %.
            return connection.execute(query, parameters or None)

    def executemany(self, query: Any, parameters: Any, /) -> psycopg.Cursor[Any]:
        with self._connected() as connection:
            cursor = connection.cursor()
            cursor.executemany(query, parameters)
            return cursor

    def copy(self, table: str, rows: Iterable[Sequence[Any]], columns: Sequence[str] | None = None) -> int:
        """Load rows with COPY, which is the fastest way. Returns how many rows. `table` may be "schema.table"."""
        name = sql.Identifier(*table.split("."))
        names = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
        with self._connected() as connection, connection.cursor() as cursor:
            with cursor.copy(sql.SQL("COPY {} {} FROM STDIN").format(name, names)) as copy:
                for row in rows:
                    copy.write_row(row)
            return cursor.rowcount

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
        message = {
            "queue": it.queue,
            "body": it.body,
            "key": it.key,
            "delay": it.delay,
            "group": it.group,
            "attributes": Jsonb(dict(it.attributes)),
        }
        with self._connected() as connection:
            connection.execute(self._queries.sql.send.encode(), message)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self._connected() as connection, connection.transaction():
            yield

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        check_completions(completions)
        if not completions:
            return []
        with self._connected() as connection:
            return self._queries.record(connection, completions)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Raises LedgerUnavailable if the connection is lost; any other error is passed on unchanged."""
        connection = self.connection
        try:
            yield connection
        except psycopg.Error as error:
            if is_lost(connection):
                raise _lost(self._where) from error
            raise


def is_lost(connection: psycopg.Connection[Any]) -> bool:
    return connection.closed


def undo(
    connection: psycopg.Connection[Any], block: AbstractContextManager[psycopg.Transaction], error: BaseException
) -> None:
    """Roll back. If the connection is lost, the server has done so."""
    if not is_lost(connection):
        block.__exit__(type(error), error, error.__traceback__)


def commit(connection: psycopg.Connection[Any], block: AbstractContextManager[psycopg.Transaction], where: str) -> None:
    """Commit. OutcomeUnknown: nobody knows whether it happened. Any other error: nothing was committed."""
    if is_lost(connection):
        raise _lost(where)
    status = connection.info.transaction_status
    if status != pq.TransactionStatus.INTRANS:
        ended = status == pq.TransactionStatus.IDLE
        problem = LedgerError(ENDED if ended else FAILED)
        undo(connection, block, problem)
        raise problem
    try:
        block.__exit__(None, None, None)
    except psycopg.Error as error:
        if not is_lost(connection):
            raise  # the server has answered: not committed
        text = str(translated(error, where))
        raise OutcomeUnknown(f"whether a transaction was committed is unknown: look its keys up. {text}") from error


def _lost(where: str) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"the connection to the ledger in {where} broke inside a transaction; nothing was committed"
    )
