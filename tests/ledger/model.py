"""A model of the ledger in plain Python, in memory. Every store must behave exactly like it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, Conflict, Done, Held, Status, Won


@dataclass
class Known:
    """One key. `fence` is the highest that was ever assigned to it."""

    fence: int
    status: Status = Status.CLAIMED
    attempt: int = 1
    claimant: str = ""
    lease_ends: float = 0.0
    expires: float = 0.0
    payload: str = ""
    source: str = ""
    result: bytes = b""
    steps: dict[str, bytes] = field(default_factory=dict)


class Model:
    def __init__(self, retention: float) -> None:
        self.retention = retention
        self.now = 0.0
        self.keys: dict[str, Known] = {}

    def find(self, key: str) -> Known | None:
        known = self.keys.get(key)
        return known if known is not None and known.expires > self.now else None

    def held(self, claim: Claim) -> Known | None:
        known = self.find(claim.key)
        ours = known is not None and known.status is Status.CLAIMED and known.fence == claim.fence
        return known if ours else None

    def ask(self, ask: ClaimRequest, claimant: str, lease: float) -> ClaimResult:
        known = self.find(ask.key)
        if known is None:
            return self._start(ask, claimant, lease)
        other_payload = "" not in (ask.payload, known.payload) and ask.payload != known.payload
        if known.status is Status.REJECTED:
            if ask.source == known.source:
                return Done(ask.key, Status.REJECTED, known.result)
            return self._start(ask, claimant, lease)
        if other_payload:
            return Conflict(ask.key, recorded=known.status is Status.DONE)
        if known.status is Status.DONE:
            return Done(ask.key, Status.DONE, known.result)
        taken_over = False
        if known.status is Status.FREE or known.claimant != claimant:
            if known.status is Status.CLAIMED and known.lease_ends > self.now:
                return Held(ask.key, known.lease_ends - self.now)
            taken_over = known.status is Status.CLAIMED
            known.fence += 1
            known.attempt += 1
            known.source = ask.source
        known.status, known.claimant = Status.CLAIMED, claimant
        known.payload = known.payload or ask.payload
        self._lease(known, lease)
        return Won(Claim(ask.key, known.fence), lease, known.attempt, taken_over, dict(known.steps))

    def _start(self, ask: ClaimRequest, claimant: str, lease: float) -> ClaimResult:
        before = self.keys.get(ask.key)
        known = Known(before.fence + 1 if before else 1, claimant=claimant, payload=ask.payload, source=ask.source)
        self.keys[ask.key] = known
        self._lease(known, lease)
        return Won(Claim(ask.key, known.fence), lease)

    def _lease(self, known: Known, lease: float) -> None:
        known.lease_ends = self.now + lease
        known.expires = self.now + max(self.retention, lease)

    def extend(self, claim: Claim, lease: float) -> bool:
        known = self.held(claim)
        if known is not None:
            self._lease(known, lease)
        return known is not None

    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        known = self.held(claim)
        if known is not None:
            known.steps[name] = value
            known.expires = max(self.now + self.retention, known.lease_ends)
        return known is not None

    def record(self, finish: Completion) -> bool:
        known = self.held(finish.claim)
        if known is None:
            known = self.find(finish.claim.key)
            return known is not None and (known.fence, known.status) == (finish.claim.fence, finish.status)
        known.status, known.result, known.steps = finish.status, finish.result, {}
        known.expires = self.now + (self.retention if finish.retention is None else finish.retention)
        return True

    def release(self, claim: Claim, tried: bool) -> bool:
        known = self.held(claim)
        if known is not None:
            known.status, known.attempt = Status.FREE, known.attempt - (0 if tried else 1)
            known.expires = self.now + self.retention
        return known is not None

    def forget(self, keys: set[str]) -> int:
        known = [entry for entry in map(self.find, keys) if entry is not None]
        for it in known:
            it.status, it.attempt, it.payload, it.source, it.result, it.steps = Status.FREE, 0, "", "", b"", {}
            it.expires = self.now + self.retention
        return len(known)

    def expired(self) -> Iterator[str]:
        yield from (key for key, known in self.keys.items() if known.expires <= self.now)
