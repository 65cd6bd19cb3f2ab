"""A task of a batch: give out what is sealed at its place; if nothing is, receive, seal, and only then delete.

The rules:
1. A row is given out only after it was read from, or won, the seal of its place. So a replay, a retry and a speculative
   twin give out the same rows.
2. A message is deleted only after the segment that holds it is sealed.
3. A message is sealed only while it is surely ours: hidden for `margin` seconds more.
4. Whoever loses the race for a seal gives its messages back, and gives out the winner's.
5. Messages whose delete was not confirmed are recorded next to the segment.
6. A task that does not see the log of its driver receives nothing. One whose segment is gone receives no other
   messages in its place.
7. What other tasks of the batch have sealed is not sealed again, whenever they did.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from semel.messages.keys import key_rule
from semel.spark import crash_points
from semel.spark.segments.codec import COLUMNS, Meta
from semel.spark.segments.log import BatchAlreadyCommitted, LogError, SegmentLog
from semel.spark.segments.model import Sealed, SegmentAck, SegmentId
from semel.spark.segments.storage import open_store
from semel.spark.source import columns
from semel.spark.source.attempt_events import Tracer
from semel.spark.source.claims import KeyClaims, claims_for
from semel.spark.source.columns import SourceMessage
from semel.spark.source.options import ReadOptions
from semel.spark.source.queue_ids import queue_id
from semel.spark.source.receiver import FIRST_WAIT, Arrival, Receiver
from semel.sqs.client import Client, Failure, Queue
from semel.sqs.errors import SqsError

_log: Final = logging.getLogger("semel.spark")
PAGE: Final = 100  # receipts that one thread settles at a time


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task is to do. `before`: count what was sent until then, in milliseconds. `replay`: the batch was begun
    before. `unconfirmed`: there are unconfirmed deletes to look out for. `plan`: the id of the batch's sealed plan.
    `planned_at`: when the batch was planned, in milliseconds."""

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
class _Counts:
    received: int = 0
    backlog: int = 0
    in_ledger: int = 0
    duplicates: int = 0
    redelivered: list[SourceMessage] = field(default_factory=list)


_clients: dict[tuple[str | None, ...], Client] = {}
_clients_lock = threading.Lock()


def client_for(address: tuple[str | None, str | None, str | None]) -> Client:
    """One client a process and address: workers are used again, and so are their connections."""
    with _clients_lock:
        if address not in _clients:
            _clients[address] = Client(*address)
        return _clients[address]


