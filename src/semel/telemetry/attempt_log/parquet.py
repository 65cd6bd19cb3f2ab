"""Converts lines of the attempt log to one Parquet file. pyarrow does this without holding Python's lock."""

from __future__ import annotations

import importlib
import io
from typing import Any, Final

from semel.errors import StartError
from semel.telemetry.attempt_log.events import SPARK_SCHEMA

_TYPES: Final = {"DOUBLE": "float64", "STRING": "string", "BIGINT": "int64"}


def need_pyarrow(what: str) -> None:
    """Raise at the start, not at the first file, if pyarrow is missing."""
    _pyarrow("pyarrow", what)


def to_parquet(lines: bytes) -> bytes:
    arrow, parquet = _pyarrow("pyarrow", "Parquet files"), _pyarrow("pyarrow.parquet", "Parquet files")
    reader = _pyarrow("pyarrow.json", "Parquet files")
    columns = [column.replace("`", "").split() for column in SPARK_SCHEMA.split(", ")]
    schema = arrow.schema([(name, getattr(arrow, _TYPES[kind])()) for name, kind in columns])
    options = reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    threads = reader.ReadOptions(use_threads=False)  # the cores belong to the handlers
    table = reader.read_json(io.BytesIO(lines), read_options=threads, parse_options=options)
    out = io.BytesIO()
    parquet.write_table(table.select(schema.names), out, compression="zstd")
    return out.getvalue()


def _pyarrow(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise StartError(
            f"the attempt log needs pyarrow for {what}: pip install pyarrow, or write JSON lines to a local folder"
        ) from None
