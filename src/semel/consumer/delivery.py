"""One message in this process, from its receive until it has ended here.

Its `state` changes only through the table of deliveries in flight, which asks the lifecycle under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from semel.consumer.context import Context, Message
from semel.consumer.lifecycle import Action, State
from semel.ledger.contract import Claim

if TYPE_CHECKING:
    from semel.consumer.queue_setup import QueueSetup

_NOT_LOST: Final = threading.Lock()  # guards the creation of `lost` events, which few handlers ask for


class Delivery:
    """Values that are not set yet are read from the class, so that a delivery stores only what it needs."""

    state = State.RECEIVED
    number = 0  # in the order of receives
    # Times by the monotonic clock. Deadlines are counted from before the call that set them.
    claimed_at = 0.0
    started_at = 0.0
    finished_at = 0.0
    hidden = True  # from other consumers, as far as we know
    # Read from the message.
    key = ""
    key_origin = ""
    ledger_key = ""
    payload = ""
    value: Any = None
    problem = ""  # why it cannot be handled: undecodable, without a key
    # From the ledger.
    claim: Claim | None = None
    fence = 0
    attempt = 0  # how often it was claimed
    unstarted = 0  # of those, claims whose worker died before the handler was called
    steps: Mapping[str, bytes] = {}  # results of ctx.step, and what the consumer itself saves
    held_for = 0.0
    holder: Delivery | None = None  # the message with the same key that this process is working on
    duplicates: tuple[Delivery, ...] = ()  # messages with the same key that stay hidden until this one has ended
    claiming = False  # the claim call is under way
    unwanted = False  # to be returned as soon as the claim call has ended
    # The outcome.
    error = ""
    result = b""
    retry_after: float | None = None
    dlq_failed = False  # it could not be moved to the dead-letter queue
    # The heartbeat's.
    beat_at = 0.0
    beating = False  # an extension is under way
    stopped = False  # no further extension
    after_beat: tuple[Action, ...] = ()  # what to do once the extension under way has ended
    # The handler's.
    is_lost = False
    cancel: Callable[[], None] | None = None
    _lost: threading.Event | None = None
    _context: Context | None = None

    def __init__(
        self, setup: QueueSetup, received: Message, received_at: float, visible_at: float, arrived_at: float = 0.0
    ) -> None:
        self.setup = setup
        self.received = received
        self.receipt = received.receipt
        body = received.body
        self.size = len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))
        self.group = received.group if setup.fifo else None
        self.received_at = received_at  # before the call that received it
        self.visible_at = visible_at  # when others can see it, unless the heartbeat succeeds before
        self.lease_ends = visible_at
        self.arrived_at = arrived_at  # after that call

    @property
    def deadline(self) -> float:
        return min(self.visible_at, self.lease_ends) if self.hidden else self.lease_ends

    @property
    def starts(self) -> int:
        """How often its handler was called, this attempt included, as far as the ledger knows."""
        return self.attempt - self.unstarted

    @property
    def owned_claim(self) -> Claim:
        assert self.claim is not None
        return self.claim

    @property
    def context(self) -> Context:
        if self._context is None:
            self._context = Context(self)
        return self._context

    def lost_event(self) -> threading.Event:
        with _NOT_LOST:
            if self._lost is None:
                self._lost = threading.Event()
                if self.is_lost:
                    self._lost.set()
            return self._lost

    def notify_lost(self) -> None:
        """The claim may be lost: set the event that the handler may watch, and cancel the handler if it is async."""
        with _NOT_LOST:
            self.is_lost = True
            lost, cancel = self._lost, self.cancel
        if lost is not None:
            lost.set()
        if cancel is not None:
            cancel()
