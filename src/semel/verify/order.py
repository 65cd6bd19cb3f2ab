"""Effects in the order of the sends, within each FIFO group.

The rule: an effect must not come before a message ahead of it in its group has its effect, or has left the group as a
dead letter or by a refusal. A message that has left the group need not keep the order any more: a redrive brings it
back later, out of order by definition. Only the first effect of a key counts. A lost message is reported as lost, not
as overtaken.

A message is ahead of another if its sequence number is lower, if all messages of the group have one; else if its first
send is earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One key of a group: its place in the order of the sends, and positions in the history."""

    number: int  # of the caller
    rank: int
    effect_at: int | None
    resolved_at: float | None  # its effect, or when it left the group; None if it is lost


@dataclass(frozen=True, slots=True)
class Overtaking:
    overtaker: int
    overtaken: int  # the first one
    count: int


def overtakings(places: Sequence[Place]) -> Iterator[Overtaking]:
    """Each message whose effect came too early, once. An overtaken message counts for one overtaker: the earliest."""
    earliest: Place | None = None  # the one with the earliest effect of those behind the current one
    victims: dict[int, list[int]] = {}
    waiting: list[Place] = []  # of the same rank: they do not overtake each other
    for place in sorted(places, key=lambda place: place.rank, reverse=True):
        if waiting and waiting[0].rank != place.rank:
            earliest = _earliest(earliest, waiting)
            waiting = []
        waiting.append(place)
        if earliest is None or earliest.effect_at is None or place.resolved_at is None:
            continue
        if earliest.effect_at < place.resolved_at:
            victims.setdefault(earliest.number, []).append(place.number)
    for overtaker, overtaken in victims.items():
        yield Overtaking(overtaker, overtaken[-1], len(overtaken))


def _earliest(known: Place | None, places: Sequence[Place]) -> Place | None:
    effects = [place for place in (*places, *([known] if known else ())) if place.effect_at is not None]
    return min(effects, key=lambda place: place.effect_at or 0, default=None)
