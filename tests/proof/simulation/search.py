"""Runs a world with many seeds, and shrinks a schedule that breaks a promise as far as it can."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from simulation.choices import Choices
from simulation.simulator import Violation, rendered

SHRINK_SECONDS: Final = 30.0


@dataclass
class Outcome:
    """The result of one schedule. `facts` count what happened in it: crashes, duplicates and so on."""

    timeline: list[tuple[Any, ...]]
    violations: list[Violation]
    choices: list[int]
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return rendered(self.timeline)

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()


World = Callable[[Choices], Outcome]


@dataclass
class Failure:
    world: str
    seed: int | str
    outcome: Outcome
    shrunk: Outcome

    def __str__(self) -> str:
        before, after = len(self.outcome.timeline), len(self.shrunk.timeline)
        return (
            f"{self.world}, seed {self.seed}: {self.outcome.violations[0]}\n"
            f"The shortest schedule found ({after} of {before} lines):\n{self.shrunk.text}"
        )


def first_failure(world: World, seeds: Iterable[int | str]) -> tuple[int, int | str, Outcome] | None:
    """The number of schedules that were run, the failing seed, and its outcome."""
    for number, seed in enumerate(seeds, 1):
        outcome = world(Choices(seed))
        if outcome.violations:
            return number, seed, outcome
    return None


def shrink(world: World, outcome: Outcome, seconds: float = SHRINK_SECONDS) -> Outcome:
    """A shorter schedule with the same kind of violation: chunks of choices are left out or set to 0."""
    kind = outcome.violations[0].kind
    ends = time.monotonic() + seconds
    best = outcome

    def attempt(choices: Sequence[int]) -> bool:
        nonlocal best
        tried = world(Choices(replay=choices))
        if any(violation.kind == kind for violation in tried.violations):
            best = tried
            best.choices = list(choices)
            return True
        return False

    attempt(_without_zeros_at_the_end(outcome.choices))
    size = max(1, len(best.choices) // 2)
    while size and time.monotonic() < ends:
        smaller = False
        at = 0
        while at < len(best.choices) and time.monotonic() < ends:
            choices = best.choices
            chunk = choices[at : at + size]
            if attempt(_without_zeros_at_the_end([*choices[:at], *choices[at + size :]])) or (
                any(chunk)
                and attempt(_without_zeros_at_the_end([*choices[:at], *[0] * len(chunk), *choices[at + size :]]))
            ):
                smaller = True
                if best.choices[at : at + size] == chunk:
                    at += size
            else:
                at += size
        if not smaller:
            size //= 2
    return best


def _without_zeros_at_the_end(choices: Sequence[int]) -> list[int]:
    end = len(choices)
    while end and not choices[end - 1]:
        end -= 1
    return list(choices[:end])
