"""A task of a batch: give out what is sealed; if nothing is, receive, seal, and only then delete.

The rules:
1. A row is given out only if this attempt has read it from a sealed segment, or has sealed it. So a replay, a retry and
   a speculative attempt give out the same rows.
2. A message is deleted only after its segment is sealed, if the batch still has the plan of this task, and the log
   still belongs to its query. With `ack=committed`, the driver deletes it after the commit.
3. A message is sealed only while it is certainly ours: hidden for at least `margin` more seconds.
4. An attempt that loses the race for a seal returns its messages to the queue, and gives out the winner's segment.
5. Messages whose delete was not confirmed are recorded next to the segment.
6. A task that does not see the log of its driver receives nothing. A task whose segment is gone receives no other
   messages in its place.
7. Messages that other tasks of the batch have sealed are not sealed again, whenever that happened.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import uuid4

import pyarrow as pa

from semel.messages.keys import key_rule
from semel.spark import crash_points
from semel.spark.segments.codec import Meta
from semel.spark.segments.model import Sealed, SegmentAck, SegmentId, task_count
from semel.spark.segments.segment_log import BatchAlreadyCommitted, LogError, SegmentLog
from semel.spark.segments.storage import open_store
from semel.spark.source import columns
from semel.spark.source.acknowledger import Acknowledger, PendingAck, sent_times
from semel.spark.source.attempt_events import Tracer
from semel.spark.source.claims import claims_for
from semel.spark.source.columns import SourceMessage
from semel.spark.source.options import ReadOptions
from semel.spark.source.queue_ids import label, queue_id
from semel.spark.source.receiver import FIRST_WAIT, Arrival, Receiver
from semel.spark.source.returns import Returned, return_messages
from semel.spark.source.sqs_clock import UNKNOWN, SqsClock, clock_of
from semel.sqs.client import Client, Queue

_log: Final = logging.getLogger("semel.spark")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task does. `before`: count the messages that were sent until this time, in milliseconds. `replay`: the
    batch was begun before. `unconfirmed`: there are unconfirmed deletes, whose messages may come back. `plan`: the id
    of the batch's sealed plan. `planned_at`: when the batch was planned, in milliseconds."""

    batch: int
    task: int
    queue: str
    rows: int
    bytes: int
    before: int | None = None
    replay: bool = False
    unconfirmed: bool = False
    plan: str = ""
    planned_at: int = 0


@dataclass(slots=True)
class _Sifted:
    """Received messages, and what happens to them. `messages` are to be sealed. `redelivered` were sealed before, and
    `done` are done according to the ledger: both are to be deleted. `duplicates`: how many were delivered to this task
    more than once. `backlog`: how many of all were sent before an AvailableNow query began."""

    received: int
    backlog: int | None = None
    messages: list[SourceMessage] = field(default_factory=list)
    redelivered: list[SourceMessage] = field(default_factory=list)
    done: list[SourceMessage] = field(default_factory=list)
    duplicates: int = 0


_clients: dict[tuple[str | None, ...], Client] = {}
_clients_lock = threading.Lock()


def client_for(address: tuple[str | None, str | None, str | None]) -> Client:
    """One client per process and address: Spark reuses its workers, and so they reuse their connections."""
    with _clients_lock:
        if address not in _clients:
            _clients[address] = Client(*address)
        return _clients[address]


