"""Writing Arrow batches as one Parquet file, in memory or on disk, with row groups of a sensible size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from semel.spark.sinks.contract import SinkError

CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_GROUP_ROWS: Final = 250_000
_GROUP_BYTES: Final = 64 * 1024 * 1024  # in memory, before it is compressed


def check_codec(compression: str) -> None:
    if compression not in CODECS:
        raise SinkError(f"compression {compression!r} is not known; choose one of {', '.join(CODECS)}")


def encode(batches: Iterator[pa.RecordBatch], schema: pa.Schema, compression: str) -> tuple[bytes, int]:
    """The file as bytes, and its number of rows."""
    sink = pa.BufferOutputStream()
    rows = encode_to(sink, batches, schema, compression)
    return sink.getvalue().to_pybytes(), rows


def encode_file(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, compression: str) -> tuple[int, int]:
    """A file that was not there, and is on disk to stay. Its number of bytes and of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        rows = encode_to(file, batches, schema, compression)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), rows


def encode_to(sink: Any, batches: Iterator[pa.RecordBatch], schema: pa.Schema, compression: str) -> int:
    rows = 0
    with pq.ParquetWriter(sink, schema, compression=compression) as writer:
        for group in _groups(batches):
            writer.write_table(pa.Table.from_batches(group, schema))
            rows += sum(batch.num_rows for batch in group)
    return rows


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
