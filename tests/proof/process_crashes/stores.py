"""The stores of the ledger: how workers reach them, how they crash, and how to read the effects in them afterwards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from servers import postgres, redis

_TABLE: Final = (
    "CREATE TABLE effects (number {serial}, queue TEXT, id TEXT, grp TEXT, place INTEGER, fence BIGINT, "
    "pid INTEGER, at DOUBLE PRECISION)"
)
_ROWS: Final = "SELECT queue, id, grp, place, fence, pid, at FROM effects ORDER BY number"


@dataclass(frozen=True, slots=True)
class EffectRow:
    """A row that a handler wrote with `tx`. Within a group, rows are in the order of the commits."""

    queue: str
    id: str
    group: str | None
    place: int | None
    fence: int
    pid: int
    at: float


class Store(Protocol):
    @property
    def transactional(self) -> bool: ...

    @property
    def port(self) -> int | None:
        """The port of the server; None: the store is a file."""

    def url(self, port: int | None) -> str:
        """The ledger's address, through a proxy's port if one is given."""

    def crash(self) -> None: ...

    def start(self) -> None: ...

    def rows(self) -> list[EffectRow]: ...


class SqliteStore:
    transactional, port = True, None

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.db"
        with self._opened() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_TABLE.format(serial="INTEGER PRIMARY KEY AUTOINCREMENT"))

    def url(self, port: int | None) -> str:
        return f"sqlite:///{self._path}"

    def crash(self) -> None:
        raise AssertionError("a file does not crash")

    def start(self) -> None: ...

    def rows(self) -> list[EffectRow]:
        with self._opened() as connection:
            return [EffectRow(*row) for row in connection.execute(_ROWS)]

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()


class PostgresStore:
    transactional = True

    def __init__(self, server: postgres.Server) -> None:
        import psycopg

        self._server, self.port = server, server.port
        self._schema = f"process_crashes_{time.time_ns()}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS effects")
            connection.execute(_TABLE.format(serial="BIGSERIAL"))

    def url(self, port: int | None) -> str:
        return f"postgresql://{postgres.USER}@127.0.0.1:{port or self.port}/postgres?schema={self._schema}"

    def crash(self) -> None:
        self._server.kill()  # as `pg_ctl stop -m immediate`

    def start(self) -> None:
        self._server.start()

    def rows(self) -> list[EffectRow]:
        import psycopg

        with psycopg.connect(self._server.url) as connection:
            return [EffectRow(*row) for row in connection.execute(_ROWS)]


class RedisStore:
    """It runs with `appendfsync always`, so every answered write is on disk."""

    transactional = False

    def __init__(self, server: redis.Server) -> None:
        self._server, self.port = server, server.port

    def url(self, port: int | None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0"

    def crash(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def rows(self) -> list[EffectRow]:
        return []


NAMES: Final = ("sqlite", "postgres", "redis")


@contextmanager
def running(name: str, folder: Path) -> Iterator[Store]:
    """A running store of this kind. `folder`: where its file is, for SQLite."""
    if name == "sqlite":
        yield SqliteStore(folder)
    elif name == "postgres":
        with postgres.running() as postgres_server:
            yield PostgresStore(postgres_server)
    else:
        with redis.running("--appendfsync", "always") as redis_server:
            yield RedisStore(redis_server)
