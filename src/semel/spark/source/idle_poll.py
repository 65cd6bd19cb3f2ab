"""Long polls of the planner while a query is idle, one per queue: a new message is noticed at once, with few requests.

The rule: the messages that a poll receives go into the next batch, or back to their queue while they are still ours. A
poll is made only when the planner asks for one, and not while messages of its queue are held. If this process dies, the
messages become visible again when their visibility timeout ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from semel.spark.source.options import ReadOptions
from semel.spark.source.receiver import Arrival
from semel.spark.source.returns import Returned, return_messages
from semel.sqs import limits
from semel.sqs.client import Queue
from semel.sqs.client.cancellation import Cancel
from semel.sqs.errors import Cancelled


class IdlePoll:
    """`queues`: by the names in the option 'queue'."""

    def __init__(
        self,
        queues: Mapping[str, Queue],
        options: ReadOptions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._options = options
        self._clock, self._monotonic = clock, monotonic
        self._changed = threading.Condition()
        self._cancel = Cancel()
        self._polling: set[str] = set()
        self._held: dict[str, Arrival] = {}
        self._error: BaseException | None = None

    @property
    def patience(self) -> float:
        """For how many seconds a message may be held. The rest of its visibility timeout is for the batch."""
        return self._options.visibility / 4

    @property
    def longest(self) -> int:
        """Seconds of the longest poll. A message counts as hidden from the start of the poll, so a long poll shortens
        the time for which the message is ours."""
        return max(1, min(limits.MAX_WAIT, self._options.visibility // 4))

    def begin(self, names: Iterable[str], wait: int) -> None:
        """Start a poll of each of these queues, unless one runs already or messages of the queue are held."""
        with self._changed:
            for name in names:
                if name not in self._polling and name not in self._held and not self._cancel.is_set():
                    self._polling.add(name)
                    thread = threading.Thread(target=self._poll, args=(name, wait), name="semel-idle-poll", daemon=True)
                    thread.start()

    def wait(self, seconds: float | None = None) -> dict[str, Arrival]:
        """The messages that are held, by queue, as soon as there are any. Empty after `seconds`, or when all polls have
        ended. Raises the error of a poll if nothing is held."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._error or not self._polling or self.stopped, seconds)
            error, self._error = self._error, None
            if error is not None and not self._held:
                raise error
            return dict(self._held)

    def take(self, name: str) -> list[Arrival]:
        """Hands the messages that are held of a queue over to the caller."""
        with self._changed:
            arrival = self._held.pop(name, None)
            self._changed.notify_all()
            return [] if arrival is None else [arrival]

    @property
    def stopped(self) -> bool:
        return self._cancel.is_set()

    def stop(self) -> None:
        """End all polls, and return the messages that they hold."""
        self._cancel.set()
        with self._changed:
            held, self._held = self._held, {}
            self._changed.notify_all()
        for name, arrival in held.items():
            self.give_back(name, [arrival])

    def give_back(self, name: str, arrivals: list[Arrival]) -> None:
        messages = [Returned(m.receipt, arrival.hidden_until) for arrival in arrivals for m in arrival.messages]
        return_messages(self._queues[name], messages, self._monotonic())

    def _poll(self, name: str, wait: int) -> None:
        arrival: Arrival | None = None
        error: BaseException | None = None
        try:
            arrival = self._receive(name, wait)
        except Cancelled:
            pass
        except BaseException as failure:  # noqa: BLE001  `wait` raises it
            error = failure
        with self._changed:
            self._polling.discard(name)
            self._error = self._error or error
            ours = arrival is not None and not self._cancel.is_set()
            if arrival is not None and ours:
                self._held[name] = arrival
            self._changed.notify_all()
            if ours:  # perhaps nobody takes it: Spark is busy with a batch, or waits for its next trigger
                self._changed.wait_for(lambda: self._held.get(name) is not arrival, self.patience)
                ours = self._held.get(name) is not arrival
                if not ours:
                    del self._held[name]
        if arrival is not None and not ours:
            self.give_back(name, [arrival])

    def _receive(self, name: str, wait: int) -> Arrival | None:
        began, visibility = self._monotonic(), self._options.visibility
        messages = self._queues[name].receive(limits.MAX_RECEIVE, wait, visibility=visibility, cancel=self._cancel)
        return Arrival(self._clock(), began + visibility, messages) if messages else None
