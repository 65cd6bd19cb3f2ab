"""Sends messages back: first the copy is sent, then the message is deleted, never the other way round.

The rules: a message is deleted only after SQS has accepted the copy. A copy has the message's key, or its first
MessageId as its key; on FIFO queues it has a deduplication id made from the message's id, so that a second run within
five minutes sends nothing twice. In a FIFO group each message is sent only after the one before it was accepted: no
call has two of a group.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from semel.dlq.access import MessageClaims
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.queues import source_urls
from semel.dlq.redrive.outcomes import Returns, SentBack
from semel.errors import SemelError
from semel.messages import dead_letter_attributes as attributes
from semel.sqs.client import Client, Entry, Failure, Queue, Sent
from semel.sqs.errors import AccessDenied
from semel.sqs.limits import MAX_BATCH_ENTRIES

FAILURES_KEPT: Final = 100
T = TypeVar("T")
Crash = Callable[[str], None]


class NoTarget(SemelError):
    """The source queue of a message is not known, or only the message itself names it. Choose the target queue with
    `to`."""


class Targets:
    """Where messages go: all to one queue, or each to its source queue.

    SQS decides what the source is, not the message: otherwise anybody who may send to one queue could make an operator
    send to another. What a message says counts only if SQS lists that queue as a source of this dead-letter queue."""

    def __init__(self, client: Client, source: Queue, to: str) -> None:
        self._client, self._source = client, source
        self._to = self._checked(client.queue(to)) if to else None
        if self._to is not None:
            _ = self._to.url  # fails before anything is claimed if there is no such queue
        self._known: dict[str, Queue] = {}
        self._listed: dict[str, str] | None = None

    def of(self, message: DeadLetterMessage) -> Queue:
        """Raises NoTarget."""
        if self._to is not None:
            return self._to
        reference = message.moved_from or self._listed_source(message.source)
        if reference not in self._known:
            self._known[reference] = self._checked(self._client.queue(reference))
        return self._known[reference]

    def _listed_source(self, name: str) -> str:
        """The URL of the source queue of this name, or of the only one if the message names none."""
        sources = self._sources()
        if name in sources:
            return sources[name]
        if name:
            raise NoTarget(
                f"the message says that it came from {name!r}, but {self._source.name} is not the dead-letter queue of "
                f"that queue, so it is not sent there; name the queue that it goes to with --to"
            )
        if len(sources) != 1:
            raise NoTarget(
                f"the source queue of messages in {self._source.name} is not known: name the queue that they go to "
                "with --to"
            )
        return next(iter(sources.values()))

    def _sources(self) -> dict[str, str]:
        """The queues that have this one as their dead-letter queue: URLs by name."""
        if self._listed is None:
            try:
                self._listed = source_urls(self._source)
            except AccessDenied as error:
                raise NoTarget(
                    f"the source queues of {self._source.name} cannot be listed ({error}): allow "
                    "sqs:ListDeadLetterSourceQueues, or name the queue that its messages go to with --to"
                ) from None
        return self._listed

    def _checked(self, target: Queue) -> Queue:
        if target.name == self._source.name:
            raise NoTarget(f"{target.name} is the dead-letter queue itself: name another queue to send its messages to")
        if target.fifo != self._source.fifo:
            kinds = ("a FIFO", "a Standard") if target.fifo else ("a Standard", "a FIFO")
            raise NoTarget(
                f"{target.name} is {kinds[0]} queue and {self._source.name} {kinds[1]} queue: both must be of the same "
                "kind"
            )
        return target


def entry_back(message: DeadLetterMessage, *, fifo: bool) -> Entry | None:
    """The copy that is sent; None if the message is too large to carry its key."""
    own = attributes.sent_back(
        message.attributes,
        len(message.body.encode("utf-8", "surrogatepass")),
        key=message.key,
        message_id=message.original_id,
        times=message.redrives + 1,
    )
    if own is None:
        return None
    return Entry(
        message.body,
        attributes=own,
        group=message.group or None,
        dedup=f"redrive-{message.id}" if fifo else None,
        trace=message.trace or None,
    )


_TOO_LARGE: Final = Failure("TooLarge", "it is too large to carry its key; SQS's own redrive moves it without one")


class Sender:
    """Sends claimed messages, on several threads. `returns` is given every target queue and every copy."""

    def __init__(
        self,
        claims: MessageClaims,
        targets: Targets,
        job: Job,
        *,
        threads: int,
        crash: Crash,
        returns: Returns | None,
    ) -> None:
        self._claims, self._targets, self._job = claims, targets, job
        self._crash, self._returns = crash, returns
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="semel-redrive")
        self._threads = threads
        self._lock = threading.Lock()
        self.reasons: Counter[str] = Counter()
        self.undeleted: list[str] = []

    def close(self) -> None:
        self._pool.shutdown()

    def send(self, messages: Sequence[DeadLetterMessage]) -> list[SentBack]:
        """Sends and deletes each message, or rejects it. Returns when none is in progress any more."""
        by_target: dict[str, tuple[Queue, list[DeadLetterMessage]]] = {}
        for message in messages:
            try:
                target = self._targets.of(message)
            except SemelError as error:
                self._job.add(skipped=1)
                self._note(message, str(error))
                self._claims.reject([message])
                continue
            by_target.setdefault(target.name, (target, []))[1].append(message)
        futures = []
        for target, group in by_target.values():
            if self._returns is not None:
                self._returns.watch_target(target)
            if self._claims.queue.fifo:
                futures += [self._pool.submit(self._in_order, target, part) for part in self._by_group(group)]
            else:
                futures += [self._pool.submit(self._batch, target, part) for part in _tens(group)]
        # Wait for all of them even if one raises: messages that were sent must be deleted too.
        for problem in [future.exception() for future in futures]:
            if problem is not None:
                raise problem
        return [copy for future in futures for copy in future.result()]

    def _by_group(self, messages: Sequence[DeadLetterMessage]) -> list[list[DeadLetterMessage]]:
        """The messages for each thread. All messages of a FIFO group are for one thread."""
        parts: list[list[DeadLetterMessage]] = [[] for _ in range(self._threads)]
        part_of: dict[str, int] = {}
        for message in messages:
            parts[part_of.setdefault(message.group, len(part_of) % self._threads)].append(message)
        return [part for part in parts if part]

    def _in_order(self, target: Queue, messages: Sequence[DeadLetterMessage]) -> list[SentBack]:
        sent: list[SentBack] = []
        waiting: dict[str, deque[DeadLetterMessage]] = {}
        for message in messages:
            waiting.setdefault(message.group, deque()).append(message)
        while waiting:
            for groups in _tens(list(waiting)):
                sent += self._batch(target, [waiting[group].popleft() for group in groups])
            for group in list(waiting):
                if group in self._claims.blocked and waiting[group]:
                    self._job.add(skipped=len(waiting[group]))
                    self._claims.reject(list(waiting[group]))
                    waiting[group].clear()
                if not waiting[group]:
                    del waiting[group]
        return sent

    def _batch(self, target: Queue, messages: Sequence[DeadLetterMessage]) -> list[SentBack]:
        """Sends at most ten messages in one call, and deletes them in another."""
        entries = [entry_back(message, fifo=target.fifo) for message in messages]
        fitting = [(message, entry) for message, entry in zip(messages, entries, strict=True) if entry is not None]
        failed = [(message, _TOO_LARGE) for message, entry in zip(messages, entries, strict=True) if entry is None]
        self._crash("before_send")
        try:
            outcomes = target.send_many([entry for _, entry in fitting]) if fitting else []
        except SemelError as error:
            outcomes = [Failure(type(error).__name__, str(error))] * len(fitting)
        self._crash("after_send")
        done: list[SentBack] = []
        for (message, _), outcome in zip(fitting, outcomes, strict=True):
            if isinstance(outcome, Sent):
                done.append(SentBack(message, target.name, outcome.message_id))
            else:
                failed.append((message, outcome))
        self._delete(done)
        if failed:
            self._job.add(failed=len(failed))
            for message, failure in failed:
                self._note(message, failure.message or failure.code)
            self._claims.reject([message for message, _ in failed])
        return done

    def _delete(self, done: Sequence[SentBack]) -> None:
        if not done:
            return
        messages, copies = [copy.message for copy in done], [copy.message_id for copy in done]
        if self._returns is not None:
            self._returns.watch_copies(copies)
        self._claims.mark_sent(messages, copies)
        left = self._claims.delete(messages)
        self._crash("after_delete")
        self._job.add(sent=len(messages), deleted=len(messages) - len(left))
        with self._lock:
            self.undeleted += [message.id for message in left]

    def _note(self, message: DeadLetterMessage, reason: str) -> None:
        with self._lock:
            self.reasons[reason] += 1
            failures = self._job.result.setdefault("failures", [])
            if len(failures) < FAILURES_KEPT:
                failures.append({"id": message.id, "reason": reason})


def _tens(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), MAX_BATCH_ENTRIES):
        yield items[begin : begin + MAX_BATCH_ENTRIES]
