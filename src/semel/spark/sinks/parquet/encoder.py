"""Writes Parquet files for the Parquet and the Delta sink, and says what an error of their folder means.

The rule: a file that could not be written completely is removed, so that a full disk does not fill up with attempts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from semel.spark.sinks.contract import SinkError, SinkPermissionDenied, SinkUnavailable

CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_GROUP_ROWS: Final = 250_000
_GROUP_BYTES: Final = 64 * 1024 * 1024  # in memory, before it is compressed
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# A network file system that is unreachable, or a machine that lacks a resource other than disk space.
AWAY: Final = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ENOTCONN,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)


def file_error(table: str, error: OSError) -> SinkError:
    """What a failed file operation means for the pipeline: an outage, or an error that waiting does not fix."""
    if error.errno in FULL:
        return SinkUnavailable(f"{table}: the disk is full ({error}). Free some space: the batch is then tried again")
    denied = SinkPermissionDenied if isinstance(error, PermissionError) else SinkError
    return (SinkUnavailable if error.errno in AWAY else denied)(f"{table}: {error}")


def check_writable(table: str, folder: Path) -> None:
    """Checks that files can be created in a folder, or the folder itself if it does not exist. Writes nothing."""
    nearest = folder
    while not os.path.exists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        which = "it" if nearest == folder else str(nearest)
        raise SinkError(f"{table}: {which} is a file; choose a folder")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise SinkPermissionDenied(f"{table}: no permission to write to the folder {nearest}")


def check_codec(compression: str) -> None:
    if compression not in CODECS:
        raise SinkError(f"compression {compression!r} is not known; choose one of {', '.join(CODECS)}")


def encode(batches: Iterator[pa.RecordBatch], schema: pa.Schema, compression: str) -> tuple[bytes, int]:
    """The file as bytes, and its number of rows."""
    sink = pa.BufferOutputStream()
    rows = encode_to(sink, batches, schema, compression)
    return sink.getvalue().to_pybytes(), rows


def encode_file(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, compression: str) -> tuple[int, int]:
    """Write a new file and sync it. Returns its number of bytes and of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        try:
            rows = encode_to(file, batches, schema, compression)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file.tell(), rows


def encode_to(sink: Any, batches: Iterator[pa.RecordBatch], schema: pa.Schema, compression: str) -> int:
    rows = 0
    with pq.ParquetWriter(sink, schema, compression=compression) as writer:
        for group in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(group, schema))
            rows += sum(batch.num_rows for batch in group)
    return rows


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
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
