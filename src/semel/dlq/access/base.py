"""What every way of taking letters promises; see `taking`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self, cast

from semel.dlq.access.lazy_message import LazyMessage
from semel.dlq.access.leases import Leases
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client import Queue
from semel.sqs.errors import SqsError

VISIBILITY: Final = 120  # seconds that a letter is hidden for, until it is extended


class Matcher(Protocol):
    """A filter, as `semel.dlq.filter.parser` makes them."""

    @property
    def everything(self) -> bool: ...
    @property
    def needs_body(self) -> bool: ...
    @property
    def word(self) -> str | None: ...
    def matches(self, message: DeadLetterMessage, now: float) -> bool: ...


class Choice(NamedTuple):
    """Which letters are wanted; `started` is when the redrive began, by the clock that stamps messages. `until`: none
    past this place in the queue, where there are places."""

    where: Matcher
    ids: frozenset[str]
    started: float
    until: int | None = None

    def matches(self, message: DeadLetterMessage | LazyMessage) -> bool:
        return (not self.ids or message.id in self.ids) and self.where.matches(
            cast(DeadLetterMessage, message), self.started
        )


class MessageClaims(ABC):
    """Letters come into hand by `take` and leave it by `sent`, `refuse`, or at the end, when the rest is given back."""

    def __init__(self, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float]) -> None:
        self.source, self.choice, self.job = source, choice, job
        self.hand = Leases(source, VISIBILITY, monotonic)
        self.blocked: set[str] = set()  # FIFO groups of which a letter had to stay
        self._gone: set[str] = set()  # ids that were sent: a delete may fail, and the letter be seen again

    @abstractmethod
    def take(self, most: int) -> list[DeadLetterMessage]:
        """Up to so many, now in hand. None at all: there are no more."""

    @abstractmethod
    def first(
        self, count: int, choose: Callable[[Sequence[DeadLetterMessage], int], list[DeadLetterMessage]]
    ) -> list[DeadLetterMessage]:
        """Takes those that `choose` picks from a good number of letters; of a FIFO group only the first may be."""

    @abstractmethod
    def look(self, limit: int | None) -> Iterator[DeadLetterMessage]:
        """Those that would be taken. Where looking is receiving, they are given back at the end."""

    @abstractmethod
    def refuse(self, messages: Sequence[DeadLetterMessage]) -> None:
        """They were taken and cannot be sent: they stay in the queue, and do not come again."""

    def sent(self, messages: Sequence[DeadLetterMessage]) -> None:
        """A copy of each is under way: whatever happens now, none of them is sent again."""
        self._gone.update(message.id for message in messages)

    def delete(self, messages: Sequence[DeadLetterMessage]) -> list[DeadLetterMessage]:
        """Deletes them from the queue; returns those that could not be, after all attempts."""
        left = self._delete(messages)
        if left:
            left = self._delete(self._again(left))
        self.hand.drop(messages)
        return left

    def _delete(self, messages: Sequence[DeadLetterMessage]) -> list[DeadLetterMessage]:
        if not messages:
            return []
        try:
            outcomes = self.source.delete([self.hand.receipt_of(message) for message in messages])
        except SqsError:
            return list(messages)
        return [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is not None]

    def _again(self, messages: Sequence[DeadLetterMessage]) -> Sequence[DeadLetterMessage]:
        """Gets newer receipts, where those can be had."""
        return messages

    def __enter__(self) -> Self:
        self.hand.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hand.__exit__()
        if self.hand.given_back:
            self.job.add(given_back=self.hand.given_back)

    def _heads(self, messages: Sequence[DeadLetterMessage]) -> list[DeadLetterMessage]:
        """Those before which none of the same FIFO group stands."""
        if not self.source.fifo:
            return list(messages)
        met: set[str] = set()
        found = []
        for message in messages:
            if message.group not in met and message.group not in self.blocked:
                found.append(message)
            met.add(message.group)
        return found
