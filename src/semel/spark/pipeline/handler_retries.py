"""The handler sink's messages that wait under the checkpoint: those of FIFO queues that are to be tried again.

A batch tries them before its own rows. While none comes, they are tried by themselves, between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from semel.spark.pipeline.batch import Batches, outcomes_of
from semel.spark.pipeline.batch_task import Outcome, result
from semel.spark.pipeline.config import Pipeline
from semel.spark.sinks.contract import Sink, Writer
from semel.spark.sinks.handlers.sink import HandlerSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPED: Final = 4  # tasks that share the groups of a FIFO queue; fixed by the sink at its first run


@dataclass(frozen=True, slots=True)
class Again:
    """What an executor does: nothing new, only what waits."""

    writer: Writer

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for _ in batches:
            pass
        written = self.writer.write(iter(()), context.partitionId(), uuid4().hex)
        yield result(Outcome(written.task, 0, {}, 0.0, written, None))


def arranged(rows: DataFrame, sink: Sink, pipeline: Pipeline) -> DataFrame:
    """For handlers of FIFO queues: each group in one task, the same in every batch, in order."""
    fifo = any(name.rstrip("/").endswith(".fifo") for name in pipeline.source.queues)
    return sink.arrange(rows, GROUPED) if isinstance(sink, HandlerSink) and fifo else rows


def try_again(spark: SparkSession, sink: Sink, batches: Batches) -> None:
    """Called often; does something if a message is due and no batch is in hand."""
    if not isinstance(sink, HandlerSink) or sink.state.due is None or sink.state.due > time.time():
        return
    partitions = sink.state.partitions
    if partitions is not None:
        batches.between(lambda: _try(spark, sink, partitions))


def _try(spark: SparkSession, sink: HandlerSink, partitions: int) -> None:
    outcomes = outcomes_of(spark.range(0, partitions, 1, partitions), Again(sink.writer()))
    sink.commit_waiting([one.written for one in outcomes if one.written is not None])
