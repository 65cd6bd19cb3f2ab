"""The outcome of messages that were sent back: succeeded, failed again, or still pending.

Three sources, the best first. The broker's queues: a copy that is neither in its queue nor in a dead-letter queue was
processed. The ledger: what it has recorded since. Without either, only whether the dead-letter queue has grown, which
says less: other messages arrive there too, and SQS's counts are approximate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from semel.dlq.messages import DeadLetterMessage
from semel.dlq.queues import dead_letter_queue_name, depth
from semel.ledger.contract import Entry, Ledger, LedgerError, LedgerUnavailable, Status
from semel.messages.keys import scoped
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import MOST, Admin
from semel.sqs.errors import SqsError


class Outcome(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class SentBack:
    """A message, and the copy of it that was sent."""

    message: DeadLetterMessage
    queue: str  # the name of the queue that the copy is in
    message_id: str


class Returns:
    """Which copies are back in a dead-letter queue. Only on Semel's broker, where this needs no receives."""

    def __init__(self, admin: Admin, client: Client, queue: str) -> None:
        self._admin, self._client = admin, client
        self._after = {queue: admin.peek(queue, limit=1, bodies=False).end}
        self._targets: set[str] = set()
        self._copies: set[str] = set()
        self._why: dict[str, str] = {}  # why a copy came back, by its MessageId

    def watch_target(self, target: Queue) -> None:
        """Call before copies are sent to a queue: its own dead-letter queue is watched too."""
        if target.name in self._targets:
            return
        self._targets.add(target.name)
        with contextlib.suppress(SqsError):  # there is no such queue: the send will fail
            name = dead_letter_queue_name(target.attributes("RedrivePolicy"))
            if name and name not in self._after:
                self._after[name] = self._admin.peek(name, limit=1, bodies=False).end

    def watch_copies(self, ids: Iterable[str]) -> None:
        self._copies.update(ids)

    def rewind(self) -> None:
        """Makes the next check read the queues from the beginning."""
        self._after = dict.fromkeys(self._after, 0)

    def check(self) -> Mapping[str, str]:
        """Why copies came back, by their MessageIds; the latest is last."""
        for queue, after in self._after.items():
            place: int | None = after
            while place is not None:
                page = self._admin.peek(queue, after=place, bodies=False)
                for message in page.messages:
                    self._note(DeadLetterMessage.peeked(message, queue))
                place = page.next
                self._after[queue] = page.end if place is None else place
        return self._why

    def _note(self, message: DeadLetterMessage) -> None:
        for id in (message.id, message.original_id):
            if id in self._copies:
                self._why.pop(id, None)  # the latest return is last, also of a copy that came back before
                self._why[id] = message.why


