"""The effects of the handlers, one for each message: rows in the ledger's own database, or records in files.

With SQLite and PostgreSQL, an effect is a row that is committed with the ledger's record. Redis has no such
transaction: there, an effect is a record in a file of the worker.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

RECORD: Final = np.dtype([("n", "<i8"), ("at", "<f8")])  # number of the message; time, by the monotonic clock
Records = np.ndarray[Any, np.dtype[np.void]]
TABLE: Final = "CREATE TABLE effects (n BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL)"
INSERT: Final = "INSERT INTO effects (n, at) VALUES ({0}, {0})"
_ALL: Final = "SELECT n, at FROM effects"


class Effects(Protocol):
    def prepare(self) -> None:
        """To be called before the first worker starts."""

    def count(self) -> int: ...

    def all(self) -> Records: ...

    def size(self) -> int:
        """Bytes on disk of the ledger and the effects."""


class SqliteEffects:
    def __init__(self, file: Path) -> None:
        self._file = file

    def prepare(self) -> None:
        with closing(sqlite3.connect(self._file)) as database:
            database.execute(TABLE)

    def count(self) -> int:
        with closing(self._reader()) as database:
            return int(database.execute("SELECT coalesce(max(rowid), 0) FROM effects").fetchone()[0])

    def all(self) -> Records:
        with closing(self._reader()) as database:
            return np.fromiter(database.execute(_ALL), RECORD)

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._file.parent.glob(f"{self._file.name}*"))

    def _reader(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=30)


class PostgresEffects:
    def __init__(self, url: str) -> None:
        self._url = url

    def prepare(self) -> None:
        self._ask(TABLE, fetch=False)

    def count(self) -> int:
        return int(self._ask("SELECT count(*) FROM effects")[0][0])

    def all(self) -> Records:
        return np.fromiter(self._ask(_ALL), RECORD)

    def size(self) -> int:
        return int(self._ask("SELECT pg_database_size(current_database())")[0][0])

    def _ask(self, statement: str, *, fetch: bool = True) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self._url) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if fetch else []


class FileEffects:
    """One file for each worker process. `ledger_size` returns the size of the ledger itself."""

    def __init__(self, folder: Path, ledger_size: Callable[[], int]) -> None:
        self._folder, self._ledger_size = folder, ledger_size

    def prepare(self) -> None:
        self._folder.mkdir()

    def count(self) -> int:
        return self._bytes() // RECORD.itemsize

    def all(self) -> Records:
        parts = [np.fromfile(path, RECORD) for path in sorted(self._folder.iterdir())]
        return np.concatenate(parts) if parts else np.empty(0, RECORD)

    def size(self) -> int:
        return self._bytes() + self._ledger_size()

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.iterdir())


def file_writer(folder: Path) -> Callable[[int], None]:
    """The function that a handler without a transaction calls for each effect."""
    file = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(number: int) -> None:
        os.write(file, np.array([(number, time.monotonic())], RECORD).tobytes())

    return write
