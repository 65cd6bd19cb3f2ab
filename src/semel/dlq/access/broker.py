"""Taking from Semel's broker: what lies in the queue is looked at, and what matches received by its id.

The looking goes on ahead on a thread of its own. What came after the start has a later place and is not met.
"""

from __future__ import annotations

import queue as queues
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from semel.dlq.access.base import VISIBILITY, Choice, MessageClaims
from semel.dlq.access.lazy_message import LazyMessage
from semel.dlq.access.leases import depth
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client import Queue, Received
from semel.sqs.client.admin import MOST, Admin
from semel.sqs.errors import SqsError

_PAGES_AHEAD: Final = 10
_CANARY_LOOK: Final = 10_000  # letters among which those that go first are chosen


class _Ref(NamedTuple):
    """A letter that matches, as it was seen in the queue."""

    id: str
    place: int
    group: str
    visible: bool


class BrokerClaims(MessageClaims):
    """From Semel's broker."""

    def __init__(
        self, admin: Admin, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(source, choice, job, monotonic)
        self._admin = admin
        # What came later has a later place: nothing that fails again is met a second time.
        end = admin.peek(source.name, limit=1, bodies=False).end
        self._end = end if choice.until is None else min(end, choice.until)
        self._ahead: queues.Queue[list[_Ref] | BaseException | None] = queues.Queue(_PAGES_AHEAD)
        self._refs: deque[_Ref] = deque()
        self._scanner: threading.Thread | None = None
        self._stop = threading.Event()
        self._finished = False
        self._elsewhere = 0  # letters in somebody else's hand
        if choice.where.everything and not choice.ids and job.total is None:
            job.total = depth(source)

    # Looking.

    def _messages(self, *, bodies: bool) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """What lay in the queue at the start and can match, page by page, in the order of the queue; and how many
        were passed for it."""
        if self.choice.ids:
            wanted = sorted(self.choice.ids)
            found: list[dict[str, Any]] = []
            for begin in range(0, len(wanted), MOST):
                found += self._admin.messages(self.source.name, ids=wanted[begin : begin + MOST], bodies=bodies)
            yield len(found), sorted(found, key=lambda message: int(message["Place"]))
            return
        place: int | None = 0
        while place is not None and place < self._end:
            page = self._admin.peek(self.source.name, after=place, bodies=bodies, word=self.choice.where.word)
            met = [message for message in page.messages if message["Place"] <= self._end]
            yield page.looked_at, met
            place = page.next

    def _matching(self) -> Iterator[tuple[int, list[LazyMessage]]]:
        """How many were looked at, and those that match."""
        where, matches = self.choice.where, self.choice.matches
        for count, page in self._messages(bodies=where.needs_body):
            seen = [LazyMessage(message, self.source.name) for message in page]
            yield count, seen if where.everything else [one for one in seen if matches(one)]

    def _scan(self) -> None:
        try:
            for seen, page in self._matching():
                self.job.add(looked_at=seen)
                if page:
                    self._put([_ref(one.message) for one in page])
                if self._stop.is_set():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the letters are taken
            self._put(error)

    def _put(self, found: list[_Ref] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._ahead.put(found, timeout=0.2)
            except queues.Full:
                continue
            return

    def look(self, limit: int | None) -> Iterator[DeadLetterMessage]:
        met = 0
        for _, page in self._matching():
            for one in page:
                if met == limit:
                    return
                met += 1
                yield one.whole

    # Taking.

    def _next(self, most: int) -> list[_Ref]:
        while len(self._refs) < most and not self._finished:
            if self._scanner is None:
                self._scanner = threading.Thread(target=self._scan, name="semel-redrive-scan", daemon=True)
                self._scanner.start()
            if self._refs and self._ahead.empty():
                break  # rather send what there is than wait for more
            found = self._ahead.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                self._finished = True
                self.job.total = self.job.counts.matched
            else:
                self.job.add(matched=sum(ref.id not in self._gone for ref in found))
                self._refs.extend(found)
        return [self._refs.popleft() for _ in range(min(most, len(self._refs)))]

    def take(self, most: int) -> list[DeadLetterMessage]:
        while refs := self._next(min(most, MOST)):
            if messages := self._receive(refs):
                return messages
        return []

    def first(
        self, count: int, choose: Callable[[Sequence[DeadLetterMessage], int], list[DeadLetterMessage]]
    ) -> list[DeadLetterMessage]:
        seen = list(self.look(_CANARY_LOOK))
        chosen = choose([dead_letter for dead_letter in self._heads(seen) if dead_letter.state == "visible"], count)
        wanted = [dead_letter.id for dead_letter in chosen]
        if not wanted:
            return []
        refs = [_ref(message) for message in self._admin.messages(self.source.name, ids=wanted, bodies=False)]
        self.job.add(matched=len(wanted))
        return self._receive(refs)

    def _receive(self, refs: Sequence[_Ref]) -> list[DeadLetterMessage]:
        wanted, skipped = [], 0
        for ref in refs:
            if ref.id in self._gone:
                continue
            if not ref.visible or ref.group in self.blocked:
                self._block(ref.group)
                self._elsewhere += not ref.visible
                skipped += 1
            else:
                wanted.append(ref)
        got: dict[str, Received] = {}
        if wanted:
            ids, places = [ref.id for ref in wanted], [ref.place for ref in wanted]
            received = self._admin.receive_ids(self.source.name, ids, places=places, visibility=VISIBILITY)
            got = {one.message_id: one for one in received}
        taken: list[DeadLetterMessage] = []
        back: list[DeadLetterMessage] = []
        for ref in wanted:
            if ref.id not in got:  # somebody else was faster
                self._block(ref.group)
                self._elsewhere += 1
                skipped += 1
                continue
            message = DeadLetterMessage.of(got[ref.id], self.source.name)
            (back if ref.group in self.blocked else taken).append(message)
        self.hand.add(taken)
        self.hand.add(back)
        self.hand.give_back(back)
        if skipped or back:
            self.job.add(skipped=skipped + len(back))
        return taken

    def _block(self, group: str) -> None:
        if self.source.fifo:
            self.blocked.add(group)

    def refuse(self, messages: Sequence[DeadLetterMessage]) -> None:
        for message in messages:
            self._block(message.group)
        self.hand.give_back(messages)

    def _again(self, messages: Sequence[DeadLetterMessage]) -> Sequence[DeadLetterMessage]:
        """A receipt that has expired: the letter is received anew, if nobody else has it, only to be deleted."""
        try:
            received = self._admin.receive_ids(self.source.name, [message.id for message in messages])
        except SqsError:
            return messages
        self.hand.add(DeadLetterMessage.of(one, self.source.name) for one in received)
        return messages

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._scanner is not None:
            self._scanner.join()
        super().__exit__(*exception)
        if self._elsewhere:
            self.job.say(f"{self._elsewhere} letters were in somebody else's hand, and were left there")


def _ref(message: dict[str, Any]) -> _Ref:
    group = message["Attributes"].get("MessageGroupId", "")
    return _Ref(message["MessageId"], message["Place"], group, message["State"] == "visible")
