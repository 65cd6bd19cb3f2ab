"""Reads log files into the table `log_lines`, each line once. DuckDB parses, several texts at a time.

The rule: damaged, malformed and incomplete input is counted with its file and line, and reading goes on.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path as FilePath
from tempfile import NamedTemporaryFile
from typing import Any, Final

import duckdb
import orjson

from semel.doctor.events import COLUMNS
from semel.doctor.logs.database import cursor_of
from semel.doctor.logs.discovery import Kind, LogFile
from semel.doctor.logs.line_sql import OWN_TYPES, lines_query, literal, rows_query
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.streams import BrokenLog, opened, texts

FIRST_RECORDS: Final = 200
PARQUET_AT_ONCE: Final = 256 * 1024 * 1024  # bytes of files in one query; the progress moves after each
CREATE: Final = f"CREATE OR REPLACE TABLE log_lines ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})"


class LogReader:
    """Reads into `log_lines` of one connection. `problems` has the files that could not be read, or not to the end."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        mapping: LogMapping,
        *,
        since: float | None = None,
        until: float | None = None,
        threads: int | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._connection, self._mapping, self._on_bytes = connection, mapping, on_bytes
        self._since, self._until = since, until
        self._queries = {
            checked: f"INSERT INTO log_lines {lines_query(mapping, since=since, until=until, checked=checked)}"
            for checked in (False, True)
        }
        self._checked = False  # whether a line was found that is not JSON: from then on each line is checked
        self._threads = threads or os.cpu_count() or 1
        self._local = threading.local()
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self.problems: list[str] = []

    def read(self, files: Sequence[LogFile], first: int = 0) -> None:
        """`first` is the number of the first file in `log_lines`."""
        numbered = list(enumerate(files, first))
        parquet = [(number, file) for number, file in numbered if file.kind is Kind.PARQUET]
        self._read_parquet(parquet)
        self.read_texts(
            (number, text) for number, file in numbered if file.kind is not Kind.PARQUET for text in self._texts(file)
        )

    def read_texts(self, numbered: Iterator[tuple[int, Any]]) -> None:
        """Insert texts (number of the file, Text). In memory is at most one text more than there are threads."""
        with (
            ThreadPoolExecutor(self._threads, thread_name_prefix="semel-doctor") as pool,
            self._abandoned_on_error(pool),
        ):
            running: set[Future[None]] = set()
            for number, text in numbered:
                running.add(pool.submit(self._insert, number, text.text, text.first_line, text.bytes))
                if len(running) > self._threads:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in running:
                future.result()

    @contextmanager
    def _abandoned_on_error(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """On Ctrl-C or an error, interrupts what is being parsed, so that the pool need not wait for it."""
        try:
            yield
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for cursor in self._cursors:
                cursor.interrupt()
            raise

    def _texts(self, file: LogFile) -> Iterator[Any]:
        try:
            yield from texts(file, self._mapping.records)
        except BrokenLog as error:
            self.problems.append(str(error))

    def _insert(self, file: int, text: str, first_line: int, size: int) -> None:
        cursor = getattr(self._local, "cursor", None)
        if cursor is None:
            cursor = self._local.cursor = cursor_of(self._connection)
            self._cursors.append(cursor)
        parameters = {"text": text, "file": file, "first_line": first_line}
        checked = self._checked
        try:
            cursor.execute(self._queries[checked], parameters)
        except (duckdb.InvalidInputException, UnicodeDecodeError):  # the error's text may be cut within a character
            if checked:
                raise
            self._checked = True
            cursor.execute(self._queries[True], parameters)
        self._on_bytes(size)

    # Parquet.

    def _read_parquet(self, files: Sequence[tuple[int, LogFile]]) -> None:
        batch: list[tuple[int, LogFile, str]] = []
        columns: dict[str, str] = {}
        with _LocalCopies() as copies:
            for number, file in files:
                try:
                    path = copies.path_of(file)
                    kinds = self._columns(path)
                except (OSError, duckdb.Error) as error:
                    self._cannot_read(file, error)
                    continue
                full = sum(other.size for _, other, _ in batch) >= PARQUET_AT_ONCE
                if batch and (full or kinds != columns):
                    self._insert_rows(batch, columns)
                    copies.remove(except_for=path)
                    batch = []
                columns = kinds
                batch.append((number, file, path))
            if batch:
                self._insert_rows(batch, columns)

    def _columns(self, path: str) -> dict[str, str]:
        """The columns of a Parquet file with their types."""
        described = self._connection.execute(f"DESCRIBE SELECT * FROM read_parquet({literal(path)})").fetchall()
        return {row[0]: row[1] for row in described}

    def _insert_rows(self, files: Sequence[tuple[int, LogFile, str]], columns: dict[str, str]) -> None:
        try:
            self._execute_rows(files, columns)
        except duckdb.Error as error:
            if len(files) == 1:
                self._cannot_read(files[0][1], error)
                return
            for file in files:
                self._insert_rows([file], columns)
            return
        self._on_bytes(sum(file.size for _, file, _ in files))

    def _execute_rows(self, files: Sequence[tuple[int, LogFile, str]], columns: dict[str, str]) -> None:
        listed = ", ".join(literal(path) for _, _, path in files)
        own = self._mapping.is_own and all(columns.get(name, kind) == kind for name, kind in OWN_TYPES.items())
        if own:
            relation = f"read_parquet([{listed}], file_row_number=true)"
            query = rows_query(relation, columns, since=self._since, until=self._until)
            self._connection.execute(f"INSERT INTO log_lines {query}", {"file": files[0][0]})
            return
        for number, _, path in files:
            cursor = cursor_of(self._connection).execute(f"SELECT to_json(row) FROM read_parquet({literal(path)}) row")
            place = 1
            while rows := cursor.fetchmany(10_000):
                self._insert(number, "\n".join(row[0] for row in rows), place, 0)
                place += len(rows)

    def _cannot_read(self, file: LogFile, error: Exception) -> None:
        reason = str(error).partition("\n")[0]
        self.problems.append(f"{file.address}: {reason[:300]}")


class _LocalCopies:
    """Parquet files of a bucket are copied to this machine for as long as they are read."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    def __enter__(self) -> _LocalCopies:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def path_of(self, file: LogFile) -> str:
        if not file.store:
            return file.path
        with NamedTemporaryFile(prefix="semel-doctor-", suffix=".parquet", delete=False) as copy:
            self._paths.append(copy.name)
            with opened(file) as stream:
                shutil.copyfileobj(stream, copy, 1 << 20)
        return copy.name

    def remove(self, *, except_for: str = "") -> None:
        for path in self._paths:
            if path != except_for:
                FilePath(path).unlink(missing_ok=True)
        self._paths = [path for path in self._paths if path == except_for]


def first_records(connection: duckdb.DuckDBPyConnection, files: Sequence[LogFile]) -> list[dict[str, Any]]:
    """The first objects of the first file that has some, to see what its fields mean."""
    for file in files:
        try:
            records = list(islice(_records(connection, file), FIRST_RECORDS))
        except (BrokenLog, OSError, duckdb.Error):
            continue
        if records:
            return records
    return []


def _records(connection: duckdb.DuckDBPyConnection, file: LogFile) -> Iterator[dict[str, Any]]:
    if file.kind is Kind.PARQUET:
        with _LocalCopies() as copies:
            query = f"SELECT to_json(row) FROM read_parquet({literal(copies.path_of(file))}) row LIMIT {FIRST_RECORDS}"
            for (line,) in connection.execute(query).fetchall():
                yield orjson.loads(line)
        return
    for text in texts(file):
        for line in text.text.split("\n"):
            start = line.find("{")
            try:
                record = orjson.loads(line[start:]) if start >= 0 else None
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
