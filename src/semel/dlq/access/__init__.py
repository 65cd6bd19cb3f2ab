"""Reads and claims the messages of a queue: on Semel's broker by place and id, on SQS by receiving.

`open_access` picks the back end. The rules of both: a scan changes nothing beyond the cost that it reports; a claim
never takes a message that arrived after it began; in a FIFO group nothing is claimed behind a matching message that
could not be claimed; messages that are claimed and not deleted are released, even after an error.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from semel.dlq.access.hidden_messages import HiddenMessages
from semel.dlq.filter.parser import EVERYTHING, Filter
from semel.dlq.jobs import Job
from semel.dlq.messages import FREE, DeadLetterMessage, ReceiveCost
from semel.dlq.queues import max_receives
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import Admin
from semel.sqs.errors import SqsError
from semel.text import count

MAX_RECEIVE: Final = 1_000  # messages that one scan receives
CLAIM_VISIBILITY: Final = 120  # seconds; extended while the claim lasts
RECEIVE_TOO: Final = "repeat the request with receive=1 to receive them anyway"  # what the JSON API suggests

Choose = Callable[[Sequence[DeadLetterMessage], int], list[DeadLetterMessage]]


class PeekRisk(SemelError):
    """Reading messages means receiving them, and this queue moves messages that were received too often to its own
    dead-letter queue. Allow it with `receive=True` if messages may be moved."""


def refuse_risk(queue: Queue) -> None:
    """Raises PeekRisk."""
    limit = max_receives(queue.attributes("RedrivePolicy"))
    if limit is not None:
        raise PeekRisk(
            f"queue {queue.name} moves messages to its own dead-letter queue after {limit} receives, and on SQS "
            "reading a message is a receive: it may move messages that are close to that limit"
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """The arguments of `MessageAccess.scan`."""

    where: Filter
    after: int | None
    limit: int | None
    max_scanned: int | None
    bodies: bool
    ids: Collection[str]
    at: float


@dataclass(frozen=True, slots=True)
class ScanPage:
    """Messages that match, and totals since the scan began. The last page of a scan has no messages."""

    messages: list[DeadLetterMessage]
    scanned: int = 0
    next: int | None = None  # what to pass as `after` to continue; None at the end, and on SQS
    end: int | None = None  # the place in the queue that the scan has reached; only on Semel's broker
    complete: bool = False  # whether all of the queue was scanned
    cost: ReceiveCost = FREE
    notes: tuple[str, ...] = ()
    at: float = 0.0  # the time that the filter used as the current time


@dataclass(frozen=True, slots=True)
class Lookup:
    """One message, if it is there, and what it cost to find it."""

    message: DeadLetterMessage | None
    scanned: int = 0
    cost: ReceiveCost = FREE
    notes: tuple[str, ...] = ()


class MessageClaims(ABC):
    """Claims messages in the order of the queue, each once. A claim ends with `delete`, `reject` or `release`; the rest
    is released at the end of the context."""

    batch: int  # messages to claim at a time; nobody else can receive them meanwhile

    def __init__(self, access: MessageAccess, job: Job, where: Filter, ids: Collection[str], at: float) -> None:
        self.queue, self.job = access.queue, job
        self._where, self._ids, self._at = where, frozenset(ids), at
        self.hidden = HiddenMessages(access.queue, CLAIM_VISIBILITY, access.monotonic)
        self.blocked: set[str] = set()  # FIFO groups in which a message had to stay
        self._sent: set[str] = set()  # ids: if a delete is lost, the message may be received again
        self._copies: set[str] = set()

    @abstractmethod
    def claim(self, max: int) -> list[DeadLetterMessage]:
        """Claims up to `max` messages. If it returns none, there are no more."""

    @abstractmethod
    def sample(self, count: int, choose: Choose) -> list[DeadLetterMessage]:
        """Claims the messages that `choose` picks from a larger number: of a FIFO group only the first one."""

    @abstractmethod
    def preview(self, limit: int | None) -> Iterator[DeadLetterMessage]:
        """The messages that would be claimed."""

    @abstractmethod
    def reject(self, messages: Sequence[DeadLetterMessage]) -> None:
        """Leaves messages that cannot be processed in the queue; they are not claimed again."""

    @abstractmethod
    def release(self) -> None:
        """Makes all claimed messages visible again while the job pauses; they may be claimed again later."""

    def mark_sent(self, messages: Iterable[DeadLetterMessage], copies: Iterable[str] = ()) -> None:
        """Call after copies were sent, with their MessageIds: neither the messages nor the copies are claimed again."""
        self._sent.update(message.id for message in messages)
        self._copies.update(copies)

    def delete(self, messages: Sequence[DeadLetterMessage]) -> list[DeadLetterMessage]:
        """Deletes them from the queue; returns those that could not be deleted."""
        left = self._delete(messages)
        if left:
            self._renew(left)
            left = self._delete(left)
        self.hidden.remove(messages)
        return left

    def _delete(self, messages: Sequence[DeadLetterMessage]) -> list[DeadLetterMessage]:
        if not messages:
            return []
        try:
            outcomes = self.queue.delete([self.hidden.receipt_of(message) for message in messages])
        except SqsError:
            return list(messages)
        return [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is not None]

    @abstractmethod
    def _renew(self, messages: Sequence[DeadLetterMessage]) -> None:
        """Gets newer receipts, if that is possible."""

    def log_missing(self) -> None:
        """Logs how many of the ids that select messages belong to none. Call it when there are no more messages."""
        if missing := len(self._ids) - self.job.counts.matched:
            self.job.log(f"not in {self.queue.name}, or in flight: {missing} of {count(len(self._ids), 'id')}")

    def checkpoint(self) -> None:
        """The job's checkpoint; while the job is paused, nothing is claimed."""
        self.job.checkpoint(self.release)

    def __enter__(self) -> Self:
        self.hidden.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hidden.__exit__()
        if self.hidden.released:
            self.job.add(released=self.hidden.released)

    def _heads(self, messages: Iterable[DeadLetterMessage]) -> list[DeadLetterMessage]:
        """The first message of each FIFO group that is not blocked; all messages of a Standard queue."""
        if not self.queue.fifo:
            return list(messages)
        groups = set(self.blocked)
        heads = []
        for message in messages:
            if message.group not in groups:
                groups.add(message.group)
                heads.append(message)
        return heads


