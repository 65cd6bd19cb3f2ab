"""A PostgreSQL table: executors COPY into a staging table, one transaction on the driver merges it and notes the batch.

The rule: the rows of a batch and the note that it is in (`semel_batches`) are one transaction. Whoever comes second
with a batch, however late, finds the note and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg
import pyarrow as pa
from psycopg import conninfo, sql

from semel.spark import crash_points
from semel.spark.sinks.contract import Commit, ForeignTable, MicroBatch, SinkError, Written, checked, is_in, short
from semel.spark.sinks.postgres.staging import ATTEMPT, PLACE, PostgresWriter, connect, refused
from semel.spark.sinks.postgres.table import Connection, Table, definition, find, prepared
from semel.spark.sinks.postgres.upsert import upsert
from semel.spark.sinks.table_schema import storable

T = TypeVar("T")

BATCHES: Final = "semel_batches"
# A row a pipeline and table. `number` is that of its last batch: the numbers of batches only grow.
CREATE_BATCHES: Final = """
CREATE TABLE IF NOT EXISTS {batches} (
    pipeline text, table_name text, number bigint NOT NULL, rows bigint NOT NULL, at timestamptz NOT NULL,
    content text NOT NULL DEFAULT '', PRIMARY KEY (pipeline, table_name))
"""
WRITERS: Final = "SELECT pipeline FROM {batches} WHERE table_name = %s"
LAST: Final = "SELECT number, content FROM {batches} WHERE pipeline = %s AND table_name = %s"
# Waits for another transaction that notes the same; gives nothing if the batch is in.
NOTE: Final = """
INSERT INTO {batches} AS b VALUES (%(pipeline)s, %(table)s, %(number)s, %(rows)s, now(), %(content)s)
ON CONFLICT (pipeline, table_name)
DO UPDATE SET number = excluded.number, rows = b.rows + excluded.rows, at = excluded.at, content = excluded.content
WHERE b.number < excluded.number
RETURNING number
"""
# A commit that the server may forget would be a batch that is lost: Spark takes it for done.
DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
"""
# Lost with a crash of the server, which is noticed: it costs half of what a logged table does.
STAGING: Final = """
CREATE UNLOGGED TABLE IF NOT EXISTS {staging} ({columns}) WITH (autovacuum_enabled = false)
"""
# Without parameters, for then a percent sign in the name of a column is nothing special.
COUNT: Final = "SELECT {attempt}, count(*) FROM {staging} WHERE {attempt} = ANY({counted}) GROUP BY 1"
APPEND: Final = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {attempt} = ANY({counted}) ORDER BY {place}
"""
STAGED: Final = """
SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND starts_with(c.relname::text, %s) AND c.relkind = 'r'
"""
# Tables of earlier versions lack it.
HAS_CONTENT: Final = """
SELECT FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attname = 'content'
"""
ADD_CONTENT: Final = "ALTER TABLE {batches} ADD COLUMN IF NOT EXISTS content text NOT NULL DEFAULT ''"
EXISTS: Final = """
SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_TRIES: Final = 5
_PAUSE: Final = 0.2  # seconds, doubled from try to try


