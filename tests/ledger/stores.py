"""The stores that the conformance suite runs on, and what it needs of each: open it, and simulate an outage."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from semel.ledger.contract import Ledger

if TYPE_CHECKING:
    from servers import dynamodb, postgres, redis


class Shift:
    """A ledger's clock in a test: the store's own clock, until `advance` is called. Tests never wait."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float | None:
        return time.time() + self.seconds if self.seconds else None

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class StoreUnderTest(Protocol):
    """One location for ledger data, new for each test."""

    @property
    def name(self) -> str: ...

    @property
    def slow(self) -> bool:
        """Whether its substitute answers only a few hundred requests per second, so that tests should do less."""

    @property
    def port(self) -> int | None:
        """The port of its server, if it has one."""

    @property
    def effects(self) -> str:
        """The name for a table of the user, if transactions are SQL."""

    @property
    def placeholder(self) -> str:
        """The placeholder for a value in SQL."""

    def open(self, clock_offset: Shift, *, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger:
        """A ledger on this data, as each process would open one. `impatient`: it soon gives up on an unreachable store.
        `via`: another port through which to reach the server."""

    def outage(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block the store does not answer."""

    def another(self) -> StoreUnderTest:
        """An empty location in the same store."""

    def drop(self) -> None:
        """Remove the data, which is no longer needed."""


def _through(url: str, port: int | None) -> str:
    return url if port is None else re.sub(r"(?<=:)\d+(?=/|$)", str(port), url, count=1)


class Sqlite:
    name, slow, port, effects, placeholder = "sqlite", False, None, "effects", "?"

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / f"{uuid.uuid4().hex[:12]}.db"

    def another(self) -> Sqlite:
        return Sqlite(self.folder)

    def open(self, clock_offset: Shift, *, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger:
        from semel.ledger.sqlite.ledger import SqliteLedger

        return SqliteLedger(str(self.path), clock=clock_offset, timeout=0.05 if impatient else 60.0, **options)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Another connection keeps the file locked."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=60)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def drop(self) -> None:
        pass  # the folder belongs to the test


class _Served:
    """A store with a server: in an outage the server is stopped."""

    server: postgres.Server | redis.Server | dynamodb.Server

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()


class Postgres(_Served):
    server: postgres.Server
    name, slow, placeholder = "postgres", False, "%s"

    def __init__(self, server: postgres.Server) -> None:
        self.server, self.schema = server, f"test_{uuid.uuid4().hex[:12]}"
        self.port, self.effects = server.port, f"{self.schema}.effects"

    def another(self) -> Postgres:
        return Postgres(self.server)

    def open(self, clock_offset: Shift, *, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger:
        from semel.ledger.postgres.ledger import PostgresLedger

        options.setdefault("timeout", 2.0 if impatient else 30.0)
        return PostgresLedger(_through(self.server.url, via), schema=self.schema, clock=clock_offset, **options)

    def drop(self) -> None:
        import psycopg

        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE'.encode())


class Redis(_Served):
    server: redis.Server
    name, slow, effects, placeholder = "redis", False, "", ""

    def __init__(self, server: redis.Server) -> None:
        self.server, self.prefix = server, f"test-{uuid.uuid4().hex[:12]}"
        self.port = server.port

    def another(self) -> Redis:
        return Redis(self.server)

    def open(self, clock_offset: Shift, *, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger:
        from semel.ledger.redis.ledger import RedisLedger

        options.setdefault("timeout", 2.0 if impatient else 30.0)
        return RedisLedger(_through(self.server.url, via), prefix=self.prefix, clock=clock_offset, **options)

    def drop(self) -> None:
        pass  # the prefix belongs to the test, the server to the session


class Dynamo(_Served):
    server: dynamodb.Server
    name, slow, effects, placeholder = "dynamodb", True, "", ""

    def __init__(self, server: dynamodb.Server) -> None:
        self.server, self.table = server, f"test-{uuid.uuid4().hex[:12]}"
        self.port = int(server.url.rpartition(":")[2])

    def another(self) -> Dynamo:
        return Dynamo(self.server)

    def open(self, clock_offset: Shift, *, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger:
        from semel.ledger.dynamodb.ledger import DynamoLedger

        options.setdefault("timeout", 2.0 if impatient else 30.0)
        return DynamoLedger(
            self.table,
            endpoint_url=_through(self.server.url, via),
            session=self.server.session(),
            create=True,
            clock=clock_offset,
            **options,
        )

    def drop(self) -> None:
        pass


def _sqlite(request: pytest.FixtureRequest) -> StoreUnderTest:
    return Sqlite(request.getfixturevalue("tmp_path"))


def _postgres(request: pytest.FixtureRequest) -> StoreUnderTest:
    return Postgres(request.getfixturevalue("postgres_server"))


def _redis(request: pytest.FixtureRequest) -> StoreUnderTest:
    return Redis(request.getfixturevalue("redis_server"))


def _dynamodb(request: pytest.FixtureRequest) -> StoreUnderTest:
    return Dynamo(request.getfixturevalue("dynamodb_server"))


# How a test gets each store. A new store needs a line here, and must then pass the suite. A test that is not for all
# stores names those that it is for: @on(TRANSACTIONAL).
STORES: Final[dict[str, Callable[[pytest.FixtureRequest], StoreUnderTest]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
    "dynamodb": _dynamodb,
}
TRANSACTIONAL: Final = ("sqlite", "postgres")  # with SQL, so that the user's own writes can be part of the transaction
REMOTE: Final = ("postgres", "redis", "dynamodb")
PURGED: Final = ("sqlite", "postgres")  # need `purge`; the others drop expired entries by themselves
# A key that was purged and comes back gets a higher fence. The other stores forget the fence together with the key.
FENCES_OUTLIVE_PURGE: Final = ("sqlite", "postgres")


def on(names: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.stores(*names)
