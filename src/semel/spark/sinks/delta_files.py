"""What tasks do for a Delta table: Parquet files into its folder, under names of their own, and statistics for its log.

The rule: a statistic is left out rather than given where a reader could skip rows by it that it must not skip.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from semel.spark.segments.storage import LocalStore
from semel.spark.sinks.contract import SinkError, Written, store_at, unique
from semel.spark.sinks.parquet_files import encode_file, encode_to
from semel.spark.sinks.table_schema import shaped

_COUNTED_COLUMNS: Final = 32  # as Delta's own writers do
_LONGEST_TEXT: Final = 32
_EXACT_DIGITS: Final = 15  # a decimal with more of them may not survive a reader's floating point


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    url: str
    options: Mapping[str, str]
    table: str
    prefix: str  # of the batch's files
    schema: pa.Schema
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = shaped(batches, self.schema, self.table)
        first = next(rows, None)
        if first is None:
            return Written(task, attempt, 0, 0)
        name = f"{self.prefix}-t{task:04}-{unique(attempt)}.parquet"
        stats = Stats(self.schema)
        size, count = self._encode(name, stats.seen(chain((first,), rows)))
        payload = {"file": name, "stats": stats.text(), "written_at": int(time.time() * 1000)}
        return Written(task, attempt, count, size, payload)

    def _encode(self, name: str, rows: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        try:
            store = local_store(self.url)
            if store is not None:
                return encode_file(store.root / name, rows, self.schema, self.compression)
            with file_system(self.url, self.options).open_output_stream(name) as stream:
                count = encode_to(stream, rows, self.schema, self.compression)
                return stream.tell(), count
        except OSError as error:
            raise SinkError(f"{self.table}: {error}") from error


def local_store(url: str) -> LocalStore | None:
    """The folder of a table on this file system; None: it is elsewhere, and `deltalake` gets there."""
    store = store_at(url) if "://" not in url or url.startswith("file:") else None
    return store if isinstance(store, LocalStore) else None


def file_system(url: str, options: Mapping[str, str]) -> Any:
    """The folder of a table as a file system of pyarrow, by the very options that its log is written with."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(url, dict(options)))


class Stats:
    """Gathers the number of rows, and of simple columns the number of nulls, the least and the greatest value."""

    def __init__(self, schema: pa.Schema) -> None:
        simple = [field for field in list(schema)[:_COUNTED_COLUMNS] if not types.is_nested(field.type)]
        self._rows = 0
        self._nulls = {field.name: 0 for field in simple}
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._ordered = [field.name for field in simple if _has_order(field.type)]

    def seen(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._add(batch)
            yield batch

    def _add(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for name in self._nulls:
            self._nulls[name] += batch.column(name).null_count
        for name in list(self._ordered):
            try:
                least, greatest = _ends(batch.column(name))
            except (ValueError, OverflowError):  # a NaN, which has no order, or a time that Python cannot hold
                self._ordered.remove(name)
                self._least.pop(name, None)
                self._greatest.pop(name, None)
                continue
            if least is not None:
                self._least[name] = min(self._least.get(name, least), least)
                self._greatest[name] = max(self._greatest.get(name, greatest), greatest)

    def text(self) -> str:
        least = {name: _told(value) for name, value in self._least.items()}
        greatest = {name: _told(value) for name, value in self._greatest.items() if not _long(value)}
        return orjson.dumps(
            {"numRecords": self._rows, "minValues": least, "maxValues": greatest, "nullCount": self._nulls}
        ).decode()


def _has_order(kind: pa.DataType) -> bool:
    if types.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DIGITS)
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _ends(column: pa.Array) -> tuple[Any, Any]:
    if types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        raise ValueError
    ends = pc.min_max(column)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    if isinstance(least, float) and not (math.isfinite(least) and math.isfinite(greatest)):
        raise ValueError
    # Python compares texts by character, UTF-8 by byte: the same order.
    return least, greatest


def _long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _LONGEST_TEXT


def _told(value: Any) -> Any:
    match value:
        case str():
            return value[:_LONGEST_TEXT]  # of the least value: its beginning is not above it
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
