"""Fairness among the tenants of a Standard queue: which message groups are noisy."""

from __future__ import annotations

from math import exp
from typing import Final

from semel.broker.engine.generation import Generation, Group
from semel.broker.engine.schema import IN_FLIGHT

# A tenant is noisy above this share of the messages in flight (and this many of its own), or of recent work.
NOISY_SHARE: Final = 0.10
NOISY_IN_FLIGHT: Final = 30
# "Recent" work fades with this time constant; less than `_EVIDENCE_MS` of it is too little to judge by.
_RECENT_MS: Final = 60_000.0
_EVIDENCE_MS: Final = 10_000.0
_QUIET_AFTER_MS: Final = 300_000


def _faded(amount: float, since: int, now: int) -> float:
    return amount * exp((since - now) / _RECENT_MS)


def worked(generation: Generation, group: Group | None, milliseconds: int, now: int) -> None:
    """Records how long a message was worked on: a tenant that takes much of the consumers' time is noisy."""
    generation.busy = _faded(generation.busy, generation.busy_at, now) + milliseconds
    generation.busy_at = now
    if group is not None:
        group.busy = _faded(group.busy, group.busy_at, now) + milliseconds
        group.busy_at = now


def is_noisy(generation: Generation, group: Group, now: int) -> bool:
    if now - group.sent >= _QUIET_AFTER_MS:
        return False
    own, all_of_them = len(group.in_flight) + group.receiving, generation.counts[IN_FLIGHT]
    if own >= NOISY_IN_FLIGHT and own > NOISY_SHARE * all_of_them:
        return True
    busy = _faded(group.busy, group.busy_at, now)
    recent = max(busy, _faded(generation.busy, generation.busy_at, now))
    return busy >= _EVIDENCE_MS and busy > NOISY_SHARE * recent
