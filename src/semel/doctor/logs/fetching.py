"""Files that Python's workers read: those in a bucket, and compressed ones, whose damage Spark would pass over.

Spark hands out the work and gets back lines, or rows of Parquet, as Arrow batches. A file that breaks off is no
failure: what came before counts, and one row says which file it is and why, in the column `problem`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from semel.doctor.logs.discovery import PACKED, Kind, LogFile, reason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LINE_SCHEMA: Final = "line STRING, problem STRING"
CHUNK: Final = 2 * 1024 * 1024
LONGEST: Final = 64 * 1024 * 1024  # bytes without an end of line, after which it is no log
TASK_BYTES: Final = 64 * 1024 * 1024

Read = Callable[[LogFile], "Iterator[pa.RecordBatch]"]


def lines(spark: SparkSession, files: Sequence[LogFile]) -> DataFrame:
    """Each line of these files, its end of line included; or a problem."""
    return _spread(spark, files, read_lines, LINE_SCHEMA)


def rows(spark: SparkSession, files: Sequence[LogFile], columns: Sequence[tuple[str, str]]) -> DataFrame:
    """The rows of Parquet files with these columns (name, Spark's type), null where a file has none; or a problem."""
    schema = ", ".join(f"`{name}` {kind}" for name, kind in (*columns, ("problem", "STRING")))
    return _spread(spark, files, partial(read_rows, tuple(columns)), schema)


def _spread(spark: SparkSession, files: Sequence[LogFile], read: Read, schema: str) -> DataFrame:
    """One task for each bucket of files, of about the same size each."""
    cores = spark.sparkContext.defaultParallelism
    count = min(len(files), max(cores, sum(file.size for file in files) // TASK_BYTES))
    buckets: list[list[LogFile]] = [[] for _ in range(count)]
    filled = [0] * count
    for file in sorted(files, key=lambda file: -file.size):
        least = filled.index(min(filled))
        buckets[least].append(file)
        filled[least] += max(1, file.size)
    return spark.range(0, count, 1, count).mapInArrow(partial(_fetch, buckets, read), schema)


def _fetch(buckets: list[list[LogFile]], read: Read, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for file in buckets[number]:
                yield from read(file)


def opened(file: LogFile) -> Any:
    """A file that can be read from any place."""
    import pyarrow as pa
    from pyarrow import fs

    if not file.store:
        return pa.OSFile(file.path)
    return fs.FileSystem.from_uri(file.store)[0].open_input_file(file.path)


def read_lines(file: LogFile) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        with opened(file) as raw:
            stream = pa.CompressedInputStream(raw, _codec(file.path)) if file.kind is Kind.PACKED else raw
            yield from split_lines(stream.read)
    except (OSError, pa.ArrowException) as error:
        yield problem_row(file, error)


def split_lines(read: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """What `read` gives, as lines; the last may have no end. An error is raised after what came before it."""
    left, failed = b"", None
    while True:
        try:
            chunk = read(CHUNK)
        except OSError as error:  # pyarrow's are of this family, too
            failed, chunk = error, b""
        if not chunk:
            break
        left += chunk
        end = left.rfind(b"\n") + 1
        if end or len(left) > LONGEST:
            whole, left = (left[:end], left[end:]) if end else (left, b"")
            yield _lines(whole)
    if left:
        yield _lines(left)
    if failed is not None:
        raise failed


def problem_row(file: LogFile, error: Exception) -> pa.RecordBatch:
    import pyarrow as pa

    return _problem(file, error, ("line",), (pa.string(),))


def _codec(path: str) -> str:
    return PACKED[os.path.splitext(path.lower())[1]]


def _lines(data: bytes) -> pa.RecordBatch:
    """The lines as they lie in `data`: no copy, and no look at whether it is UTF-8, which the parser does."""
    import numpy as np
    import pyarrow as pa

    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10).astype(np.int32) + 1
    inner = ends if len(ends) and ends[-1] == len(data) else np.append(ends, np.int32(len(data)))
    offsets = np.concatenate([np.zeros(1, np.int32), inner]).astype(np.int32)
    count = len(offsets) - 1
    line = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.RecordBatch.from_arrays([line, pa.nulls(count, pa.string())], ["line", "problem"])


def _problem(file: LogFile, error: Exception, names: Sequence[str], types: Sequence[pa.DataType]) -> pa.RecordBatch:
    import pyarrow as pa

    empty = [pa.nulls(1, kind) for kind in types]
    return pa.RecordBatch.from_arrays([*empty, pa.array([f"{file.address}: {reason(error)}"])], [*names, "problem"])


def read_rows(columns: Sequence[tuple[str, str]], file: LogFile) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"DOUBLE": pa.float64(), "BIGINT": pa.int64(), "STRING": pa.string()}
    names = [name for name, _ in columns]
    types = [kinds[kind] for _, kind in columns]
    try:
        with opened(file) as raw:
            whole = parquet.ParquetFile(raw)
            known = [name for name in names if name in whole.schema_arrow.names]
            for batch in whole.iter_batches(batch_size=10_000, columns=known, use_threads=False):
                has = dict(zip(known, batch.columns, strict=True))
                arrays = [
                    has[name].cast(kind) if name in has else pa.nulls(len(batch), kind)
                    for name, kind in zip(names, types, strict=True)
                ]
                yield pa.RecordBatch.from_arrays([*arrays, pa.nulls(len(batch), pa.string())], [*names, "problem"])
    except (OSError, pa.ArrowException) as error:
        yield _problem(file, error, names, types)
