"""A simulated Spark driver, which keeps Spark's contract with a source and a sink, and its attempts of tasks.

A batch is planned, logged, run and committed; after a crash the logged batch is run again with the same offsets. Tasks
are tried up to four times. A slow task gets a second attempt beside the first (a twin, Spark's speculative execution),
and the first result counts. Planner, tasks, log, batches and checkpoint are the real ones.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from semel.errors import SemelError
from semel.spark.pipeline import agreement
from semel.spark.pipeline.checkpoint import Checkpoint, Record
from semel.spark.pipeline.micro_batch import Batches
from semel.spark.pipeline.micro_batch_task import Outcome
from semel.spark.pipeline.micro_batch_task import Task as SinkTask
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.source.planner import Offset, Planner
from semel.spark.source.reader import Assignment, SourceTask
from semel.spark.source.sqs_clock import SqsClock, sqs_time
from simulation.spark_sink import SimulatedSink
from simulation.spark_store import SEGMENTS, Bucket, SparkProcess
from simulation.spark_threads import Waiters

if TYPE_CHECKING:
    from simulation.spark_world import SparkWorld

TRIES: Final = 4
NOTICED: Final = (0.0, 5.0, 130.0)  # seconds until Spark notices that an executor is gone
TWIN_AFTER: Final = (400.0, 30.0, 5.0)  # seconds after which a running task gets a twin
SLOTS: Final = 2
ROWS: Final = 3  # rows of a batch that a task may receive


class JobFailed(SemelError):
    """A task has failed four times, or Spark's files of progress contradict each other."""


@dataclass
class Attempt:
    assignment: Assignment
    process: SparkProcess
    began: float
    outcome: Outcome | None = None
    error: SemelError | None = None
    ended: float | None = None  # when the driver notices that it is gone


class Driver:
    """One run of a pipeline. `error` is why it stopped, if it was not killed."""

    def __init__(self, world: SparkWorld, name: str) -> None:
        self.world = world
        self.settings = world.settings
        self.process = SparkProcess(world.simulator, name, world.skew())
        self.process.ack, self.process.margin = self.settings.ack, self.settings.margin
        self.error: SemelError | None = None
        self.ended = False
        self.idle = False
        self.started_calm = world.calm
        self.started_alone = not any(other.running for other in world.drivers)
        self.available: set[tuple[str, int]] = set()  # with `available_now`: messages visible at the start
        self.available_now = world.plan.available_now and bool(world.choices.below(2))
        self.planner: Planner | None = None
        self.attempts: list[Attempt] = []
        self.changed = Waiters(world.simulator)

    @property
    def running(self) -> bool:
        return self.process.alive and not self.ended

    def start(self) -> None:
        self.process.note("starts,", self.settings.ack, self.settings.receivers, self.settings.visibility)
        self.process.spawn("main", self.main)

    def main(self) -> None:
        world = self.world
        try:
            self.run()
        except SemelError as error:
            self.process.note("stops:", type(error).__name__, world.shown(error))
            self.error = error
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            world.simulator.violate("unexpected error", f"in {self.process.name}:\n{traceback.format_exc(limit=-5)}")
        self.end()

    def run(self) -> None:
        world = self.world
        store = world.store(self.process)
        log = SegmentLog(world.store(self.process, SEGMENTS))
        sinks = world.sinks(self.process)
        record = self.opened(world.checkpoint(store), log, sinks)
        self.planner = self.planner_of(record.query, log)
        run = Batches(
            record.id,
            *sinks,
            agreement.DriverLog(log),
            lambda *_: None,
            base=record.base,
        )
        self.spark(store, self.planner, run)

    def planner_of(self, owner: str | None, log: SegmentLog) -> Planner:
        queue = self.world.queue(self.process)
        planner = Planner(
            replace(self.settings, owner=owner),
            log,
            {queue.name: queue},
            clock=self.process.now,
            monotonic=self.process.monotonic,
            poll_seconds=0,
        )
        self.world.watch(planner)
        return planner

    def end(self) -> None:
        if self.planner is not None:
            self.planner.stop()
        self.ended = True
        self.process.note("ends")
        self.world.leave_attempts(self)
        self.world.ended.wake()
        self.process.mortal = False
        self.process.kill()

    def opened(self, checkpoint: Checkpoint, log: SegmentLog, sinks: tuple[SimulatedSink, SimulatedSink]) -> Record:
        """What a real run does before it starts Spark."""
        record = checkpoint.record()
        if record is None:
            record = checkpoint.fresh({})
        else:
            agreement.check(checkpoint, record, log, cast("Any", sinks))
        checkpoint.keep(record)
        return record

    # What Spark does.

    def progress(self, store: Any) -> tuple[dict[int, Offset], int]:
        """The offsets in the checkpoint, and the number of the next batch to run."""
        offsets, commits = store.names("query/offsets"), store.names("query/commits")
        known: dict[int, Offset] = {numbered(name): json.loads(store.read(name) or b"null") for name in offsets}
        latest = max(known, default=-1)
        done = max(map(numbered, commits), default=-1)
        number = latest + 1 if done >= latest else latest
        if None in known.values() or (number and number - 1 not in known):
            raise JobFailed(f"batch {number - 1} does not exist")
        return known, number

    def spark(self, store: Any, planner: Planner, run: Batches) -> None:
        known, number = self.progress(store)
        idle = 0
        if self.available_now:
            self.available = self.world.checks.visible()
            planner.available_now()
        while idle < self.world.idle_rounds:
            start = known[number - 1] if number else planner.initial()
            if number not in known:
                end = planner.latest(start, self.world.rows)
                if end == start:
                    if self.available_now:
                        self.world.checks.on_all_available(self)
                        break
                    idle += 1
                    self.world.simulator.sleep(self.world.idle_seconds())
                    continue
                known[number] = end
                self.write_down(store, f"query/offsets/{number}", json.dumps(end).encode())
                if number:
                    planner.committed(start)
            idle = 0
            run(cast("Any", Job(self, planner, start, known[number])), number)
            self.write_down(store, f"query/commits/{number}", b"{}")
            number += 1
        self.idle = True

    def write_down(self, store: Any, name: str, data: bytes) -> None:
        """Spark checks whether the file exists, and writes it if not. In a bucket these are two steps, and another
        driver may write in between."""
        if store.read(name) is not None:
            raise JobFailed(f"{name}: multiple streaming jobs detected")
        self.world.perils.slow_plan(self.process)
        store.put(name, data)


