"""What is in hand of a queue: hidden from others for as long as it is here, and in the end deleted or given back.

The rule: whatever becomes of this process, every message is either in its queue or deleted on purpose; one that is in
hand when the process dies is seen again when its visibility timeout ends.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client import Failure, Queue
from semel.sqs.errors import SqsError

_BEATS: Final = 6  # times within a visibility timeout that it is looked whether something must be extended
RESTING: Final = 1_800  # seconds: what is only kept out of the way is extended seldom, as there may be very many


_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def depth(queue: Queue) -> int:
    """All that is in it, whatever its state; roughly, on SQS."""
    return sum(int(value) for value in queue.attributes(*_COUNTS).values())


def redrive_policy(queue: Queue) -> dict[str, Any]:
    try:
        found = json.loads(queue.attributes("RedrivePolicy").get("RedrivePolicy") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Held:
    __slots__ = ("receipt", "resting", "until")

    def __init__(self, receipt: str, until: float) -> None:
        self.receipt, self.until, self.resting = receipt, until, False


class Leases:
    """Messages of one queue. Thread-safe; while it is open as a context, they are kept hidden, and then given back."""

    def __init__(self, queue: Queue, visibility: int, monotonic: Callable[[], float]) -> None:
        self.queue, self.visibility = queue, visibility
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}  # in the order in which they came
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.given_back = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, id: str) -> bool:
        return id in self._held

    def add(self, messages: Iterable[DeadLetterMessage]) -> None:
        """They were just received. One that is here already came again: its newer receipt counts."""
        until = self._monotonic() + self.visibility
        with self._lock:
            for message in messages:
                known = self._held.get(message.id)
                if known is None:
                    self._held[message.id] = _Held(message.receipt, until)
                else:
                    known.receipt, known.until = message.receipt, until

    def receipt_of(self, message: DeadLetterMessage) -> str:
        """The newest: a letter whose visibility ended may have been received again meanwhile."""
        held = self._held.get(message.id)
        return message.receipt if held is None else held.receipt

    def rest(self, messages: Iterable[DeadLetterMessage]) -> None:
        """They are not wanted, and are only kept from coming again."""
        with self._lock:
            for message in messages:
                if message.id in self._held:
                    self._held[message.id].resting = True

    def drop(self, messages: Iterable[DeadLetterMessage]) -> None:
        """They are deleted."""
        with self._lock:
            for message in messages:
                self._held.pop(message.id, None)

    # Keeping.

    def beat(self) -> None:
        """Extends what would be seen again soon."""
        now = self._monotonic()
        with self._lock:
            due = [(id, held) for id, held in self._held.items() if held.until - now < self.visibility / 2]
            pairs = [(held.receipt, RESTING if held.resting else self.visibility) for _, held in due]
        if not pairs:
            return
        try:
            outcomes: Sequence[Failure | None] = self.queue.change_visibility(pairs)
        except SqsError:
            return  # the next beat tries again; what is lost comes back to the queue by itself
        with self._lock:
            for (id, held), (receipt, seconds), outcome in zip(due, pairs, outcomes, strict=True):
                if outcome is None:
                    held.until = now + seconds
                elif outcome.sender_fault and self._held.get(id) is held and held.receipt == receipt:
                    del self._held[id]  # no longer ours, or hidden for the twelve hours that are the most

    def _keep(self) -> None:
        while not self._over.wait(self.visibility / _BEATS):
            self.beat()

    def __enter__(self) -> Leases:
        self._thread = threading.Thread(target=self._keep, name="semel-redrive-beat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            ids = list(self._held)
        self._give_back(ids)

    # Giving back.

    def give_back(self, messages: Iterable[DeadLetterMessage]) -> None:
        """They are seen again at once, in the order in which they came."""
        wanted = {message.id for message in messages}
        with self._lock:
            ids = [id for id in self._held if id in wanted]
        self._give_back(ids)

    def _give_back(self, ids: Sequence[str]) -> None:
        with self._lock:
            receipts = [held.receipt for id in ids if (held := self._held.pop(id, None)) is not None]
        if receipts:
            with contextlib.suppress(SqsError):  # they come back by themselves
                self.queue.change_visibility([(receipt, 0) for receipt in receipts])
            self.given_back += len(receipts)
