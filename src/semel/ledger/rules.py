"""Who wins a key: the rule that every store follows, without I/O.

SQLite and DynamoDB decide with this code. PostgreSQL decides in SQL and explains refusals with this code. Redis decides
in a Lua script. The conformance suite and the model check that all of them give the same answers.
"""

from __future__ import annotations

import enum
from typing import Protocol

from semel.ledger.contract import ClaimRequest, Conflict, Done, Held, Status


class Known(Protocol):
    """The fields of an entry that the rule reads. Times are seconds since 1970 by the store's clock."""

    @property
    def status(self) -> str: ...
    @property
    def claimant(self) -> str: ...
    @property
    def lease_ends(self) -> float: ...
    @property
    def payload(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def result(self) -> bytes: ...
    @property
    def expires(self) -> float: ...


class Winning(enum.Enum):
    """How a key is won. The fence grows by one in every case except AGAIN."""

    NEW = "new"  # unknown or expired: attempt 1
    AGAIN = "again"  # the same claimant repeats a call whose answer was lost: nothing changes but the lease
    RETRY = "retry"  # released: the next attempt
    TAKEOVER = "takeover"  # the lease of its holder has run out: the next attempt
    REDRIVE = "redrive"  # rejected, and now claimed from another source: attempt 1; `first_seen` stays


def decide(
    request: ClaimRequest, known: Known | None, *, claimant: str, now: float, margin: float = 0.0
) -> Winning | Done | Held | Conflict:
    """Decide the claim of one key. `margin`: by how many seconds clocks may differ, in a store where one clock sets a
    lease and another one judges it."""
    if known is None or known.expires <= now:
        return Winning.NEW
    if known.status == Status.REJECTED:
        same = known.source == request.source
        return Done(request.key, Status.REJECTED, known.result) if same else Winning.REDRIVE
    if differs(request, known.payload):
        return Conflict(request.key, recorded=known.status == Status.DONE)
    if known.status == Status.DONE:
        return Done(request.key, Status.DONE, known.result)
    if known.status == Status.FREE:
        return Winning.RETRY
    if known.claimant == claimant:
        return Winning.AGAIN
    remaining = known.lease_ends - now
    if remaining + margin > 0:
        return Held(request.key, remaining if remaining > 0 else remaining + margin)
    return Winning.TAKEOVER


def differs(request: ClaimRequest, payload: str) -> bool:
    """Whether the key is known with another payload. An empty payload matches every payload."""
    return bool(request.payload and payload and request.payload != payload)
