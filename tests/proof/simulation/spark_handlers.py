"""The Spark world with an app's handlers as the sink, as with `semel run --on spark`.

A message that a handler puts off is returned to its queue, and the ledger knows which keys are done. So nothing that
happens to the checkpoint may lose or repeat a message, and no reset is needed. The handler sink, the agreement at the
start and the source are the real ones; the ledger is a set of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import pyarrow as pa

from semel.spark.pipeline import agreement
from semel.spark.pipeline.micro_batch import Batches
from semel.spark.pipeline.streaming_query import PipelineQuery
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.sinks.contract import Written
from semel.spark.sinks.handlers import sink as handlers
from semel.spark.sinks.handlers.executor_app import AppReference
from semel.spark.sinks.handlers.row_messages import NEEDED
from semel.spark.source.options import ReadOptions
from semel.verify.history import EventKind
from semel.verify.history_rules import check
from simulation.choices import Choices
from simulation.faults import CallFaults
from simulation.search import Outcome
from simulation.spark_checks import Checks
from simulation.spark_driver import Driver
from simulation.spark_plan import Plan
from simulation.spark_sink import Connection, Table
from simulation.spark_store import SEGMENTS, Perils, SimulatedStore, SparkProcess
from simulation.spark_world import SparkWorld, outcome_of

APP: Final = AppReference("shop:app")
PUT_OFF: Final = (0.0, 7.0, 45.0, 200.0)  # seconds after which a message is tried again
COLUMNS: Final = ("message_id", "group_id", "sequence_number")


class HandlerChecks(Checks):
    """Nothing is excused: whatever happens to the checkpoint, a message stays in its queue until its key is done."""

    def __init__(self, world: HandlerWorld) -> None:
        super().__init__(world)
        self.handlers = world

    def _deleted(self, key: str, message_id: str) -> None:
        self.in_queue[key].discard(message_id)
        self.happened(EventKind.DELETE, key)
        if key not in self.handlers.done and not self.in_queue[key]:
            self.world.simulator.violate("deleted before it was done", f"{key}, by {self.world.simulator.task.name}")

    def at_end(self) -> None:
        for finding in check(self.history, logged=EventKind).findings:
            self.world.simulator.violate(finding.kind, finding.text)
        if not self.world.queue_is_empty:
            self.world.simulator.violate("stuck", "the queue is not empty")
        for key in sorted(self.accepted - self.handlers.done):
            self.world.simulator.violate("stuck", f"{key} was never handled")
        if self.world.plan.fifo:
            self._check_order()

    def _check_order(self) -> None:
        numbers = [int(event.key[1:]) for event in self.history if event.kind is EventKind.EFFECT]
        for group in (0, 1):
            own = [number for number in numbers if number % 2 == group]
            if own != sorted(own):
                self.world.simulator.violate("reordered", f"group g{group} was handled in the order {own}")


class SimulatedHandlerWriter:
    """What a task does with its rows."""

    def __init__(self, world: HandlerWorld, connection: Connection | None = None) -> None:
        self.world = world
        self.connection = connection

    def connected(self, process: SparkProcess, perils: Perils, faults: CallFaults) -> SimulatedHandlerWriter:
        return SimulatedHandlerWriter(self.world, Connection(self.world.table, process, perils, faults))

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        assert self.connection is not None
        rows = [row for batch in batches for row in batch.to_pylist()]
        if self.world.plan.fifo:
            rows.sort(key=lambda row: int(row["sequence_number"]))
        returned: dict[str, float] = {}
        groups: dict[str, float] = {}
        for row in rows:
            due = groups.get(row["group_id"] or "") if row["group_id"] else None
            if due is None:
                key = row["key"]
                due = self.connection._call(("handle", key), lambda key=key: self.world.handle(key))  # type: ignore[misc]
            if due is not None:
                returned[row["message_id"]] = due
                if row["group_id"]:
                    groups[row["group_id"]] = due
        return Written(task, attempt, len(rows) - len(returned), 0, {"counts": {}, "returned": returned})


class HandlerDriver(Driver):
    world: HandlerWorld

    def run(self) -> None:
        world = self.world
        store = world.store(self.process)
        log = SegmentLog(world.store(self.process, SEGMENTS))
        checkpoint = world.checkpoint(store)
        sink = handlers.HandlerSink(APP, "s3://bucket/handler")
        record = checkpoint.record() or checkpoint.fresh({})
        query: Any = SimpleNamespace(
            name="orders", sink=sink, rejects=None, checkpoint=checkpoint, log=log, record=record
        )
        sink.open(NEEDED)  # as PipelineQuery.open does
        if checkpoint.record() is not None:
            PipelineQuery._agree(query)
        checkpoint.keep(query.record)
        record = query.record
        self.planner = self.planner_of(record.query, log)
        run = Batches(
            record.id,
            sink,
            None,
            agreement.DriverLog(log),
            lambda *_: None,
            base=record.base,
        )
        self.spark(store, self.planner, run)


class HandlerWorld(SparkWorld):
    def __init__(self, choices: Choices) -> None:
        super().__init__(choices)
        self.settings = self._settings()
        self.done: set[str] = set()  # the ledger: keys that are done
        self.table = Table("ledger")
        self.checks = HandlerChecks(self)
        self.broker.on_call = self.checks.on_call
        self.bucket.on_seal = self.checks.on_seal

    def draw(self) -> Plan:
        plan = super().draw()
        events = tuple(event for event in plan.events if event != "reset")  # handlers have none
        return replace(plan, ledger=False, ack="committed", columns=None, events=events)

    def run(self) -> None:
        with (
            patch.object(handlers, "open_store", self.opened),
            patch.object(handlers.HandlerSink, "writer", lambda _sink, _batch: SimulatedHandlerWriter(self)),
        ):
            super().run()

    def opened(self, _url: str) -> SimulatedStore:
        return self.store(cast("SparkProcess", self.simulator.task.process), "handler/")

    def start_driver(self) -> Driver:
        driver = HandlerDriver(self, f"driver{len(self.drivers) + 1}")
        self.drivers.append(driver)
        driver.start()
        return driver

    def as_rows(self, table: pa.Table) -> pa.RecordBatch:
        keys = pa.array([self.broker.names[id_] for id_ in table.column("message_id").to_pylist()], pa.string())
        columns = [keys, *(table.column(name).combine_chunks().cast(pa.string()) for name in COLUMNS)]
        rows = pa.StructArray.from_arrays(columns, ["key", *COLUMNS])
        nothing = pa.nulls(len(table), pa.string())
        return pa.RecordBatch.from_arrays([nothing, nothing, rows, rows], ["reason", "field", "row", "message"])

    def deploy(self) -> None:
        """Change receivers and visibility timeout. `ack` stays `committed`, the only one that handlers support."""
        super().deploy()
        self.settings = self._settings()

    def _settings(self) -> ReadOptions:
        """One receiver for FIFO: then a batch has each group in the order in which SQS delivered it."""
        receivers = 1 if self.plan.fifo else self.settings.receivers
        return replace(self.settings, ack="committed", receivers=receivers)

    def handle(self, key: str) -> float | None:
        """None if the key is done; if the handler puts it off, the time at which it is due again."""
        if key in self.done:
            return None
        seconds = self.choices.one_of(PUT_OFF) if not self.calm and self.choices.chance(0.25) else 0.0
        if seconds:
            self.facts["put off"] += 1
            return self.simulator.now + seconds
        self.done.add(key)
        self.checks.happened(EventKind.EFFECT, key)
        return None

    def reset_pipeline(self) -> None:
        """What the errors advise: remove the folder of the checkpoint and start again."""
        for driver in self.drivers:
            if driver.running:
                driver.process.kill()
                self.after_death(driver)
        self.facts["begun anew"] += 1
        self.simulator.note("operator", "removes the checkpoint")
        self.bucket.delete(self.bucket.names(""))


def handler_world(choices: Choices) -> Outcome:
    return outcome_of(HandlerWorld(choices))
