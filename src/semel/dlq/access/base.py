"""What every way of taking letters promises; see `taking`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self, cast

from semel.dlq.access.lazy_message import Glance
from semel.dlq.access.leases import Hand
from semel.dlq.jobs import Job
from semel.dlq.model import DeadLetter
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
    def matches(self, letter: DeadLetter, now: float) -> bool: ...


class Choice(NamedTuple):
    """Which letters are wanted; `started` is when the redrive began, by the clock that stamps messages. `until`: none
    past this place in the queue, where there are places."""

    where: Matcher
    ids: frozenset[str]
    started: float
    until: int | None = None

    def matches(self, letter: DeadLetter | Glance) -> bool:
        return (not self.ids or letter.id in self.ids) and self.where.matches(cast(DeadLetter, letter), self.started)


class Taker(ABC):
    """Letters come into hand by `take` and leave it by `sent`, `refuse`, or at the end, when the rest is given back."""

    def __init__(self, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float]) -> None:
        self.source, self.choice, self.job = source, choice, job
        self.hand = Hand(source, VISIBILITY, monotonic)
        self.blocked: set[str] = set()  # FIFO groups of which a letter had to stay
        self._gone: set[str] = set()  # ids that were sent: a delete may fail, and the letter be seen again

    @abstractmethod
    def take(self, most: int) -> list[DeadLetter]:
        """Up to so many, now in hand. None at all: there are no more."""

    @abstractmethod
    def first(self, count: int, choose: Callable[[Sequence[DeadLetter], int], list[DeadLetter]]) -> list[DeadLetter]:
        """Takes those that `choose` picks from a good number of letters; of a FIFO group only the first may be."""

    @abstractmethod
    def look(self, limit: int | None) -> Iterator[DeadLetter]:
        """Those that would be taken. Where looking is receiving, they are given back at the end."""

    @abstractmethod
    def refuse(self, letters: Sequence[DeadLetter]) -> None:
        """They were taken and cannot be sent: they stay in the queue, and do not come again."""

    def sent(self, letters: Sequence[DeadLetter]) -> None:
        """A copy of each is under way: whatever happens now, none of them is sent again."""
        self._gone.update(letter.id for letter in letters)

    def delete(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Deletes them from the queue; returns those that could not be, after all attempts."""
        left = self._delete(letters)
        if left:
            left = self._delete(self._again(left))
        self.hand.drop(letters)
        return left

    def _delete(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        if not letters:
            return []
        try:
            outcomes = self.source.delete([self.hand.receipt_of(letter) for letter in letters])
        except SqsError:
            return list(letters)
        return [letter for letter, outcome in zip(letters, outcomes, strict=True) if outcome is not None]

    def _again(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Gets newer receipts, where those can be had."""
        return letters

    def __enter__(self) -> Self:
        self.hand.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hand.__exit__()
        if self.hand.given_back:
            self.job.add(given_back=self.hand.given_back)

    def _heads(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those before which none of the same FIFO group stands."""
        if not self.source.fifo:
            return list(letters)
        met: set[str] = set()
        found = []
        for letter in letters:
            if letter.group not in met and letter.group not in self.blocked:
                found.append(letter)
            met.add(letter.group)
        return found