class Outcomes:
    """The outcomes of a few copies, polled until all are known."""

    def __init__(self, client: Client, queue: Queue, ledger: Ledger | None, returns: Returns | None) -> None:
        self._client, self._queue, self._ledger, self._returns = client, queue, ledger, returns
        self._admin = Admin.of(client) if returns is not None else None
        self._before: dict[str, Entry | None] = {}
        self._depth: int | None = None
        self._grown = 0

    @property
    def certain(self) -> bool:
        """Whether success can be observed."""
        return self._admin is not None or self._ledger is not None

    def only_absence(self, copies: Sequence[SentBack]) -> bool:
        """Whether the most that can be known of these copies is that they did not come back."""
        if self._admin is not None:
            return False
        return self._ledger is None or all(not copy.message.key or self._was_done(copy) for copy in copies)

    def before(self, messages: Sequence[tuple[DeadLetterMessage, str]]) -> None:
        """Reads the ledger before messages are sent; takes pairs of message and target. Raises LedgerUnavailable:
        without this, a key that was done long ago would count as done now."""
        keys = [self._ledger_key(SentBack(message, target, "")) for message, target in messages]
        try:
            self._before = dict(zip(keys, self._read(keys), strict=True))
        except LedgerError as error:
            raise LedgerUnavailable(
                f"nothing was sent, as the ledger cannot say what was done before: {error}; try again when it answers"
            ) from None

    def sent(self) -> None:
        """Call when the messages are sent and deleted: from then on the dead-letter queue should not grow."""
        if self._admin is None:
            self._depth = depth(self._queue)
        elif self._queue.fifo:
            # Within five minutes, a second run gets the MessageId of the first run's copy, which may already be back.
            assert self._returns is not None
            self._returns.rewind()

    def of(self, copies: Sequence[SentBack]) -> list[Verdict]:
        if self._admin is not None:
            return self._by_queues(copies, self._admin)
        return self._by_ledger(copies)

    def _by_queues(self, copies: Sequence[SentBack], admin: Admin) -> list[Verdict]:
        assert self._returns is not None
        waiting: set[str] = set()
        # First the copies in their queues, then those that came back: one that moves in between is seen there.
        for queue in {copy.queue for copy in copies}:
            ids = [copy.message_id for copy in copies if copy.queue == queue][:MOST]
            waiting |= {message["MessageId"] for message in admin.messages(queue, ids=ids, bodies=False)}
        returned = self._returns.check()
        entries = self._entries(copies)
        verdicts = []
        for copy in copies:
            if copy.message_id in returned:
                verdicts.append(Verdict(Outcome.FAILED, returned[copy.message_id]))
            elif copy.message_id in waiting:
                verdicts.append(Verdict(Outcome.PENDING))
            elif entries is None:
                verdicts.append(Verdict(Outcome.PENDING))  # it may have been rejected to another dead-letter queue
            elif self._rejected(copy, entries):
                verdicts.append(Verdict(Outcome.FAILED, "rejected, as the ledger says"))
            else:
                verdicts.append(Verdict(Outcome.SUCCEEDED))
        return verdicts

    def _by_ledger(self, copies: Sequence[SentBack]) -> list[Verdict]:
        entries = self._entries(copies) or {}
        grown = self._has_grown()
        verdicts = []
        for copy in copies:
            entry = entries.get(self._ledger_key(copy))
            if self._rejected(copy, entries):
                verdicts.append(Verdict(Outcome.FAILED, "rejected, as the ledger says"))
            elif entry is not None and entry.status is Status.DONE and not self._was_done(copy):
                verdicts.append(Verdict(Outcome.SUCCEEDED))
            elif grown:
                verdicts.append(Verdict(Outcome.FAILED, f"{self._queue.name} has grown by {grown} since"))
            else:
                verdicts.append(Verdict(Outcome.PENDING))
        return verdicts

    def _was_done(self, copy: SentBack) -> bool:
        """Whether its key was done before it was sent: then a worker deletes it, and the ledger records nothing."""
        before = self._before.get(self._ledger_key(copy))
        return before is not None and before.status is Status.DONE

    def _rejected(self, copy: SentBack, entries: Mapping[str, Entry | None]) -> bool:
        if entries.get(self._conflict_key(copy)) is not None:
            return True
        entry, before = entries.get(self._ledger_key(copy)), self._before.get(self._ledger_key(copy))
        fence = -1 if before is None else before.fence
        return entry is not None and entry.status is Status.REJECTED and entry.fence > fence

    def _entries(self, copies: Sequence[SentBack]) -> Mapping[str, Entry | None] | None:
        """None if the ledger does not answer; it may the next time."""
        keys = [key for copy in copies for key in (self._ledger_key(copy), self._conflict_key(copy))]
        try:
            return dict(zip(keys, self._read(keys), strict=True))
        except LedgerError:
            return None

    def _ledger_key(self, copy: SentBack) -> str:
        return scoped(self._scope(copy.queue), copy.message.key or copy.message.original_id)

    def _conflict_key(self, copy: SentBack) -> str:
        """The key under which a worker records the rejection of a copy whose key is known with another payload."""
        return scoped(self._scope(copy.queue), f"conflict/{copy.message_id}")

    def _scope(self, queue: str) -> str:
        """The queue's scope in the ledger. A queue that cannot be looked up has no keys there."""
        try:
            return queue if self._ledger is None else self._client.queue(queue).scope
        except SqsError:
            return queue

    def _read(self, keys: Sequence[str]) -> Sequence[Entry | None]:
        return self._ledger.get(keys) if self._ledger is not None and keys else [None] * len(keys)

    def _has_grown(self) -> int:
        """By how many messages, if two checks in a row say so: SQS's counts are approximate."""
        if self._depth is None:
            return 0
        more = max(0, depth(self._queue) - self._depth)
        before, self._grown = self._grown, more
        return min(more, before)
