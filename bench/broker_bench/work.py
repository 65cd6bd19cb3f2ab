"""What the connections of the load generator do: send, send batches, receive and delete, all of these in turn, poll.

Each work checks every answer: all messages that were sent are confirmed, and none failed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from broker_bench.wire import Requests, WrongAnswer, batch_entries, failure_in, handles_in, message_body

VARIETY = 64  # different ready-made requests that a sender cycles through
COUNTER = "@" * 12  # placeholder in a ready-made request for a number that is unique to each call


class Sends:
    """SendMessage with one body per call, or SendMessageBatch with ten; at most `limit` messages."""

    def __init__(
        self, requests: Requests, queue_url: str, body_bytes: int, per_call: int, limit: int = sys.maxsize
    ) -> None:
        self.messages = 0
        self.per_call = per_call
        self._calls_left = limit // per_call
        self._ready = itertools.cycle(
            [self._make(requests, queue_url, body_bytes, i * per_call) for i in range(VARIETY)]
        )

    def _make(self, requests: Requests, queue_url: str, body_bytes: int, number: int) -> bytes:
        bodies = [message_body(body_bytes, number + i) for i in range(self.per_call)]
        if self.per_call == 1:
            return requests.make("SendMessage", {"QueueUrl": queue_url, "MessageBody": bodies[0]})
        return requests.make("SendMessageBatch", {"QueueUrl": queue_url, "Entries": batch_entries(bodies)})

    def first(self, _slot: int) -> bytes | None:
        if self._calls_left <= 0:
            return None
        self._calls_left -= 1
        return next(self._ready)

    def next(self, slot: int, answer: bytes) -> bytes | None:
        confirm(answer, b'"MessageId"', self.per_call)
        self.messages += self.per_call
        return self.first(slot)


class FifoSends:
    """SendMessageBatch to a FIFO queue: ten messages of ten groups per call, 1,000 groups in all, unique dedup ids."""

    GROUPS = 1000

    def __init__(self, requests: Requests, queue_url: str, body_bytes: int, limit: int = sys.maxsize) -> None:
        self.messages = 0
        self._calls_left = limit // 10
        self._number = itertools.count()
        self._ready = itertools.cycle(
            [self._make(requests, queue_url, body_bytes, first) for first in range(0, self.GROUPS, 10)]
        )

    @staticmethod
    def _make(requests: Requests, queue_url: str, body_bytes: int, first_group: int) -> bytes:
        groups = range(first_group, first_group + 10)
        entries = [
            entry | {"MessageGroupId": f"customer-{group:04d}", "MessageDeduplicationId": f"{group:04d}-{COUNTER}"}
            for group, entry in zip(
                groups, batch_entries([message_body(body_bytes, group) for group in groups]), strict=True
            )
        ]
        return requests.make("SendMessageBatch", {"QueueUrl": queue_url, "Entries": entries})

    def first(self, _slot: int) -> bytes | None:
        if self._calls_left <= 0:
            return None
        self._calls_left -= 1
        return next(self._ready).replace(COUNTER.encode(), b"%012d" % next(self._number))

    def next(self, slot: int, answer: bytes) -> bytes | None:
        confirm(answer, b'"MessageId"', 10)
        self.messages += 10
        return self.first(slot)


class ReceiveDelete:
    """Each connection in turn receives ten messages and deletes them, until a receive returns none."""

    def __init__(self, requests: Requests, queue_url: str) -> None:
        self.messages = 0
        self._receive = requests.make("ReceiveMessage", {"QueueUrl": queue_url, "MaxNumberOfMessages": 10})
        self._delete_head = requests.head("DeleteMessageBatch")
        self._delete_start = b'{"QueueUrl": "%s", "Entries": [{"Id": "' % queue_url.encode()
        self._deleting: dict[int, int] = {}

    def first(self, slot: int) -> bytes:
        self._deleting.pop(slot, None)  # the previous window may have ended before a delete was sent
        return self._receive

    def next(self, slot: int, answer: bytes) -> bytes | None:
        deleting = self._deleting.pop(slot, 0)
        if deleting:
            confirm(answer, b'"Id"', deleting)
            self.messages += deleting
            return self._receive
        handles = handles_in(answer)
        if not handles:
            return None
        self._deleting[slot] = len(handles)
        return self.delete(handles)

    def delete(self, handles: list[bytes]) -> bytes:
        entries = b'"}, {"Id": "'.join([b'%d", "ReceiptHandle": "%s' % pair for pair in enumerate(handles)])
        body = b'%s%s"}]}' % (self._delete_start, entries)
        return b"%s%d\r\n\r\n%s" % (self._delete_head, len(body), body)


class Mixed:
    """Each connection goes from queue to queue; in each it sends a batch of ten, receives ten, and deletes them.

    Each connection starts at a different queue. `messages` counts those that were sent, received and deleted.
    """

    def __init__(self, requests: Requests, queue_urls: Sequence[str], body_bytes: int, connections: int) -> None:
        self.messages = 0
        self.sent = 0
        self._sends = [Sends(requests, url, body_bytes, per_call=10) for url in queue_urls]
        self._deletes = [ReceiveDelete(requests, url) for url in queue_urls]
        self._queue = [slot * len(queue_urls) // connections for slot in range(connections)]
        self._sending = [False] * connections

    def first(self, slot: int) -> bytes | None:
        """A batch to the next queue."""
        self._queue[slot] = (self._queue[slot] + 1) % len(self._sends)
        self._sending[slot] = True
        return self._sends[self._queue[slot]].first(slot)

    def next(self, slot: int, answer: bytes) -> bytes | None:
        number = self._queue[slot]
        deletes = self._deletes[number]
        if self._sending[slot]:
            confirm(answer, b'"MessageId"', 10)
            self.sent += 10
            self._sending[slot] = False
            return deletes.first(slot)
        before = deletes.messages
        request = deletes.next(slot, answer)
        deleted = deletes.messages - before
        self.messages += deleted
        return self.first(slot) if deleted or request is None else request


class Receives:
    """Receive ten at a time and keep them in flight, until `limit` messages are or a receive returns none."""

    def __init__(self, requests: Requests, queue_url: str, limit: int) -> None:
        self.messages = 0
        self._calls_left = limit // 10
        self._receive = requests.make("ReceiveMessage", {"QueueUrl": queue_url, "MaxNumberOfMessages": 10})

    def first(self, _slot: int) -> bytes | None:
        if self._calls_left <= 0:
            return None
        self._calls_left -= 1
        return self._receive

    def next(self, slot: int, answer: bytes) -> bytes | None:
        received = answer.count(b'"ReceiptHandle"')
        self.messages += received
        return self.first(slot) if received else None


class Polls:
    """Long polls on an empty queue, each renewed when it ends. `messages` counts those that ended."""

    def __init__(self, requests: Requests, queue_url: str, wait: int = 20) -> None:
        self.messages = 0
        self._receive = requests.make("ReceiveMessage", {"QueueUrl": queue_url, "WaitTimeSeconds": wait})

    def first(self, _slot: int) -> bytes:
        return self._receive

    def next(self, _slot: int, answer: bytes) -> bytes:
        if b'"ReceiptHandle"' in answer:
            raise WrongAnswer("a message came out of an empty queue")
        self.messages += 1
        return self._receive


def confirm(answer: bytes, sign: bytes, expected: int) -> None:
    """Raise unless the answer has exactly `expected` entries and none of them failed."""
    if answer.count(sign) != expected or (b'"Failed"' in answer and failure_in(answer)):
        raise WrongAnswer(f"not {expected} entries confirmed: {answer[-400:]!r}")