class Task:
    def __init__(
        self,
        options: ReadOptions,
        assignment: Assignment,
        *,
        log: SegmentLog | None = None,
        queue: Queue | None = None,
        first_wait: int = FIRST_WAIT,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        assert options.segments is not None
        self.options = options
        self.given = assignment
        self.log = log or SegmentLog(open_store(options.segments, options.margin))
        self.queue = queue or client_for(options.address).queue(assignment.queue)
        self.attempt = uuid4().hex
        self._first_wait = first_wait
        self._clock, self._monotonic = clock, monotonic
        self._until = monotonic() + options.max_seconds
        self._rule = key_rule(options.key)
        self._claims: KeyClaims = claims_for(options.ledger, self.queue, options.visibility)
        self._tracer = Tracer(options.attempt_log, self.queue.name, options.visibility)
        self._pool: ThreadPoolExecutor | None = None
        self._unfinished: list[Callable[[], None]] = []
        self._rows_left, self._bytes_left = assignment.rows, assignment.bytes
        self._unconfirmed: frozenset[str] | None = None
        self._part = 0

    def tables(self) -> Iterator[pa.Table]:
        """The sealed parts of this task, in order."""
        try:
            self._check_log()
            while True:
                place = SegmentId(self.given.batch, self.given.task, self._part)
                sealed = self.log.read(place) or self._missed(place)
                sealed = self._receive(place) if sealed is None else self._settle_again(sealed)
                yield sealed.table
                if sealed.meta.last:
                    break
                self._part += 1
        finally:
            for finish in self._unfinished:
                finish()
            if self._pool is not None:
                self._pool.shutdown()
            self._tracer.close()

    def _check_log(self) -> None:
        """The driver has sealed the batch's plan in its log. Who does not find it there looks at another log."""
        found = self.log.plan(self.given.batch)
        if found is not None and found["id"] == self.given.plan:
            return
        if self.log.committed().through >= self.given.batch:
            raise BatchAlreadyCommitted(
                f"batch {self.given.batch} of {self.log.store.url} was finished by another attempt"
            )
        raise LogError(
            f"this executor ({socket.gethostname()}) does not see the segment log of its driver in "
            f"{self.log.store.url}: there is {'no plan' if found is None else 'another plan'} of batch "
            f"{self.given.batch}. It has received nothing. Put the checkpoint and 'segments' where the driver and all "
            "executors see the same files: a shared file system at the same path, or s3://"
        )

    def _missed(self, place: SegmentId) -> Sealed | None:
        """Nothing is sealed at our place. Unless a twin has just sealed it, nothing of ours may be behind it either:
        an ack, or a further part, tells of a segment that was there."""
        files = self.log.files(place.batch)
        if not any(p.task == place.task and p.part >= place.part for p in files.all):
            return None
        found = self.log.read(place)
        if found is None and self.log.committed().through < place.batch:
            raise self.log.lost(place)
        return found

    # Receiving and sealing.

    def _receive(self, place: SegmentId) -> Sealed:
        receiver = Receiver(
            self.queue,
            rows=self._rows_left,
            size=self._bytes_left,
            until=self._until,
            visibility=self.options.visibility,
            threads=self.options.threads,
            first_wait=self._first_wait,
            clock=self._clock,
            monotonic=self._monotonic,
        )
        arrivals = receiver.run()
        counts = _Counts(sum(len(arrival.messages) for arrival in arrivals), self._of_backlog(arrivals))
        messages = self._claims.claim(self._sift(arrivals, counts), self._hide)
        counts.in_ledger = len(self._claims.done)
        # A FIFO queue gives out no more of a group that is in flight: seal, delete, and ask again, while there is time.
        # If nothing is deleted before the commit, there is nothing to ask for.
        last = not self.queue.fifo or self.options.ack == "committed" or receiver.enough or not messages
        self._tracer.received(messages)
        return self._seal(place, messages, counts, last=last)

    def _sift(self, arrivals: Sequence[Arrival], counts: _Counts) -> list[SourceMessage]:
        """What is new among the arrivals and stays ours long enough."""
        found: dict[str, SourceMessage] = {}
        now, known, rule = self._monotonic(), self._known_ids(arrivals), self._rule
        for at, hidden_until, messages in arrivals:
            ours = hidden_until - now > self.options.margin
            for message in messages:
                id_, key = message.message_id, columns.key_of(message, rule)
                if id_ in known and not (self._claims.knows and key is not None):
                    counts.redelivered.append(SourceMessage(message, at, hidden_until, None))
                elif ours:
                    counts.duplicates += id_ in found
                    # The newest receipt is the one that counts.
                    found[id_] = SourceMessage(message, at, hidden_until, key)
        return list(found.values())

    def _known_ids(self, arrivals: Sequence[Arrival]) -> Collection[str]:
        if self._unconfirmed is None:
            self._unconfirmed = frozenset(
                self.log.unconfirmed_deletes().get(queue_id(self.queue), {}) if self.given.unconfirmed else ()
            )
        # What another task has sealed was delivered before, to that task; SQS counts deliveries.
        again = self.given.replay or any(m.receive_count > 1 for arrival in arrivals for m in arrival.messages)
        return self._unconfirmed.union(self._sealed_by_others()) if again else self._unconfirmed

    def _sealed_by_others(self) -> Iterator[str]:
        """What other tasks of the batch, or other attempts of this one, have sealed may be visible again by now. It is
        looked up after each receive, as they may have done so in this very run."""
        files = self.log.files(self.given.batch)
        for place in files.sealed:
            if place.task == self.given.task and place.part >= self._part:  # a twin's: see `_lose`
                continue
            ack = self.log.read_ack(place, files.acked[place]) if place in files.acked else None
            if ack is not None and ack.deleted:
                yield from ack.unconfirmed
            elif (found := self.log.read(place)) is not None:
                yield from found.table.column("message_id").to_pylist()

    def _seal(self, place: SegmentId, messages: list[SourceMessage], counts: _Counts, *, last: bool) -> Sealed:
        messages, table = self._in_time(messages)
        sealed = self._put(place, messages, table, last=last)
        if sealed.meta.attempt != self.attempt:
            self._lose(sealed, messages)
            return self._settle_again(sealed)
        refused = self._claims.record(messages)
        self._rows_left -= len(messages)
        self._bytes_left -= table.nbytes
        ack = SegmentAck(
            queue_id(self.queue),
            rows=len(messages) - len(refused),
            bytes=table.nbytes,
            received=counts.received,
            redelivered=len(counts.redelivered),
            in_ledger=counts.in_ledger + len(refused),
            duplicates=counts.duplicates,
            backlog=counts.backlog,
            refused=tuple(refused),
            attempt=self.attempt,
        )
        again = counts.redelivered
        if self.options.ack == "committed":  # what this very batch has sealed is not committed yet
            committed = self.log.unconfirmed_deletes().get(queue_id(self.queue), {}) if again else {}
            again = [t for t in again if t.message.message_id in committed]
        redelivered = [(t.message.message_id, t.message.receipt, _sent(t), t.hidden_until) for t in again]
        redelivered += [(t.message.message_id, t.message.receipt, _sent(t), t.hidden_until) for t in self._claims.done]
        ours = [t for t in messages if t.message.message_id not in refused]
        fresh = [(t.message.message_id, t.message.receipt, _sent(t), t.hidden_until) for t in ours]
        self._settle(place, ack, fresh, redelivered, wait=self.queue.fifo and not last)
        return sealed.without(refused)

    def _put(self, place: SegmentId, messages: list[SourceMessage], table: pa.Table, *, last: bool) -> Sealed:
        ends = min((t.hidden_until for t in messages), default=self._monotonic())
        hidden = self._clock() + ends - self._monotonic()
        crash_points.reached("before-seal")
        try:
            sealed = self.log.seal(place, table, Meta(queue_id(self.queue), self.attempt, last, hidden))
        except BatchAlreadyCommitted:
            self._claims.release(messages)
            self._give_back(messages)
            raise
        crash_points.reached("after-seal")
        return sealed

    def seal_first(self, arrivals: list[Arrival]) -> None:
        """Seal what the planner has received as part 0; the task itself acknowledges it and goes on with part 1."""
        counts, place = _Counts(), SegmentId(self.given.batch, self.given.task, 0)
        try:
            messages = self._claims.claim(self._sift(arrivals, counts), self._hide)
            self._give_back([*counts.redelivered, *self._claims.done])  # to the task, which counts and deletes them
            messages, table = self._in_time(messages)
            if messages and (sealed := self._put(place, messages, table, last=False)).meta.attempt != self.attempt:
                self._lose(sealed, messages)
        finally:
            self._tracer.close()

    def _in_time(self, messages: list[SourceMessage]) -> tuple[list[SourceMessage], pa.Table]:
        """The segment's rows. Claims and tables take their time: what is no longer surely ours goes back instead."""
        while True:
            table = columns.table(messages, self.queue.name, self.options.columns)
            until = self._monotonic() + self.options.margin
            late = [t for t in messages if t.hidden_until <= until]
            if not late:
                return messages, table
            _log.warning(
                "queue %s: %d messages go back, as there was no time left to seal them", self.queue.name, len(late)
            )
            self._claims.release(late)
            self._give_back(late)
            messages = [t for t in messages if t.hidden_until > until]

    def _of_backlog(self, arrivals: Sequence[Arrival]) -> int:
        """Of all that was received, whatever becomes of it: what was sent before an AvailableNow query began."""
        before = self.given.before
        sent = [int(m.system.get("SentTimestamp", 0)) for arrival in arrivals for m in arrival.messages]
        return len(sent) if before is None else sum(at <= before for at in sent)

    def _lose(self, winner: Sealed, messages: list[SourceMessage]) -> None:
        """Another attempt was first: what it has too is deleted, the rest goes back to the queue. So does a key that we
        have claimed: if the winner had it too, its claim was committed, and it is refused to the winner."""
        sealed = set(winner.table.column("message_id").to_pylist())
        lost = [t for t in messages if t.fence is not None or t.message.message_id not in sealed]
        self._claims.release(lost)
        self._delete([t.message.receipt for t in messages if t.fence is None and t.message.message_id in sealed])
        self._give_back(lost)

    def _give_back(self, messages: Sequence[SourceMessage]) -> None:
        self._hide([(t, 0) for t in messages])

    def _hide(self, pairs: Sequence[tuple[SourceMessage, int]]) -> None:
        now = self._monotonic()
        still = [(t.message.receipt, seconds) for t, seconds in pairs if t.hidden_until > now]
        try:
            self.queue.change_visibility(still)
        except SqsError as error:  # they come back by themselves, only later
            _log.warning("queue %s: %d messages could not be given back: %s", self.queue.name, len(still), error)

    # Settling: what is sealed is deleted from the queue.

    def _settle_again(self, sealed: Sealed) -> Sealed:
        """A segment that another or an earlier attempt has sealed: without a ack, it may not be deleted. Returns what
        of it is to be given out."""
        ack = self.log.read_ack(sealed.segment_id, sealed.meta.attempt)
        if ack is not None:
            return sealed.without(ack.refused)
        received, refused = len(sealed.table), self._claims.record_again(sealed.table)
        sealed = sealed.without(refused)
        good_for = sealed.meta.surely_hidden_until - self._clock()
        ends = self._monotonic() + good_for
        self._tracer.received_before(sealed.table)
        columns = [sealed.table.column(name).to_pylist() for name in ("message_id", "receipt", "sent_at")]
        fresh = [(i, r, _ms(s), ends) for i, r, s in zip(*columns, strict=True)]
        ack = SegmentAck(
            queue_id(self.queue),
            rows=len(fresh),
            bytes=sealed.table.nbytes,
            received=received,
            in_ledger=len(refused),
            backlog=len(fresh),
            refused=tuple(refused),
            attempt=sealed.meta.attempt,
        )
        self._settle(sealed.segment_id, ack, fresh, [])
        return sealed

    def _settle(
        self,
        place: SegmentId,
        ack: SegmentAck,
        fresh: list[tuple[str, str, int, float]],
        redelivered: list[tuple[str, str, int, float]],
        *,
        wait: bool = False,
    ) -> None:
        """Delete in the background, while the rows are given out; `wait`: before anything else is received."""
        later = self.options.ack == "committed"
        jobs = self._deletions(redelivered if later else fresh + redelivered)

        def finish() -> None:
            unsure = self._outcome(jobs)
            confirmed = [id_ for id_, *_ in redelivered if id_ not in unsure]
            if not later:
                crash_points.reached("after-delete")
                self._tracer.deleted([id_ for id_, *_ in fresh], unsure)
            self.log.write_ack(place, replace(ack, deleted=not later, unconfirmed=unsure, confirmed=tuple(confirmed)))

        if wait:
            finish()
        else:
            self._unfinished.append(finish)

    def _deletions(self, entries: list[tuple[str, str, int, float]]) -> list[tuple[Any, Future[dict[str, int]]]]:
        if not entries:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.options.threads, thread_name_prefix="semel-delete")
        pages = [entries[start : start + PAGE] for start in range(0, len(entries), PAGE)]
        return [(page, self._pool.submit(self._delete_page, page)) for page in pages]

    def _delete_page(self, page: list[tuple[str, str, int, float]]) -> dict[str, int]:
        """Those of which it is not sure that they are gone, with the time they were sent."""
        outcomes = self._delete([receipt for _, receipt, _, _ in page])
        now = self._monotonic()
        return {
            id_: sent
            for (id_, _, sent, ends), outcome in zip(page, outcomes, strict=True)
            if outcome is not None or now >= ends
        }

    def _delete(self, receipts: list[str]) -> list[Failure | None]:
        try:
            return self.queue.delete(receipts)
        except SqsError as error:
            _log.warning("queue %s: %d messages could not be deleted yet: %s", self.queue.name, len(receipts), error)
            return [Failure("Unavailable", str(error))] * len(receipts)

    @staticmethod
    def _outcome(jobs: list[tuple[Any, Future[dict[str, int]]]]) -> dict[str, int]:
        unsure: dict[str, int] = {}
        for _, job in jobs:
            unsure |= job.result()
        return unsure


def _sent(messages: SourceMessage) -> int:
    return int(messages.message.system.get("SentTimestamp", 0))


def _ms(sent: Any) -> int:
    return 0 if sent is None else int(sent.timestamp() * 1_000)


def rows(table: pa.Table, schema: pa.Schema, planned_at: int) -> Iterator[pa.RecordBatch]:
    """The table as record batches with just the columns and types that Spark expects. `planned_at` is not sealed: it is
    the batch's, in milliseconds."""
    stamp = pa.scalar(planned_at * 1_000, COLUMNS.field("sent_at").type)
    table = table.append_column("planned_at", pa.repeat(stamp, len(table)))
    chosen = table.select(schema.names).cast(schema)
    yield from chosen.to_batches(max_chunksize=10_000)


assert COLUMNS.names[-2:] == ["receipt", "fence"]