class PostgresSink:
    """`dsn`: a URL or a libpq connection string. `table`: `name` or `schema.name`, made if it is not there.

    `mode="upsert"` by the columns of `key`: a row replaces the one of its key if it is not older, by `_sequence_number`
    or else `_sent_at` where rows have these columns, else by the order in which they came. `staging_schema` is where
    the staging tables and `semel_batches` are; by default the schema of the table.
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
            what = "upsert needs a key: the columns that tell rows apart" if mode == "upsert" else "append has no key"
            raise SinkError(f"PostgreSQL table {table}: {what}")
        self._dsn, self._named, self._key = dsn, table, tuple(key)
        self._staging_schema = staging_schema
        self._run = uuid4().hex[:8]  # a driver that still runs has staging tables of its own
        self._schema: pa.Schema | None = None
        self._table: Table | None = None
        self._connection: Connection | None = None

    @property
    def name(self) -> str:
        with suppress(psycopg.Error):
            found = conninfo.conninfo_to_dict(self._dsn)
            where = " on ".join(str(found[part]) for part in ("dbname", "host") if found.get(part))
            return f"PostgreSQL table {self._named}{f' ({where})' if where else ''}"
        return f"PostgreSQL table {self._named}"

    def open(self, schema: pa.Schema) -> None:
        wanted = self._wanted(schema)
        try:
            self._table = self._persistently("to be opened", lambda: self._opened(wanted))
        except BaseException:
            self.close()
            raise
        self._schema = wanted

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        wanted = self._wanted(schema)
        try:
            self._connection = connect(self._dsn, self.name, autocommit=True, tries=1)
            self._persistently("to be opened", lambda: self._checked(wanted))
            if not adopt:
                self.check_owner(pipeline)
        finally:
            self.close()

    def _checked(self, wanted: pa.Schema) -> None:
        connection = self._connected()
        with connection.transaction(force_rollback=True):  # so that nothing is changed
            connection.execute("SET LOCAL lock_timeout = '2s'")
            prepared(connection, self._named, wanted, self._key)

    def check_owner(self, pipeline: str | None) -> None:
        """An existing table is the user's, and rows in it are no reason to refuse it; another pipeline's are."""
        found = self._persistently("to be read", self._writers)
        if found and pipeline not in found:
            raise ForeignTable(self.name, f"another one has written to it ({BATCHES} has pipeline {found[0]})")

    def _writers(self) -> list[str]:
        found = self._batches()
        if found is None:
            return []
        batches, table = found
        writers = sql.SQL(WRITERS).format(batches=sql.Identifier(batches, BATCHES))
        return [row[0] for row in self._connected().execute(writers, (table,)).fetchall()]

    def _wanted(self, schema: pa.Schema) -> pa.Schema:
        wanted = storable(schema)
        missing = [column for column in self._key if column not in wanted.names]
        if missing:
            raise SinkError(f"{self.name}: the key names {', '.join(missing)}, and the rows have {wanted.names} only")
        return wanted

    def last(self, pipeline: str) -> Commit | None:
        return self._persistently("to be read", lambda: self._last(pipeline))

    def writer(self, batch: MicroBatch) -> PostgresWriter:
        table, schema = self._opened_table()
        staging = self._staging(batch)
        columns = [
            sql.SQL("{} text NOT NULL").format(sql.Identifier(ATTEMPT)),
            sql.SQL("{} bigint NOT NULL").format(sql.Identifier(PLACE)),
            *map(definition, table.columns),
        ]
        statement = sql.SQL(STAGING).format(staging=sql.Identifier(*staging), columns=sql.SQL(", ").join(columns))
        self._persistently("a staging table", lambda: self._connected().execute(statement))
        return PostgresWriter(self._dsn, self.name, table, staging, schema, self._key)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        winners = checked(batch, written)
        # If the connection is lost while it commits, the next try finds the note, or finds out that it is not there.
        self._persistently(f"batch {batch.number}", lambda: self._merged(batch, winners))
        self._drop_staging(batch)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self, rows: pa.Schema) -> Table:
        connection = self._connected()
        with connection.transaction():
            table = prepared(connection, self._named, rows, self._key)
            self._staging_schema = self._staging_schema or table.schema
            if connection.execute(EXISTS, (self._staging_schema, BATCHES)).fetchone() is None:
                connection.execute(self._formatted(CREATE_BATCHES))
            elif connection.execute(HAS_CONTENT, (self._staging_schema, BATCHES)).fetchone() is None:
                connection.execute(self._formatted(ADD_CONTENT))
        return table

    def _last(self, pipeline: str) -> Commit | None:
        connection, found = self._connected(), self._batches()
        if found is None:
            return None
        batches, table = found
        if connection.execute(HAS_CONTENT, (batches, BATCHES)).fetchone() is None:
            return None  # an earlier version's, which nothing can be proved by
        last = sql.SQL(LAST).format(batches=sql.Identifier(batches, BATCHES))
        row = connection.execute(last, (pipeline, table)).fetchone()
        return None if row is None else Commit(*row)

    def _batches(self) -> tuple[str, str] | None:
        """The schema of `semel_batches`, and the name of our table in it; None if one of the two is not there."""
        connection = self._connected()
        table = find(connection, self._named)
        if table is None:
            return None
        _, schema, name = table
        batches = self._staging_schema or schema
        if connection.execute(EXISTS, (batches, BATCHES)).fetchone() is None:
            return None
        return batches, f"{schema}.{name}"

    def _merged(self, batch: MicroBatch, winners: Sequence[Written]) -> None:
        connection, table = self._connected(), str(self._opened_table()[0])
        with connection.transaction() as transaction:
            connection.execute(DURABLE)
            rows = sum(one.rows for one in winners)
            note = {
                "pipeline": batch.pipeline,
                "table": table,
                "number": batch.number,
                "rows": rows,
                "content": batch.content,
            }
            if connection.execute(self._formatted(NOTE), note).fetchone() is None:
                is_in(self.name, self._last(batch.pipeline), batch)
                raise psycopg.Rollback(transaction)
            if winners:
                self._merge(connection, batch, winners)
            crash_points.reached("during-commit")

    def _merge(self, connection: Connection, batch: MicroBatch, winners: Sequence[Written]) -> None:
        table, schema = self._opened_table()
        expected = {one.payload["attempt"]: one.rows for one in winners}
        parts: dict[str, sql.Composable] = {
            "table": table.identifier,
            "staging": sql.Identifier(*self._staging(batch)),
            "columns": sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
            "attempt": sql.Identifier(ATTEMPT),
            "place": sql.Identifier(PLACE),
            "counted": sql.Literal(list(expected)),
        }
        found = dict(connection.execute(sql.SQL(COUNT).format(**parts)).fetchall())
        if found != expected:
            raise SinkError(
                f"{self.name}: the staging table of batch {batch.number} has {sum(found.values())} rows where "
                f"{sum(expected.values())} were written: a crash of the server empties it. Nothing was committed; "
                "start the pipeline again, and the batch is written anew"
            )
        statement = upsert(parts, schema, self._key) if self._key else sql.SQL(APPEND).format(**parts)
        connection.execute(statement)

    def _drop_staging(self, batch: MicroBatch) -> None:
        """This batch's, and what drivers that are gone left of older ones. What is in use stays for another time."""
        schema, own = self._staging(batch)
        prefix = _staging_prefix(batch.pipeline)
        with suppress(psycopg.Error):
            connection = self._connected()
            for (name,) in connection.execute(STAGED, (schema, prefix)).fetchall():
                number = name.removeprefix(prefix).split("_")[0]
                if name == own or (number.isdecimal() and int(number) < batch.number):
                    with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
                        connection.execute("SET LOCAL lock_timeout = '100ms'")
                        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))

    def _staging(self, batch: MicroBatch) -> tuple[str, str]:
        name = f"{_staging_prefix(batch.pipeline)}{batch.number}_{self._run}"
        return self._staging_schema or self._opened_table()[0].schema, name

    def _formatted(self, text: Any) -> sql.Composed:
        schema = self._staging_schema or self._opened_table()[0].schema
        return sql.SQL(text).format(batches=sql.Identifier(schema, BATCHES))

    def _opened_table(self) -> tuple[Table, pa.Schema]:
        if self._table is None or self._schema is None:
            raise SinkError(f"{self.name} was not opened")
        return self._table, self._schema

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, self.name, autocommit=True)
        return self._connection

    def _persistently(self, what: str, action: Callable[[], T]) -> T:
        """Do it, and again after a lost connection, a deadlock or a server that starts again."""
        for attempt in range(_TRIES):
            try:
                return action()
            except psycopg.OperationalError as error:
                failure = error
                with suppress(psycopg.Error):
                    self.close()
            except psycopg.Error as error:
                raise refused(self.name, what, error) from error
            time.sleep(_PAUSE * 2**attempt)
        raise refused(self.name, what, failure) from failure


def _staging_prefix(pipeline: str) -> str:
    return f"semel_staging_{short(pipeline)}_"
