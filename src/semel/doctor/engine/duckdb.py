"""DuckDB, in this process. Tables are in a database file of its own, so that logs may be larger than memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import duckdb

from semel.doctor.engine.contract import Row
from semel.doctor.logs.database import connect
from semel.doctor.logs.discovery import LogFile
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.reader import CREATE, LogReader


class DuckDBEngine:
    """Keeps its files in a new folder below `folder` until it is closed. `in_memory`: for the window of a followed log,
    which is small."""

    def __init__(
        self,
        *,
        threads: int | None = None,
        folder: str | None = None,
        in_memory: bool = False,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._on_bytes = on_bytes
        self._folder = Path(mkdtemp(prefix="semel-doctor-", dir=folder))
        self.connection = connect(self._folder, self._threads, in_memory=in_memory)

    def read(
        self, files: Sequence[LogFile], mapping: LogMapping, since: float | None, until: float | None
    ) -> list[str]:
        self.connection.execute(CREATE)
        reader = LogReader(
            self.connection, mapping, since=since, until=until, threads=self._threads, on_bytes=self._on_bytes
        )
        reader.read(files)
        return reader.problems

    def view(self, name: str, query: str) -> None:
        self._execute(f"CREATE OR REPLACE VIEW {name} AS {query}")

    def table(self, name: str, query: str) -> None:
        self._execute(f"CREATE OR REPLACE TABLE {name} AS {query}")

    def values(self, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        self._execute(
            f"CREATE OR REPLACE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})"
        )
        if rows:
            marks = ", ".join("?" for _ in columns)
            listed = ", ".join(f"({marks})" for _ in rows)
            self.connection.execute(f"INSERT INTO {name} VALUES {listed}", [value for row in rows for value in row])

    def rows(self, query: str) -> list[Row]:
        result = self._execute(query)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def close(self) -> None:
        try:
            self.connection.close()
        finally:  # Ctrl-C may come at any time
            shutil.rmtree(self._folder, ignore_errors=True)

    def _execute(self, query: str) -> duckdb.DuckDBPyConnection:
        return self.connection.execute(query)
