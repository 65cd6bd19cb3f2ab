"""AvailableNow: which messages a query must process, and when all of them have been received.

The query processes the messages that were sent before its start. The rule: a queue is done when long polls find it
empty, or when it delivers only messages that were sent after the start. SQS's counts are approximate: they decide the
size of a batch, but never the end of a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from semel.spark.segments.model import SegmentAck
from semel.spark.source.idle_poll import IdlePoll
from semel.spark.source.options import ReadOptions
from semel.spark.source.queue_ids import queue_id
from semel.spark.source.receiver import Arrival
from semel.spark.source.sqs_clock import sqs_time
from semel.sqs.client import Client, Queue

_log: Final = logging.getLogger("semel.spark")
VISIBLE: Final = "ApproximateNumberOfMessages"
IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"
_TIMEOUT: Final = "VisibilityTimeout"
EMPTY_POLLS: Final = 2  # the query ends after this many empty long polls in a row
POLL: Final = 2  # seconds of such a poll; a long poll of any length asks all of SQS's servers
SKEW: Final = 60.0  # seconds that SQS's clock may be ahead of ours, if SQS does not send its time
MARGIN: Final = 30.0  # seconds after the visibility timeout in which a message may come back


class Backlog:
    """`look` asks SQS for two counts for each queue: visible messages, and messages in flight."""

    def __init__(
        self,
        queues: Mapping[str, Queue],
        poll: IdlePoll,
        options: ReadOptions,
        look: Callable[[], tuple[dict[str, int], dict[str, int]]],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sqs_time: Callable[[Client], float | None] = sqs_time,
        poll_seconds: int = POLL,
    ) -> None:
        self._queues, self._poll, self._look = queues, poll, look
        self._monotonic, self._poll_seconds = monotonic, poll_seconds
        # In whole seconds. If this time were too early, the query would end before it has read anything. So it is an
        # error if SQS does not answer.
        start = sqs_time(next(iter(queues.values())).client)
        self.before = int((clock() + SKEW if start is None else start + 1) * 1_000)  # milliseconds
        self._unfinished = set(queues)
        self._counts_hold = True
        self._empty_polls = 0
        self._wait_until = monotonic()
        if options.in_flight == "wait":
            timeouts = [int(queue.attributes(_TIMEOUT).get(_TIMEOUT, 0)) for queue in queues.values()]
            self._wait_until += max(options.visibility, *timeouts) + MARGIN

    def count(self, acks: Sequence[SegmentAck]) -> None:
        """Called after the commit of a batch."""
        received = sum(ack.received for ack in acks)
        self._counts_hold = received > 0  # else other consumers are faster, or groups are blocked
        if received:
            self._empty_polls = 0
        for name in list(self._unfinished):
            own = [ack for ack in acks if ack.queue == queue_id(self._queues[name]) and ack.received]
            if own and not any(ack.backlog for ack in own):
                self._unfinished.discard(name)

    def waiting(self) -> dict[str, int]:
        """How many messages to plan for, by queue; empty when all have been received, or when the query is stopped."""
        while self._unfinished and not self._poll.stopped:
            visible, in_flight = self._look()
            counts = {name: count for name, count in visible.items() if name in self._unfinished and count}
            if counts and self._counts_hold:
                return counts
            held = self._polled()
            if held:
                return {name: max(counts.get(name, 0), len(arrival.messages)) for name, arrival in held.items()}
            self._empty_polls += 1
            if self._empty_polls >= EMPTY_POLLS and not self._waits(in_flight):
                break
        return {}

    def _waits(self, in_flight: Mapping[str, int]) -> bool:
        """Whether to wait, with inFlight=wait, for messages that others have received and that may still come back."""
        return any(in_flight[name] for name in self._unfinished) and self._monotonic() < self._wait_until

    def _polled(self) -> dict[str, Arrival]:
        """One long poll of each queue that is not done. A queue that delivers only what was sent later is done."""
        self._poll.begin(self._unfinished, self._poll_seconds)
        held = self._poll.wait()
        for name, arrival in held.items():
            if all(int(m.system.get("SentTimestamp", 0)) > self.before for m in arrival.messages):
                self._unfinished.discard(name)
        return held
