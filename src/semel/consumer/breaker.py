"""A circuit breaker as a plain value: it lets calls through, stops them, or lets one through to see.

Rules: closed lets all through; `after` failures in a row, or one outage, open it; when its wait is over a single probe
decides whether it closes or waits longer. It never looks at a clock and holds no lock: whoever keeps one swaps the
value under a lock of its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from semel.consumer.backoff import Backoff, Exponential
from semel.errors import SemelError


class State(enum.StrEnum):
    CLOSED = "closed"  # all is well
    OPEN = "open"  # nothing is let through
    HALF_OPEN = "half-open"  # a probe may go, or is on its way


PATIENT: Final = Exponential(base=0.5, cap=30.0, jitter="equal")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a breaker opens, how long it waits before a probe, and after how long a probe counts as lost."""

    after: int = 3
    backoff: Backoff = PATIENT
    probe_lost_after: float = 60.0

    def __post_init__(self) -> None:
        if self.after < 1:
            raise SemelError(f"a breaker cannot open after {self.after} failures: 1 is the least")


@dataclass(frozen=True, slots=True)
class Breaker:
    """Each event gives the next breaker: `asked`, `succeeded`, `failed`. Times are seconds of one clock."""

    limits: Limits = Limits()
    failures: int = 0  # in a row, while closed
    openings: int = 0  # in a row, without a success in between
    opened_until: float = 0.0
    probing_since: float | None = None

    def state(self, now: float) -> State:
        if not self.openings:
            return State.CLOSED
        if self.probing_since is None and now < self.opened_until:
            return State.OPEN
        return State.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a call may be made now; whoever makes it swaps in `asked(now)` first."""
        return self.wait(now) <= 0

    def wait(self, now: float) -> float:
        """Seconds until a call may be made; 0 is now. While a probe is out, until it counts as lost."""
        if not self.openings:
            return 0.0
        ready = self.opened_until if self.probing_since is None else self.probing_since + self.limits.probe_lost_after
        return max(0.0, ready - now)

    def asked(self, now: float) -> Breaker:
        """A call is about to be made. Unless it is closed, that call is the probe, and no other goes beside it."""
        if not self.openings or not self.allows(now):
            return self
        return replace(self, probing_since=now)

    def succeeded(self, now: float) -> Breaker:
        """A call was answered. One that began before the breaker opened proves nothing about now."""
        return self if self.state(now) is State.OPEN else Breaker(self.limits)

    def failed(self, now: float, chance: float, *, outage: bool = False) -> Breaker:
        """A call failed. `outage`: it is plain that the next one would too, so there is nothing to count."""
        match self.state(now):
            case State.OPEN:
                return self  # a call that began before it opened: its failure is not a second one
            case State.CLOSED if not outage and self.failures + 1 < self.limits.after:
                return replace(self, failures=self.failures + 1)
            case _:
                openings = self.openings + 1
                until = now + self.limits.backoff.delay(openings, chance)
                return Breaker(self.limits, openings=openings, opened_until=until)
