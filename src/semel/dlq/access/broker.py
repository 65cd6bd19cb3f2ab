"""Messages on Semel's broker, which shows them without a receive; they are claimed by their ids.

A claim scans ahead on a thread of its own. Messages that arrive after its start have later places and are never
reached.
"""

from __future__ import annotations

import contextlib
import queue as queues
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from semel.dlq.access import CLAIM_VISIBILITY, Choose, Lookup, MessageAccess, MessageClaims, Scan, ScanPage
from semel.dlq.filter.parser import EVERYTHING, Filter
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.queues import depth, no_such_queue
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs.client import Queue
from semel.sqs.client.admin import MOST, Admin, AdminError, Page
from semel.sqs.errors import SqsError

_PAGES_AHEAD: Final = 10
_SAMPLED: Final = 10_000  # messages among which a sample is chosen
_NOTHING: Final[dict[str, str]] = {}
_PACKED: Final = frozenset({own_attributes.PACKED, own_attributes.OWN})


class LazyMessage:
    """A peeked message that computes only what a filter reads: of a hundred thousand messages, most are compared once
    and do not match. Every attribute has the value that it has on the whole DeadLetterMessage."""

    __slots__ = ("_queue", "_whole", "body", "error", "id", "reason", "shown")

    def __init__(self, shown: dict[str, Any], queue: str) -> None:
        self.shown, self._queue = shown, queue
        self._whole: DeadLetterMessage | None = None
        self.id: str = shown["MessageId"]
        self.body: str = shown["Body"]
        attributes = shown.get("MessageAttributes")
        if not attributes or not (own_attributes.REASON in attributes or own_attributes.PACKED in attributes):
            self.reason = self.error = ""
            return
        reason = attributes.get(own_attributes.REASON, _NOTHING).get("StringValue")
        attempts = attributes.get(own_attributes.ATTEMPTS, _NOTHING)
        error = attributes.get(own_attributes.ERROR, _NOTHING)
        # The attributes can be used directly only if none is packed and all have the usual form.
        if (
            reason is None
            or "BinaryValue" in error
            or not own_attributes.is_count(attempts.get("StringValue", ""))
            or attributes.keys() & _PACKED
        ):
            self.reason, self.error = self.whole.reason, self.whole.error
        else:
            self.reason, self.error = reason, error.get("StringValue", "")

    @property
    def whole(self) -> DeadLetterMessage:
        if self._whole is None:
            self._whole = DeadLetterMessage.peeked(self.shown, self._queue)
        return self._whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


