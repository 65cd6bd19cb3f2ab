"""Looking at letters. Two ways, one interface: the broker shows them as they lie; SQS shows only what is received.

The rules of the second way: everything is given back, also after an error or Ctrl-C; a look takes no more than it may,
keeps what it has hidden until it is over so that nothing comes twice, and says what it cost. Order is kept: a FIFO
queue's messages go back last one first, so that no group can be received from before its first one is there.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, Final

from semel.dlq.filter.parser import EVERYTHING, Filter
from semel.dlq.messages import DeadLetterMessage, ReceiveCost
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import MOST, Admin, AdminError, Page
from semel.sqs.client.messages import Received
from semel.sqs.errors import OverLimit, QueueNotFound

LOOKED_AT: Final = 1_000  # by receiving, unless somebody asks for more
VISIBILITY: Final = 30  # seconds
_WAIT: Final = 1  # seconds of a long poll: a short one asks only some of SQS's servers
_EMPTY: Final = 2  # empty receives that are the end
CUT: Final = 200  # characters of a body that is not wanted
RECEIVE_TOO: Final = "ask again with receive=1 to look all the same"  # how the JSON API answers to a PeekRisk


class PeekRisk(SemelError):
    """Looking would count against messages that are moved away when they were received too often."""


class NoSuchQueue(SemelError):
    """There is no such queue."""


def no_such_queue(queue: Queue) -> NoSuchQueue:
    return NoSuchQueue(
        f"there is no queue {queue.name} at {queue.client.endpoint}; `semel dlq ls` shows those that there are"
    )


class Peeker(ABC):
    """One look at a time. After or during it: `cost`, `looked_at`, `complete`, `next`, `notes`."""

    free: bool  # whether looking counts no receives

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self.client = client
        self.clock = clock
        self._begin()

    def _begin(self) -> None:
        self.at = self.clock()  # by which messages of a broker are judged
        self.cost = ReceiveCost()
        self.looked_at = 0
        self.complete = False  # whether all of the queue was looked at
        self.next: str | None = None
        self.end: int | None = None  # the place that it came to, where there are places
        self.notes: list[str] = []

    @abstractmethod
    def pages(
        self,
        queue: str,
        *,
        where: Filter = EVERYTHING,
        limit: int | None = None,
        after: str | None = None,
        bodies: bool = True,
        most: int | None = None,
        ids: Collection[str] = (),
    ) -> Iterator[list[DeadLetterMessage]]:
        """Letters that match, at most `limit`, while at most `most` are looked at. Close it when it is left early.

        Without `bodies` each is cut to its beginning. With `ids`, only those with these MessageIds."""

    @abstractmethod
    def one(self, queue: str, id: str) -> DeadLetterMessage | None:
        """The letter with this MessageId, or with this one before it became a letter."""


def peeker(
    client: Client, *, clock: Callable[[], float] = time.time, most: int = LOOKED_AT, accept_risk: bool = False
) -> Peeker:
    """The way that the client's endpoint allows. `most` bounds what is received; `accept_risk`: see PeekRisk."""
    admin = Admin.of(client)
    if admin is not None:
        return BrokerPeeker(client, admin, clock)
    return ReceivingPeeker(client, clock, most=most, accept_risk=accept_risk)


def shortened(message: DeadLetterMessage) -> DeadLetterMessage:
    if message.cut or len(message.body) <= CUT:
        return message
    return replace(message, body=message.body[:CUT], cut=True)


