"""A PostgreSQL table: executors COPY into a staging table, one transaction on the driver merges it.

The rule: the rows of a batch and its record in `semel_batches` are one transaction. A second driver that commits the
batch, however late, finds the record and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg
import pyarrow as pa
from psycopg import conninfo, sql

from semel.ledger.connect import is_ambiguous
from semel.spark import crash_points
from semel.spark.retries import retry
from semel.spark.sinks.contract import (
    Commit,
    ForeignTable,
    MicroBatch,
    SinkError,
    SinkUnavailable,
    Written,
    already_committed,
    pipeline_tag,
    results_with_rows,
)
from semel.spark.sinks.postgres.connection import READ_ONLY_ROLE, Connection, connect, failure, is_outage
from semel.spark.sinks.postgres.staging import ATTEMPT, POSITION, PostgresWriter
from semel.spark.sinks.postgres.table import Table, column_definition, find_table, prepare_table
from semel.spark.sinks.postgres.upsert import upsert
from semel.spark.sinks.table_schema import storable

T = TypeVar("T")

BATCHES: Final = "semel_batches"
# One row for each pipeline and table. `number` is that of its last batch: the numbers of batches only grow.
CREATE_BATCHES: Final = """
CREATE TABLE IF NOT EXISTS {batches} (
    pipeline text, table_name text, number bigint NOT NULL, rows bigint NOT NULL, at timestamptz NOT NULL,
    content text NOT NULL DEFAULT '', PRIMARY KEY (pipeline, table_name))
