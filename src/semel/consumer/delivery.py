"""One message in this process's hands, from its receipt to the end of its life here.

Its `state` changes only through its lane, which asks the table of `life` under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from semel.consumer.context import Context, Message
from semel.consumer.life import Action, State
from semel.ledger.contract import Claim

if TYPE_CHECKING:
    from semel.consumer.lane import Lane

_NO_NOTES: Mapping[str, bytes] = {}


class Delivery:
    __slots__ = (
        "_context",
        "_lost",
        "after_beat",
        "attempt",
        "beat_at",
        "beating",
        "cancel",
        "claim",
        "dlq_failed",
        "error",
        "fence",
        "group",
        "held_for",
        "hidden",
        "is_lost",
        "key",
        "key_origin",
        "lane",
        "lease_ends",
        "ledger_key",
        "notes",
        "payload",
        "problem",
        "receipt",
        "received",
        "received_at",
        "result",
        "retry_after",
        "size",
        "started_at",
        "state",
        "stopped",
        "value",
        "visible_at",
    )

    def __init__(self, lane: Lane, received: Message, received_at: float, visible_at: float) -> None:
        self.lane = lane
        self.received = received
        self.receipt = received.receipt
        self.size = len(received.body)
        self.group = received.group if lane.fifo else None
        self.state = State.RECEIVED
        # Times by the monotonic clock; those from which a deadline is counted are taken before the call.
        self.received_at = received_at
        self.started_at = 0.0
        self.visible_at = visible_at  # when SQS shows it to others, unless the heartbeat succeeds before
        self.hidden = True  # as far as we know
        self.lease_ends = visible_at
        # What was read from it.
        self.key = ""
        self.key_origin = ""
        self.ledger_key = ""
        self.payload = ""
        self.value: Any = None
        self.problem = ""  # why it cannot be handled: undecodable, without a key
        # What the ledger said.
        self.claim: Claim | None = None
        self.fence = 0
        self.attempt = 0
        self.notes = _NO_NOTES
        self.held_for = 0.0
        # What came of it.
        self.error = ""
        self.result = b""
        self.retry_after: float | None = None
        self.dlq_failed = False  # it was to become a dead letter, and could not
        # The heartbeat's: a call about it is under way; and what is to be done once that is over.
        self.beat_at = 0.0
        self.beating = False
        self.stopped = False
        self.after_beat: tuple[Action, ...] = ()
        # The handler's.
        self.is_lost = False
        self._lost: threading.Event | None = None
        self.cancel: Callable[[], None] | None = None
        self._context: Context | None = None

    @property
    def deadline(self) -> float:
        return min(self.visible_at, self.lease_ends) if self.hidden else self.lease_ends

    @property
    def context(self) -> Context:
        if self._context is None:
            self._context = Context(self)
        return self._context

    def lost_event(self) -> threading.Event:
        with self.lane.lock:
            if self._lost is None:
                self._lost = threading.Event()
                if self.is_lost:
                    self._lost.set()
            return self._lost

    def tell(self) -> None:
        """The claim is gone: set what the handler may be watching, and cancel it if it can be."""
        with self.lane.lock:
            self.is_lost = True
            lost, cancel = self._lost, self.cancel
        if lost is not None:
            lost.set()
        if cancel is not None:
            cancel()
