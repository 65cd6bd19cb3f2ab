"""The statement that merges a batch into a table by key.

The rule: of two rows with the same key, the later one stays, whether they are of one batch or of two.
`_sequence_number` decides if both have one, else `_sent_at`, else the order in which they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from psycopg import sql
from pyarrow import types

SEQUENCE: Final = "_sequence_number"
SENT: Final = "_sent_at"

# Rows are locked in the inner order, so two pipelines that write the same keys do not deadlock.
UPSERT: Final = """
INSERT INTO {table} AS t ({columns})
SELECT {columns} FROM (
    SELECT DISTINCT ON ({key}) * FROM {staging} WHERE {attempt} = ANY({attempts}) ORDER BY {key}, {latest_first}
) AS latest
ON CONFLICT ({key}) DO {action}
"""
# Digits as text: the longer number is the greater one.
_LATEST_SEQUENCE: Final = 'length({column}) DESC NULLS LAST, {column} COLLATE "C" DESC NULLS LAST'
_NOT_BEFORE_BY_SEQUENCE: Final = """
(length(excluded.{column}), excluded.{column} COLLATE "C") >= (length(t.{column}), t.{column} COLLATE "C")
"""


def upsert(parts: Mapping[str, sql.Composable], schema: pa.Schema, key: Sequence[str]) -> sql.Composed:
    by_sequence = SEQUENCE in schema.names and types.is_string(schema.field(SEQUENCE).type)
    by_time = SENT in schema.names and types.is_timestamp(schema.field(SENT).type)
    order: list[sql.Composable] = []
    later: list[sql.Composable] = []
    if by_sequence:
        order.append(sql.SQL(_LATEST_SEQUENCE).format(column=sql.Identifier(SEQUENCE)))
        later.append(sql.SQL(_NOT_BEFORE_BY_SEQUENCE).format(column=sql.Identifier(SEQUENCE)))
    if by_time:
        order.append(sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(SENT)))
        later.append(sql.SQL("excluded.{column} >= t.{column}").format(column=sql.Identifier(SENT)))
    order.append(sql.SQL("{} DESC").format(parts["position"]))
    return sql.SQL(UPSERT).format(
        **parts,
        key=sql.SQL(", ").join(map(sql.Identifier, key)),
        latest_first=sql.SQL(", ").join(order),
        action=_conflict_action([name for name in schema.names if name not in key], later),
    )


def _conflict_action(others: Sequence[str], later: Sequence[sql.Composable]) -> sql.Composable:
    if not others:
        return sql.SQL("NOTHING")
    sets = [sql.SQL("{column} = excluded.{column}").format(column=sql.Identifier(name)) for name in others]
    action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(sets))
    if not later:
        return action
    # A comparison with null decides nothing; then the next one is used. If none decides, the row that came later wins.
    return sql.SQL("{} WHERE coalesce({}, true)").format(action, sql.SQL(", ").join(later))