class BrokerPeeker(Peeker):
    """Semel's broker: pages of a thousand, in the order of the queue, and nothing is received."""

    free = True

    def __init__(self, client: Client, admin: Admin, clock: Callable[[], float] = time.time) -> None:
        super().__init__(client, clock)
        self._admin = admin

    def pages(
        self,
        queue: str,
        *,
        where: Filter = EVERYTHING,
        limit: int | None = None,
        after: str | None = None,
        bodies: bool = True,
        most: int | None = None,
        ids: Collection[str] = (),
    ) -> Iterator[list[DeadLetterMessage]]:
        from semel.dlq.access.lazy_message import LazyMessage  # which is made of what is here

        self._begin()
        name, now = self.client.queue(queue).name, self.at
        if ids:
            yield from self._named(name, where, limit, bodies, list(ids))
            return
        place: int | None = _place(after)
        left = limit
        whole = bodies or where.needs_body
        while place is not None and left != 0 and (most is None or self.looked_at < most):
            size = MOST if most is None else min(MOST, most - self.looked_at)
            if where.everything and left is not None:
                size = min(size, left)
            page = self._page(name, after=place, limit=size, bodies=whole)
            found: list[DeadLetterMessage] = []
            place = page.next
            for number, message in enumerate(page.messages, 1):
                glance = LazyMessage(message, name)
                self.looked_at += 1
                if not where.matches(glance, now):
                    continue
                found.append(glance.whole if bodies else shortened(glance.whole))
                if left is not None:
                    left -= 1
                    if left == 0 and number < len(page.messages):
                        place = int(message["Place"])
                        break
            self.next = None if place is None else str(place)
            self.end = page.end if place is None else place
            if found:
                yield found
        self.complete = self.next is None

    def _named(
        self, queue: str, where: Filter, limit: int | None, bodies: bool, ids: list[str]
    ) -> Iterator[list[DeadLetterMessage]]:
        left, now = limit, self.clock()
        for begin in range(0, len(ids), MOST):
            place: int | None = 0
            while place is not None and left != 0:
                page = self._page(queue, after=place, ids=ids[begin : begin + MOST], bodies=bodies or where.needs_body)
                self.looked_at += len(page.messages)
                messages = [peeked(message, queue) for message in page.messages]
                found = [one if bodies else shortened(one) for one in messages if where.matches(one, now)][:left]
                left = None if left is None else left - len(found)
                if found:
                    yield found
                place = page.next
        self.complete = left != 0

    def one(self, queue: str, id: str) -> DeadLetterMessage | None:
        self._begin()
        name = self.client.queue(queue).name
        for message in self._page(name, ids=[id]).messages:
            return peeked(message, name)
        # Perhaps its id in the queue that it came from.
        for page in self.pages(name, bodies=False):
            for dead_letter in page:
                if dead_letter.original_id == id:
                    return peeked(self._page(name, ids=[dead_letter.id]).messages[0], name)
        return None

    def _page(self, queue: str, **wanted: Any) -> Page:
        try:
            return self._admin.peek(queue, **wanted)
        except AdminError as error:
            if error.status == 404:
                raise no_such_queue(self.client.queue(queue)) from None
            raise


def peeked(message: dict[str, Any], queue: str) -> DeadLetterMessage:
    """A letter from what the broker's admin interface shows of a message."""
    known: dict[str, Any] = {
        "state": message.get("State", ""),
        "expires": message.get("ExpiresAt"),
        "visible_at": message.get("VisibleAt"),
    }
    if "BodyBytes" in message:
        known["body_bytes"] = message["BodyBytes"]
        known["cut"] = message["BodyBytes"] > len(message["Body"].encode("utf-8", "surrogatepass"))
    return DeadLetterMessage.of(Received.from_wire({**message, "ReceiptHandle": ""}), queue, **known)


def _place(after: str | None) -> int:
    try:
        return int(after or 0)
    except ValueError:
        raise SemelError(f"after={after!r} is no place in a queue: pass the `next` of an earlier answer") from None


