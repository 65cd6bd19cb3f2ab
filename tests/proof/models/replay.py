"""Makes real code a process of a model, by running it again and again up to its next call to the outside.

The rule: a program sees the world only through `Outside.call`. So the answers that it has got so far decide what it
does next, and this is computed once for each sequence of answers. A process is a sequence of answers, represented by a
number. A program consists of parts: each part ends by naming the next one, and what that one has to know. So two
processes that reached the same point in different ways are the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from semel.errors import SemelError

DIED: Final = "died"  # the answer that a task gets if it dies at this call


class Call(NamedTuple):
    """A process's call to the world: a name, and values that can be compared."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        first = next((value for value in self.arguments if isinstance(value, str)), "")
        return f"{self.name} {first}".strip()


class Pending(NamedTuple):
    """The call whose answer a process waits for. `attempt`: the task that calls, or "" if it is the driver."""

    call: Call
    attempt: str


class TaskDied(Exception):
    """The executor is gone, with everything that the task had not yet written."""


class _Waits(BaseException):
    """There is no answer yet. None of Semel's code catches this exception."""


class Outside:
    """What a program sees of the world."""

    def __init__(self, answers: tuple[Any, ...]) -> None:
        self._answers = list(reversed(answers))
        self.attempt = ""
        self.pending: Pending | None = None
        self._dead = False

    def call(self, name: str, *arguments: Any) -> Any:
        if self._dead:  # the clean-up code of a dead task must have no effect
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
    """All sequences of answers that have occurred, by number."""

    program: Program
    _rows: list[tuple[Part, tuple[Any, ...]]] = field(default_factory=list)
    _numbers: dict[tuple[Part, tuple[Any, ...]], int] = field(default_factory=dict)
    _next: dict[tuple[int, Any], int] = field(default_factory=dict)
    _waits: dict[int, Pending] = field(default_factory=dict)

    def start(self, part: Part) -> int:
        return self._at(part, ())

    def answered(self, process: int, answer: Any) -> int:
        """The process after it has got this answer."""
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
            pass  # the driver stops, and leaves its work to others
        else:
            assert outside.pending is None
            number = ENDED if following is None else self._at(following, ())
        self._numbers[part, answers] = number
        return number