class BrokerAccess(MessageAccess):
    """Reads pages of a thousand messages, in the order of the queue."""

    receives = False

    def __init__(
        self,
        queue: Queue,
        admin: Admin,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(queue, clock=clock, monotonic=monotonic)
        self._admin = admin

    def now(self) -> float:
        return float(self._admin.health()["now"])

    def _scan(self, wanted: Scan) -> Generator[ScanPage, None, None]:
        if wanted.ids:
            yield from self._scan_ids(wanted)
            return
        where, at = wanted.where, wanted.at
        place: int | None = wanted.after or 0
        end: int | None = None
        scanned, left = 0, wanted.limit
        most = sys.maxsize if wanted.max_scanned is None else wanted.max_scanned
        while place is not None and left != 0 and scanned < most:
            size = min(MOST, most - scanned)
            if where.everything and left is not None:
                size = min(size, left)
            page = self._peek(after=place, limit=size, bodies=wanted.bodies or where.needs_body)
            messages: list[DeadLetterMessage] = []
            place = page.next
            for number, shown in enumerate(page.messages, 1):
                message = LazyMessage(shown, self.queue.name)
                scanned += 1
                if not where.matches(cast(DeadLetterMessage, message), at):
                    continue
                messages.append(message.whole if wanted.bodies else message.whole.shortened())
                if left is not None:
                    left -= 1
                    if left == 0 and number < len(page.messages):
                        place = int(shown["Place"])
                        break
            end = page.end if place is None else place
            yield ScanPage(messages, scanned, place, end, at=at)
        yield ScanPage([], scanned, place, end, complete=place is None, at=at)

    def _scan_ids(self, wanted: Scan) -> Iterator[ScanPage]:
        where, at = wanted.where, wanted.at
        scanned, left = 0, wanted.limit
        for shown in self._by_ids(wanted.ids, bodies=wanted.bodies or where.needs_body):
            if left == 0:
                break
            messages = [message for item in shown if where.matches(message := self._message(item), at)][:left]
            scanned += len(shown)
            left = None if left is None else left - len(messages)
            if messages:
                yield ScanPage(
                    messages if wanted.bodies else [message.shortened() for message in messages], scanned, at=at
                )
        yield ScanPage([], scanned, complete=left != 0, at=at)

    def get(self, id: str, place: int | None = None) -> Lookup:
        if place is not None:
            for shown in self._peek(after=max(0, place - 1), limit=1, ids=[id]).messages:
                return Lookup(self._message(shown))
        for page in self._by_ids([id]):
            for shown in page:
                return Lookup(self._message(shown))
        scanned = 0
        for scan_page in self.scan(bodies=False):
            scanned = scan_page.scanned
            for message in scan_page.messages:
                if message.original_id == id:
                    return Lookup(self.get(message.id, message.place).message, scanned)
        return Lookup(None, scanned)

    def claims(
        self,
        job: Job,
        where: Filter = EVERYTHING,
        *,
        ids: Collection[str] = (),
        until: int | None = None,
        at: float | None = None,
        include_new: bool = False,  # noqa: ARG002 - only SQS needs it
    ) -> BrokerClaims:
        return BrokerClaims(self, job, where, ids, self.now() if at is None else at, until)

    # Asking the broker.

    def _message(self, shown: dict[str, Any]) -> DeadLetterMessage:
        return DeadLetterMessage.peeked(shown, self.queue.name)

    def _by_ids(self, ids: Iterable[str], *, bodies: bool = True) -> Iterator[list[dict[str, Any]]]:
        wanted = list(ids)
        for begin in range(0, len(wanted), MOST):
            place: int | None = 0
            while place is not None:
                page = self._peek(after=place, ids=wanted[begin : begin + MOST], bodies=bodies)
                if page.messages:
                    yield page.messages
                place = page.next

    def _peek(self, **wanted: Any) -> Page:
        try:
            return self._admin.peek(self.queue.name, **wanted)
        except AdminError as error:
            if error.status == 404:
                raise no_such_queue(self.queue) from None
            raise

    # For claims.

    def end(self) -> int:
        """The place of the newest message."""
        return self._peek(limit=1, bodies=False).end

    def candidates(self, where: Filter, ids: Collection[str], end: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Pages of messages that can match, up to the place `end`, in queue order, each with the number scanned."""
        bodies = where.needs_body
        if ids:
            shown = [item for page in self._by_ids(sorted(ids), bodies=bodies) for item in page]
            yield len(shown), sorted(shown, key=lambda item: int(item["Place"]))
            return
        place: int | None = 0
        while place is not None and place < end:
            page = self._peek(after=place, bodies=bodies, word=where.word)
            yield page.scanned, [item for item in page.messages if item["Place"] <= end]
            place = page.next

    def receive(self, ids: Sequence[str], places: Sequence[int] | None = None) -> list[DeadLetterMessage]:
        received = self._admin.receive_ids(self.queue.name, ids, places=places, visibility=CLAIM_VISIBILITY)
        return [DeadLetterMessage.of(item, self.queue.name) for item in received]


class _Match(NamedTuple):
    """A message that matches, as it was when it was scanned."""

    id: str
    place: int
    group: str
    visible: bool

    @classmethod
    def of(cls, shown: dict[str, Any]) -> _Match:
        group = shown["Attributes"].get("MessageGroupId", "")
        return cls(shown["MessageId"], shown["Place"], group, shown["State"] == "visible")


class BrokerClaims(MessageClaims):
    batch = 1_000

    def __init__(
        self, access: BrokerAccess, job: Job, where: Filter, ids: Collection[str], at: float, until: int | None
    ) -> None:
        super().__init__(access, job, where, ids, at)
        self._access = access
        end = access.end()
        self._end = end if until is None else min(end, until)
        self._ahead: queues.Queue[list[_Match] | BaseException | None] = queues.Queue(_PAGES_AHEAD)
        self._matches: deque[_Match] = deque()
        self._scanner: threading.Thread | None = None
        self._stop = threading.Event()
        self._finished = False
        self._in_flight = 0
        if where.everything and not ids and job.total is None:
            job.total = depth(access.queue)

    # Scanning ahead.

    def _matching(self) -> Iterator[tuple[int, list[LazyMessage]]]:
        """How many were scanned, and those that match."""
        for count, page in self._access.candidates(self._where, self._ids, self._end):
            messages = [LazyMessage(shown, self.queue.name) for shown in page]
            if not self._where.everything:
                messages = [lazy for lazy in messages if self._where.matches(cast(DeadLetterMessage, lazy), self._at)]
            yield count, messages

    def _scan(self) -> None:
        try:
            for scanned, page in self._matching():
                self.job.add(scanned=scanned)
                if page:
                    self._put([_Match.of(message.shown) for message in page])
                if self._stop.is_set():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the messages are claimed
            self._put(error)

    def _put(self, item: list[_Match] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._ahead.put(item, timeout=0.2)
            except queues.Full:
                continue
            return

    def preview(self, limit: int | None) -> Iterator[DeadLetterMessage]:
        count = 0
        for _, page in self._matching():
            for message in page:
                if count == limit:
                    return
                count += 1
                yield message.whole

    # Claiming.

    def _next(self, max: int) -> list[_Match]:
        while len(self._matches) < max and not self._finished:
            if self._scanner is None:
                self._scanner = threading.Thread(target=self._scan, name="semel-scan", daemon=True)
                self._scanner.start()
            if self._matches and self._ahead.empty():
                break  # process these rather than wait for more
            item = self._ahead.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                self._finished = True
                self.job.total = self.job.counts.matched
            else:
                self.job.add(matched=sum(match.id not in self._sent for match in item))
                self._matches.extend(item)
        return [self._matches.popleft() for _ in range(min(max, len(self._matches)))]

    def claim(self, max: int) -> list[DeadLetterMessage]:
        while matches := self._next(min(max, MOST)):
            if messages := self._receive(matches):
                return messages
        return []

    def sample(self, count: int, choose: Choose) -> list[DeadLetterMessage]:
        heads = self._heads(self.preview(_SAMPLED))
        chosen = choose([message for message in heads if message.state == "visible"], count)
        self.job.add(matched=len(chosen))
        return self._receive([_Match(message.id, message.place or 0, message.group, True) for message in chosen])

    def _receive(self, matches: Sequence[_Match]) -> list[DeadLetterMessage]:
        wanted, skipped = [], 0
        for match in matches:
            if match.id in self._sent:
                continue
            if not match.visible or match.group in self.blocked:
                self._block(match.group)
                self._in_flight += not match.visible
                skipped += 1
            else:
                wanted.append(match)
        received: dict[str, DeadLetterMessage] = {}
        if wanted:
            messages = self._access.receive([match.id for match in wanted], [match.place for match in wanted])
            received = {message.id: message for message in messages}
        claimed: list[DeadLetterMessage] = []
        behind: list[DeadLetterMessage] = []
        for match in wanted:
            if match.id not in received:  # somebody else was faster
                self._block(match.group)
                self._in_flight += 1
                skipped += 1
            else:
                (behind if match.group in self.blocked else claimed).append(received[match.id])
        self.hidden.add(claimed + behind)
        self.hidden.release(behind)
        if skipped or behind:
            self.job.add(skipped=skipped + len(behind))
        return claimed

    def _block(self, group: str) -> None:
        if self.queue.fifo:
            self.blocked.add(group)

    def reject(self, messages: Sequence[DeadLetterMessage]) -> None:
        for message in messages:
            self._block(message.group)
        self.hidden.release(messages)

    def release(self) -> None:
        self.hidden.release()  # later matches are not claimed yet

    def _renew(self, messages: Sequence[DeadLetterMessage]) -> None:
        """Receives messages with expired receipts again, unless somebody else has them, only to delete them."""
        with contextlib.suppress(SqsError):
            self.hidden.add(self._access.receive([message.id for message in messages]))

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._scanner is not None:
            self._scanner.join()
        super().__exit__(*exception)
        if self._in_flight:
            self.job.log(f"{self._in_flight} messages were in flight (claimed by somebody else) and were left there")
