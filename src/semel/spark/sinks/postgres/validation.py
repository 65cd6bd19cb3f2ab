"""Rows that PostgreSQL would refuse, and with each its whole batch: found before they are sent, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from semel.spark.sinks.contract import InvalidRow
from semel.spark.sinks.postgres.table import JSONS, TEXTS, Column, Table

_UUID: Final = r"^\{?[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7}\}?$"
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_NUL: Final = "a NUL character, which PostgreSQL cannot store"


def invalid_rows(batch: pa.RecordBatch, table: Table, key: tuple[str, ...] = ()) -> list[InvalidRow]:
    """At most one a row, by the first column that is wrong, in the rows' order."""
    found: dict[int, InvalidRow] = {}
    for values, column in zip(batch.columns, table.columns, strict=True):
        for rows, reason in _problems(values, column, key):
            for row in rows:
                found.setdefault(row, InvalidRow(row, column.name, reason))
    return [found[row] for row in sorted(found)]


def _problems(values: pa.Array, column: Column, key: tuple[str, ...]) -> Iterator[tuple[list[int], str]]:
    if values.null_count and (column.name in key or column.not_null):
        what = "the key of the upsert" if column.name in key else "a column that the table has as NOT NULL"
        yield _where(pc.is_null(values)), f"no value for {what}"
    if types.is_string(values.type):
        yield from _text_problems(values, column)
    elif types.is_date(values.type) or types.is_timestamp(values.type):
        yield _where(_out_of_range(values)), "not between the years 1 and 9999"
    elif types.is_nested(values.type) and _has_nul(values):
        yield _rows(values, _nul_within), _NUL


def _text_problems(values: pa.Array, column: Column) -> Iterator[tuple[list[int], str]]:
    if _has_nul(values):
        yield _where(pc.match_substring(values, "\0")), _NUL
    if column.longest is not None:
        yield _where(pc.greater(pc.utf8_length(values), column.longest)), f"more than {column.longest} characters"
    if column.base == "uuid":
        yield _where(pc.invert(pc.match_substring_regex(values, _UUID))), "not a UUID"
    elif column.base in JSONS:
        yield _rows(values, _no_json), "not JSON that PostgreSQL can store"
    elif column.base not in TEXTS:
        raise AssertionError(column.base)


def _where(mask: pa.Array) -> list[int]:
    rows: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return rows


def _rows(values: pa.Array, wrong: Callable[[Any], bool]) -> list[int]:
    return [row for row, value in enumerate(values.to_pylist()) if value is not None and wrong(value)]


def _out_of_range(values: pa.Array) -> pa.Array:
    if types.is_date(values.type):
        first, last = (pa.scalar(end.date(), values.type) for end in (_FIRST, _LAST))
    else:
        ends = (_FIRST, _LAST) if values.type.tz else (_FIRST.replace(tzinfo=None), _LAST.replace(tzinfo=None))
        first, last = (pa.scalar(end, values.type) for end in ends)
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def _has_nul(values: pa.Array) -> bool:
    """Whether any text in it has a NUL: one look through its bytes, which is cheap."""
    kind = values.type
    if types.is_string(kind):
        return bool(pc.any(pc.match_substring(values, "\0")).as_py())
    if types.is_map(kind):
        return _has_nul(values.keys) or _has_nul(values.items)
    if types.is_list(kind):
        return _has_nul(values.flatten())
    if types.is_struct(kind):
        return any(_has_nul(part) for part in values.flatten())
    return False


def _nul_within(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_nul_within(part) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(map(_nul_within, value))


def _no_json(text: str) -> bool:
    try:
        return _nul_within(orjson.loads(text))
    except orjson.JSONDecodeError:
        return True