class MessageAccess(ABC):
    """The messages of one queue."""

    receives: bool  # whether reading a message means receiving it

    def __init__(self, queue: Queue, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.queue = queue
        self._clock, self.monotonic = clock, monotonic

    @abstractmethod
    def now(self) -> float:
        """The current time, by the clock that timestamps the messages."""

    def scan(
        self,
        where: Filter = EVERYTHING,
        *,
        after: int | None = None,
        limit: int | None = None,
        max_scanned: int | None = None,
        bodies: bool = True,
        ids: Collection[str] = (),
        at: float | None = None,
    ) -> Generator[ScanPage, None, None]:
        """Messages that match: at most `limit`, from at most `max_scanned`. Without `bodies`, bodies are shortened.
        With `ids`, only these messages. `at` is the filter's current time, by default now. A page may have no messages.
        Close the generator if you leave it early, so that it releases what it received."""
        at = self.now() if at is None else at
        return self._scan(Scan(where, after, limit, max_scanned, bodies, ids, at))

    @abstractmethod
    def _scan(self, wanted: Scan) -> Generator[ScanPage, None, None]: ...

    @abstractmethod
    def get(self, id: str, place: int | None = None) -> Lookup:
        """A message by its MessageId here or in the source queue. This is faster with its `place`."""

    @abstractmethod
    def claims(
        self,
        job: Job,
        where: Filter = EVERYTHING,
        *,
        ids: Collection[str] = (),
        until: int | None = None,
        at: float | None = None,
        include_new: bool = False,
    ) -> MessageClaims:
        """Claims on messages that are in the queue now and match, or have these ids; with `until`, none behind that
        place. `at` is the filter's current time. `include_new`: on SQS, also messages that arrive from now on."""


def open_access(
    client: Client,
    queue: str | Queue,
    *,
    clock: Callable[[], float] = time.time,
    max_receive: int = MAX_RECEIVE,
    accept_risk: bool = False,
) -> MessageAccess:
    """The back end for the client's endpoint. On SQS, `max_receive` limits how many messages one scan receives, and
    without `accept_risk` a queue with a RedrivePolicy of its own is not read (PeekRisk)."""
    from semel.dlq.access.broker import BrokerAccess
    from semel.dlq.access.sqs import SqsAccess

    source = client.queue(queue)
    admin = Admin.of(client)
    if admin is not None:
        return BrokerAccess(source, admin, clock=clock)
    return SqsAccess(source, clock=clock, max_receive=max_receive, accept_risk=accept_risk)
