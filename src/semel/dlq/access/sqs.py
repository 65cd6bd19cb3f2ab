"""Messages on SQS, which shows a message only to whoever receives it.

So a scan receives messages, keeps them hidden so that none comes twice, and releases all of them at its end. A claim
does the same with messages that do not match. SQS timestamps messages by its own clock, so that clock also decides
which messages arrived after the start of a claim.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final, Self

from semel.dlq.access import (
    CLAIM_VISIBILITY,
    MAX_RECEIVE,
    Choose,
    Lookup,
    MessageAccess,
    MessageClaims,
    Scan,
    ScanPage,
    refuse_risk,
)
from semel.dlq.access.hidden_messages import HiddenMessages
from semel.dlq.filter.parser import EVERYTHING, Filter
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage, ReceiveCost
from semel.dlq.queues import max_receives, no_such_queue
from semel.errors import SemelError
from semel.sqs.client import Queue
from semel.sqs.client.error_parser import server_time
from semel.sqs.errors import OverLimit, QueueNotFound, SqsError

SCAN_VISIBILITY: Final = 30  # seconds
_WAIT: Final = 1  # seconds of a long poll: a short one asks only some of SQS's servers
_EMPTY: Final = 2  # empty receives in a row after which the queue counts as read to its end
_STALE: Final = 100  # receives in a row without a new message, after which a claim ends
_SAMPLED: Final = 100  # messages among which a sample is chosen
_SKEW: Final = 2.0  # seconds; a Date header has whole seconds, so less cannot be measured
MAX_HELD: Final = 110_000  # SQS hides no more than 120,000 messages of a queue; a few are left for others


class SqsAccess(MessageAccess):
    """SQS itself, or any compatible server."""

    receives = True

    def __init__(
        self,
        queue: Queue,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_receive: int = MAX_RECEIVE,
        accept_risk: bool = False,
        wait: int = _WAIT,
        max_held: int = MAX_HELD,
    ) -> None:
        super().__init__(queue, clock=clock, monotonic=monotonic)
        self._max_receive, self._accept_risk = max_receive, accept_risk
        self.wait, self.max_held = wait, max_held
        self._ahead: float | None = None  # seconds that SQS's clock is ahead of ours

    def now(self) -> float:
        if self._ahead is None:
            self._ahead = 0.0
            with contextlib.suppress(SemelError):
                there = server_time(self.queue.client.exchange("GET", "/", signed=False).head)
                ahead = 0.0 if there is None else there - time.time()
                self._ahead = ahead if abs(ahead) > _SKEW else 0.0
        return self._clock() + self._ahead

    def _scan(self, wanted: Scan) -> Generator[ScanPage, None, None]:
        queue, ids, where, limit = self.queue, frozenset(wanted.ids), wanted.where, wanted.limit
        if wanted.after:
            raise SemelError(f"queue {queue.name}: SQS has no places in a queue to continue from; raise the limit")
        try:
            if not self._accept_risk:
                refuse_risk(queue)
        except QueueNotFound:
            raise no_such_queue(queue) from None
        if ids:
            limit = len(ids) if limit is None else min(limit, len(ids))
        most = self._max_receive if wanted.max_scanned is None else wanted.max_scanned
        at, left = wanted.at, limit
        begin = totals = ScanPage([], at=at)
        hidden = HiddenMessages(queue, SCAN_VISIBILITY, self.monotonic)
        with hidden:
            for totals, received in self._received(hidden, most, begin):
                messages = [
                    message if wanted.bodies else message.shortened()
                    for message in received
                    if (not ids or message.id in ids) and where.matches(message, at)
                ][:left]
                left = None if left is None else left - len(messages)
                yield replace(totals, messages=messages)
                if left == 0:
                    break
            else:
                totals = self._at_end(totals, most)
        yield replace(totals, cost=replace(totals.cost, kept_back=hidden.kept_back))

    def _received(
        self, hidden: HiddenMessages, most: int, totals: ScanPage
    ) -> Iterator[tuple[ScanPage, list[DeadLetterMessage]]]:
        """The totals so far, and the messages that came for the first time."""
        held: set[str] = set()
        empty = 0
        while empty < _EMPTY and totals.scanned < most:
            hidden.extend()
            try:
                received = self.queue.receive(min(10, most - totals.scanned), self.wait, visibility=SCAN_VISIBILITY)
            except OverLimit:
                note = "SQS allows no more messages in flight than these; the others were not scanned"
                yield replace(totals, notes=(*totals.notes, note)), []
                return
            messages = [DeadLetterMessage.of(item, self.queue.name) for item in received]
            hidden.add(messages)
            new = [message for message in messages if message.id not in held]
            held.update(message.id for message in new)
            empty = 0 if messages else empty + 1
            cost = ReceiveCost(totals.cost.receives + 1, totals.cost.messages + len(messages))
            totals = replace(totals, scanned=totals.scanned + len(new), cost=cost)
            yield totals, new

    def _at_end(self, totals: ScanPage, most: int) -> ScanPage:
        """The totals, with what is known of messages that did not come."""
        if totals.notes:
            return totals
        if totals.scanned >= most:
            return replace(totals, notes=(f"only {most:,} messages were scanned",))
        name = "ApproximateNumberOfMessages"
        waiting = int(self.queue.attributes(name).get(name, "0"))
        if waiting and self.queue.fifo:
            note = (
                f"about {waiting:,} more are behind these in their groups: SQS shows the next message of a FIFO group "
                "only when those before it are deleted"
            )
        else:
            note = f"about {waiting:,} more are in the queue, which SQS did not return" if waiting else ""
        return replace(totals, notes=(note,) if note else (), complete=not waiting)

    def get(self, id: str, place: int | None = None) -> Lookup:  # noqa: ARG002 - SQS has no places
        page = ScanPage([])
        with contextlib.closing(self.scan()) as pages:
            for page in pages:
                for message in page.messages:
                    if id in (message.id, message.original_id):
                        return Lookup(message, page.scanned, page.cost, page.notes)
        return Lookup(None, page.scanned, page.cost, page.notes)

    def claims(
        self,
        job: Job,
        where: Filter = EVERYTHING,
        *,
        ids: Collection[str] = (),
        until: int | None = None,
        at: float | None = None,
        include_new: bool = False,
    ) -> SqsClaims:
        if until is not None:
            raise SemelError(f"queue {self.queue.name}: SQS has no places in a queue; name the messages by their ids")
        started = self.now()
        arrived_before = None if include_new or ids else started
        return SqsClaims(self, job, where, ids, started if at is None else at, arrived_before)


class SqsClaims(MessageClaims):
    """Messages that do not match are kept hidden until the end, so that they do not come again and again."""

    batch = 100

    def __init__(
        self,
        access: SqsAccess,
        job: Job,
        where: Filter,
        ids: Collection[str],
        at: float,
        arrived_before: float | None,
    ) -> None:
        super().__init__(access, job, where, ids, at)
        self._arrived_before = arrived_before
        self._wait, self._max_held = access.wait, access.max_held
        self._ready: deque[DeadLetterMessage] = deque()  # claimed, and not yet handed out
        self._empty = self._stale = 0
        self._held: set[str] = set()  # received since the start, or since the last pause
        self._counted: set[str] = set()
        self._rejected: set[str] = set()
        self._late: set[str] = set()

    def __enter__(self) -> Self:
        if limit := max_receives(self.queue.attributes("RedrivePolicy")):
            self.job.log(
                f"{self.queue.name} moves messages to its own dead-letter queue after {limit} receives, and every "
                "message is received here"
            )
        return super().__enter__()

    def claim(self, max: int) -> list[DeadLetterMessage]:
        while True:
            self._gather(max)
            messages = [self._ready.popleft() for _ in range(min(max, len(self._ready)))]
            claimed = [message for message in messages if message.group not in self.blocked]
            if len(claimed) < len(messages):
                self.job.add(skipped=len(messages) - len(claimed))
            if claimed or not messages:
                return claimed

    def _gather(self, count: int) -> None:
        """Receives until `count` messages are ready. Stops with fewer rather than wait, because in a FIFO queue the
        next messages come only when these are deleted."""
        while len(self._ready) < count and self._receive() and not (self._empty and self._ready):
            pass
        if self._ready:
            self._empty = 0

    def _receive(self) -> bool:
        """Receives once. Returns False if no more messages will come."""
        if self._empty >= _EMPTY or (self._ids and self._ids <= self._held):
            return False
        try:
            if len(self.hidden) >= self._max_held:
                raise OverLimit("")
            received = self.queue.receive(wait=self._wait, visibility=CLAIM_VISIBILITY)
        except OverLimit:
            self.job.log(
                f"{len(self.hidden)} messages of {self.queue.name} are in flight, and SQS allows no more: those beyond "
                "were not scanned. Narrow the filter, or redrive or delete some of the others first."
            )
            self._empty = _EMPTY
            return False
        self._empty = 0 if received else self._empty + 1
        self._stale = 0 if any(item.message_id not in self._held for item in received) else self._stale + 1
        self._sort([DeadLetterMessage.of(item, self.queue.name) for item in received])
        return self._stale < _STALE

    def _sort(self, messages: Sequence[DeadLetterMessage]) -> None:
        sent = [message for message in messages if message.id in self._sent]
        if sent:  # their delete was lost: they are deleted now, and not sent again
            self._delete(sent)
        new = [message for message in messages if message.id not in self._held]
        self.hidden.add(message for message in messages if message.id not in self._sent)
        self._held.update(message.id for message in messages)
        ready = [message for message in new if self._wanted(message)]
        self._ready.extend(ready)
        self.job.add(
            scanned=sum(message.id not in self._counted for message in new),
            matched=sum(message.id not in self._counted for message in ready),
        )
        self._counted.update(message.id for message in new)

    def _wanted(self, message: DeadLetterMessage) -> bool:
        if message.id in self._sent or message.id in self._rejected:
            return False
        if (
            (self._arrived_before is not None and message.sent >= self._arrived_before)
            or message.id in self._copies
            or message.original_id in self._copies
        ):
            self._late.add(message.id)
            return False
        return (not self._ids or message.id in self._ids) and self._where.matches(message, self._at)

    def sample(self, count: int, choose: Choose) -> list[DeadLetterMessage]:
        self._gather(_SAMPLED)
        chosen = choose(self._heads(self._ready), count)
        ids = {message.id for message in chosen}
        self._ready = deque(message for message in self._ready if message.id not in ids)
        return chosen

    def preview(self, limit: int | None) -> Iterator[DeadLetterMessage]:
        count = 0
        while count != limit and (messages := self.claim(10 if limit is None else min(10, limit - count))):
            count += len(messages)
            yield from messages

    def reject(self, messages: Sequence[DeadLetterMessage]) -> None:
        if self.queue.fifo:
            self.blocked.update(message.group for message in messages)
        self._rejected.update(message.id for message in messages)

    def release(self) -> None:
        self._ready.clear()
        self._held.clear()
        self._empty = self._stale = 0
        self.hidden.release()

    def _renew(self, messages: Sequence[DeadLetterMessage]) -> None:
        """Does nothing: SQS gives a new receipt only when the message is received again; then `_sort` deletes it."""

    def __exit__(self, *exception: object) -> None:
        if self.queue.fifo and self._empty >= _EMPTY and len(self.hidden):
            self._note_those_behind()
        super().__exit__(*exception)
        if self._late:
            self.job.log(f"{len(self._late)} messages arrived after the start and were not touched")

    def _note_those_behind(self) -> None:
        with contextlib.suppress(SqsError):
            name = "ApproximateNumberOfMessages"
            waiting = int(self.queue.attributes(name).get(name, 0))
            if waiting:
                self.job.log(
                    f"about {waiting} messages were not scanned: SQS shows the next message of a FIFO group only when "
                    "those before it are deleted, and some of those were not deleted"
                )
