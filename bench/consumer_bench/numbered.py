"""Fills a queue with numbered messages, so that a handler can tell them apart."""

from __future__ import annotations

from broker_bench.wire import Requests, batch_entries, message_body
from broker_bench.work import confirm

PER_CALL = 10
CALL = 98765432  # placeholder for the number of the call; the digit after it is the position in the call


class NumberedSends:
    """SendMessageBatch with ten messages per call, numbered from 0 as `order`; `limit` is rounded down to tens."""

    def __init__(self, requests: Requests, queue_url: str, body_bytes: int, limit: int) -> None:
        self.messages = 0
        bodies = [message_body(body_bytes, CALL * PER_CALL + place) for place in range(PER_CALL)]
        members = {"QueueUrl": queue_url, "Entries": batch_entries(bodies)}
        self._ready = requests.make("SendMessageBatch", members)
        self._calls = iter(range(limit // PER_CALL))

    def first(self, _slot: int) -> bytes | None:
        call = next(self._calls, None)
        return None if call is None else self._ready.replace(b"%d" % CALL, b"%08d" % call)

    def next(self, slot: int, answer: bytes) -> bytes | None:
        confirm(answer, b'"MessageId"', PER_CALL)
        self.messages += PER_CALL
        return self.first(slot)
