"""A table in memory that keeps the contract of a sink: tasks stage rows, and one transaction makes them visible and
writes the number and the content of the batch, as PostgreSQL and Delta do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from semel.spark.sinks.contract import (
    Commit,
    MicroBatch,
    SinkUnavailable,
    Written,
    already_committed,
    results_with_rows,
)
from simulation.faults import CallFaults
from simulation.spark_store import Perils, Remote, SparkProcess

SINK_FAULTS: Final = {"unreachable": 20, "lost answer": 60, "slow": 30}


class Table:
    """The committed table. `rows` are keys, in the order in which they were committed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.away = False
        self.rows: list[str] = []
        self.staged: dict[str, list[str]] = {}
        self.commits: dict[str, Commit] = {}
        self.on_commit: Callable[[str, list[str]], None] = lambda _t, _k: None

    def commit(self, batch: MicroBatch, results: Sequence[Written]) -> int:
        if already_committed(self.name, self.commits.get(batch.pipeline), batch):
            return 0
        rows = [key for result in results for key in self.staged[result.payload["staged"]]]
        self.rows += rows
        self.commits[batch.pipeline] = Commit(batch.number, batch.content)
        self.on_commit(self.name, rows)
        return len(rows)


class Connection(Remote):
    def __init__(self, table: Table, process: SparkProcess, perils: Perils, faults: CallFaults) -> None:
        super().__init__(process, perils, faults)
        self.table = table

    def _away(self) -> bool:
        return self.table.away

    def _failure(self, what: str) -> SinkUnavailable:
        return SinkUnavailable(f"{self.table.name}: {what}")


class SimulatedWriter:
    """Made on the driver. `connected` returns a copy with the connection of the process that runs it."""

    def __init__(self, table: Table, batch: MicroBatch) -> None:
        self.table = table
        self.batch = batch
        self.connection: Connection | None = None

    def connected(self, process: SparkProcess, perils: Perils, faults: CallFaults) -> SimulatedWriter:
        writer = SimulatedWriter(self.table, self.batch)
        writer.connection = Connection(self.table, process, perils, faults)
        return writer

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        keys = [key for batch in batches for key in batch.column("key").to_pylist()]
        if not keys:
            return Written(task, attempt, 0, 0)
        assert self.connection is not None
        name = f"{self.batch.number}/{task}/{attempt}"
        self.connection._call(("stage in", self.table.name, name), lambda: self.table.staged.update({name: keys}))
        return Written(task, attempt, len(keys), 0, {"staged": name})


class SimulatedSink(Connection):
    @property
    def name(self) -> str:
        return self.table.name

    def open(self, schema: pa.Schema) -> None:
        pass

    def close(self) -> None:
        pass

    def last(self, pipeline: str) -> Commit | None:
        return self._call(("last of", self.name), lambda: self.table.commits.get(pipeline), changes=False)

    def writer(self, batch: MicroBatch) -> SimulatedWriter:
        return SimulatedWriter(self.table, batch)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        results = results_with_rows(batch, written)
        if already_committed(self.name, self.last(batch.pipeline), batch):
            return
        what = ("commit of", self.name, batch.number, batch.content)
        self._call(what, lambda: self.table.commit(batch, results))


def as_rows(table: pa.Table, names: Mapping[str, str]) -> pa.RecordBatch:
    """The rows that the pipeline makes of a segment; some are rejected. `names`: keys by message id."""
    keys = [names[id_] for id_ in table.column("message_id").to_pylist()]
    rows = pa.StructArray.from_arrays([pa.array(keys, pa.string())], ["key"])
    reasons = pa.array(["rejected" if is_bad(key) else None for key in keys], pa.string())
    return pa.RecordBatch.from_arrays(
        [reasons, pa.nulls(len(keys), pa.string()), rows, rows], ["reason", "field", "row", "message"]
    )


def is_bad(key: str) -> bool:
    return int(key[1:]) % 5 == 4