"""
PIPELINES: Final = "SELECT pipeline FROM {batches} WHERE table_name = %s"
LAST: Final = "SELECT number, content FROM {batches} WHERE pipeline = %s AND table_name = %s"
# Waits for another transaction that records the same; returns nothing if the batch was committed before.
RECORD: Final = """
INSERT INTO {batches} AS b VALUES (%(pipeline)s, %(table)s, %(number)s, %(rows)s, now(), %(content)s)
ON CONFLICT (pipeline, table_name)
DO UPDATE SET number = excluded.number, rows = b.rows + excluded.rows, at = excluded.at, content = excluded.content
WHERE b.number < excluded.number
RETURNING number
"""
# If the server forgot a commit after a crash, the batch would be lost: Spark takes it for done.
DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
"""
# Unlogged, which costs half as much: a crash of the server empties the table, which is noticed.
STAGING: Final = """
CREATE UNLOGGED TABLE IF NOT EXISTS {staging} ({columns}) WITH (autovacuum_enabled = false)
"""
# Without parameters, so that a percent sign in the name of a column is nothing special.
COUNT: Final = "SELECT {attempt}, count(*) FROM {staging} WHERE {attempt} = ANY({attempts}) GROUP BY 1"
APPEND: Final = """
INSERT INTO {table} ({columns})
SELECT {columns} FROM {staging} WHERE {attempt} = ANY({attempts}) ORDER BY {position}
"""
STAGING_TABLES: Final = """
SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND starts_with(c.relname::text, %s) AND c.relkind = 'r'
"""
# Tables of earlier versions lack the column.
HAS_CONTENT: Final = """
SELECT FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attname = 'content'
"""
ADD_CONTENT: Final = "ALTER TABLE {batches} ADD COLUMN IF NOT EXISTS content text NOT NULL DEFAULT ''"
EXISTS: Final = """
SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


class PostgresSink:
    """`dsn`: a URL or a libpq connection string. `table`: `name` or `schema.name`; it is created if it does not exist.

    `mode="upsert"`: a row replaces the row with the same values in the columns of `key`, unless that one is newer: by
    `_sequence_number`, else `_sent_at`, if rows have these columns, else by the order in which they came.
    `staging_schema` is the schema of the staging tables and of `semel_batches`; by default that of the table.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        mode: str = "append",
        key: Sequence[str] = (),
        *,
        staging_schema: str | None = None,
    ) -> None:
        if mode not in ("append", "upsert"):
            raise SinkError(f"PostgreSQL table {table}: mode {mode!r} is not known; it is append or upsert")
        if (mode == "upsert") != bool(key):
            what = "upsert needs a key: the columns that identify a row" if mode == "upsert" else "append has no key"
            raise SinkError(f"PostgreSQL table {table}: {what}")
        self._dsn, self._table_name, self._key = dsn, table, tuple(key)
        self._staging_schema = staging_schema
        self._run = uuid4().hex[:8]  # another driver that still runs has staging tables of its own
        self._schema: pa.Schema | None = None
        self._table: Table | None = None
        self._connection: Connection | None = None

    @property
    def name(self) -> str:
        with suppress(psycopg.Error):
            parts = {} if is_ambiguous(self._dsn) else conninfo.conninfo_to_dict(self._dsn)
            where = " on ".join(str(parts[part]) for part in ("dbname", "host") if parts.get(part))
            return f"PostgreSQL table {self._table_name}{f' ({where})' if where else ''}"
        return f"PostgreSQL table {self._table_name}"

    def open(self, schema: pa.Schema) -> None:
        wanted = self._storable(schema)
        try:
            self._table = self._retry("open the table", lambda: self._open(wanted))
        except BaseException:
            self.close()
            raise
        self._schema = wanted

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        wanted = self._storable(schema)
        try:
            self._retry("take rows", lambda: self._rehearse(wanted), seconds=0)
            if not adopt:
                self.check_owner(pipeline)
        finally:
            self.close()

    def check_owner(self, pipeline: str | None) -> None:
        """An existing table is the user's. Rows in it are no reason to refuse it, unless another pipeline wrote
        them."""
        pipelines = self._retry(f"read {BATCHES}", self._pipelines)
        if pipelines and pipeline not in pipelines:
            raise ForeignTable(self.name, f"another one has written to it ({BATCHES} has pipeline {pipelines[0]})")

    def last(self, pipeline: str) -> Commit | None:
        return self._retry(f"read {BATCHES}", lambda: self._last(pipeline))

    def writer(self, batch: MicroBatch) -> PostgresWriter:
        table, schema = self._opened()
        staging = self._staging(batch)
        self._retry("create a staging table", lambda: _create_staging(self._connected(), staging, table))
        return PostgresWriter(self._dsn, self.name, table, staging, schema, self._key)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        results = results_with_rows(batch, written)
        # If the connection is lost during COMMIT, the next try finds the record, or finds that there is none.
        self._retry(f"commit batch {batch.number}", lambda: self._commit(batch, results))
        self._drop_staging(batch)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _storable(self, schema: pa.Schema) -> pa.Schema:
        wanted = storable(schema)
        missing = [column for column in self._key if column not in wanted.names]
        if missing:
            raise SinkError(f"{self.name}: the key names {', '.join(missing)}; the rows have {', '.join(wanted.names)}")
        return wanted

    def _open(self, rows: pa.Schema) -> Table:
        connection = self._connected()
        with connection.transaction():
            return self._prepare(connection, rows)

    def _prepare(self, connection: Connection, rows: pa.Schema) -> Table:
        table = prepare_table(connection, self._table_name, rows, self._key)
        schema = self._internal_schema(table)
        if connection.execute(EXISTS, (schema, BATCHES)).fetchone() is None:
            connection.execute(_on_batches(CREATE_BATCHES, schema))
        elif connection.execute(HAS_CONTENT, (schema, BATCHES)).fetchone() is None:
            connection.execute(_on_batches(ADD_CONTENT, schema))
        return table

    def _rehearse(self, rows: pa.Schema) -> None:
        """Open the table and commit a batch without rows, to test all permissions; then roll back."""
        connection = self._connected()
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL lock_timeout = '2s'")
            table = self._prepare(connection, rows)
            schema = self._internal_schema(table)
            staging = schema, f"semel_staging_check_{self._run}"
            _create_staging(connection, staging, table)
            self._record(connection, MicroBatch(f"check-{self._run}", 0), table, 0)
            connection.execute(self._merge_statement(_merge_parts(table, staging, []), rows))

    def _pipelines(self) -> list[str]:
        """The pipelines that have written to the table."""
        location = self._find_batches()
        if location is None:
            return []
        schema, table = location
        rows = self._connected().execute(_on_batches(PIPELINES, schema), (table,)).fetchall()
        return [pipeline for (pipeline,) in rows]

    def _last(self, pipeline: str) -> Commit | None:
        location = self._find_batches()
        if location is None:
            return None
        schema, table = location
        if self._connected().execute(HAS_CONTENT, (schema, BATCHES)).fetchone() is None:
            return None  # written by an earlier version: it does not say which batch it is
        row = self._connected().execute(_on_batches(LAST, schema), (pipeline, table)).fetchone()
        return None if row is None else Commit(*row)

    def _find_batches(self) -> tuple[str, str] | None:
        """The schema of `semel_batches`, and the name of our table in it; None if one of the two does not exist."""
        connection = self._connected()
        target = find_table(connection, self._table_name)
        if target is None:
            return None
        _, schema, name = target
        internal = self._staging_schema or schema
        if connection.execute(EXISTS, (internal, BATCHES)).fetchone() is None:
            return None
        return internal, f"{schema}.{name}"

    def _commit(self, batch: MicroBatch, results: Sequence[Written]) -> None:
        connection, (table, _) = self._connected(), self._opened()
        with connection.transaction() as transaction:
            connection.execute(DURABLE)
            if not self._record(connection, batch, table, sum(result.rows for result in results)):
                already_committed(self.name, self._last(batch.pipeline), batch)
                raise psycopg.Rollback(transaction)
            if results:
                self._merge(connection, batch, results)
            crash_points.reached("during-commit")

    def _record(self, connection: Connection, batch: MicroBatch, table: Table, rows: int) -> bool:
        """False: the batch was committed before."""
        record = {
            "pipeline": batch.pipeline,
            "table": str(table),
            "number": batch.number,
            "rows": rows,
            "content": batch.content,
        }
        statement = _on_batches(RECORD, self._internal_schema(table))
        return connection.execute(statement, record).fetchone() is not None

    def _merge(self, connection: Connection, batch: MicroBatch, results: Sequence[Written]) -> None:
        table, schema = self._opened()
        expected = {result.payload["attempt"]: result.rows for result in results}
        parts = _merge_parts(table, self._staging(batch), list(expected))
        staged = dict(connection.execute(sql.SQL(COUNT).format(**parts)).fetchall())
        if staged != expected:
            raise SinkUnavailable(
                f"{self.name}: the staging table of batch {batch.number} has {sum(staged.values())} rows where "
                f"{sum(expected.values())} were written: a crash of the server empties it. Nothing was committed; the "
                "batch has to be written again"
            )
        connection.execute(self._merge_statement(parts, schema))

    def _merge_statement(self, parts: dict[str, sql.Composable], schema: pa.Schema) -> sql.Composed:
        return upsert(parts, schema, self._key) if self._key else sql.SQL(APPEND).format(**parts)

    def _drop_staging(self, batch: MicroBatch) -> None:
        """Drop this batch's table, and tables of older batches that dead drivers left. A table in use is skipped."""
        schema, own = self._staging(batch)
        prefix = _staging_prefix(batch.pipeline)
        with suppress(psycopg.Error):
            connection = self._connected()
            for (name,) in connection.execute(STAGING_TABLES, (schema, prefix)).fetchall():
                number = name.removeprefix(prefix).split("_")[0]
                if name == own or (number.isdecimal() and int(number) < batch.number):
                    with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
                        connection.execute("SET LOCAL lock_timeout = '100ms'")
                        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))

    def _staging(self, batch: MicroBatch) -> tuple[str, str]:
        name = f"{_staging_prefix(batch.pipeline)}{batch.number}_{self._run}"
        return self._internal_schema(self._opened()[0]), name

    def _internal_schema(self, table: Table) -> str:
        return self._staging_schema or table.schema

    def _opened(self) -> tuple[Table, pa.Schema]:
        if self._table is None or self._schema is None:
            raise SinkError(f"{self.name} was not opened")
        return self._table, self._schema

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, autocommit=True)
        return self._connection

    def _retry(self, what: str, action: Callable[[], T], *, seconds: float | None = None) -> T:
        """Runs `action`. Retries it with a new connection after an outage, a deadlock or a failover."""

        def transient(error: Exception) -> bool:
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                self._check_role_may_write()
            outage = is_outage(error)
            if outage:
                with suppress(psycopg.Error):
                    self.close()
            return outage

        try:
            return retry(action, transient, seconds=seconds)
        except psycopg.Error as error:
            raise failure(self.name, what, error) from error

    def _check_role_may_write(self) -> None:
        with suppress(psycopg.Error):
            row = self._connected().execute(READ_ONLY_ROLE).fetchone()
            if row is not None and row[0]:
                raise SinkError(
                    f"{self.name}: default_transaction_read_only is on for this role; use a role that may write"
                )


def _create_staging(connection: Connection, staging: tuple[str, str], table: Table) -> None:
    columns = [
        sql.SQL("{} text NOT NULL").format(sql.Identifier(ATTEMPT)),
        sql.SQL("{} bigint NOT NULL").format(sql.Identifier(POSITION)),
        *map(column_definition, table.columns),
    ]
    connection.execute(sql.SQL(STAGING).format(staging=sql.Identifier(*staging), columns=sql.SQL(", ").join(columns)))


def _merge_parts(table: Table, staging: tuple[str, str], attempts: list[str]) -> dict[str, sql.Composable]:
    return {
        "table": table.identifier,
        "staging": sql.Identifier(*staging),
        "columns": sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        "attempt": sql.Identifier(ATTEMPT),
        "position": sql.Identifier(POSITION),
        "attempts": sql.SQL("{}::text[]").format(sql.Literal(attempts)),
    }


def _on_batches(statement: Any, schema: str) -> sql.Composed:
    return sql.SQL(statement).format(batches=sql.Identifier(schema, BATCHES))


def _staging_prefix(pipeline: str) -> str:
    return f"semel_staging_{pipeline_tag(pipeline)}_"
