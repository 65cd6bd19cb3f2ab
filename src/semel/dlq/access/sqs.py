"""Taking letters into hand: those that match, each once, in the order of the queue, and none that came after the start.

Two ways. Semel's broker shows what lies in the queue, and the letters that match are received by their ids: the others
are not touched. SQS gives only whatever is next: what does not match is kept hidden until the end and then given back.
In a FIFO group nothing is taken past a matching letter that could not be taken: order is worth more than speed.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Self

from semel.dlq.access.base import VISIBILITY
from semel.dlq.access.base import Choice as Choice
from semel.dlq.access.base import Matcher as Matcher
from semel.dlq.access.base import MessageClaims as MessageClaims
from semel.dlq.access.broker import BrokerClaims
from semel.dlq.access.leases import redrive_policy
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import Admin
from semel.sqs.errors import OverLimit, SqsError

_CANARY_TAKE: Final = 100  # letters among which those that go first are chosen
_EMPTY: Final = 2  # empty receives in a row that are the end of a queue
_STALE: Final = 100  # receives in a row that bring only what was here before
_WAIT: Final = 1  # seconds: a receive that waits asks all of SQS's servers
# SQS hides no more than 120,000 messages of a queue; a few are left for others.
MAX_HELD: Final = 110_000


class SqsClaims(MessageClaims):
    """From SQS itself, or from anything that speaks like it."""

    def __init__(
        self,
        source: Queue,
        choice: Choice,
        job: Job,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        wait: int = _WAIT,
        max_held: int = MAX_HELD,
    ) -> None:
        super().__init__(source, choice, job, monotonic)
        self._wait, self._max_held = wait, max_held
        self._ready: deque[DeadLetterMessage] = deque()  # in hand, and not yet taken
        self._empty = self._stale = 0
        self._seen: set[str] = set()
        self._late = 0
        self.copies: Collection[str] = frozenset()  # MessageIds of what was sent: back here, they are not ours to take

    def __enter__(self) -> Self:
        if limit := redrive_policy(self.source).get("maxReceiveCount"):
            self.job.say(
                f"{self.source.name} moves messages on when they were received {limit} times, and each look at one is "
                "a receive here"
            )
        return super().__enter__()

    def take(self, most: int) -> list[DeadLetterMessage]:
        while True:
            self._gather(most)
            taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            stay = [message for message in taken if message.group in self.blocked]
            if stay:
                self.job.add(skipped=len(stay))
                self.hand.rest(stay)
            if len(stay) < len(taken) or not taken:
                return [message for message in taken if message.group not in self.blocked]

    def _gather(self, most: int) -> None:
        """Receives until so many are ready. Rather fewer than to wait: in a FIFO queue the next come when these go."""
        while len(self._ready) < most and self._more() and not (self._empty and self._ready):
            pass
        if self._ready:
            self._empty = 0

    def _more(self) -> bool:
        """Receives once. False: there is nothing more to be had."""
        if self._empty >= _EMPTY or (self.choice.ids and self.choice.ids <= self._seen):
            return False
        try:
            if len(self.hand) >= self._max_held:
                raise OverLimit("")
            received = self.source.receive(wait=self._wait, visibility=VISIBILITY)
        except OverLimit:
            self.job.say(
                f"{len(self.hand)} letters of {self.source.name} are hidden at once, and SQS hides no more: "
                "those beyond were not looked at. Narrow the filter, or send back or drop some of the others first."
            )
            self._empty = _EMPTY
            return False
        self._empty = 0 if received else self._empty + 1
        self._stale = 0 if any(one.message_id not in self._seen for one in received) else self._stale + 1
        self._sort([DeadLetterMessage.of(one, self.source.name) for one in received])
        return self._stale < _STALE

    def _sort(self, messages: Sequence[DeadLetterMessage]) -> None:
        old = [message for message in messages if message.id in self._gone]
        if old:  # its delete was lost: what is sent already is not sent again
            self._delete(old)
        new = [message for message in messages if message.id not in self._seen]
        self.hand.add(message for message in messages if message.id not in self._gone)
        self._seen.update(message.id for message in messages)
        unwanted = []
        for message in new:
            if self._came_later(message):
                self._late += 1
                unwanted.append(message)
            elif self.choice.matches(message):
                self._ready.append(message)
            else:
                unwanted.append(message)
        self.hand.rest(unwanted)
        self.job.add(looked_at=len(new), matched=len(new) - len(unwanted))

    def _came_later(self, message: DeadLetterMessage) -> bool:
        return message.sent >= self.choice.started or message.id in self.copies or message.original_id in self.copies

    def first(
        self, count: int, choose: Callable[[Sequence[DeadLetterMessage], int], list[DeadLetterMessage]]
    ) -> list[DeadLetterMessage]:
        self._gather(_CANARY_TAKE)
        chosen = choose(self._heads(self._ready), count)
        wanted = {message.id for message in chosen}
        self._ready = deque(message for message in self._ready if message.id not in wanted)
        return chosen

    def look(self, limit: int | None) -> Iterator[DeadLetterMessage]:
        met = 0
        while met != limit and (messages := self.take(10 if limit is None else min(10, limit - met))):
            met += len(messages)
            self.hand.rest(messages)
            yield from messages

    def refuse(self, messages: Sequence[DeadLetterMessage]) -> None:
        if self.source.fifo:
            self.blocked.update(message.group for message in messages)
        self.hand.rest(messages)

    def __exit__(self, *exception: object) -> None:
        if self.source.fifo and self._empty >= _EMPTY and len(self.hand):
            self._tell_of_those_behind()
        super().__exit__(*exception)
        if self._late:
            self.job.say(f"{self._late} letters came after the start and were not touched")

    def _tell_of_those_behind(self) -> None:
        with contextlib.suppress(SqsError):
            name = "ApproximateNumberOfMessages"
            waiting = int(self.source.attributes(name).get(name, 0))
            if waiting:
                self.job.say(
                    f"about {waiting} letters were not looked at: SQS shows the next of a FIFO group only when those "
                    "before it are gone, and letters that stay stand before them"
                )


def taker(
    client: Client, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float] = time.monotonic
) -> MessageClaims:
    """The way that the endpoint allows."""
    admin = Admin.of(client)
    if admin is not None:
        return BrokerClaims(admin, source, choice, job, monotonic)
    return SqsClaims(source, choice, job, monotonic)
