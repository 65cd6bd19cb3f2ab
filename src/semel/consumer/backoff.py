"""How long to wait before a message is tried again.

The rules have no clock and no randomness of their own: the same attempt and the same chance give the same delay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never, get_args

from semel.durations import Duration, seconds
from semel.errors import SemelError

Jitter = Literal["full", "equal", "none"]


class Backoff(Protocol):
    """How long a failed message waits. `attempt`: the attempt that failed, from 1; `chance`: a random number in [0, 1).

    >>> from semel import App
    >>> class Patient:
    ...     def delay(self, attempt: int, chance: float) -> float:
    ...         return 60.0 * attempt
    >>> app = App(retry=Patient())
    """

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this attempt."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """Wait for `base` after the first attempt and `factor` times as long after each further one, for at most `cap`.

    >>> from semel import App, Exponential
    >>> app = App(retry=Exponential(base="1s", cap="5m", jitter="none"))
    >>> [Exponential(base=1, cap=60, jitter="none").delay(attempt, 0.5) for attempt in (1, 2, 3, 10)]
    [1.0, 2.0, 4.0, 60.0]
    """

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
        """Seconds to wait after this attempt."""
        cap = seconds(self.cap)
        try:
            grown = seconds(self.base) * self.factor ** max(0, attempt - 1)
        except OverflowError:
            grown = cap
        return spread(min(cap, grown), self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Wait equally long after every attempt.

    >>> from semel import App, Fixed
    >>> app = App(retry=Fixed("30s"))
    >>> Fixed("30s").delay(attempt=3, chance=0.5)
    30.0
    """

    every: Duration
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        seconds(self.every)
        _check(self.jitter)

    def delay(self, attempt: int, chance: float) -> float:  # noqa: ARG002
        """Seconds to wait, the same after each attempt."""
        return spread(seconds(self.every), self.jitter, chance)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Wait for these delays one after the other, and then for the last one again and again.

    >>> from semel import App, Schedule
    >>> app = App(retry=Schedule([1, "30s", "5m"]))
    >>> [Schedule([1, "30s", "5m"]).delay(attempt, 0.5) for attempt in (1, 2, 3, 4)]
    [1.0, 30.0, 300.0, 300.0]
    """

    delays: Sequence[Duration]
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        if isinstance(self.delays, str) or not self.delays:
            raise SemelError(f"a schedule is a list of durations such as [1, '30s', '5m'], not {self.delays!r}")
        object.__setattr__(self, "delays", tuple(seconds(delay) for delay in self.delays))
        _check(self.jitter)

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this attempt."""
        place = min(max(1, attempt), len(self.delays)) - 1
        return spread(seconds(self.delays[place]), self.jitter, chance)


def spread(delay: float, jitter: Jitter, chance: float) -> float:
    """Keep messages that failed together from coming back together: full is [0, delay), equal [delay / 2, delay)."""
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
