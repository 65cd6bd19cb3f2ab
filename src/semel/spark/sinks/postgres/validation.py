"""Finds rows that PostgreSQL would refuse, and with them the whole batch, before they are sent: column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from semel.spark.sinks.contract import InvalidRow
from semel.spark.sinks.postgres.table import JSON_TYPES, TEXT_TYPES, Column, Table

_UUID: Final = r"^\{?[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7}\}?$"
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_NUL: Final = "a NUL character, which PostgreSQL cannot store"


def refused_rows(batch: pa.RecordBatch, table: Table, key: tuple[str, ...] = ()) -> list[InvalidRow]:
    """At most one entry for each row, for its first invalid column, in the order of the rows."""
    invalid: dict[int, InvalidRow] = {}
    for values, column in zip(batch.columns, table.columns, strict=True):
        for rows, reason in _problems(values, column, key):
            for row in rows:
                invalid.setdefault(row, InvalidRow(row, column.name, reason))
    return [invalid[row] for row in sorted(invalid)]


def _problems(values: pa.Array, column: Column, key: tuple[str, ...]) -> Iterator[tuple[list[int], str]]:
    if values.null_count and (column.name in key or column.not_null):
        what = "the key of the upsert" if column.name in key else "a column that the table has as NOT NULL"
        yield _indices(pc.is_null(values)), f"no value for {what}"
    if types.is_string(values.type):
        yield from _text_problems(values, column)
    elif types.is_date(values.type) or types.is_timestamp(values.type):
        yield _indices(_out_of_range(values)), "not between the years 1 and 9999"
    elif types.is_nested(values.type) and _has_nul(values):
        yield _matching(values, _contains_nul), _NUL


def _text_problems(values: pa.Array, column: Column) -> Iterator[tuple[list[int], str]]:
    if _has_nul(values):
        yield _indices(pc.match_substring(values, "\0")), _NUL
    if column.max_characters is not None:
        yield (
            _indices(pc.greater(pc.utf8_length(values), column.max_characters)),
            f"more than {column.max_characters} characters",
        )
    if column.base == "uuid":
        yield _indices(pc.invert(pc.match_substring_regex(values, _UUID))), "not a UUID"
    elif column.base in JSON_TYPES:
        yield _matching(values, _is_not_json), "not JSON that PostgreSQL can store"
    elif column.base not in TEXT_TYPES:
        raise AssertionError(column.base)


def _indices(mask: pa.Array) -> list[int]:
    rows: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return rows


def _matching(values: pa.Array, matches: Callable[[Any], bool]) -> list[int]:
    return [row for row, value in enumerate(values.to_pylist()) if value is not None and matches(value)]


def _out_of_range(values: pa.Array) -> pa.Array:
    if types.is_date(values.type):
        first, last = (pa.scalar(end.date(), values.type) for end in (_FIRST, _LAST))
    else:
        ends = (_FIRST, _LAST) if values.type.tz else (_FIRST.replace(tzinfo=None), _LAST.replace(tzinfo=None))
        first, last = (pa.scalar(end, values.type) for end in ends)
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def _has_nul(values: pa.Array) -> bool:
    """Whether any text in the column has a NUL; one pass over its bytes."""
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


def _contains_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_contains_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(map(_contains_nul, value))


def _is_not_json(text: str) -> bool:
    try:
        return _contains_nul(orjson.loads(text))
    except orjson.JSONDecodeError:
        return True
