"""Plans the next batch and what its tasks do. Runs beside the driver.

An offset names segments: {"log": id, "id": …, "batch": 7, "plan": {"orders": 2}, "rows": 25000, "bytes": …,
"planned_at": …} is the end of batch 7, in which two tasks receive from `orders`, each up to these rows and bytes.
The offset has everything that a replay needs. `planned_at`, in milliseconds, is the time of all rows of the batch; it
never goes back, even if a clock does. Spark writes the offset into its checkpoint. Then the offset is sealed in the log
as the only plan of that batch, before the first task starts.

The planner itself receives messages only while the query is idle. It seals what a long poll receives after the plan, as
the first part of the queue's first task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final
from uuid import uuid4

from semel.spark.segments.model import BatchFiles, SegmentAck, SegmentId
from semel.spark.segments.segment_log import NOTHING_DONE, LogError, OtherQuery, SegmentLog, advice
from semel.spark.source import backlog
from semel.spark.source.backlog import IN_FLIGHT, VISIBLE, Backlog
from semel.spark.source.committer import BatchCommitter
from semel.spark.source.heartbeat import VisibilityHeartbeat
from semel.spark.source.idle_poll import IdlePoll
from semel.spark.source.options import ReadOptions
from semel.spark.source.queue_ids import by_id
from semel.spark.source.reader import Assignment, SourceTask
from semel.spark.source.sqs_clock import SqsClock, sqs_time
from semel.sqs.client import Client, Queue

Offset = dict[str, Any]
# Messages. Starting a task takes a few milliseconds, so few messages get fewer tasks.
WORTH_A_TASK: Final = 1_000
IDLE: Final = 1.0  # seconds that an idle query waits in one call: Spark asks again, and can stop in between


class Planner:
    """`queues`: by the names in the option 'queue'."""

    def __init__(
        self,
        options: ReadOptions,
        log: SegmentLog,
        queues: Mapping[str, Queue],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sqs_time: Callable[[Client], float | None] = sqs_time,
        poll_seconds: int | None = None,
    ) -> None:
        self.options = options
        self.log = log
        self.queues = dict(queues)
        self._clock, self._monotonic, self._sqs_time = clock, monotonic, sqs_time
        self._sqs_clock = SqsClock(lambda: sqs_time(next(iter(self.queues.values())).client), clock, monotonic)
        self._poll_seconds = poll_seconds  # for tests: the length of every poll
        self._poll = IdlePoll(self.queues, options, clock, monotonic)
        self._checked = self._begun = False
        self._counts_hold = True  # false if SQS counts messages, but the last batch received none
        self._idle_since: float | None = None
        self._available_now: Backlog | None = None
        self._visible: dict[str, int] = {}

    # What Spark calls.

    def initial(self) -> Offset:
        """Where a query without an offset begins. A named query (a pipeline's) has proved that the log is its own, and
        may continue in it after a reset. For any other query, a log with committed batches is somebody else's."""
        identity = self.log.create(self.options.queues, self.options.owner)
        committed = self.log.committed().through
        if committed and self.options.owner is None:
            raise OtherQuery(
                f"{self.log.store.url} is the segment log of a query that has committed batch {committed}, but this "
                f"checkpoint is new. {NOTHING_DONE}. {advice(None)}"
            )
        return {"log": identity["id"], "batch": committed}

    def latest(self, start: Offset, rows: int | None) -> Offset:
        """The end of the next batch, or `start` if nothing is waiting. `rows`: at most this many, unless None."""
        self.committed(start)
        plan = self._left_behind(start["batch"] + 1)
        if plan is not None:
            return plan
        waiting = self._waiting() if self._available_now is None else self._available_now.waiting()
        return self.plan(start, waiting, rows) if any(waiting.values()) else start

    def plan(self, start: Offset, waiting: Mapping[str, int], rows: int | None) -> Offset:
        plan = {name: self._tasks(name, count) for name, count in waiting.items() if count}
        tasks = max(1, sum(plan.values()))
        limit = sum(waiting.values()) if rows is None else rows
        end = {"log": start["log"], "id": uuid4().hex, "batch": start["batch"] + 1, "plan": plan}
        if self._available_now is not None:
            limit = min(limit, max(sum(waiting.values()), WORTH_A_TASK))
            end["before"] = self._available_now.before
        end["rows"] = max(1, -(-limit // tasks))
        end["bytes"] = max(1, self.options.max_bytes // tasks)
        end["planned_at"] = max(start.get("planned_at", 0), int(self._clock() * 1_000))
        return end

    def assignments(self, start: Offset, end: Offset) -> list[Assignment]:
        if start["batch"] == end["batch"]:
            self._check_without_data(end)
            return []
        if end["batch"] != start["batch"] + 1 or not {"plan", "planned_at"} <= end.keys():
            raise LogError(
                f"the offsets {start} and {end} do not follow each other: the checkpoint was changed by hand, or made "
                "by another version"
            )
        self._check(end)
        self.log.seal_plan(end, self.options.owner)
        files = self.log.files(end["batch"])
        if self._heartbeat is not None:
            self._heartbeat.watch(end["batch"])
        planned = assignments(end, replay=bool(files.sealed), unconfirmed=self._committer.any_unconfirmed)
        self._seal_polled(planned, files)
        return planned

    def _check_without_data(self, end: Offset) -> None:
        """Spark runs a batch without data to update its state, and only after the batch before it was committed. If two
        drivers have both written an offset, a batch whose messages nobody has read looks like a batch without data. A
        pipeline has no batches without data: its sinks would take one for the next batch of the log."""
        if self.options.owner is not None or self.log.through() < end["batch"]:
            raise LogError(
                f"two batches of this checkpoint end with batch {end['batch']} of the segment log "
                f"{self.log.store.url}: two drivers have written to the checkpoint. {NOTHING_DONE}. "
                f"{advice(self.options.owner)}"
            )

    def committed(self, end: Offset) -> None:
        self._check(end)
        if self._heartbeat is not None:
            self._heartbeat.committed(end["batch"])
        self._count(end, self._committer.commit_through(end["batch"], end.get("id")))

    def available_now(self) -> None:
        """From now on, only messages that are waiting at this moment are planned for."""
        seconds = backlog.POLL if self._poll_seconds is None else self._poll_seconds
        self._available_now = Backlog(
            self.queues,
            self._poll,
            self.options,
            self.look,
            clock=self._clock,
            monotonic=self._monotonic,
            sqs_time=self._sqs_time,
            poll_seconds=seconds,
        )

    def report(self) -> Offset | None:
        """For the progress that Spark shows: how many messages were waiting when SQS was last asked."""
        return {"waiting": dict(self._visible)} if self._visible else None

    def stop(self) -> None:
        self._poll.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # How it is done.

    def _left_behind(self, batch: int) -> Offset | None:
        """A plan of the next batch that is sealed in the log, although Spark's checkpoint does not have it. It is
        another query's, or this query left it behind before it was reset."""
        if self._begun:
            return None
        self._begun = True
        plan = self.log.plan(batch)
        if plan is not None and self.options.owner is None:
            raise self.log.planned_by_another(batch, None)
        return plan

    def _check(self, offset: Offset) -> None:
        if not self._checked:
            self.log.check(offset["log"], self.options.queues, self.options.owner)
            self._checked = True

    @cached_property
    def _by_id(self) -> dict[str, Queue]:
        return by_id(self.queues)

    @cached_property
    def _heartbeat(self) -> VisibilityHeartbeat | None:
        if self.options.ack != "committed":
            return None
        return VisibilityHeartbeat(self.log, self._by_id, self.options, self._sqs_clock)

    @cached_property
    def _committer(self) -> BatchCommitter:
        hidden_until = self._heartbeat.hidden_until if self._heartbeat else (lambda _: 0.0)
        return BatchCommitter(self.log, self._by_id, self.options, self._sqs_clock, hidden_until, self._clock)

    def _count(self, end: Offset, acks: list[SegmentAck]) -> None:
        if not acks:
            return
        self._counts_hold = any(ack.received for ack in acks)
        # A batch left behind by an earlier run was planned for the messages that were waiting when that run began.
        if self._available_now is not None and end.get("before") == self._available_now.before:
            self._available_now.count(acks)

    def look(self) -> tuple[dict[str, int], dict[str, int]]:
        """SQS's counts, by queue: visible messages, and messages in flight. Both are approximate."""
        answers = {name: queue.attributes(VISIBLE, IN_FLIGHT) for name, queue in self.queues.items()}
        visible, in_flight = (
            {name: int(attributes.get(kind, 0)) for name, attributes in answers.items()}
            for kind in (VISIBLE, IN_FLIGHT)
        )
        self._visible = visible
        return dict(visible), in_flight

    def _waiting(self) -> dict[str, int]:
        """How many messages are waiting, by queue. While a query is idle, long polls are made, and SQS is not asked for
        counts."""
        if self._counts_hold and any((counts := self.look()[0]).values()):
            self._idle_since = None
            return counts
        self._counts_hold = False
        held = self._polled()
        if not held:
            return {}
        self._idle_since = None
        counts = self.look()[0]
        return {name: max(count, len(held[name].messages) if name in held else 0) for name, count in counts.items()}

    def _polled(self) -> dict[str, Any]:
        now, before = self._monotonic(), self._idle_since
        # If the trigger fires rarely, a message would be held too long. In that case the poll ends within this call.
        often = before is not None and now - before < self._poll.patience
        seconds = self._poll.longest if often else 1
        self._poll.begin(self.queues, seconds if self._poll_seconds is None else self._poll_seconds)
        held = self._poll.wait(IDLE if often else None)
        self._idle_since = self._monotonic()
        return held

    def _seal_polled(self, planned: list[Assignment], files: BatchFiles) -> None:
        """Seals what polls have received as the first part of the queue's first task. If that part is there already,
        the messages are returned."""
        first = {assignment.queue: assignment for assignment in reversed(planned)}
        for name, assignment in first.items():
            arrivals = self._poll.take(name)
            if not arrivals:
                continue
            if SegmentId(assignment.batch, assignment.task, 0) in files.all:
                self._poll.give_back(name, arrivals)
                continue
            task = SourceTask(
                self.options,
                assignment,
                log=self.log,
                queue=self.queues[name],
                sqs_clock=self._sqs_clock,
                clock=self._clock,
                monotonic=self._monotonic,
            )
            task.seal_first(arrivals)

    def _tasks(self, name: str, waiting: int) -> int:
        return max(1, min(self.options.receivers_of(name), -(-waiting // WORTH_A_TASK)))


def assignments(end: Offset, *, replay: bool = False, unconfirmed: bool = False) -> list[Assignment]:
    """What the tasks of the batch with this end do; the same each time the batch is run."""
    names = [name for name, count in end["plan"].items() for _ in range(count)]
    return [
        Assignment(
            end["batch"],
            number,
            name,
            end["rows"],
            end["bytes"],
            before=end.get("before"),
            replay=replay,
            unconfirmed=unconfirmed,
            plan=end["id"],
            planned_at=end["planned_at"],
        )
        for number, name in enumerate(names)
    ]
