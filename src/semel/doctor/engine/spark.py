"""Spark, for logs that outgrow one machine. Its tasks read files as the other engine does, with DuckDB, and Spark runs
the same SQL over all of them.

On a cluster the tasks return their rows as Arrow, and Spark keeps them on its disks. On one machine they write them to
Parquet files, which all tasks can read: that takes less than half of the time.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import duckdb

from semel.doctor.engine.contract import Row
from semel.doctor.events import COLUMNS
from semel.doctor.logs.database import connect
from semel.doctor.logs.discovery import LogFile
from semel.doctor.logs.line_sql import literal
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.reader import CREATE, LogReader
from semel.spark.interpreter import running_spark
from semel.spark.spark_session import end_java, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The settings of a pipeline are for small batches. Here Spark may choose its joins and the number of partitions as it
# goes, and Java uses the garbage collector with the lowest total cost.
SETTINGS: Final[dict[str, Any]] = {
    "spark.sql.adaptive.enabled": True,
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "64m",
    "spark.sql.shuffle.partitions": 8,
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": False,
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
TASK_BYTES: Final = 64 * 1024 * 1024
ROWS_AT_ONCE: Final = 20_000
UNREADABLE: Final = 100  # in the column `problem`: the row is about a file, and `sample` says why


class SparkEngine:
    """Starts Spark and stops it at the end; if Spark already runs in this process, it opens another session there."""

    def __init__(self, *, master: str | None = None, cores: int | None = None) -> None:
        self._owns_spark = running_spark() is None
        self._lines: DataFrame | None = None
        self._folder: str | None = None  # of the tasks' files, on one machine
        try:
            with _own_interrupt_handler():
                self.spark: SparkSession = session("semel doctor", master=master, cores=cores, **SETTINGS)
        except KeyboardInterrupt:
            self.abandon()
            raise

    def read(
        self, files: Sequence[LogFile], mapping: LogMapping, since: float | None, until: float | None
    ) -> list[str]:
        from pyspark.storagelevel import StorageLevel

        self._forget()
        if self._is_one_machine():
            self._folder = tempfile.mkdtemp(prefix="semel-doctor-")
            Path(self._folder, "log_lines").mkdir()
        buckets = _buckets(list(enumerate(files)), self.spark.sparkContext.defaultParallelism)
        schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        tasks = self.spark.range(0, len(buckets), 1, max(1, len(buckets)))
        read = partial(_read, buckets, mapping, since, until, self._folder)
        self._lines = tasks.mapInArrow(read, schema).persist(StorageLevel.DISK_ONLY)
        unreadable = self._lines.where(f"problem = {UNREADABLE}").select("sample").collect()
        lines = self._lines.where(f"problem <> {UNREADABLE}")
        if self._folder is not None:
            lines = self.spark.read.schema(schema).parquet(f"file://{self._folder}/log_lines")
        lines.createOrReplaceTempView("log_lines")
        return [row["sample"] for row in unreadable]

    def _is_one_machine(self) -> bool:
        return (self.spark.sparkContext.master or "").startswith("local")

    def _forget(self) -> None:
        if self._lines is not None:
            self._lines.unpersist()
        self._remove_files()
        self._lines = None

    def _remove_files(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def view(self, name: str, query: str) -> None:
        self.spark.sql(query).createOrReplaceTempView(name)

    def table(self, name: str, query: str) -> None:
        # A plain view would be planned again with each query on it; a file, or a checkpoint, is a leaf of the plan.
        frame = self.spark.sql(query)
        if self._folder is None:
            frame = frame.localCheckpoint()
        else:
            path = f"file://{self._folder}/{name}"
            frame.write.mode("overwrite").parquet(path)
            frame = self.spark.read.schema(frame.schema).parquet(path)
        frame.createOrReplaceTempView(name)

    def values(self, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        schema = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        frame = self.spark.createDataFrame([tuple(row) for row in rows], schema)
        frame.hint("broadcast").createOrReplaceTempView(name)  # Spark does not know that it is small

    def rows(self, query: str) -> list[Row]:
        return [row.asDict() for row in self.spark.sql(query).collect()]

    def close(self) -> None:
        self._forget()
        if self._owns_spark:
            self.spark.stop()

    def abandon(self) -> None:
        """End at once, without waiting for what Spark is doing. A Spark that ran before goes on."""
        if self._owns_spark:
            end_java()
        self._remove_files()


def _buckets(files: Sequence[tuple[int, LogFile]], cores: int) -> list[list[tuple[int, LogFile]]]:
    """The files of each task; all tasks have about the same number of bytes."""
    count = min(len(files), max(cores, sum(file.size for _, file in files) // TASK_BYTES))
    buckets: list[list[tuple[int, LogFile]]] = [[] for _ in range(count)]
    filled = [0] * count
    for numbered in sorted(files, key=lambda numbered: -numbered[1].size):
        least = filled.index(min(filled))
        buckets[least].append(numbered)
        filled[least] += max(1, numbered[1].size)
    return buckets


def _read(
    buckets: list[list[tuple[int, LogFile]]],
    mapping: LogMapping,
    since: float | None,
    until: float | None,
    target: str | None,
    tasks: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: yields the rows of `log_lines` from each task's files. With `target`, it writes them to
    files there instead, and yields only the files that could not be read."""
    for batch in tasks:
        for task in batch.column(0).to_pylist():
            for number, file in buckets[task]:
                with (
                    tempfile.TemporaryDirectory(prefix="semel-doctor-", dir=target) as folder,
                    closing(connect(Path(folder), in_memory=True)) as connection,
                ):
                    connection.execute(CREATE)
                    reader = LogReader(connection, mapping, since=since, until=until, threads=1)
                    reader.read([file], number)
                    if target is not None:
                        _write(connection, f"{target}/log_lines/{number}.parquet")
                    yield from _rows(connection, reader.problems)


def _write(connection: duckdb.DuckDBPyConnection, path: str) -> None:
    """Move all rows to a file. If the task runs again, it replaces the file."""
    part = f"{path}.{uuid4().hex}.part"
    connection.execute(f"COPY log_lines TO {literal(part)} (FORMAT parquet, COMPRESSION snappy)")
    Path(part).replace(path)
    connection.execute("TRUNCATE log_lines")


def _rows(connection: duckdb.DuckDBPyConnection, problems: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for problem in problems:
        connection.execute("INSERT INTO log_lines (problem, sample) VALUES (?, ?)", [UNREADABLE, problem])
    rows: Any = connection.sql("SELECT * FROM log_lines").to_arrow_reader(ROWS_AT_ONCE)
    yield from rows


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Restores the handler of SIGINT afterwards: Spark replaces it when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
