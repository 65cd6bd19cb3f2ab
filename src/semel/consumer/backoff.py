"""How long to wait before a message is tried again: rules without a clock and without randomness of their own.

The same attempt and the same chance give the same delay, and no delay reaches past the twelve hours for which SQS hides
a message at most, counted from its receive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, Protocol, assert_never, get_args

from semel.errors import SemelError

Duration = float | str | timedelta  # 30, "30s", "500ms", "2h", "1h30m"
Jitter = Literal["full", "equal", "none"]

LONGEST: Final = 12 * 3_600  # seconds that SQS hides a message for, from its receive on
MARGIN: Final = 5  # seconds left to the way to SQS, and to its clock
UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
PART: Final = re.compile(rf"({NUMBER.pattern})\s*(ms|[smhd])\s*")


def seconds(duration: Duration) -> float:
    """A duration as seconds: a number, a timedelta, or a text such as "30", "30s", "500ms", "2h", "1h30m"."""
    match duration:
        case timedelta():
            value = duration.total_seconds()
        case str():
            value = _parsed(duration)
        case bool():
            raise SemelError(f"{duration} is not a duration")
        case int() | float():
            value = float(duration)
        case _:
            raise SemelError(f"{duration!r} is not a duration: give seconds, or a text such as '30s' or '2h'")
    if not 0 <= value < math.inf:
        raise SemelError(f"a duration of {duration} is not possible: it must be 0 or more, and end one day")
    return value


def _parsed(text: str) -> float:
    text = text.strip()
    if NUMBER.fullmatch(text):
        return float(text)
    total, end = 0.0, 0
    for part in PART.finditer(text):
        if part.start() != end:
            break
        total += float(part[1]) * UNITS[part[2]]
        end = part.end()
    if not end or end != len(text):
        raise SemelError(f"{text!r} is not a duration; durations are written as 30, 500ms, 30s, 5m, 2h, 1d or 1h30m")
    return total


class Backoff(Protocol):
    """`attempt` is the one that has failed, 1 the first; `chance` is a random number in [0, 1)."""

    def delay(self, attempt: int, chance: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """`base` seconds after the first attempt, `factor` times as long after each further one, never past `cap`."""

    base: Duration = 2.0
    cap: Duration = 900.0
    factor: float = 2.0
    jitter: Jitter = "full"

    def __post_init__(self) -> None:
        seconds(self.base), seconds(self.cap)
        if not 1 <= self.factor < math.inf:
            raise SemelError(f"a factor of {self.factor} is not possible: waits that get shorter are no back-off")
        _check(self.jitter)

    def delay(self, attempt: int, chance: float) -> float:
        cap = seconds(self.cap)
        try:
            grown = seconds(self.base) * self.factor ** max(0, attempt - 1)
        except OverflowError:
            grown = cap
        return spread(min(cap, grown), self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same wait."""

    every: Duration
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        seconds(self.every)
        _check(self.jitter)

    def delay(self, attempt: int, chance: float) -> float:  # noqa: ARG002
        return spread(seconds(self.every), self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One wait after the other; when they are used up, the last one again and again."""

    delays: Sequence[Duration]
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        if isinstance(self.delays, str) or not self.delays:
            raise SemelError(f"a schedule is a list of durations such as [1, '30s', '5m'], not {self.delays!r}")
        object.__setattr__(self, "delays", tuple(seconds(delay) for delay in self.delays))
        _check(self.jitter)

    def delay(self, attempt: int, chance: float) -> float:
        place = min(max(1, attempt), len(self.delays)) - 1
        return spread(seconds(self.delays[place]), self.jitter, chance)


def spread(delay: float, jitter: Jitter, chance: float) -> float:
    """Keep those that failed together from coming back together: full is [0, delay), equal [delay / 2, delay)."""
    match jitter:
        case "full":
            return delay * chance
        case "equal":
            return delay * (0.5 + chance / 2)
        case "none":
            return delay
        case _:
            assert_never(jitter)


def _check(jitter: str) -> None:
    if jitter not in get_args(Jitter):
        raise SemelError(f"{jitter!r} is no kind of jitter: there are {', '.join(get_args(Jitter))}")


def visibility_for(delay: float, received_for: float) -> int:
    """The visibility timeout, in whole seconds, that hides a message for `delay` from now on.

    Never shorter than asked for, except where the message, received `received_for` seconds ago, cannot be hidden that
    long: SQS refuses what would reach past twelve hours from the receive. 0 makes it visible at once.
    """
    left = LONGEST - MARGIN - math.ceil(max(0.0, received_for))
    return max(0, min(math.ceil(min(delay, LONGEST)), left))
