"""The DuckDB database that logs are read into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

MEMORY: Final = "1200MB"  # DuckDB's buffers; beyond that it writes to disk


def connect(folder: Path | None = None, threads: int = 1, *, in_memory: bool = False) -> duckdb.DuckDBPyConnection:
    """A database in a file in `folder`, or in memory, which is faster to write and takes more room; data that does not
    fit into memory goes to `folder`. The file has no write-ahead log and no checkpoint at the end, because nobody needs
    it after the process."""
    connection = duckdb.connect(config={"threads": threads, "memory_limit": MEMORY})
    connection.execute("SET GLOBAL preserve_insertion_order = false; SET GLOBAL TimeZone = 'UTC'")
    place = str(folder).replace("'", "''")
    if folder is not None:
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        connection.execute(f"SET GLOBAL temp_directory = '{place}/spilled'")
    if folder is None or in_memory:
        connection.execute("ATTACH ':memory:' AS logs")
    else:
        connection.execute(f"ATTACH '{place}/logs.duckdb' AS logs (RECOVERY_MODE no_wal_writes)")
    connection.execute("USE logs")
    return connection


def cursor_of(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A connection to the same database, for another thread."""
    cursor = connection.cursor()
    cursor.execute("USE logs")
    return cursor


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt after Ctrl-C: DuckDB ends the query and raises an error of its own."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise
