"""Real code as a process of a model: it is run up to its next call to the outside, again and again.

The rule: a program sees the world only through `Outside.call`. So what it does next follows from the answers that it
has had so far, and is worked out once for each row of answers. A process is its row of answers, as a number. A program
is made of parts: each ends by naming the next one, and what that has to know. So two processes that have come to the
same point by different ways are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from semel.errors import SemelError

DIED: Final = "died"  # the answer that a task gets if it dies at this call


class Call(NamedTuple):
    """What a process asks of the world: a name and values that can be compared."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        first = next((value for value in self.arguments if isinstance(value, str)), "")
        return f"{self.name} {first}".strip()


class Pending(NamedTuple):
    """A process waits for this answer. `attempt`: the task that asks, "" if it is the driver."""

    call: Call
    attempt: str


class TaskDied(Exception):
    """The executor is gone, and all that the task had not written."""


class _Waits(BaseException):
    """There is no answer yet. No code of ours catches it."""


class Outside:
    """What a program sees of the world."""

    def __init__(self, answers: tuple[Any, ...]) -> None:
        self._answers = list(reversed(answers))
        self.attempt = ""
        self.pending: Pending | None = None
        self._dead = False

    def call(self, name: str, *arguments: Any) -> Any:
        if self._dead:  # what a dead task's clean-up would do does not happen
            raise TaskDied
        if self.pending is not None or not self._answers:
            self.pending = self.pending or Pending(Call(name, arguments), self.attempt)
            raise _Waits
        answer = self._answers.pop()
        if answer is DIED:
            self._dead = True
            raise TaskDied
        return answer

    def begin_task(self, attempt: str) -> None:
        self.attempt, self._dead = attempt, False


Part = tuple[Any, ...]  # the name of a part of a program, and what it has to know
Program = Callable[[Outside, Part], Part | None]  # returns the part that follows
ENDED: Final = -1


@dataclass(slots=True)
class Processes:
    """All rows of answers that were met, by number."""

    program: Program
    _rows: list[tuple[Part, tuple[Any, ...]]] = field(default_factory=list)
    _numbers: dict[tuple[Part, tuple[Any, ...]], int] = field(default_factory=dict)
    _next: dict[tuple[int, Any], int] = field(default_factory=dict)
    _waits: dict[int, Pending] = field(default_factory=dict)

    def start(self, part: Part) -> int:
        return self._at(part, ())

    def answered(self, process: int, answer: Any) -> int:
        """The process after it got this answer."""
        after = self._next.get((process, answer))
        if after is None:
            part, answers = self._rows[process]
            after = self._next[process, answer] = self._at(part, (*answers, answer))
        return after

    def waits(self, process: int) -> Pending | None:
        """What the process waits for; None if it has ended."""
        return None if process == ENDED else self._waits[process]

    def _at(self, part: Part, answers: tuple[Any, ...]) -> int:
        known = self._numbers.get((part, answers))
        if known is not None:
            return known
        outside = Outside(answers)
        number = ENDED
        try:
            following = self.program(outside, part)
        except _Waits:
            assert outside.pending is not None
            number = len(self._rows)
            self._rows.append((part, answers))
            self._waits[number] = outside.pending
        except (SemelError, TaskDied):
            pass  # it stops; what it had begun is left to others
        else:
            assert outside.pending is None
            number = ENDED if following is None else self._at(following, ())
        self._numbers[part, answers] = number
        return number
