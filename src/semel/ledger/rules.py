"""Who wins a key: the one rule that every store keeps, free of I/O.

SQLite and DynamoDB decide by it, PostgreSQL explains its refusals with it. Redis has it as a Lua script, which the
conformance suite and the model hold to the same answers.
"""

from __future__ import annotations

import enum
from typing import Protocol

from semel.ledger.contract import ClaimRequest, Conflict, Done, Held, Status


class Known(Protocol):
    """What the rule reads of an entry. Times are seconds since 1970 by the store's clock."""

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
    """How a key is won. The fence grows by one in each case but AGAIN."""

    NEW = "new"  # unknown or expired: attempt 1
    AGAIN = "again"  # the same claimant repeats a call whose answer was lost: nothing changes but the lease
    RETRY = "retry"  # released: the next attempt
    TAKEOVER = "takeover"  # its lease has run out: the next attempt
    REDRIVE = "redrive"  # rejected, and now from another source: attempt 1, first seen as before


def decide(
    request: ClaimRequest, known: Known | None, *, claimant: str, now: float, margin: float = 0.0
) -> Winning | Done | Held | Conflict:
    """What a claim of one key leads to. `margin`: seconds that clocks may be apart, where a lease is not judged by the
    clock that it was given by."""
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
    """Whether two different things bear one key. An empty payload fits any."""
    return bool(request.payload and payload and request.payload != payload)
