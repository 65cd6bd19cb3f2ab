"""Decides when a run with exit_when_empty is over: when its queues and the outbox are empty.

The rules: the run waits for messages that it has returned itself, as long as it makes progress with them. It waits for
messages that SQS delays. It waits for messages that others have in flight until nothing has come for a whole lease: by
then, the messages of a worker that died are visible again. What is left at the end is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import InFlight
from semel.consumer.queue_consumer import QueueConsumer
from semel.consumer.queue_setup import QueueSetup
from semel.ledger.contract import Ledger, LedgerError
from semel.messages.dead_letter_queue import RECOMMENDED_RECEIVES
from semel.sqs.errors import SqsError

EMPTY_POLLS: Final = 2
GIVEN_UP_PATIENCE: Final = 3.0  # seconds without any other message
OUTBOX_PATIENCE: Final = 35.0  # seconds; a message that a dead worker took from the outbox can be taken again after 30
_NOT_VISIBLE: Final = "ApproximateNumberOfMessagesNotVisible"
_DELAYED: Final = "ApproximateNumberOfMessagesDelayed"


class _Returned:
    """Messages that were returned to one queue and have not come again: retries, and messages that another worker has
    claimed.

    Some of them are given up on, which means that the run does not wait for them: a message that could not be moved to
    a dead-letter queue and, if nothing limits the attempts, a message that has failed a few times."""

    def __init__(self, setup: QueueSetup, monotonic: Callable[[], float]) -> None:
        self._limited = setup.settings.max_attempts is not None or setup.settings.max_receives is not None
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._visible_at: dict[str, float] = {}  # by message id
        self._given_up: set[str] = set()  # message ids
        self._last_news = monotonic()

    def arrived(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            for delivery in deliveries:
                self._visible_at.pop(delivery.received.message_id, None)
                if delivery.received.message_id not in self._given_up:
                    self._last_news = self._monotonic()

    def add(self, delivery: Delivery, seconds: float) -> None:
        name = delivery.received.message_id
        with self._lock:
            self._visible_at[name] = self._monotonic() + seconds
            if delivery.dlq_failed or not (self._limited or delivery.attempt < RECOMMENDED_RECEIVES):
                self._given_up.add(name)

    def count(self) -> tuple[int, int]:
        """How many messages there are: those that the run waits for, and those that were given up on."""
        now = self._monotonic()
        with self._lock:
            # If a message became visible and did not come, another worker has it.
            self._visible_at = {name: at for name, at in self._visible_at.items() if at > now or name in self._given_up}
            given_up = sum(name in self._given_up for name in self._visible_at)
            return len(self._visible_at) - given_up, given_up

    def only_given_up(self, in_progress: Iterable[str]) -> bool:
        """Whether all messages that have come lately, and that are in progress, were given up on before."""
        with self._lock:
            idle = self._monotonic() - self._last_news
            return bool(self._given_up) and idle > GIVEN_UP_PATIENCE and self._given_up.issuperset(in_progress)


class EmptyCheck:
    def __init__(self, setups: Sequence[QueueSetup], ledger: Ledger, monotonic: Callable[[], float]) -> None:
        self._ledger = ledger
        self._monotonic = monotonic
        self._returned = {setup.name: _Returned(setup, monotonic) for setup in setups}
        self._asked: dict[str, tuple[int, bool]] = {}  # by queue: at which empty poll SQS was asked, and its answer
        self._empty_since: float | None = None

    def on_received(self, table: InFlight, chunk: Sequence[Delivery]) -> None:
        self._returned[table.setup.name].arrived(chunk)

    def on_returned(self, table: InFlight, delivery: Delivery, seconds: float) -> None:
        self._returned[table.setup.name].add(delivery, seconds)

    def is_over(self, consumers: Sequence[QueueConsumer], unsendable: int) -> bool:
        """`unsendable`: how many messages of the outbox SQS did not accept."""
        empty = [self._is_empty(consumer) for consumer in consumers]  # each is checked, even if one is not empty
        if not all(empty):
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = self._monotonic()
        return self._outbox_is_done(unsendable, self._empty_since)

    def waiting(self) -> dict[str, int]:
        """Messages that were returned and have not come again, by queue."""
        counts = {name: sum(returned.count()) for name, returned in self._returned.items()}
        return {name: count for name, count in counts.items() if count}

    def _is_empty(self, consumer: QueueConsumer) -> bool:
        returned, receiver = self._returned[consumer.name], consumer.receiver
        awaited, given_up = returned.count()
        if awaited:
            receiver.empty_polls = 0  # only later ones count
            return False
        in_progress = [delivery.received.message_id for delivery in list(consumer.in_flight.deliveries.values())]
        if in_progress or receiver.empty_polls < EMPTY_POLLS:
            return returned.only_given_up(in_progress)
        return not self._more_to_come(consumer, given_up)

    def _more_to_come(self, consumer: QueueConsumer, given_up: int) -> bool:
        """Whether there are messages that no poll shows: SQS delays them, or others have them in flight. SQS is asked
        once per poll."""
        name, poll = consumer.name, consumer.receiver.empty_polls
        if name not in self._asked or self._asked[name][0] != poll:
            try:
                counts = consumer.setup.queue.attributes(_NOT_VISIBLE, _DELAYED)
            except SqsError:
                counts = {}
            in_flight = int(counts.get(_NOT_VISIBLE, 0)) > given_up
            idle = self._monotonic() - consumer.receiver.last_message
            more = int(counts.get(_DELAYED, 0)) > 0 or (in_flight and idle < consumer.setup.settings.lease)
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
