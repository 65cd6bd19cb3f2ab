"""Ends the batches that Spark has committed: deletes their messages, records unconfirmed deletes, drops their files.

Runs beside the driver, in the planner. The rule: a batch counts as committed when Spark asks for the next one, because
Spark has then written the commit. Spark's own `commit` call comes late, and may not come at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.messages.visibility import visibility_for
from semel.spark.segments.model import BatchFiles, Committed, Sealed, SegmentAck, SegmentId, folder, task_count
from semel.spark.segments.segment_log import NOTHING_DONE, LogError, SegmentLog, advice
from semel.spark.source.acknowledger import Acknowledger
from semel.spark.source.options import ReadOptions
from semel.spark.source.returns import Returned, return_messages
from semel.spark.source.sqs_clock import SqsClock
from semel.sqs.client import Queue

PAGE: Final = 100
# A message cannot come back after SQS's longest retention. One hour is added for clocks that differ.
RETENTION: Final = 14 * 86_400 + 3_600
MAX_UNCONFIRMED: Final = 1_000_000  # ids; each task reads all of them


class TooManyUnconfirmed(LogError):
    """There are more unconfirmed deletes than can be kept. Check that SQS allows and confirms deletes, then start
    again."""


class BatchCommitter:
    """`queues`: by id. `hidden_until`: until when the heartbeat of `ack=committed` keeps a segment's messages hidden, a
    time of the monotonic clock; 0 if that is not known."""

    def __init__(
        self,
        log: SegmentLog,
        queues: Mapping[str, Queue],
        options: ReadOptions,
        sqs_clock: SqsClock,
        hidden_until: Callable[[SegmentId], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._queues = queues
        self._options = options
        self._sqs_clock = sqs_clock
        self._hidden_until = hidden_until
        self._clock = clock
        self._committed, self._unconfirmed = log.last_commit()
        self._lock = threading.Lock()
        self._drop_leftovers()

    @property
    def any_unconfirmed(self) -> bool:
        return any(self._unconfirmed.values())

    def _drop_leftovers(self) -> None:
        """Deletes the files of committed batches that a driver left behind when it died."""
        last = folder(self._committed.through)
        names = [name for name in self._log.store.names() if name.startswith("b")]
        self._log.store.delete([name for name in names if name.partition("/")[0] <= last])

    def commit_through(self, batch: int, plan_id: str | None) -> list[SegmentAck]:
        """Records that batches up to this one are committed. `plan_id`: the plan with which this batch was run. Returns
        the acks of their segments; nothing if the commit was recorded before, by this driver or another."""
        with self._lock:
            if batch <= self._committed.through:
                return []
            batches = range(self._committed.through + 1, batch + 1)
            files = [self._checked(number, plan_id if number == batch else None) for number in batches]
            acks = [ack for batch_files in files for ack in self._acknowledged(batch_files)]
            totals = replace(self._committed.totals, batches=self._committed.totals.batches + len(batches))
            for ack in acks:
                totals.add(ack)
            unconfirmed = self._unconfirmed_after(acks)
            committed, names = (
                Committed(batch, totals),
                tuple(name for batch_files in files for name in batch_files.names),
            )
            if self._options.owner is not None:  # a reset may have put other segments into the batch
                self._log.check_owner(self._options.owner)
            if not self._log.finish(committed, unconfirmed, names):
                self._committed, self._unconfirmed = self._log.last_commit()
                return []
            former, self._committed, self._unconfirmed = self._unconfirmed, committed, unconfirmed
            self._check_bound(former)
            return acks

    def _checked(self, batch: int, plan_id: str | None) -> BatchFiles:
        """The batch's files. Raises an error if they are not what was committed, before anything is deleted."""
        plan, url = self._log.plan(batch), self._log.store.url
        if plan is None or (plan_id is not None and plan["id"] != plan_id):
            what = "has no plan of it" if plan is None else "has another plan of it"
            raise LogError(
                f"the checkpoint says that batch {batch} is committed, but the segment log {url} {what}: log and "
                f"checkpoint do not belong together, or one is an older copy. {NOTHING_DONE}. "
                f"{advice(self._options.owner)}"
            )
        files, tasks = self._log.files(batch), task_count(plan)
        for segment_id in files.replaced:
            raise self._log.replaced(segment_id)
        if unplanned := files.unplanned(tasks):
            raise LogError(
                f"{url}/{unplanned[0].name} is of a task that the plan of batch {batch} does not have: it was not "
                f"committed with it. {NOTHING_DONE}. {advice(self._options.owner)}"
            )
        if self._options.owner is not None and self._log.in_sink(batch) != str(
            self._log.content_of(batch, plan, files)
        ):
            raise LogError(
                f"the checkpoint says that batch {batch} of the segment log {url} is committed, but the sink has not "
                "committed it as it is: a driver that was replaced has written to the checkpoint, or it is an older "
                f"copy. {NOTHING_DONE}. {advice(self._options.owner)}"
            )
        return files

    def _acknowledged(self, files: BatchFiles) -> list[SegmentAck]:
        returned = self._log.returned() if self._options.ack == "committed" else {}
        acks = []
        for segment_id in files.all:
            attempt = files.acked.get(segment_id)
            ack = None if attempt is None else self._log.read_ack(segment_id, attempt)
            if ack is None or not ack.deleted:
                ack = self._delete(segment_id, attempt, ack, returned)
            acks.append(ack.without(returned))
        return acks

    def _delete(
        self, segment_id: SegmentId, attempt: str | None, ack: SegmentAck | None, returned: Mapping[str, float]
    ) -> SegmentAck:
        """`attempt`: the attempt that sealed the committed segment, if that is known."""
        segment = self._log.read(segment_id)
        if segment is None:
            raise self._log.lost(segment_id)
        if attempt is not None and segment.meta.attempt != attempt:  # replaced since the batch was listed
            raise self._log.replaced(segment_id)
        segment = segment.without(ack.refused if ack is not None else ())
        queue, sqs_clock = self._queue(segment), self._sqs_clock
        hidden_until = self._hidden_until(segment_id) or sqs_clock.read().surely_before(segment.meta.hidden_until)
        if returned:
            self._give_back(segment, returned, hidden_until)
            segment = segment.without(returned)
        with Acknowledger(queue, self._options.threads, sqs_clock.monotonic) as acknowledger:
            unconfirmed = acknowledger.acknowledge(segment.table, hidden_until).unconfirmed()
        rows = len(segment.table)
        known = ack or SegmentAck(segment.meta.queue, rows, segment.table.nbytes, rows, backlog=rows)
        return replace(known, deleted=True, unconfirmed={**known.unconfirmed, **unconfirmed})

    def _queue(self, segment: Sealed) -> Queue:
        queue = self._queues.get(segment.meta.queue)
        if queue is None:
            raise LogError(
                f"segment {self._log.store.url}/{segment.segment_id.name} has messages of the queue "
                f"{segment.meta.queue}, which the option 'queue' does not name ({', '.join(self._queues)}). Nothing of "
                "it was deleted. Start the query with the queues and the endpoint that it was started with"
            )
        return queue

    def _give_back(self, segment: Sealed, until: Mapping[str, float], hidden_until: float) -> None:
        """Returns messages that the sink has not finished to their queue."""
        ids, receipts = (segment.table.column(name).to_pylist() for name in ("message_id", "receipt"))
        now, queue = self._clock(), self._queue(segment)
        messages = [
            Returned(receipt, hidden_until, visibility_for(until[id_] - now, self._options.visibility))
            for id_, receipt in zip(ids, receipts, strict=True)
            if id_ in until
        ]
        return_messages(queue, messages, self._sqs_clock.monotonic())

    def _unconfirmed_after(self, acks: Sequence[SegmentAck]) -> dict[str, dict[str, int]]:
        """The unconfirmed deletes once these acks are counted."""
        unconfirmed = {queue: dict(ids) for queue, ids in self._unconfirmed.items()}
        for ack in acks:
            ids = unconfirmed.setdefault(ack.queue, {})
            ids.update(ack.unconfirmed)
            for id_ in ack.confirmed:
                ids.pop(id_, None)
        expired = (self._clock() - RETENTION) * 1_000
        unconfirmed = {
            queue: {id_: sent for id_, sent in ids.items() if sent > expired or not sent}
            for queue, ids in unconfirmed.items()
        }
        return {queue: ids for queue, ids in unconfirmed.items() if ids}

    def _check_bound(self, former: Mapping[str, Mapping[str, int]]) -> None:
        """Raises TooManyUnconfirmed if the number exceeds the limit and grows. After a restart it may shrink again:
        messages that come back are recognised and deleted."""
        if _count(self._unconfirmed) <= max(MAX_UNCONFIRMED, _count(former)):
            return
        queue, ids = max(self._unconfirmed.items(), key=lambda item: len(item[1]))
        raise TooManyUnconfirmed(
            f"queue {queue}: {len(ids):,} messages were processed, but their deletes are not confirmed: more than can "
            f"be kept ({MAX_UNCONFIRMED:,}). The query stops before it takes one of them for a new message. Check that "
            "sqs:DeleteMessage is allowed on the queue, that SQS answers, and that 'visibility' "
            f"({self._options.visibility} s) is longer than a batch takes; then start it again"
        )


def _count(unconfirmed: Mapping[str, Mapping[str, int]]) -> int:
    return sum(map(len, unconfirmed.values()))
