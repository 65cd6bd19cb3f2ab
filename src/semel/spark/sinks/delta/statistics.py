"""The statistics of a file in a Delta table's log: rows, nulls, least and greatest values.

The rule: a statistic is left out if it could make a reader skip rows wrongly. That is why statistics are computed here
and not taken from the footer of the Parquet file: the footer's minimum and maximum ignore NaN, which Spark orders above
every number, and are missing for texts beyond 4 KiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_MAX_COLUMNS: Final = 32  # as Delta's own writers do
_MAX_TEXT: Final = 32
_EXACT_DIGITS: Final = 15  # a decimal with more digits may not survive a reader's floating point
_ORDERED: Final = (types.is_integer, types.is_floating, types.is_string, types.is_date, types.is_timestamp)


class Statistics:
    """Collected from the batches that pass through `observe`. Nested columns have none."""

    def __init__(self, schema: pa.Schema) -> None:
        simple = [field for field in list(schema)[:_MAX_COLUMNS] if not types.is_nested(field.type)]
        self._rows = 0
        self._nulls = {field.name: 0 for field in simple}
        self._ends: dict[str, tuple[Any, Any]] = {}  # the least and the greatest value
        self._ordered = {field.name for field in simple if _has_order(field.type)}

    def observe(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._rows += batch.num_rows
            for name in self._nulls:
                self._nulls[name] += batch.column(name).null_count
            for name in tuple(self._ordered):
                self._add(name, batch.column(name))
            yield batch

    def _add(self, name: str, column: pa.Array) -> None:
        try:
            least, greatest = _ends(column)
        except (ValueError, OverflowError):  # NaN and infinity, or a time that Python cannot hold
            self._ordered.remove(name)
            self._ends.pop(name, None)
            return
        if least is not None:
            old = self._ends.get(name, (least, greatest))
            self._ends[name] = min(old[0], least), max(old[1], greatest)

    def json(self) -> str:
        statistics = {
            "numRecords": self._rows,
            # The beginning of a text is a lower bound of it, but not an upper bound: long maxima are left out.
            "minValues": {name: _json_value(least) for name, (least, _) in self._ends.items()},
            "maxValues": {name: _json_value(end) for name, (_, end) in self._ends.items() if not _is_long(end)},
            "nullCount": self._nulls,
        }
        return orjson.dumps(statistics).decode()


def _has_order(kind: pa.DataType) -> bool:
    if types.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DIGITS)
    return any(is_kind(kind) for is_kind in _ORDERED)


def _ends(column: pa.Array) -> tuple[Any, Any]:
    if types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        raise ValueError
    ends = pc.min_max(column)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    if isinstance(least, float) and not (math.isfinite(least) and math.isfinite(greatest)):
        raise ValueError
    # Python compares texts by character, readers by UTF-8 byte: the order is the same.
    return least, greatest


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _MAX_TEXT


def _json_value(value: Any) -> Any:
    match value:
        case str():
            return value[:_MAX_TEXT]
        case Decimal():
            return float(value)
        case datetime(tzinfo=None):
            return value.isoformat(timespec="microseconds")
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case date():
            return value.isoformat()
        case _:
            return value
