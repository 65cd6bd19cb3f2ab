"""The target table in PostgreSQL: read from the catalogue, created, extended, and compared with the rows.

The rule: an existing table is the user's. It gets new columns that may be null; otherwise it is used as it is, or
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from psycopg import sql
from pyarrow import types

from semel.spark.sinks.contract import SinkError
from semel.spark.sinks.postgres.connection import Connection
from semel.spark.sinks.table_schema import sql_name

# One driver at a time creates or changes a table; the lock ends with the transaction.
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
# Reads the catalogue itself: to_regclass() may answer with what was known before the wait for the lock.
FIND: Final = """
SELECT c.oid, n.nspname, c.relkind::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = %(table)s AND n.nspname = ANY(coalesce(%(schemas)s::text[], current_schemas(false)::text[]))
ORDER BY array_position(current_schemas(false)::text[], n.nspname::text) LIMIT 1
"""
COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, a.atttypmod, a.attnotnull,
       a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
UNIQUE: Final = """
SELECT array_agg(a.attname::text) FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}
TEXT_TYPES: Final = frozenset({"text", "varchar", "bpchar", "citext"})
JSON_TYPES: Final = frozenset({"json", "jsonb"})
# The types of existing columns that can hold every value of a type.
_HOLDS: Final[dict[pa.DataType, frozenset[str]]] = {
    pa.bool_(): frozenset({"bool"}),
    pa.int8(): frozenset({"int2", "int4", "int8"}),
    pa.int16(): frozenset({"int2", "int4", "int8"}),
    pa.int32(): frozenset({"int4", "int8"}),
    pa.int64(): frozenset({"int8"}),
    pa.float32(): frozenset({"float4", "float8"}),
    pa.float64(): frozenset({"float8"}),
    pa.string(): TEXT_TYPES | JSON_TYPES | {"uuid"},
    pa.binary(): frozenset({"bytea"}),
    pa.date32(): frozenset({"date"}),
    pa.time64("us"): frozenset({"time"}),
    pa.timestamp("us"): frozenset({"timestamp"}),
    pa.timestamp("us", tz="UTC"): frozenset({"timestamptz", "timestamp"}),
}
_INTEGER_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as in a CREATE TABLE
    base: str  # the type's name in the catalogue; that of an array begins with an underscore
    modifier: int
    not_null: bool = False
    has_default: bool = False
    computed: bool = False

    @property
    def max_characters(self) -> int | None:
        """The limit of varchar(n) and char(n)."""
        return self.modifier - 4 if self.base in ("varchar", "bpchar") and self.modifier >= 4 else None


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` are those that the rows have, in their order."""

    schema: str
    name: str
    columns: tuple[Column, ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def prepare_table(connection: Connection, name: str, rows: pa.Schema, key: Sequence[str]) -> Table:
    """The table for rows of this schema, created or extended if necessary. Call it within a transaction."""
    connection.execute(LOCK, (f"semel sink {name}",))
    target = find_table(connection, name)
    if target is None:
        _create(connection, name, rows, key)
        target = find_table(connection, name)
    else:
        _extend(connection, f"{target[1]}.{target[2]}", target[0], rows)
    if target is None:
        raise SinkError(f"PostgreSQL table {name} was created but is not found: is its schema in the search path?")
    oid, schema, table = target
    if key:
        _check_unique(connection, oid, sql.Identifier(schema, table), key)
    known = {column.name: column for column in _columns(connection, oid)}
    return Table(schema, table, tuple(known[field.name] for field in rows))


def quoted(name: str) -> sql.Identifier:
    """`table` or `schema.table`, with its upper and lower case as written."""
    return sql.Identifier(*name.split(".", 1))


def type_for(kind: pa.DataType) -> str:
    """The type of a new column."""
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_list(kind) and not types.is_nested(kind.value_type):
        return f"{type_for(kind.value_type)}[]"
    if types.is_nested(kind):
        return "jsonb"
    return _TYPES[kind]


def can_hold(column: Column, kind: pa.DataType) -> bool:
    """Whether a column can hold every value of a type. Texts are validated row by row: length, UUID, JSON."""
    if types.is_list(kind) and column.base.startswith("_"):
        element = Column("", "", column.base[1:], column.modifier)
        return (
            not types.is_nested(kind.value_type)
            and element.base not in JSON_TYPES
            and can_hold(element, kind.value_type)
        )
    if types.is_nested(kind):
        return column.base in JSON_TYPES
    if column.base == "numeric":
        return _numeric_holds(column.modifier, kind)
    return column.base in _HOLDS.get(kind, ())


def _numeric_holds(modifier: int, kind: pa.DataType) -> bool:
    if types.is_decimal(kind):
        whole, scale = kind.precision - kind.scale, kind.scale
    elif kind in _INTEGER_DIGITS:
        whole, scale = _INTEGER_DIGITS[kind], 0
    else:
        return False
    if modifier < 4:
        return True
    column_precision, column_scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    return bool(column_scale >= scale and column_precision - column_scale >= whole)


def find_table(connection: Connection, name: str) -> tuple[int, str, str] | None:
    *schemas, table = name.split(".", 1)
    row = connection.execute(FIND, {"table": table, "schemas": schemas or None}).fetchone()
    if row is None:
        return None
    oid, schema, kind = row
    if kind not in ("r", "p"):
        raise SinkError(f"{schema}.{table} is not a table: rows can be written to tables only")
    return oid, schema, table


def _columns(connection: Connection, oid: int) -> list[Column]:
    return [Column(*row) for row in connection.execute(COLUMNS, (oid,)).fetchall()]


def _create(connection: Connection, name: str, rows: pa.Schema, key: Sequence[str]) -> None:
    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(field.name), _type(type_for(field.type)), sql.SQL("" if field.nullable else " NOT NULL")
        )
        for field in rows
    ]
    if key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(quoted(name), sql.SQL(", ").join(parts)))


def _type(text: str) -> sql.SQL:
    """The name of a type: ours, or as the catalogue writes it. Never input of a user."""
    return sql.SQL(text)


def column_definition(column: Column) -> sql.Composable:
    return sql.SQL("{} {}").format(sql.Identifier(column.name), _type(column.type))


def _extend(connection: Connection, table: str, oid: int, rows: pa.Schema) -> None:
    known = {column.name: column for column in _columns(connection, oid)}
    problems = [
        f"column {column.name}: is NOT NULL without a default, and the rows do not have it"
        for column in known.values()
        if column.not_null and not column.has_default and column.name not in rows.names
    ]
    new = [field for field in rows if field.name not in known]
    problems += [
        f"column {field.name}: is new and NOT NULL, and the rows that are there lack it"
        for field in new
        if not field.nullable
    ]
    for field in rows:
        column = known.get(field.name)
        if column is not None and column.computed:
            problems.append(f"column {field.name}: PostgreSQL computes it, and the rows have it too")
        elif column is not None and not can_hold(column, field.type):
            problems.append(
                f"column {field.name}: the table has {column.type}, the rows {sql_name(field.type)}, "
                f"for which it must be {type_for(field.type)}"
            )
    if problems:
        differences = "\n".join(f"  - {text}" for text in problems)
        raise SinkError(
            f"PostgreSQL table {table} cannot take the pipeline's rows:\n{differences}\n"
            "New columns that may be null are added automatically. Change the table or the schema, or use another."
        )
    for field in new:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                quoted(table), sql.Identifier(field.name), _type(type_for(field.type))
            )
        )


def _check_unique(connection: Connection, oid: int, table: sql.Identifier, key: Sequence[str]) -> None:
    indexes = [set(row[0]) for row in connection.execute(UNIQUE, (oid,)).fetchall()]
    if set(key) in indexes:
        return
    statement = sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(table, sql.SQL(", ").join(map(sql.Identifier, key)))
    raise SinkError(
        f"PostgreSQL table {table.as_string(connection)}: an upsert by {', '.join(key)} needs a unique index on "
        f"exactly these columns: {statement.as_string(connection)};"
    )