class Job:
    """Takes the place of a micro-batch's DataFrame, which is planned when it is run."""

    def __init__(self, driver: Driver, planner: Planner, start: Offset, end: Offset) -> None:
        self.driver, self.planner, self.start, self.end = driver, planner, start, end
        self.world = driver.world

    def run(self, task: SinkTask) -> list[Outcome]:
        planned = self.planner.assignments(self.start, self.end)
        choices = self.world.simulator.choices
        self.twin_after = choices.one_of(TWIN_AFTER)
        waiting = list(planned)
        if choices.below(2):
            waiting.reverse()
        outcomes: dict[int, Outcome] = {}
        failures: dict[int, int] = {}
        running: list[Attempt] = []
        while len(outcomes) < len(planned):
            while waiting and len(running) < SLOTS:
                running.append(self.launch(waiting.pop(0), task))
            self.driver.changed.wait(self.patience(running))
            for attempt in list(running):
                self.look_at(attempt, running, waiting, outcomes, failures)
            self.add_twins(running, outcomes, task)
        for attempt in running:  # attempts whose task has ended in another attempt
            self.world.leave(attempt.process)
        return [outcomes[number] for number in sorted(outcomes)]

    def patience(self, running: list[Attempt]) -> float:
        """How long to wait for news of the attempts."""
        now = self.world.simulator.now
        dues = [attempt.ended - now for attempt in running if attempt.ended is not None]
        return max(0.1, min([20.0 if self.twin_after < 100 else 70.0, *dues]))

    def look_at(
        self,
        attempt: Attempt,
        running: list[Attempt],
        waiting: list[Assignment],
        outcomes: dict[int, Outcome],
        failures: dict[int, int],
    ) -> None:
        number, simulator = attempt.assignment.task, self.world.simulator
        if attempt.outcome is not None:
            running.remove(attempt)
            outcomes.setdefault(number, attempt.outcome)
            return
        if attempt.process.alive and attempt.error is None and simulator.now - attempt.began < 300:
            return
        if attempt.error is None and attempt.ended is None:
            attempt.ended = simulator.now + simulator.choices.one_of(NOTICED)
        if attempt.ended is not None and simulator.now < attempt.ended:
            return
        running.remove(attempt)
        if number in outcomes:
            return
        failures[number] = failures.get(number, 0) + 1
        if failures[number] >= TRIES:
            raise attempt.error or JobFailed(f"task {number} was lost {TRIES} times")
        if not any(other.assignment.task == number for other in running):
            waiting.append(attempt.assignment)

    def add_twins(self, running: list[Attempt], outcomes: dict[int, Outcome], task: SinkTask) -> None:
        now = self.world.simulator.now
        for attempt in list(running):
            number = attempt.assignment.task
            alone = sum(other.assignment.task == number for other in running) == 1
            if alone and number not in outcomes and now - attempt.began >= self.twin_after:
                self.world.twins += 1
                running.append(self.launch(attempt.assignment, task))

    def launch(self, assignment: Assignment, task: SinkTask) -> Attempt:
        world = self.world
        world.launched += 1
        name = f"task{assignment.batch}.{assignment.task}/{world.launched}"
        process = SparkProcess(world.simulator, name, world.skew())
        process.ack, process.margin = self.driver.process.ack, self.driver.process.margin
        attempt = Attempt(assignment, process, world.simulator.now)
        self.driver.attempts.append(attempt)
        bucket = world.another_disk() or world.bucket
        process.spawn("main", lambda: self.attempt(attempt, task, bucket), world.perils.start_delay())
        world.launches.wake()
        return attempt

    def attempt(self, attempt: Attempt, task: SinkTask, bucket: Bucket) -> None:
        """Run the attempt, as an executor does."""
        world, process = self.world, attempt.process
        driver = self.driver
        try:
            queue = world.queue(process)
            source = SourceTask(
                replace(driver.settings, owner=self.planner.options.owner),
                attempt.assignment,
                log=SegmentLog(world.store(process, SEGMENTS, bucket)),
                queue=queue,
                sqs_clock=SqsClock(partial(sqs_time, queue.client), process.now, process.monotonic),
                first_wait=0,
                clock=process.now,
                monotonic=process.monotonic,
            )
            writer, rejects = (
                None if made is None else world.connected(made, process) for made in (task.writer, task.rejects)
            )
            number = attempt.assignment.task
            with closing(cast("Generator[pa.Table]", source.tables())) as tables:  # at once, not by the GC
                rows = (world.as_rows(table) for table in tables)
                attempt.outcome = SinkTask(writer, rejects).run(rows, number, source.attempt)
            process.note("done,", attempt.outcome.rows, "rows")
        except SemelError as error:
            process.note("fails:", type(error).__name__, world.shown(error))
            attempt.error = error
        if driver.running:
            driver.changed.wake()


def numbered(name: str) -> int:
    return int(name.rpartition("/")[2])
