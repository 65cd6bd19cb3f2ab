"""A queue and a segment log on which tests run the tasks of batches, without Spark and with a manual clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from driven import Clock
from semel.broker import EmbeddedBroker, running
from semel.spark.segments.model import SegmentAck
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import LocalStore, Store
from semel.spark.source.options import ReadOptions
from semel.spark.source.planner import Offset, Planner
from semel.spark.source.reader import Assignment, SourceTask
from semel.spark.source.sqs_clock import SqsClock
from semel.sqs import Client, Entry, Queue
from semel.sqs.errors import Unreachable

BY_HAND = "by hand"  # the plan of an assignment that no planner made: it is sealed when the task is created


@dataclass
class Intake:
    broker: EmbeddedBroker
    clock: Clock
    queue: Queue
    store: Store
    options: ReadOptions

    @property
    def log(self) -> SegmentLog:
        return SegmentLog(self.store)

    def now(self) -> float:
        return self.clock.now()

    def send(self, *bodies: str, group: str | None = None) -> None:
        entries = [
            Entry(body, group=group, dedup=sha256(body.encode()).hexdigest() if group else None) for body in bodies
        ]
        assert all(hasattr(sent, "message_id") for sent in self.queue.send_many(entries))

    def planner(self) -> Planner:
        queues = {self.queue.name: self.queue}
        return self.planner_of(queues)

    def planner_of(self, queues: Mapping[str, Queue], **changes: Any) -> Planner:
        """A planner whose polls do not wait, and whose clocks are all the broker's."""
        now = self.now
        usual: dict[str, Any] = {"clock": now, "monotonic": now, "sqs_time": lambda _: now(), "poll_seconds": 0}
        return Planner(self.options, self.log, queues, **{**usual, **changes})

    def task(self, assignment: Assignment, *, wall: float = 0.0, up: float = 0.0) -> SourceTask:
        """A task on a host whose wall clock is ahead by `wall` seconds, and whose monotonic clock is ahead by `up`."""
        now = self.now

        def clock() -> float:
            return now() + wall

        def monotonic() -> float:
            return now() + up

        if assignment.plan == BY_HAND and self.log.committed().through < assignment.batch:
            plan = {"log": "", "id": BY_HAND, "batch": assignment.batch, "plan": {assignment.queue: 2}}
            self.log.create(self.options.queues, self.options.owner)
            self.log.seal_plan(plan, self.options.owner)
        return SourceTask(
            self.options,
            assignment,
            log=self.log,
            queue=self.queue,
            sqs_clock=SqsClock(now, clock, monotonic),
            first_wait=0,
            clock=clock,
            monotonic=monotonic,
        )

    def run(self, assignment: Assignment) -> list[str]:
        """Run a task; returns the bodies of its rows."""
        return [body for table in self.task(assignment).tables() for body in bodies(table)]

    def batch(self, planner: Planner, start: Offset, rows: int = 1_000) -> tuple[Offset, list[str]]:
        """Run one batch without failures; returns its end and the bodies of its rows."""
        end = planner.latest(start, rows)
        return end, [body for assignment in planner.assignments(start, end) for body in self.run(assignment)]

    def commit_in_sink(self, batch: int) -> None:
        """What the driver of a pipeline does when its sink has committed the batch."""
        self.log.record_sink_commit(str(self.log.content(batch)))

    def with_options(self, **changes: object) -> Intake:
        return replace(self, options=replace(self.options, **changes))  # type: ignore[arg-type]

    def ack(self, batch: int = 1) -> SegmentAck | None:
        """The ack of the first segment of a batch."""
        acked = sorted(self.log.files(batch).acked.items())
        return self.log.read_ack(*acked[0]) if acked else None

    def waiting(self) -> tuple[int, int]:
        """The number of visible messages, and of those in flight."""
        attributes = self.queue.attributes()
        return int(attributes["ApproximateNumberOfMessages"]), int(attributes["ApproximateNumberOfMessagesNotVisible"])


def bodies(table: pa.Table) -> list[str]:
    texts: list[str] = table.column("body").to_pylist()
    return texts


@contextlib.contextmanager
def intake(folder: Path, name: str = "orders", **attributes: str) -> Iterator[Intake]:
    with running(clock="manual") as broker:
        with Client(broker.url, access_key="test", secret_key="test", region="us-east-1") as client:
            queue = client.create_queue(name, attributes)
            options = ReadOptions(queues=(name,), segments=str(folder), threads=2, endpoint_url=broker.url)
            yield Intake(broker, Clock(broker), queue, LocalStore(str(folder)), options)


def down(*_: object, **__: object) -> NoReturn:
    """Replaces a call to SQS that fails."""
    raise Unreachable("down")


def crash(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt
