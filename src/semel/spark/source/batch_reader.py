"""`spark.read.format("sqs")`: a queue's backlog as a DataFrame.

With `segments`, the folder holds the result: the first evaluation receives, seals and deletes the waiting messages.
Every further evaluation, and every DataFrame with the same folder, returns the same rows. Without `segments`, messages
are received and then returned to the queue, so each evaluation of the DataFrame raises their receive counts by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import orjson
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from semel.messages.keys import key_rule
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import open_store
from semel.spark.source import columns
from semel.spark.source.columns import SourceMessage
from semel.spark.source.options import ReadOptions
from semel.spark.source.planner import Planner, assignments
from semel.spark.source.queue_ids import by_id, label
from semel.spark.source.reader import Assignment, SourceTask, client_for, rows
from semel.spark.source.receiver import Receiver
from semel.spark.source.returns import Returned, return_messages

if TYPE_CHECKING:
    import pyarrow as pa

PLAN: Final = "plan.json"


class SqsBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        client = client_for(self._options.address)
        queues = {name: client.queue(name) for name in self._options.queues}
        # Without `segments`, nothing is created: the log is used only if there are `segments`.
        planner = Planner(self._options, SegmentLog(open_store(self._options.segments or ".")), queues)
        if self._options.segments is None:
            by_id(queues)
            end = planner.plan({"log": "", "batch": 0}, planner.look()[0], self._options.max_messages)
            return [InputPartition(assignment) for assignment in assignments(end)]
        start = planner.initial()
        planner.log.store.put_if_absent(
            PLAN, orjson.dumps(planner.plan(start, planner.look()[0], self._options.max_messages))
        )
        end = orjson.loads(planner.log.store.read(PLAN) or b"")
        return [InputPartition(assignment) for assignment in planner.assignments(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from semel.spark.source.datasource import arrow_schema

        schema, assignment = arrow_schema(self._schema), partition.value
        if assignment is None:  # Spark's own partition, if nothing was planned
            return
        if self._options.segments is None:
            yield from rows(self._peek(assignment), schema, assignment.planned_at)
            return
        for table in SourceTask(self._options, assignment).tables():
            yield from rows(table, schema, assignment.planned_at)

    def _peek(self, assignment: Assignment) -> pa.Table:
        queue = client_for(self._options.address).queue(assignment.queue)
        receiver = Receiver(
            queue,
            rows=assignment.rows,
            size=assignment.bytes,
            until=time.monotonic() + self._options.max_seconds,
            visibility=self._options.visibility,
            threads=self._options.threads,
        )
        rule = key_rule(self._options.key)
        messages = [
            SourceMessage(message, arrival.at, arrival.hidden_until, columns.key_of(message, rule))
            for arrival in receiver.run()
            for message in arrival.messages
        ]
        return_messages(queue, [Returned(m.message.receipt, m.hidden_until) for m in messages], time.monotonic())
        distinct = {m.message.message_id: m for m in messages}
        return columns.table(list(distinct.values()), label(queue, self._options.queues), self._options.columns)
