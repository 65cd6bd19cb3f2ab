"""The ledger in PostgreSQL: psycopg 3, one statement for each batch, and transactions that include the user's writes.

The rule: every decision is one statement in PostgreSQL, by PostgreSQL's clock (`clock_timestamp()`). Python only
combines the calls of several threads, and finds out why a claim was refused.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, cast

import psycopg
from psycopg import conninfo
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from semel.ledger.connect import PERCENT, is_ambiguous, options_from_url
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
    LedgerUnavailable,
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
from semel.ledger.forks import OwningProcess
from semel.ledger.postgres.queries import CallerRequest, Queries
from semel.ledger.postgres.query_runner import Query, QueryRunner, TimedConnection, translated
from semel.ledger.postgres.statements import Statements, identity, migrate
from semel.ledger.postgres.transaction import Begun, PostgresTransaction, commit, undo

Connection = psycopg.Connection[Any]

CHUNK: Final = 1_000  # rows that one statement of a purge removes, so that it holds locks for a few milliseconds only

# The index on the key is always the best plan, even while the planner believes that the table is small, so one generic
# plan is enough. With scans disabled, the one that cannot be avoided (one row of semel_meta) looks so expensive to
# PostgreSQL before 18 that it would compile the query (JIT), which takes far longer than the scan.
SESSION: Final = """
SELECT set_config('lock_timeout', %(lock)s, false), set_config('statement_timeout', %(statement)s, false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('jit', 'off', false)
"""
# If the server could lose a commit, it could give the same fence to two claims.
DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""


class PostgresLedger(Ledger):
    """A ledger in a schema of a PostgreSQL database (12 or newer). The schema is created and upgraded automatically.

    `dsn`: a URL or a libpq connection string. `pool_size`: the maximum number of open transactions. A transaction takes
    its connection with its first statement, and waits for one while all are in use. `connections`: the number of
    connections for everything else, shared by all threads. `timeout`: seconds until a call gives up. `lock_timeout`:
    seconds that a claim waits for a row that another open transaction has locked. `idle_timeout`: seconds after which
    the server ends a transaction that has recorded a key and has been idle since.

    >>> from semel import App, PostgresLedger
    >>> app = App(PostgresLedger("postgresql://localhost/shop", schema="orders"))  # doctest: +SKIP
    """

    transactional = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "semel",
        pool_size: int = 16,
        connections: int = 3,
        retention: float = RETENTION,
        clock: Clock = own_clock,
        timeout: float = 5.0,
        lock_timeout: float = 0.5,
        idle_timeout: float = 30.0,
    ) -> None:
        check_retention(retention)
        self.retention, self.clock = retention, clock
        self._timeout = timeout
        self._dsn, self._where = _address(dsn, timeout)
        self._session = {"lock": f"{math.ceil(lock_timeout * 1000)}ms", "statement": f"{math.ceil(timeout * 1000)}ms"}
        named = self._migrated(schema)
        self._queries = Queries(
            Statements.within(schema),
            identity=named,
            retention=retention,
            clock=lambda: self.clock(),
            idle=idle_timeout,
        )
        self._process = OwningProcess(f"the ledger in {self._where}")
        self._closed = False
        self._runner = QueryRunner(self._connect, where=self._where, connections=connections, timeout=timeout)
        self._pool = ConnectionPool(
            self._dsn,
            kwargs={"autocommit": True},
            min_size=0,
            max_size=pool_size,
            open=False,
            configure=_durable,
            timeout=self._timeout,
            reconnect_timeout=self._timeout,
            name="semel-ledger",
        )
        self._opening = threading.Lock()
        self._holders: list[int] = []  # threads that have connections of the pool, once for each connection

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """`postgresql://…` as for libpq. The option `?schema=…` is Semel's own."""
        rest, ours = options_from_url(url, {"schema": str})
        return cls(rest, **(ours | options))

    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        check_requests(requests, claimant, lease)
        _check_text(claimant)
        for request in requests:
            if "\0" in request.payload or "\0" in request.source:
                _check_text(request.payload + request.source)
        return self._run(self._queries.claim, [CallerRequest(request, claimant, lease) for request in requests])

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        check_lease(lease)
        return self._run(self._queries.extend, [(claim, lease) for claim in claims], timeout)

    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        check_result(value, f"the step {name!r} of the key {claim.key!r}")
        _check_text(name)
        (saved,) = self._run(self._queries.save_step, [(claim, name, value)])
        return cast(bool, saved)

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        check_completions(completions)
        return self._run(self._queries.record, completions)

    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        return self._run(self._queries.release, [(claim, 0 if tried else 1) for claim in claims])

    def forget(self, keys: Sequence[str]) -> int:
        return sum(self._run(self._queries.forget, list(dict.fromkeys(keys))))

    def purge(self, limit: int = 1_000) -> int:
        removed = 0
        while removed < limit:
            (count,) = self._run(self._queries.purge, [min(CHUNK, limit - removed)])
            removed += count
            if not count:
                break
        return removed

    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        return self._run(self._queries.get, keys)

    def close(self) -> None:
        if not self._process.is_this():
            return
        with self._opening:
            self._closed = True
        self._runner.close()
        self._pool.close()

    def _run(self, query: Query, items: Sequence[Any], timeout: float | None = None) -> list[Any]:
        self._process.check()
        return self._runner.run(query, items, timeout)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._check_open()
        tx = PostgresTransaction(self._begin, where=self._where, queries=self._queries)
        try:
            try:
                yield tx
            except BaseException as error:
                if tx.begun is not None:
                    connection, block = tx.begun
                    gone = connection.closed
                    undo(connection, block, error)
                    if gone and isinstance(error, psycopg.Error):
                        raise translated(error, self._where) from error
                raise
            if tx.begun is not None:
                commit(*tx.begun, self._where)
        finally:
            tx.over = True
            if tx.begun is not None:
                connection, _ = tx.begun
                connection.row_factory = tuple_row  # the user may have changed it
                self._give_back(connection)

    def take_outgoing(self, limit: int = 10, *, lease: float = 30.0) -> list[Outgoing]:
        (messages,) = self._run(self._queries.take, [(limit, lease)])
        return cast(list[Outgoing], messages)

    def refused_outgoing(self, ids: Sequence[str], *, error: str, wait: float) -> None:
        self._run(self._queries.refused, [(ids, error.replace("\0", "?"), wait)])

    def outbox_status(self, examples: int = 3) -> OutboxStatus:
        (status,) = self._run(self._queries.outbox_status, [examples])
        return cast(OutboxStatus, status)

    def count_outgoing(self) -> int:
        return self.outbox_status(0).waiting

    def sent_outgoing(self, ids: Sequence[str]) -> None:
        self._run(self._queries.sent, ids)

    # Connections.

    def _migrated(self, schema: str) -> str:
        """Create or upgrade the tables. Returns the ledger's identity."""
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                migrate(connection, schema)
                return identity(connection, schema)
        except psycopg.Error as error:
            raise translated(error, self._where) from error

    def _connect(self) -> TimedConnection:
        connection = TimedConnection.connect(self._dsn, autocommit=True, prepare_threshold=0)
        try:
            connection.execute(SESSION, self._session, prepare=False)
            _durable(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_open(self) -> None:
        self._process.check()
        with self._opening:
            if self._closed:
                raise LedgerError(f"the ledger in {self._where} is closed; open a new one")
            self._pool.open()

    def _begin(self) -> Begun:
        """A connection with an open transaction. The BEGIN also shows whether the connection is still alive."""
        self._check_open()
        deadline = time.monotonic() + self._timeout
        while True:
            connection = self._free_connection(deadline)
            block = connection.transaction()
            try:
                block.__enter__()
                return connection, block
            except psycopg.Error:
                self._give_back(connection)  # the pool drops it; the next one may be dead too, so try until time is up
            except BaseException:
                self._give_back(connection)
                raise

    def _give_back(self, connection: Connection) -> None:
        self._pool.putconn(connection)
        with self._opening:
            self._holders.remove(threading.get_ident())

    def _free_connection(self, deadline: float) -> Connection:
        """A connection from the pool. While other threads have connections in use, this is not an outage: wait for as
        long as it takes. Only a thread that has a connection itself gives up after the timeout, because all others
        might be waiting in the same way."""
        while True:
            in_use = bool(self._holders)  # read before the wait: at its end, one may just be passing to another thread
            try:
                connection = self._pool.getconn(max(0.001, deadline - time.monotonic()))
                with self._opening:
                    self._holders.append(threading.get_ident())
                return connection
            except PoolTimeout as error:
                nested = threading.get_ident() in self._holders
                if nested or not (in_use or self._holders):
                    reason = (
                        f"all {self._pool.max_size} connections for transactions are in use (pool_size), one of them "
                        "by this very thread, for a transaction around this one"
                        if nested
                        else "the server does not answer"
                    )
                    raise LedgerUnavailable(
                        f"no connection to the ledger in {self._where} within {self._timeout:g} seconds: {reason}"
                    ) from error
                deadline = time.monotonic() + self._timeout
            except PoolClosed as error:
                raise LedgerUnavailable(f"the ledger in {self._where} was closed meanwhile; open a new one") from error


def _check_text(text: str) -> None:
    if "\0" in text:
        raise LedgerError(f"PostgreSQL keeps no NUL character in a text such as {text[:60]!r}; use a digest of it")


def _durable(connection: Connection) -> None:
    connection.execute(DURABLE, prepare=False)


def _address(dsn: str, timeout: float) -> tuple[str, str]:
    """The connection string with our defaults for missing options, and a name of the server without secrets."""
    try:
        options = None if is_ambiguous(dsn) else conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:  # its text may quote the password
        options = None
    if options is None:
        raise LedgerError(
            "this is no address of a PostgreSQL database, or it has an option that PostgreSQL does not know; write it "
            f"as postgresql://user:password@host:5432/database?option=value; {PERCENT}"
        )
    patience = max(2, math.ceil(timeout / 2))
    defaults: dict[str, Any] = {
        "connect_timeout": patience,
        "tcp_user_timeout": patience * 1000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "application_name": "semel",
        "client_encoding": "UTF8",
    }
    where = f"PostgreSQL at {options.get('host', 'localhost')}:{options.get('port', 5432)}/{options.get('dbname', '')}"
    return conninfo.make_conninfo(**(defaults | options)), where
