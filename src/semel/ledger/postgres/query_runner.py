"""Runs the ledger's queries on PostgreSQL over a few connections, which all threads share.

While a round trip is under way, further calls collect. The next round trip sends all calls of the same query as one
statement. A commit costs the same for one key as for hundreds, so this is where the throughput comes from.
The rule: no caller waits longer than its timeout, whatever happens to the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from semel.ledger.combiner import Call, Closed, Combiner, NoTurn, copied
from semel.ledger.contract import LedgerError, LedgerUnavailable

Query = Callable[["psycopg.Connection[Any]", list[Any]], list[Any]]
Returned = TypeVar("Returned")
MOST: Final = 2_000  # maximum number of items of several callers in one statement

# The server did not answer, or cannot do this now, or not on this host: try again later, with a new connection.
PASSING: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
)
# Worth repeating at once, which is safe.
REPEATABLE: Final = (errors.DeadlockDetected, errors.SerializationFailure)


def translated(error: psycopg.Error, where: str) -> LedgerError:
    """A driver's error as one of ours, for somebody who knows only the ledger."""
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


class TimedConnection(psycopg.Connection[Any]):
    """A connection that waits for the server only until its deadline."""

    deadline: float = 0.0  # by time.monotonic(); 0: no deadline

    def wait(self, gen: Generator[Any, Any, Returned], *args: Any, **options: Any) -> Returned:
        return super().wait(_until(gen, self.deadline) if self.deadline else gen, *args, **options)


def _until(gen: Generator[Any, Any, Returned], deadline: float) -> Generator[Any, Any, Returned]:
    """Raises TimeoutError at the deadline. The driver resumes this generator ten times a second, even if nothing has
    come."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if time.monotonic() >= deadline:
                raise TimeoutError
            wanted = gen.send(ready)
    except StopIteration as end:
        result: Returned = end.value
        return result


class Connector:
    """One connection, opened when it is needed and again after it broke. Used by one thread at a time."""

    def __init__(self, connect: Callable[[], TimedConnection]) -> None:
        self._connect = connect
        self._connection: TimedConnection | None = None

    def run(self, query: Query, items: list[Any], deadline: float) -> list[Any]:
        """Raises TimeoutError at the deadline. A query is tried once more if its connection broke, or if its error is
        one of REPEATABLE."""
        for again in (True, False):
            connection = self._connection or self._open(deadline)
            connection.deadline = deadline
            try:
                return query(connection, items)
            except psycopg.Error as error:
                lost = connection.broken or connection.closed or isinstance(error, errors.ReadOnlySqlTransaction)
                if lost:
                    self.close()
                if not (again and (lost or isinstance(error, REPEATABLE))):
                    raise
            except LedgerError:  # raised by the query itself, after the server has answered
                raise
            except BaseException:  # the connection may be in the middle of an answer
                self.close()
                raise
        raise AssertionError

    def _open(self, deadline: float) -> TimedConnection:
        """Connect on a thread of its own, because looking up a name and connecting may take any time."""
        opened: Future[TimedConnection] = Future()

        def connect() -> None:
            try:
                opened.set_result(self._connect())
            except BaseException as error:  # noqa: BLE001 - it is raised below
                opened.set_exception(error)

        Thread(target=connect, name="semel-ledger-connect", daemon=True).start()
        try:
            self._connection = opened.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            opened.add_done_callback(_close_late)
            raise
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _close_late(opened: Future[TimedConnection]) -> None:
    if opened.exception() is None:
        opened.result().close()


class QueryRunner:
    """Thread-safe. A query gets a connection and the items of one or more callers, and returns results in order."""

    def __init__(self, connect: Callable[[], TimedConnection], *, where: str, connections: int, timeout: float) -> None:
        self._where = where
        self._timeout = timeout
        connectors = [Connector(connect) for _ in range(connections)]
        self._combiner = Combiner(connectors, self._serve, dispose=Connector.close, most=MOST, gather=True)

    def run(self, query: Query, items: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The results of the query for these items, in order. Items that others have for the same query may be sent
        along with them."""
        if not items:
            return []
        patience = self._timeout if timeout is None else min(timeout, self._timeout)
        deadline = time.monotonic() + patience
        try:
            answers: list[Any] = self._combiner.run(
                Call(list(items), kind=(query, patience), size=len(items), deadline=deadline)
            )
        except Closed:
            raise LedgerError(f"the ledger in {self._where} is closed; open a new one") from None
        except NoTurn:
            raise self._no_answer(patience) from None
        return answers

    def _no_answer(self, patience: float) -> LedgerUnavailable:
        return LedgerUnavailable(f"the ledger in {self._where} gave no answer within {patience:g} seconds")

    def _serve(self, connector: Connector, calls: list[Call]) -> None:
        query, patience = calls[0].kind
        items = calls[0].work if len(calls) == 1 else [item for call in calls for item in call.work]
        try:
            answers = connector.run(query, items, min(call.deadline for call in calls))
        except TimeoutError:
            for call in calls:
                call.end(error=self._no_answer(patience))
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            if len(calls) > 1 and (isinstance(error, errors.LockNotAvailable) or not isinstance(error, PASSING)):
                for call in calls:  # one of them may be the cause: the others must not fail with it
                    self._serve(connector, [call])
                return
            for call in calls:
                call.end(error=self._translated(error))
        else:
            at = 0
            for call in calls:
                call.end(answers[at : at + call.size])
                at += call.size

    def _translated(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error):
            return copied(error)
        ours = translated(error, self._where)
        ours.__cause__ = error
        return ours

    def close(self) -> None:
        """Close when the calls under way have ended, or after the time that a call may take."""
        self._combiner.close(self._timeout)
