"""The classes that Spark calls for `spark.readStream.format("sqs")`, `spark.read.format("sqs")`, and for writing.

They only delegate: planner.py plans the next batch, reader.py receives and seals, committer.py ends batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from semel.spark.interpreter import use_in_running_spark
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import open_store
from semel.spark.source.column_types import ddl
from semel.spark.source.options import COLUMN_NAMES, OptionError, ReadOptions, read_options
from semel.spark.source.planner import Planner
from semel.spark.source.reader import Assignment, SourceTask, client_for, rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the format `sqs` with a session, whichever Python Spark was started with. Rarely needed: see
    docs/reference/spark.md.

    >>> from semel.spark import register
    >>> register(spark)  # doctest: +SKIP
    >>> orders = spark.readStream.format("sqs").option("queue", "orders")  # doctest: +SKIP
    """
    use_in_running_spark()
    spark.dataSource.register(SqsSource)


class SqsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sqs"

    @cached_property
    def _read(self) -> ReadOptions:
        return read_options(_plain(self.options))

    def schema(self) -> str:
        return ddl(self._read.columns or COLUMN_NAMES)

    def streamReader(self, schema: StructType) -> SqsStreamReader:
        options = self._read
        if options.segments is None:
            raise OptionError(
                "option 'segments' is missing: a folder for the segment log, best inside the checkpoint, for example "
                "checkpoint + '/segments'. What was received is sealed there before it is deleted from the queue"
            )
        return SqsStreamReader(options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from semel.spark.source.batch_reader import SqsBatchReader

        options = self._read
        if options.ack == "committed":
            raise OptionError(
                "option 'ack' is 'committed', which is for streams: a batch read is never told that its rows were "
                "committed, and would leave the messages in the queue. Leave 'ack' out"
            )
        return SqsBatchReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from semel.spark.writer import datasource as writer_datasource

        return writer_datasource.writer(_plain(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from semel.spark.writer import datasource as writer_datasource

        return writer_datasource.stream_writer(_plain(self.options), schema, overwrite=overwrite)


class TaskPartition(InputPartition):
    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)


class SqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled to the executors, so it opens nothing before its first call."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._made: Planner | None = None

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            assert self._options.segments is not None
            client = client_for(self._options.address)
            queues = {name: client.queue(name) for name in self._options.queues}
            self._made = Planner(self._options, SegmentLog(open_store(self._options.segments)), queues)
        return self._made

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        match limit:
            case ReadMaxRows(max_rows=most):
                return self._planner.latest(start, most)
            case ReadAllAvailable():
                return self._planner.latest(start, None)
            case _:
                return self._planner.latest(start, self._options.max_messages)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.report()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [TaskPartition(assignment) for assignment in self._planner.assignments(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._schema)
        for table in SourceTask(self._options, partition.value).tables():
            yield from rows(table, schema, partition.value.planned_at)

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.committed(end)

    def stop(self) -> None:
        if isinstance(sys.exception(), EOFError):
            # Java has closed the connection, as it does when a query is stopped. Spark's runner takes that for a
            # failure, cannot report it to anybody, and would show it to the user as two stack traces.
            sys.excepthook = _silent
        if self._made is not None:
            self._made.stop()


def _silent(*_failure: object) -> None:
    pass


def arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    return {str(name): str(value) for name, value in options.items()}
