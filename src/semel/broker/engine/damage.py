"""Finds values and tables that no broker has written. SQLite keeps no checksums: after a changed bit, a row may still
look intact to it, with NULL where a time should be. The rule: damage is found at the start, and not by the call that
happens to need the value.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from semel.broker.engine.rows import DamagedRow

_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
_COLUMNS: Final = 'SELECT name, lower(type), "notnull", pk FROM pragma_table_info(?)'
# What the declarations of columns do not say.
_RULES: Final = {
    "receive_log": ("(attempt IS NULL) = (attempted IS NULL)", "attempt and attempted belong together"),
}


class _Column(NamedTuple):
    name: str
    type: str  # as typeof() says it; "" if any will do
    required: int
    key: int  # its place in the primary key, from 1

    @property
    def rule(self) -> str:
        right = f"typeof({self.name}) = '{self.type}'"
        # What is usually NULL is asked for that first: this is a third of the time of the whole scan.
        return right if self.required else f"({self.name} IS NULL OR {right})"


def _columns(db: sqlite3.Connection, table: str) -> list[_Column]:
    return [_Column._make(row) for row in db.execute(_COLUMNS, (table,))]


def _check_declaration(table: str, declared: list[_Column], expected: list[_Column]) -> None:
    """The file's own declarations may be damaged, too: if a NOT NULL is lost, a NULL would pass as valid."""
    if not declared:
        raise DamagedRow(f"the table {table} is missing")
    if declared != expected:
        differing = dict.fromkeys(
            column.name for column in (*expected, *declared) if (column in expected) != (column in declared)
        )
        what = f"columns: {', '.join(differing)}" if differing else "order of columns"
        raise DamagedRow(f"the table {table} is not declared as this version of Semel declares it ({what})")


def check_values(db: sqlite3.Connection, fresh: sqlite3.Connection) -> None:
    """Raises DamagedRow if a value is not of its column's type, or if a table is not declared as in the empty database
    `fresh`. Reads every row, but not the values themselves: some 0.2 s for a million messages."""
    for (table,) in fresh.execute(_TABLES).fetchall():
        columns = _columns(fresh, table)
        _check_declaration(table, _columns(db, table), columns)
        typed = [column for column in columns if column.type]
        checked = [column for column in typed if not (column.key and column.type == "integer")]  # that is the row id
        rule, meaning = _RULES.get(table, ("1", ""))
        types = ", ".join(f"typeof({column.name})" for column in checked)
        rules = " AND ".join([*(column.rule for column in checked), rule])
        row = db.execute(f"SELECT {types} FROM {table} WHERE NOT ({rules}) LIMIT 1").fetchone()
        if row is not None:
            wrong = [
                f"{column.name} is {stored_type}, not {column.type}"
                for column, stored_type in zip(checked, row, strict=True)
                if stored_type != column.type and (column.required or stored_type != "null")
            ]
            raise DamagedRow(f"the table {table} has a damaged row: {', '.join(wrong) or meaning}")
