"""When a burst is over: its queues and the outbox are empty.

The rules: a burst waits for what it put back itself, as long as that leads anywhere. It waits for what SQS delays. What
others have in flight it waits for until nothing has come for a whole lease: a worker that died has lost its messages
by then. What is left at the end is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from semel.consumer.delivery import Delivery
from semel.consumer.lane import Lane
from semel.consumer.life import State
from semel.consumer.threads import LaneThreads
from semel.ledger.contract import Ledger, LedgerError
from semel.messages.dead_letter_queue import RECOMMENDED_RECEIVES
from semel.sqs.errors import SqsError

EMPTY_POLLS: Final = 2
GIVEN_UP_PATIENCE: Final = 3.0  # seconds without any other message
OUTBOX_PATIENCE: Final = 35.0  # seconds: whoever has taken a message from the outbox and died loses it after 30
_NOT_VISIBLE: Final = "ApproximateNumberOfMessagesNotVisible"
_DELAYED: Final = "ApproximateNumberOfMessagesDelayed"


class _PutBack:
    """What was put back into one queue and has not come again: retries, and what another worker has claimed.

    Some of it is given up on, which means not awaited: a message that has no dead-letter queue to go to, and where
    nothing limits the attempts, one that has failed a few times."""

    def __init__(self, lane: Lane, monotonic: Callable[[], float]) -> None:
        self._limited = lane.settings.max_attempts is not None or lane.settings.max_receives is not None
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._visible_at: dict[str, float] = {}  # by message id
        self._duplicates: list[tuple[Delivery, Delivery]] = []  # each with the one of its key that is in progress here
        self._lane = lane
        self._given_up: set[str] = set()  # message ids
        self._last_news = monotonic()
        self._watch = lane.arrived
        lane.arrived, lane.put_back = self._arrived, self._add

    def _arrived(self, deliveries: list[Delivery]) -> None:
        self._watch(deliveries)
        with self._lock:
            for delivery in deliveries:
                self._visible_at.pop(delivery.received.message_id, None)
                if delivery.received.message_id not in self._given_up:
                    self._last_news = self._monotonic()

    def _add(self, delivery: Delivery, seconds: float) -> None:
        name = delivery.received.message_id
        with self._lane.lock:
            others = [other for other in self._lane.in_hand.values() if other is not delivery]
        first = next((other for other in others if other.ledger_key == delivery.ledger_key), None)
        with self._lock:
            if delivery.state is State.BOUNCED and first is not None:
                self._duplicates.append((delivery, first))
            self._visible_at[name] = self._monotonic() + seconds
            if delivery.dlq_failed or not (self._limited or delivery.attempt < RECOMMENDED_RECEIVES):
                self._given_up.add(name)

    def show_duplicates(self) -> None:
        """Those of work that is recorded by now need not stay hidden for a lease: they come now, and are deleted."""
        with self._lock:
            done = [pair for pair in self._duplicates if pair[1].state in (State.RECORDED, State.ACKED)]
            self._duplicates = [pair for pair in self._duplicates if pair not in done]
            for duplicate, _ in done:
                self._visible_at[duplicate.received.message_id] = self._monotonic() + 1
        if done:
            self._lane.hiding.put([(duplicate, 0) for duplicate, _ in done])

    def count(self) -> tuple[int, int]:
        """How many there are: those that are awaited, and those that were given up on."""
        now = self._monotonic()
        with self._lock:
            # What could be seen and did not come, another worker has.
            self._visible_at = {name: at for name, at in self._visible_at.items() if at > now or name in self._given_up}
            given_up = sum(name in self._given_up for name in self._visible_at)
            return len(self._visible_at) - given_up, given_up

    def only_given_up(self, in_progress: Iterable[str]) -> bool:
        """Whether all that has come lately, and is in progress, was given up on before."""
        with self._lock:
            idle = self._monotonic() - self._last_news
            return bool(self._given_up) and idle > GIVEN_UP_PATIENCE and self._given_up.issuperset(in_progress)


class Burst:
    def __init__(self, lanes: Sequence[LaneThreads], ledger: Ledger, monotonic: Callable[[], float]) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._monotonic = monotonic
        self._put_back = {threads.lane.name: _PutBack(threads.lane, monotonic) for threads in lanes}
        self._asked: dict[str, tuple[int, bool]] = {}  # by queue: at which empty poll SQS was asked, and its answer
        self._empty_since: float | None = None

    def is_over(self, unsendable: int) -> bool:
        """`unsendable`: messages of the outbox that SQS did not take."""
        empty = [self._is_empty(threads) for threads in self._lanes]  # each is looked at, also if one is not empty
        if not all(empty):
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = self._monotonic()
        return self._outbox_is_done(unsendable, self._empty_since)

    def waiting(self) -> dict[str, int]:
        """Messages that were put back and have not come again, by queue."""
        counts = {name: sum(put_back.count()) for name, put_back in self._put_back.items()}
        return {name: count for name, count in counts.items() if count}

    def _is_empty(self, threads: LaneThreads) -> bool:
        lane, put_back = threads.lane, self._put_back[threads.lane.name]
        put_back.show_duplicates()
        awaited, given_up = put_back.count()
        if awaited:
            threads.empty_polls = 0  # those that count come after it
            return False
        if lane.in_hand or threads.empty_polls < EMPTY_POLLS:
            return put_back.only_given_up(list(lane.in_hand))
        return not self._more_to_come(threads, given_up)

    def _more_to_come(self, threads: LaneThreads, given_up: int) -> bool:
        """What no poll shows: messages that SQS delays, or that somebody else has in flight. Asked once a poll."""
        name, poll = threads.lane.name, threads.empty_polls
        if name not in self._asked or self._asked[name][0] != poll:
            try:
                counts = threads.lane.queue.attributes(_NOT_VISIBLE, _DELAYED)
            except SqsError:
                counts = {}
            in_flight = int(counts.get(_NOT_VISIBLE, 0)) > given_up
            idle = self._monotonic() - threads.last_message
            more = int(counts.get(_DELAYED, 0)) > 0 or (in_flight and idle < threads.lane.settings.lease)
            self._asked[name] = (poll, more)
        return self._asked[name][1]

    def _outbox_is_done(self, unsendable: int, since: float) -> bool:
        if not self._ledger.transactional:
            return True
        try:
            done = self._ledger.count_outgoing() <= unsendable
        except LedgerError:
            done = False
        return done or self._monotonic() - since > OUTBOX_PATIENCE
