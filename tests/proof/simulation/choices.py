"""Every decision of one schedule: drawn from a seed, recorded, and replayed from a list when a failure is shrunk.

The rule that makes shrinking work: 0 is always the ordinary case, and a list that has ended continues with zeros. So
the shorter the list and the smaller its numbers, the less happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """`decisions` are the numbers chosen so far."""

    def __init__(self, seed: int | str | None = None, replay: Sequence[int] = ()) -> None:
        self._random = Random(seed).random if seed is not None else None
        self._replay = replay
        self.decisions: list[int] = []

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1, all equally likely."""
        if self._random is not None:
            value = int(self._random() * count)
        else:
            at = len(self.decisions)
            value = self._replay[at] % count if at < len(self._replay) else 0
        self.decisions.append(value)
        return value

    def chance(self, probability: float) -> bool:
        """Whether something out of the ordinary happens."""
        if self._random is not None:
            value = int(self._random() < probability)
        else:
            at = len(self.decisions)
            value = self._replay[at] & 1 if at < len(self._replay) else 0
        self.decisions.append(value)
        return bool(value)

    def one_of(self, options: Sequence[T]) -> T:
        """The first one is the ordinary case."""
        return options[self.below(len(options))]
