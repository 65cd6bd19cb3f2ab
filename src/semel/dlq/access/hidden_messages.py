"""Received messages that are kept hidden from others until they are deleted or released.

The rule: whatever happens to this process, every message is either in its queue or was deleted on purpose. If the
process dies, the messages that it held become visible when their visibility timeout ends, within two minutes. Messages
of a FIFO queue are released in reverse order, so that nobody can receive from a group before its first message is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, Self

from semel.dlq.messages import DeadLetterMessage
from semel.errors import SemelError
from semel.sqs.client import Failure, Queue

_BEATS: Final = 6  # heartbeats within a visibility timeout
_PART: Final = 500  # messages that one thread extends
_THREADS: Final = 16


class Receipted(Protocol):
    """A message with a receipt."""

    @property
    def id(self) -> str: ...
    @property
    def receipt(self) -> str: ...


class _HiddenMessage:
    __slots__ = ("receipt", "until")

    def __init__(self, receipt: str, until: float) -> None:
        self.receipt, self.until = receipt, until


class HiddenMessages:
    """Messages of one queue: kept hidden while the context is open, and released at its end. Thread-safe."""

    def __init__(self, queue: Queue, visibility: int, monotonic: Callable[[], float]) -> None:
        self.queue, self.visibility = queue, visibility
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._messages: dict[str, _HiddenMessage] = {}  # in the order in which they were received
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.released = 0
        self.kept_back = 0  # could not be released; they become visible when their timeout ends

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: Iterable[Receipted]) -> None:
        """Adds messages that were just received. If one is already held, its newer receipt counts."""
        until = self._monotonic() + self.visibility
        with self._lock:
            for message in messages:
                hidden = self._messages.get(message.id)
                if hidden is None:
                    self._messages[message.id] = _HiddenMessage(message.receipt, until)
                else:
                    hidden.receipt, hidden.until = message.receipt, until

    def receipt_of(self, message: DeadLetterMessage) -> str:
        """The newest receipt: a message whose visibility timeout ended may have been received again."""
        hidden = self._messages.get(message.id)
        return message.receipt if hidden is None else hidden.receipt

    def remove(self, messages: Iterable[DeadLetterMessage]) -> None:
        """Call after messages were deleted."""
        with self._lock:
            for message in messages:
                self._messages.pop(message.id, None)

    # Extending.

    def extend(self) -> None:
        """Extends the visibility timeout of messages that would soon be visible."""
        now = self._monotonic()
        with self._lock:
            due = [
                (id, hidden.receipt)
                for id, hidden in self._messages.items()
                if hidden.until - now < self.visibility / 2
            ]
        parts = [due[begin : begin + _PART] for begin in range(0, len(due), _PART)]
        if len(parts) > 1:  # one after the other, the last ones would become visible before their turn
            with ThreadPoolExecutor(min(_THREADS, len(parts)), thread_name_prefix="semel-extend") as pool:
                list(pool.map(lambda part: self._extend(part, now), parts))
        elif parts:
            self._extend(parts[0], now)

    def _extend(self, due: Sequence[tuple[str, str]], now: float) -> None:
        try:
            outcomes: Sequence[Failure | None] = self.queue.change_visibility(
                [(receipt, self.visibility) for _, receipt in due]
            )
        except SemelError:
            return  # the next heartbeat tries again; a message that is lost becomes visible by itself
        with self._lock:
            for (id, receipt), outcome in zip(due, outcomes, strict=True):
                hidden = self._messages.get(id)
                if hidden is None or hidden.receipt != receipt:
                    continue
                if outcome is None:
                    hidden.until = now + self.visibility
                elif outcome.sender_fault:
                    del self._messages[id]  # no longer ours, or hidden for twelve hours, the limit of SQS

    def _beat(self) -> None:
        while not self._closed.wait(self.visibility / _BEATS):
            self.extend()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._beat, name="semel-hidden", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self.release()

    # Releasing.

    def release(self, messages: Iterable[DeadLetterMessage] | None = None) -> None:
        """Makes these messages, or all, visible again at once."""
        wanted = None if messages is None else {message.id for message in messages}
        with self._lock:
            ids = [id for id in self._messages if wanted is None or id in wanted]
            receipts = [self._messages.pop(id).receipt for id in ids]
        if not receipts:
            return
        if self.queue.fifo:
            receipts.reverse()
        self.released += len(receipts)
        try:
            outcomes = self.queue.change_visibility([(receipt, 0) for receipt in receipts])
        except SemelError:
            self.kept_back += len(receipts)
        else:
            self.kept_back += sum(outcome is not None and not outcome.gone for outcome in outcomes)