class SourceTask:
    def __init__(
        self,
        options: ReadOptions,
        assignment: Assignment,
        *,
        log: SegmentLog | None = None,
        queue: Queue | None = None,
        sqs_clock: SqsClock | None = None,
        first_wait: int = FIRST_WAIT,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        assert options.segments is not None
        self.options = options
        self.assignment = assignment
        self.log = log or SegmentLog(open_store(options.segments, options.margin))
        self.queue = queue or client_for(options.address).queue(assignment.queue)
        self.attempt = uuid4().hex
        self._label = label(self.queue, options.queues)
        self._first_wait = first_wait
        self._clock, self._monotonic = clock, monotonic
        self._sqs_clock = sqs_clock or clock_of(self.queue.client)
        self._until = monotonic() + options.max_seconds
        self._key_rule = key_rule(options.key)
        self._claims = claims_for(options.ledger, self.queue, options.visibility)
        self._tracer = Tracer(options.attempt_log, self.queue.name, options.visibility)
        self._acknowledger = Acknowledger(self.queue, options.threads, monotonic)
        self._at_end = ExitStack()  # writes the acks of deletes in progress, then closes what was opened
        self._at_end.callback(self._tracer.close)
        self._at_end.callback(self._acknowledger.close)
        self._rows_left, self._bytes_left = assignment.rows, assignment.bytes
        self._unconfirmed: frozenset[str] | None = None
        self._not_committed: set[str] = set()  # ids that others of the batch had sealed when this task last looked
        self._part = 0
        self._tasks = 0  # how many the batch has

    def tables(self) -> Iterator[pa.Table]:
        """The sealed parts of this task, in order."""
        with self._at_end:
            self._check_log()
            last = False
            while not last:
                segment_id = SegmentId(self.assignment.batch, self.assignment.task, self._part)
                sealed = self._sealed(segment_id)
                sealed = self._receive(segment_id) if sealed is None else self._acknowledge_replayed(sealed)
                yield sealed.table
                last = sealed.meta.last
                self._rows_left -= len(sealed.table)
                self._bytes_left -= sealed.table.nbytes
                self._part += 1

    def seal_first(self, arrivals: Sequence[Arrival]) -> None:
        """Seals messages that the driver has received for this task, as its first part. The task itself finds that
        part, acknowledges it, and receives the rest. Messages that are not sealed return to the queue."""
        first = SegmentId(self.assignment.batch, self.assignment.task, 0)
        with self._at_end:
            self._check_log()
            if self._sealed(first) is not None:
                self._return_to_queue([m for arrival in arrivals for m in self._messages(arrival)])
                return
            sifted = self._sift(arrivals)
            self._return_to_queue([*sifted.redelivered, *sifted.done])
            if sifted.messages:
                self._put(first, sifted, last=False)

    def _check_log(self) -> None:
        """Checks that the log has the batch's plan, as the driver has sealed it there. If not, this executor sees
        another log, or an older copy that was put in its place."""
        plan, batch = self.log.plan(self.assignment.batch), self.assignment.batch
        if plan is not None and plan["id"] == self.assignment.plan:
            # If a reset has taken the log away from this query, the batch may end without what this task seals.
            self.log.check_owner(self.options.owner)
            self._tasks = task_count(plan)
            return
        if self.log.through() >= batch:
            raise BatchAlreadyCommitted(f"batch {batch} of {self.log.store.url} was finished by another attempt")
        raise LogError(
            f"this executor ({socket.gethostname()}) does not see the segment log of its driver in "
            f"{self.log.store.url}: there is {'no plan' if plan is None else 'another plan'} of batch {batch}. It has "
            "deleted nothing from the queue. Put the checkpoint and 'segments' where the driver and all executors see "
            "the same files: a shared file system at the same path, or s3://"
        )

    def _sealed(self, segment_id: SegmentId) -> Sealed | None:
        """The sealed segment, or None. If there is none, an ack of it or a later part of this task proves that it was
        there: then it is lost, unless another attempt has just sealed it."""
        sealed = self.log.read(segment_id)
        if sealed is not None:
            return sealed
        files = self.log.files(segment_id.batch)
        if not any(s.task == segment_id.task and s.part >= segment_id.part for s in files.all):
            return None
        sealed = self.log.read(segment_id)
        if sealed is None and self.log.through() < segment_id.batch:
            raise self.log.lost(segment_id)
        return sealed

    # Receiving.

    def _receive(self, segment_id: SegmentId) -> Sealed:
        receiver = Receiver(
            self.queue,
            rows=self._rows_left,
            size=self._bytes_left,
            until=self._until,
            visibility=self.options.visibility,
            threads=self.options.threads,
            first_wait=0 if segment_id.part else self._first_wait,
            clock=self._clock,
            monotonic=self._monotonic,
        )
        sifted = self._sift(receiver.run())
        # A FIFO queue delivers no more of a group while messages of it are in flight. So seal, delete, and receive
        # again while there is time. With `ack=committed` nothing is deleted before the commit: it would deliver
        # nothing.
        last = not self.queue.fifo or self.options.ack == "committed" or receiver.enough or not sifted.messages
        return self._seal(segment_id, sifted, last=last)

    def _sift(self, arrivals: Sequence[Arrival]) -> _Sifted:
        """Finds the messages that are new, stay hidden long enough, and are not claimed by another worker in the
        ledger."""
        sifted = _Sifted(sum(len(arrival.messages) for arrival in arrivals), self._of_backlog(arrivals))
        fresh: dict[str, SourceMessage] = {}
        now, known, by_key = self._monotonic(), self._known_ids(arrivals), self._claims.by_key
        for arrival in arrivals:
            ours = arrival.hidden_until - now > self.options.margin
            for message in self._messages(arrival):
                id_ = message.message.message_id
                if id_ in known and not (by_key and message.key is not None):
                    sifted.redelivered.append(message)
                elif ours:
                    sifted.duplicates += id_ in fresh
                    fresh[id_] = message  # the newest receipt is the one that counts
        sifted.messages, sifted.done, held = self._claims.claim(list(fresh.values()))
        self._hide(held)
        self._tracer.received(sifted.messages)
        return sifted

    def _messages(self, arrival: Arrival) -> Iterator[SourceMessage]:
        at, hidden_until, messages = arrival
        for message in messages:
            yield SourceMessage(message, at, hidden_until, columns.key_of(message, self._key_rule))

    def _known_ids(self, arrivals: Sequence[Arrival]) -> Collection[str]:
        if self._unconfirmed is None:
            self._unconfirmed = frozenset(self._unconfirmed_deletes() if self.assignment.unconfirmed else ())
        # What another task has sealed was delivered before, to that task: its receive count is above 1.
        if self.assignment.replay or any(m.receive_count > 1 for arrival in arrivals for m in arrival.messages):
            self._not_committed.update(self._sealed_by_others())
        return self._unconfirmed | self._not_committed if self._not_committed else self._unconfirmed  # may be a million

    def _unconfirmed_deletes(self) -> Collection[str]:
        return self.log.unconfirmed_deletes().get(queue_id(self.queue), {})

    def _sealed_by_others(self) -> Iterator[str]:
        """The ids of messages that other tasks of the batch, or other attempts of this one, have sealed: these may be
        visible again. They are looked up after each receive, because those tasks may run at the same time."""
        files = self.log.files(self.assignment.batch)
        for segment_id in files.sealed:
            if segment_id.task == self.assignment.task and segment_id.part >= self._part:  # see `_lose`
                continue
            if segment_id.task >= self._tasks:  # no task gives it out: see `_put`
                continue
            attempt = files.acked.get(segment_id)
            ack = None if attempt is None else self.log.read_ack(segment_id, attempt)
            if ack is not None and ack.deleted:
                yield from ack.unconfirmed
            elif (sealed := self.log.read(segment_id)) is not None:
                yield from sealed.table.column("message_id").to_pylist()

    # Sealing.

    def _seal(self, segment_id: SegmentId, sifted: _Sifted, *, last: bool) -> Sealed:
        """Seals and acknowledges. Returns the segment with the rows that are to be given out."""
        sealed = self._put(segment_id, sifted, last=last)
        if sealed.meta.attempt != self.attempt:
            return self._acknowledge_replayed(sealed)
        return self._acknowledge(sealed, sifted, _hidden_until(sifted.messages))

    def _put(self, segment_id: SegmentId, sifted: _Sifted, *, last: bool) -> Sealed:
        """Seals the messages. Returns what is sealed now: these, or those of another attempt that was first."""
        reading = self._sqs_clock.read() if sifted.messages else UNKNOWN  # before `_in_time`, as it may take long
        table = self._in_time(sifted)
        hidden_until = reading.earliest(_hidden_until(sifted.messages))
        crash_points.reached("before-seal")
        try:
            sealed = self.log.seal(segment_id, table, Meta(queue_id(self.queue), self.attempt, last, hidden_until))
        except BatchAlreadyCommitted:
            self._return_to_queue(sifted.messages)
            raise
        crash_points.reached("after-seal")
        # The log may have been replaced since this task began. Then no driver of the log knows the segment, and nothing
        # is deleted. The messages are not returned either, as another plan may have a task that finds the segment: they
        # become visible when their visibility timeout ends.
        self._check_log()
        if sealed.meta.attempt != self.attempt:
            self._lose(sealed, sifted.messages)
        else:
            self._check_not_replaced(sealed)
        return sealed

    def _check_not_replaced(self, sealed: Sealed) -> None:
        """If the name was free only because the first segment was removed, nothing of this one may be deleted: the
        table may have the batch as made of the first one. The same holds if this one is gone, because the log was
        replaced."""
        files = self.log.files(sealed.segment_id.batch)
        if files.is_replaced(sealed):
            raise self.log.replaced(sealed.segment_id)
        if sealed.segment_id not in files.sealed:
            raise LogError(
                f"{self.log.store.url}/{sealed.segment_id.name} was sealed, and is not there any more. Nothing of it "
                "was deleted from the queue"
            )

    def _in_time(self, sifted: _Sifted) -> pa.Table:
        """The segment's rows. Claims and tables take time: messages that may no longer be ours return to the queue."""
        while True:
            table = columns.table(sifted.messages, self._label, self.options.columns)
            until = self._monotonic() + self.options.margin
            late = [m for m in sifted.messages if m.hidden_until <= until]
            if not late:
                return table
            _log.warning("queue %s: no time was left to seal %d messages; returned", self.queue.name, len(late))
            self._return_to_queue(late)
            sifted.messages = [m for m in sifted.messages if m.hidden_until > until]

    def _lose(self, winner: Sealed, messages: list[SourceMessage]) -> None:
        """Another attempt was first. Messages that it has sealed too are deleted, or left to the driver with
        `ack=committed`. The rest returns to the queue, and so does a message whose key we have claimed: if the winner
        has it too, the winner's claim has ended, and the ledger refuses its record."""
        sealed = set(winner.table.column("message_id").to_pylist())
        both = [m for m in messages if m.fence is None and m.message.message_id in sealed]
        self._return_to_queue([m for m in messages if m.fence is not None or m.message.message_id not in sealed])
        if self.options.ack == "sealed":
            self._delete_duplicates(both).unconfirmed()

    def _return_to_queue(self, messages: Sequence[SourceMessage]) -> None:
        self._claims.release(messages)
        self._hide([(m, 0) for m in messages])

    def _hide(self, messages: Sequence[tuple[SourceMessage, int]]) -> None:
        """Hides each message for its number of seconds; 0 returns it to the queue."""
        returned = [Returned(m.message.receipt, m.hidden_until, seconds) for m, seconds in messages]
        return_messages(self.queue, returned, self._monotonic())

    # Acknowledging.

    def _acknowledge_replayed(self, sealed: Sealed) -> Sealed:
        """For a segment of another or an earlier attempt. If it has no ack, its messages may still be in the queue."""
        ack = self.log.read_ack(sealed.segment_id, sealed.meta.attempt)
        if ack is not None:
            return sealed.without(ack.refused)
        # Its attempt may have died before it made these checks. If the segment belongs to no batch, nothing is deleted.
        self._check_log()
        if self.log.through() >= sealed.segment_id.batch:
            raise BatchAlreadyCommitted(
                f"batch {sealed.segment_id.batch} of {self.log.store.url} was committed by another attempt"
            )
        self._check_not_replaced(sealed)
        self._tracer.received_before(sealed.table)
        hidden_until = self._sqs_clock.read().surely_before(sealed.meta.hidden_until)
        return self._acknowledge(sealed, _Sifted(len(sealed.table)), hidden_until)

    def _acknowledge(self, sealed: Sealed, sifted: _Sifted, hidden_until: float) -> Sealed:
        """Deletes in the background, while the rows are given out. Returns the segment with the rows to give out."""
        refused = self._claims.record(sealed.table)
        rows = sealed.without(refused)
        ack = SegmentAck(
            queue_id(self.queue),
            rows=len(rows.table),
            bytes=sealed.table.nbytes,
            received=sifted.received,
            redelivered=len(sifted.redelivered),
            in_ledger=len(sifted.done) + len(refused),
            duplicates=sifted.duplicates,
            backlog=len(rows.table) if sifted.backlog is None else sifted.backlog,
            refused=tuple(refused),
            attempt=sealed.meta.attempt,
        )
        again = [*sifted.redelivered, *sifted.done]
        if self.options.ack == "committed" and again:
            # Messages that this batch has sealed are not committed yet, whatever has happened to its log since. The
            # driver will delete them, but with an older receipt, as they were delivered again: SQS may forget such a
            # delete.
            not_committed = self._not_committed.union(self._sealed_by_others())
            held = [m for m in again if m.message.message_id in not_committed]
            again = [m for m in again if m.message.message_id not in not_committed]
            ack = replace(ack, unconfirmed=sent_times(columns.table(held, self._label, ())))
        duplicates = self._delete_duplicates(again)
        deletes = self._acknowledger.acknowledge(rows.table, hidden_until) if self.options.ack == "sealed" else None
        if self.queue.fifo and not sealed.meta.last:  # its groups continue only when they are deleted
            self._write_ack(sealed.segment_id, ack, deletes, duplicates)
        else:
            self._at_end.callback(self._write_ack, sealed.segment_id, ack, deletes, duplicates)
        return rows

    def _delete_duplicates(self, messages: list[SourceMessage]) -> PendingAck:
        table = columns.table(messages, self._label, ())
        return self._acknowledger.acknowledge(table, _hidden_until(messages))

    def _write_ack(
        self, segment_id: SegmentId, ack: SegmentAck, deletes: PendingAck | None, duplicates: PendingAck
    ) -> None:
        unconfirmed = duplicates.unconfirmed()
        confirmed = tuple(id_ for id_ in duplicates.ids if id_ not in unconfirmed)
        unconfirmed |= ack.unconfirmed
        if deletes is not None:
            unconfirmed |= deletes.unconfirmed()
            crash_points.reached("after-delete")
            self._tracer.deleted(deletes, unconfirmed)
        self.log.write_ack(
            segment_id, replace(ack, deleted=deletes is not None, unconfirmed=unconfirmed, confirmed=confirmed)
        )

    def _of_backlog(self, arrivals: Sequence[Arrival]) -> int | None:
        """How many of all received messages were sent before an AvailableNow query began."""
        before = self.assignment.before
        if before is None:
            return None
        messages = (message for arrival in arrivals for message in arrival.messages)
        return sum(int(message.system.get("SentTimestamp", 0)) <= before for message in messages)


def _hidden_until(messages: Sequence[SourceMessage]) -> float:
    return min((m.hidden_until for m in messages), default=0.0)


def rows(table: pa.Table, schema: pa.Schema, planned_at: int) -> Iterator[pa.RecordBatch]:
    """The table as record batches with just the columns and types that Spark expects. `planned_at`, in
    milliseconds, is not sealed: it belongs to the batch."""
    stamp = pa.scalar(planned_at * 1_000, columns.TIME)
    table = table.append_column("planned_at", pa.repeat(stamp, len(table)))
    chosen = table.select(schema.names).cast(schema)
    yield from chosen.to_batches(max_chunksize=10_000)
