"""Sending letters back: the copy first, then the delete, never the other way round.

The rules: a letter is deleted only after SQS has said that it took the copy. A copy has its letter's key, or its first
MessageId; on FIFO queues a deduplication id made of the letter's own, so that a second run within five minutes sends
nothing twice. In a FIFO group each letter is sent only after the one before it was taken: one call never has two.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from semel.dlq.access.sqs import MessageClaims
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.redrive.outcomes import SentBack
from semel.errors import SemelError
from semel.messages import dead_letter_attributes as attributes
from semel.sqs.client import Client, Entry, Failure, Queue, Sent
from semel.sqs.errors import AccessDenied
from semel.sqs.limits import MAX_BATCH_ENTRIES

FAILURES_KEPT: Final = 100
T = TypeVar("T")
Crash = Callable[[str], None]


class NoTarget(SemelError):
    """It is not known where a letter came from, or only by its own word."""


class Targets:
    """Where letters go: all to one queue, or each to where it came from.

    Where it came from is for SQS to say, and not for the message: whoever may send to one queue could else have an
    operator send to another. What a message says of it counts only if SQS knows that queue as one of the sources of
    this dead-letter queue."""

    def __init__(self, client: Client, source: Queue, to: str) -> None:
        self._client, self._source = client, source
        self._to = self._checked(client.queue(to)) if to else None
        if self._to is not None:
            _ = self._to.url  # that there is no such queue is better known before anything is taken
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
        """The URL of the source queue of this name, or of the only one if a letter names none."""
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
                f"nothing says which queue letters of {self._source.name} came from: name the one that they go to with "
                "--to"
            )
        return next(iter(sources.values()))

    def _sources(self) -> dict[str, str]:
        """The queues whose dead letters go here, by name."""
        if self._listed is None:
            found: list[str] = []
            params: dict[str, Any] = {"MaxResults": 1_000}
            try:
                while True:
                    page = self._source.call("ListDeadLetterSourceQueues", params)
                    found += page.get("queueUrls") or ()
                    if not page.get("NextToken"):
                        break
                    params["NextToken"] = page["NextToken"]
            except AccessDenied as error:
                raise NoTarget(
                    f"it cannot be known whose dead-letter queue {self._source.name} is ({error}): allow "
                    "sqs:ListDeadLetterSourceQueues, or name the queue that its messages go to with --to"
                ) from None
            self._listed = {self._client.queue(url).name: url for url in found}
        return self._listed

    def _checked(self, target: Queue) -> Queue:
        if target.name == self._source.name:
            raise NoTarget(f"{target.name} is the dead-letter queue itself: name another queue to send its letters to")
        if target.fifo != self._source.fifo:
            kinds = ("a FIFO", "a Standard") if target.fifo else ("a Standard", "a FIFO")
            raise NoTarget(
                f"{target.name} is {kinds[0]} queue and {self._source.name} {kinds[1]} one: letters go back to a queue "
                "of their own kind"
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
    """Sends what a taker has in hand, on several threads. `copies` gets the MessageIds of what was sent; `expect` is
    called with each queue before something is sent there."""

    def __init__(
        self,
        taker: MessageClaims,
        targets: Targets,
        job: Job,
        *,
        threads: int,
        crash: Crash,
        copies: set[str],
        expect: Callable[[Queue], None],
    ) -> None:
        self._taker, self._targets, self._job = taker, targets, job
        self._crash = crash
        self._copies = copies
        self._expect = expect
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="semel-redrive")
        self._threads = threads
        self._lock = threading.Lock()
        self.reasons: Counter[str] = Counter()
        self.undeleted: list[str] = []

    def close(self) -> None:
        self._pool.shutdown()

    def send(self, messages: Sequence[DeadLetterMessage]) -> list[SentBack]:
        """All of these, each sent and deleted, or refused. Returns when nothing of it is under way any more."""
        by_target: dict[str, tuple[Queue, list[DeadLetterMessage]]] = {}
        for message in messages:
            try:
                target = self._targets.of(message)
            except SemelError as error:
                self._job.add(skipped=1)
                self._note(message, str(error))
                self._taker.refuse([message])
                continue
            by_target.setdefault(target.name, (target, []))[1].append(message)
        futures = []
        for target, group in by_target.values():
            self._expect(target)
            if self._taker.source.fifo:
                futures += [self._pool.submit(self._in_order, target, part) for part in self._by_group(group)]
            else:
                futures += [self._pool.submit(self._batch, target, part) for part in _tens(group)]
        # All of them come to an end, also if one raises: what is sent is then deleted too.
        for problem in [future.exception() for future in futures]:
            if problem is not None:
                raise problem
        return [copy for future in futures for copy in future.result()]

    def _by_group(self, messages: Sequence[DeadLetterMessage]) -> list[list[DeadLetterMessage]]:
        """Whole groups to a thread, so that each group has one sender."""
        parts: list[list[DeadLetterMessage]] = [[] for _ in range(self._threads)]
        seen: dict[str, int] = {}
        for message in messages:
            parts[seen.setdefault(message.group, len(seen) % self._threads)].append(message)
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
                if group in self._taker.blocked and waiting[group]:
                    self._job.add(skipped=len(waiting[group]))
                    self._taker.refuse(list(waiting[group]))
                    waiting[group].clear()
                if not waiting[group]:
                    del waiting[group]
        return sent

    def _batch(self, target: Queue, messages: Sequence[DeadLetterMessage]) -> list[SentBack]:
        """At most ten: one call that sends, one that deletes."""
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
        self._copies.update(copy.message_id for copy in done)
        self._delete([copy.message for copy in done])
        if failed:
            self._job.add(failed=len(failed))
            for message, failure in failed:
                self._note(message, failure.message or failure.code)
            self._taker.refuse([message for message, _ in failed])
        return done

    def _delete(self, messages: Sequence[DeadLetterMessage]) -> None:
        if not messages:
            return
        self._taker.sent(messages)
        left = self._taker.delete(messages)
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
