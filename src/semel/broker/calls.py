"""A call on its way through the broker, and the batch of them that shares one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from semel.broker import protocol as wire
from semel.broker.engine import Access, Caller, Engine, Identity, Received
from semel.broker.http import Request
from semel.sqs.errors import ServiceError


class PendingCall:
    """One call on its way through the broker."""

    # Most calls need few of these, and there are many calls: what is not set is shared.
    identity: Identity
    parsed: wire.Call | None = None
    work: Callable[[int], bytes] | None = None  # an admin request: what to do, and its whole answer
    origin: str = ""
    trace: str | None = None
    access: Access | None = None  # if the signature was checked
    _queue: str | None = None
    deadline: int = 0  # of a parked poll, by the broker's clock
    timer: asyncio.TimerHandle | None = None
    result: dict[str, Any] | Received | None = None
    error: ServiceError | None = None
    performed: int = 0  # when, by the broker's clock
    answer: bytes = b""

    def __init__(self, request: Request, request_id: str, protocol: wire.Protocol, engine: Engine) -> None:
        self._engine = engine
        self.request = request
        self.request_id = request_id
        self.protocol = protocol

    @property
    def is_receive(self) -> bool:
        return self.parsed is not None and self.parsed[0].name == "ReceiveMessage"

    def caller(self, now: int) -> Caller:
        who = self.identity
        return Caller(now, self.origin, who.user_id, self.trace, who.region, who.account, self.access)

    @property
    def queue(self) -> str:
        """The key of the queue that a call is about; empty if it is about none. Once asked, it stays the same."""
        if self._queue is None:
            self._queue = "" if self.parsed is None else self._engine.key_of_call(self.parsed.params, self.caller(0))
        return self._queue


@dataclass(slots=True)
class Batch:
    """What one transaction did; it takes effect outside only when the transaction is durable."""

    calls: list[PendingCall]
    done: list[PendingCall] = field(default_factory=list)
    parked: list[PendingCall] = field(default_factory=list)
    unparked: list[PendingCall] = field(default_factory=list)
