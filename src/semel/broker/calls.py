"""A call on its way through the broker, the batch of calls that share a transaction, and the calls that wait for one.

Rule: nothing here grows without a bound. When too many calls wait, a new one is refused without being read, which costs
little, so that accepted calls are still served quickly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from semel.broker import protocol as wire
from semel.broker.engine import Access, Caller, Engine, Identity, Received
from semel.broker.http import Request
from semel.sqs.errors import ServiceError

MAX_WAITING: Final = 2_048  # calls: what the broker carries out in less than a second
MAX_WAITING_SECONDS: Final = 1.0  # on a machine that takes longer for them
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024  # of their requests
MAX_IN_TRANSACTION: Final = 128  # calls; during a transaction, no request is read
MAX_RESULT_BYTES: Final = 32 * 1024 * 1024  # that the receives of one transaction return
_MANY_POLLS: Final = 1_024


class PendingCall:
    """One call on its way through the broker."""

    # There are many calls, and most need few of these: attributes that are not set are shared by all.
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
    arrived: float = 0.0  # when it began to wait for its transaction, by the machine's steady clock
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
        """The key of the queue that a call is about; empty if it is about none. It is computed once."""
        if self._queue is None:
            self._queue = "" if self.parsed is None else self._engine.key_of_call(self.parsed.params, self.caller(0))
        return self._queue


@dataclass(slots=True)
class Batch:
    """What one transaction did; it becomes visible outside only when the transaction is durable."""

    calls: list[PendingCall]
    done: list[PendingCall] = field(default_factory=list)
    parked: list[PendingCall] = field(default_factory=list)
    unparked: list[PendingCall] = field(default_factory=list)
    deferred: list[PendingCall] = field(default_factory=list)  # receives that are left to the next transaction
    result_bytes: int = 0

    @property
    def full(self) -> bool:
        """Whether its answers have reached the size limit of a transaction."""
        return self.result_bytes >= MAX_RESULT_BYTES


class PendingCalls:
    """Calls that wait for their transaction, in the order of their arrival. `unsynced` counts calls whose
    transaction waits for the disk, `held` those that a fault delays. All of them count towards the limit."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: deque[PendingCall] = deque()
        self._bytes = 0
        self.unsynced = self.held = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def full(self) -> bool:
        """Whether the next call is to be refused."""
        waiting = len(self._calls)
        if waiting + self.unsynced + self.held >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            return True
        return waiting > MAX_IN_TRANSACTION and self._clock() - self._calls[0].arrived > MAX_WAITING_SECONDS

    def add(self, call: PendingCall) -> None:
        call.arrived = self._clock()
        self._calls.append(call)
        self._bytes += len(call.request.body)

    def take(self) -> list[PendingCall]:
        """The next calls, as many as one transaction may have. If others have to wait, calls whose clients have gone
        are dropped, because they would only delay the others."""
        waiting = self._calls
        if len(waiting) <= MAX_IN_TRANSACTION:
            self._calls, self._bytes = deque(), 0
            return list(waiting)
        calls: list[PendingCall] = []
        while waiting and len(calls) < MAX_IN_TRANSACTION:
            call = waiting.popleft()
            self._bytes -= len(call.request.body)
            if call.request.hung_up:
                call.request.abort()
            else:
                calls.append(call)
        return calls

    def put_back(self, calls: Collection[PendingCall]) -> None:
        """Puts calls back for the next transaction, before all others."""
        self._calls.extendleft(reversed([*calls]))
        self._bytes += sum(len(call.request.body) for call in calls)


class ParkedCalls:
    """Long polls that wait for a message, by queue. `sweep_is_due` says when to look for clients that have gone: when
    there are many polls, and twice as many as after the previous sweep."""

    def __init__(self) -> None:
        self.by_queue: dict[str, dict[PendingCall, None]] = {}
        self._count, self._next_sweep = 0, _MANY_POLLS

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PendingCall]:
        """Iterates over a copy, because calls may be removed meanwhile."""
        return iter([call for calls in self.by_queue.values() for call in calls])

    def add(self, call: PendingCall) -> None:
        self.by_queue.setdefault(call.queue, {})[call] = None
        self._count += 1

    def remove(self, call: PendingCall) -> None:
        waiting = self.by_queue.get(call.queue)
        if waiting is not None and call in waiting:
            del waiting[call]
            self._count -= 1
            if not waiting:
                del self.by_queue[call.queue]

    @property
    def sweep_is_due(self) -> bool:
        return self._count >= self._next_sweep

    def swept(self) -> None:
        self._next_sweep = 2 * self._count + _MANY_POLLS
