"""Which batch comes next, and what its tasks are to do. Runs beside the driver; receives nothing itself.

An offset names segments: {"log": id, "id": …, "batch": 7, "plan": {"orders": 2}, "rows": 25000, "bytes": …,
"planned_at": …} is the end of batch 7, whose two tasks have received from `orders`, each up to so many rows and bytes.
It has all that a replay needs. `planned_at`, in milliseconds, is the time of all its rows: it never goes back, whatever
clocks do. Spark writes it down; then it is sealed in the log as the one plan of that batch, before a task is started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final
from uuid import uuid4

from semel.spark.segments.log import NOTHING_DONE, LogError, OtherQuery, SegmentAck, SegmentLog, way_out
from semel.spark.source.committer import BatchCommitter, VisibilityHeartbeat
from semel.spark.source.options import ReadOptions
from semel.spark.source.reader import Assignment
from semel.sqs.client import Queue

Offset = dict[str, Any]
# A task costs a few milliseconds before it has received anything: fewer of them when little is waiting.
WORTH_A_TASK: Final = 1_000
IDLE: Final = (0.05, 1.0)  # seconds between looks at an empty queue: from, growing to
SKEW: Final = 1_000  # milliseconds that SQS's clock may be ahead of ours
EMPTY_BATCHES: Final = 3  # with AvailableNow: so many batches in a row that received nothing end it

_VISIBLE: Final = "ApproximateNumberOfMessages"
_IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"


class Planner:
    def __init__(
        self,
        options: ReadOptions,
        log: SegmentLog,
        queues: Mapping[str, Queue],
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self.log = log
        self.queues = dict(queues)
        self._sleep = sleep
        self._clock = clock
        self._heartbeat = VisibilityHeartbeat(log, self.queues, options, clock) if options.ack == "committed" else None
        self._idle = IDLE[0]
        self._checked = self._begun = False
        self._left: int | None = None  # with AvailableNow: how many messages of the backlog are to come
        self._old = 0  # and how many of it were in the last batch
        self._empty = 0
        self._before: int | None = None  # and until when it was sent, in milliseconds
        self._backlog: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}

    # What Spark asks.

    def initial(self) -> Offset:
        """Where a query begins that has no offset yet. A named query (a pipeline's) has proved who it is, and may go on
        in its log after a reset; for any other, a log with a history is somebody else's."""
        identity = self.log.create(self.options.queues, self.options.owner)
        committed = self.log.committed().through
        if committed and self.options.owner is None:
            raise OtherQuery(
                f"{self.log.store.url} is the segment log of a query that has got to batch {committed}, but this "
                f"checkpoint is new. {NOTHING_DONE}. {way_out(None)}"
            )
        return {"log": identity["id"], "batch": committed}

    def latest(self, start: Offset, rows: int | None) -> Offset:
        """The end of the next batch, or `start` if nothing is waiting. `rows`: no more than these, if given."""
        self._account(self._settled(start))
        left = self._left_behind(start["batch"] + 1)
        if left is not None:
            return left
        if self._backlog_is_done:
            return start
        backlog = self._wait_for_others() if self._waits else self.look()
        if not any(backlog.values()):
            self._pause()
            return start
        self._idle = IDLE[0]
        return self.plan(start, backlog, rows)

    def plan(self, start: Offset, backlog: Mapping[str, int], rows: int | None) -> Offset:
        plan = {name: self._tasks(name, count) for name, count in backlog.items() if count}
        tasks = max(1, sum(plan.values()))
        limit = sum(backlog.values()) if rows is None else rows
        if self._left is not None:
            limit = min(limit, max(self._left, WORTH_A_TASK))
        end = {
            "log": start["log"],
            "id": uuid4().hex,
            "batch": start["batch"] + 1,
            "plan": plan,
            "rows": max(1, -(-limit // tasks)),
            "bytes": max(1, self.options.max_bytes // tasks),
            "planned_at": max(start.get("planned_at", 0), int(self._clock() * 1_000)),
        }
        return end if self._before is None else {**end, "before": self._before}

    def assignments(self, start: Offset, end: Offset) -> list[Assignment]:
        if start["batch"] == end["batch"]:
            return []
        if end["batch"] != start["batch"] + 1 or not {"plan", "planned_at"} <= end.keys():
            raise LogError(
                f"the offsets {start} and {end} are not two in a row: the checkpoint was changed by hand, or made by "
                "another version"
            )
        self._check(end)
        self.log.seal_plan(end, self.options.owner)
        sealed, _ = self.log.places(end["batch"])
        if self._heartbeat is not None:
            self._heartbeat.watch(end["batch"])
        return assignments(end, replay=bool(sealed), unconfirmed=self._committer.any_unconfirmed)

    def committed(self, end: Offset) -> None:
        self._account(self._settled(end))

    def available_now(self) -> None:
        """From here on: what is waiting at this moment, and no more."""
        self._before = int(self._clock() * 1_000) + SKEW
        self._left = sum(self.look().values()) + (sum(self._in_flight.values()) if self._waits else 0)

    def report(self) -> Offset | None:
        """For the progress that Spark shows: how much was waiting when it was last looked."""
        if not self._backlog:
            return None
        return {"waiting": dict(self._backlog)}

    def stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # How it is found out.

    def _left_behind(self, batch: int) -> Offset | None:
        """A plan of the next batch that is sealed already, although Spark has not written it down: another query's, or
        what this one has left to be done before it was reset."""
        if self._begun:
            return None
        self._begun = True
        found = self.log.plan(batch)
        if found is not None and self.options.owner is None:
            raise self.log.planned_by_another(batch, None)
        return found

    def _settled(self, offset: Offset) -> list[SegmentAck]:
        self._check(offset)
        if self._heartbeat is not None:
            self._heartbeat.committed(offset["batch"])
        return self._committer.settle(offset["batch"], offset.get("id"))

    def _check(self, offset: Offset) -> None:
        if not self._checked:
            self.log.check(offset["log"], self.options.queues, self.options.owner)
            self._checked = True

    @cached_property
    def _committer(self) -> BatchCommitter:
        kept_until = self._heartbeat.kept_until if self._heartbeat else (lambda _: 0.0)
        return BatchCommitter(self.log, self.queues, self.options, kept_until, self._clock)

    @property
    def _backlog_is_done(self) -> bool:
        """With AvailableNow: as many came as were waiting, and the last batch had none of them: what SQS delivers twice
        counts twice, so the number alone would end it too soon."""
        if self._left is None:
            return False
        return (self._left <= 0 and not self._old) or self._empty >= EMPTY_BATCHES

    def _account(self, acks: list[SegmentAck]) -> None:
        if not acks:
            return
        received = sum(ack.received for ack in acks)
        self._empty = 0 if received else self._empty + 1
        if self._left is not None:
            self._old = sum(ack.backlog for ack in acks)
            self._left -= self._old
        if not received:  # nothing came although something was counted: others are faster, or groups are blocked
            self._pause()

    def look(self) -> dict[str, int]:
        """By queue: how many messages are said to be waiting."""
        for name, queue in self.queues.items():
            attributes = queue.attributes(_VISIBLE, _IN_FLIGHT)
            self._backlog[name] = int(attributes.get(_VISIBLE, 0))
            self._in_flight[name] = int(attributes.get(_IN_FLIGHT, 0))
        return dict(self._backlog)

    @property
    def _waits(self) -> bool:
        """With AvailableNow and inFlight=wait: what others had in hand is part of the backlog."""
        return self.options.in_flight == "wait" and self._before is not None

    def _wait_for_others(self) -> dict[str, int]:
        while not any((backlog := self.look()).values()) and any(self._in_flight.values()):
            self._pause()
        return backlog

    def _pause(self) -> None:
        self._sleep(self._idle)
        self._idle = min(IDLE[1], self._idle * 2)

    def _tasks(self, name: str, waiting: int) -> int:
        return max(1, min(self.options.receivers_of(name), -(-waiting // WORTH_A_TASK)))


def assignments(end: Offset, *, replay: bool = False, unconfirmed: bool = False) -> list[Assignment]:
    """What the tasks of the batch that ends here are to do; the same each time it is run."""
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