class ReceivingPeeker(Peeker):
    """SQS: received with a short visibility, and given back."""

    free = False

    def __init__(
        self,
        client: Client,
        clock: Callable[[], float] = time.time,
        *,
        most: int = LOOKED_AT,
        visibility: int = VISIBILITY,
        wait: int = _WAIT,
        accept_risk: bool = False,
    ) -> None:
        super().__init__(client, clock)
        self._most, self._visibility, self._wait = most, visibility, wait
        self._accept_risk = accept_risk

    def pages(
        self,
        queue: str,
        *,
        where: Filter = EVERYTHING,
        limit: int | None = None,
        after: str | None = None,
        bodies: bool = True,
        most: int | None = None,
        ids: Collection[str] = (),
    ) -> Iterator[list[DeadLetterMessage]]:
        if after:
            raise SemelError(f"queue {queue}: SQS has no places in a queue to go on from; ask for more at once instead")
        self._begin()
        source = self.client.queue(queue)
        try:
            if not self._accept_risk:
                refuse_risk(source)
        except QueueNotFound:
            raise no_such_queue(source) from None
        most = self._most if most is None else most
        held = _Held(source, self._visibility, self.clock)
        wanted = frozenset(ids)
        if wanted:
            limit = len(wanted) if limit is None else min(limit, len(wanted))
        try:
            for received in self._receive(source, held, most):
                now = self.clock()
                messages = [DeadLetterMessage.of(one, source.name) for one in received]
                found = [
                    one if bodies else shortened(one)
                    for one in messages
                    if (not wanted or one.id in wanted) and where.matches(one, now)
                ]
                if limit is not None:
                    found, limit = found[:limit], max(0, limit - len(found))
                if found:
                    yield found
                if limit == 0:
                    break
            else:
                self._note_end(source, most)
        finally:
            kept_back = held.give_back()
            self.cost = replace(self.cost, kept_back=kept_back)

    def _receive(self, source: Queue, held: _Held, most: int) -> Iterator[list[Received]]:
        empty = 0
        while empty < _EMPTY and self.looked_at < most:
            held.prolong()
            try:
                got = source.receive(min(10, most - self.looked_at), self._wait, visibility=self._visibility)
            except OverLimit:
                self.notes.append("SQS hides no more messages at once than these; those beyond were not looked at")
                return
            self.cost = replace(self.cost, receives=self.cost.receives + 1, messages=self.cost.messages + len(got))
            empty = 0 if got else empty + 1
            new = held.take(got)
            self.looked_at += len(new)
            if new:
                yield new

    def _note_end(self, source: Queue, most: int) -> None:
        if self.looked_at >= most:
            self.notes.append(f"only {most:,} messages were looked at")
            return
        waiting = int(source.attributes("ApproximateNumberOfMessages").get("ApproximateNumberOfMessages", "0"))
        if waiting and source.fifo:
            self.notes.append(
                f"about {waiting:,} more are behind these in their groups: SQS shows the next of a FIFO group only "
                "when those before it are deleted"
            )
        elif waiting:
            self.notes.append(f"about {waiting:,} more are there, which SQS did not show")
        else:
            self.complete = not self.notes

    def one(self, queue: str, id: str) -> DeadLetterMessage | None:
        pages = self.pages(queue)
        try:
            for page in pages:
                for message in page:
                    if id in (message.id, message.original_id):
                        return message
            return None
        finally:
            pages.close()  # type: ignore[attr-defined]


class _Held:
    """What is hidden from others while a look goes on, in the order in which it came."""

    def __init__(self, queue: Queue, visibility: int, clock: Callable[[], float]) -> None:
        self._queue, self._visibility, self._clock = queue, visibility, clock
        self._receipts: dict[str, str] = {}  # by message id
        self._since = clock()

    def take(self, received: list[Received]) -> list[Received]:
        """Those that were not here before; of the others the newer receipt counts."""
        new = [one for one in received if one.message_id not in self._receipts]
        for one in received:
            self._receipts[one.message_id] = one.receipt
        return new

    def prolong(self) -> None:
        if self._receipts and self._clock() - self._since > self._visibility / 3:
            self._since = self._clock()
            self._queue.change_visibility([(receipt, self._visibility) for receipt in self._receipts.values()])

    def give_back(self) -> int:
        """How many could not be: they come back by themselves."""
        if not self._receipts:
            return 0
        receipts = list(self._receipts.values())
        self._receipts.clear()
        if self._queue.fifo:
            receipts.reverse()
        try:
            outcomes = self._queue.change_visibility([(receipt, 0) for receipt in receipts])
        except SemelError:
            return len(receipts)
        return sum(outcome is not None and not outcome.gone for outcome in outcomes)


def own_limit(queue: Queue) -> int | None:
    """After how many receives a queue's messages are moved on; None if they are not."""
    try:
        policy = json.loads(queue.attributes("RedrivePolicy").get("RedrivePolicy") or "{}")
        return int(policy["maxReceiveCount"])
    except (ValueError, KeyError, TypeError):
        return None


def refuse_risk(queue: Queue) -> None:
    receives = own_limit(queue)
    if receives is not None:
        raise PeekRisk(
            f"queue {queue.name} moves its messages on after {receives} receives, and SQS counts each look as one: "
            "looking may move those that are near that"
        )
