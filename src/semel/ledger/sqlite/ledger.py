"""The ledger in one SQLite file: the default, for one machine, with any number of threads and processes.

Every write is on the disk before the call returns (`synchronous="FULL"`). Writes that threads make at the same time
share one transaction and one wait for the disk; each call still gets its own result, or its own error.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeVar
from urllib.parse import unquote

from semel.ledger.contract import (
    RETENTION,
    Claim,
    ClaimRequest,
    ClaimResult,
    Clock,
    Completion,
    Entry,
    Ledger,
    LedgerError,
    OutboxStatus,
    Outgoing,
    Transaction,
    check_completions,
    check_lease,
    check_requests,
    check_result,
    check_retention,
    own_clock,
)
from semel.ledger.sqlite import operations
from semel.ledger.sqlite import transaction as outbox
from semel.ledger.sqlite.schema import TROUBLE, Connection, explained, identity, opened, patiently
from semel.ledger.sqlite.transaction import SqliteTransaction
from semel.ledger.sqlite.writer import Writer

Returned = TypeVar("Returned")

IN_MEMORY: Final = ":memory:"
_SYNCHRONOUS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")


class SqliteLedger(Ledger):
    """A ledger in the file `path`, which is created if it does not exist; ":memory:" lasts as long as this object.

    `timeout`: seconds to wait for a locked file before LedgerUnavailable is raised. `synchronous="NORMAL"` is faster
    and survives a crash of the process, but a power failure may undo the last writes: work can then happen twice.

    >>> from semel import App, SqliteLedger
    >>> ledger = SqliteLedger("shop.db", retention=7 * 86_400)
    >>> app = App(ledger)
    >>> ledger.close()
    """

    transactional = True

    def __init__(
        self,
        path: str,
        *,
        retention: float = RETENTION,
        clock: Clock = own_clock,
        synchronous: str = "FULL",
        timeout: float = 30.0,
    ) -> None:
        if synchronous.upper() not in _SYNCHRONOUS:
            raise LedgerError(f"synchronous={synchronous!r} is unknown; it is one of {', '.join(_SYNCHRONOUS)}")
        check_retention(retention)
        self.path = str(path)
        self.retention = retention
        self.clock, self._timeout = clock, timeout
        connection = opened(self.path, synchronous.upper(), timeout)
        try:
            self._identity = identity(connection)
        except TROUBLE as error:
            connection.close()
            raise explained(error, self.path) from error
        self._writer = Writer(connection, self.path, timeout)
        # Reads have a connection of their own: they need not wait for writes, nor for the disk.
        self._reader: Connection | None = None
        self._reading = threading.Lock()
        if self.path != IN_MEMORY:
            self._reader = opened(self.path, synchronous.upper(), timeout)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """sqlite:///relative.db, sqlite:////absolute/path.db, sqlite:// (in memory)."""
        rest = url.partition("://")[2]
        path = unquote(rest[1:]) or IN_MEMORY
        if (rest and not rest.startswith("/")) or "?" in rest or "#" in rest:
            raise LedgerError(
                f"{url!r} is no address of a SQLite ledger: sqlite:///relative.db, sqlite:////absolute/path.db, "
                "or sqlite:// for one in memory; options are passed by name, not in the address"
            )
        return cls(path, **options)

    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        check_requests(requests, claimant, lease)
        if not requests:
            return []
        return self._writer.run(
            lambda db: operations.claim(db, requests, operations.Terms.of(claimant, lease, self._now(), self.retention))
        )

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        check_lease(lease)
        if not claims:
            return []
        return self._writer.run(lambda db: operations.extend(db, claims, lease, self._now(), self.retention), timeout)

    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        check_result(value, f"the step {name!r} of the key {claim.key!r}")
        return self._writer.run(lambda db: operations.save_step(db, claim, name, value, self._now(), self.retention))

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        check_completions(completions)
        if not completions:
            return []
        return self._writer.run(lambda db: operations.record(db, completions, self._now(), self.retention))

    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        if not claims:
            return []
        return self._writer.run(lambda db: operations.release(db, claims, tried, self._now(), self.retention))

    def forget(self, keys: Sequence[str]) -> int:
        if not keys:
            return 0
        return self._writer.run(lambda db: operations.forget(db, keys, self._now(), self.retention))

    def purge(self, limit: int = 1_000) -> int:
        removed, more = 0, True
        while more and removed < limit:
            gone, more = self._purge(limit - removed)
            removed += gone
        return removed

    def _purge(self, limit: int) -> tuple[int, bool]:
        return self._writer.run(lambda db: operations.purge(db, limit, self._now()))

    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        if not keys:
            return []
        return self._read(lambda db: operations.entries(db, keys, self._now()))

    def transaction(self) -> contextlib.AbstractContextManager[Transaction]:
        return self._transaction()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        transaction = SqliteTransaction(self._writer, self.path, self._now, self.retention)
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()

    def take_outgoing(self, limit: int = 10, *, lease: float = 30.0) -> list[Outgoing]:
        # Usually nothing is due, and a read is enough to see that.
        if not self._read(lambda db: outbox.any_due(db, self._now())):
            return []
        return self._writer.run(lambda db: outbox.take_outgoing(db, self._identity, limit, lease, self._now()))

    def sent_outgoing(self, ids: Sequence[str]) -> None:
        if ids:
            self._writer.run(lambda db: outbox.sent_outgoing(db, self._identity, ids))

    def refused_outgoing(self, ids: Sequence[str], *, error: str, wait: float) -> None:
        self._writer.run(lambda db: outbox.refused_outgoing(db, self._identity, ids, error, self._now() + wait))

    def outbox_status(self, examples: int = 3) -> OutboxStatus:
        return self._read(lambda db: outbox.status(db, self._identity, examples))

    def count_outgoing(self) -> int:
        return self.outbox_status(0).waiting

    def close(self) -> None:
        if not self._writer.close():
            return
        with self._reading:
            if self._reader is not None:
                self._reader.close()

    def _now(self) -> float:
        now = self.clock()
        return time.time() if now is None else now

    def _read(self, work: Callable[[sqlite3.Cursor], Returned]) -> Returned:
        if self._reader is None:
            return self._writer.run(work)
        with self._reading:
            self._writer.check_open()
            try:
                cursor = self._reader.cursor()
                return patiently(lambda: work(cursor), self._timeout)
            except TROUBLE as error:
                raise explained(error, self.path) from error
