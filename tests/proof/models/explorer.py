"""Explores all states of a model, breadth first, so the path to a violation is as short as possible.

The rule: a model is a pure function from a state to its next states. Everything that may happen, in any order, is a
step of some state; nothing is random, and nothing is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
StateOf = TypeVar("StateOf", bound=Hashable)


class Violated(Exception):
    """A step breaks a rule, which the text names."""


class Model(Protocol[StateOf]):
    def initial(self) -> StateOf: ...

    def steps(self, state: StateOf) -> Iterable[tuple[str, StateOf]]:
        """The possible next steps: a sentence for each, and the state after it. Raises Violated."""

    def broken(self, before: StateOf, after: StateOf) -> str | None:
        """The rule that this step breaks, in words."""

    def is_final(self, state: StateOf) -> bool:
        """Whether everything is done."""

    def describe(self, state: StateOf) -> str:
        """A state in one line, for the path to a violation."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`path`: each step that led to it, with the state after the step."""

    rule: str
    path: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{number:3}. {step:<60} {state}" for number, (step, state) in enumerate(self.path, 1)]
        return "\n".join([f"broken: {self.rule}", *lines])


@dataclass(slots=True)
class Exploration(Generic[State]):
    """`violation`: the first one found, with a shortest path; None if every state keeps all rules."""

    states: int = 0
    steps: int = 0
    finals: int = 0
    violation: Violation | None = None
    _came_from: dict[State, tuple[State, str] | None] = field(default_factory=dict)


def explore(model: Model[State], *, live: bool = True, limit: int = 5_000_000) -> Exploration[State]:
    """Explore all states of the model. `live`: check also that a final state can be reached from each of them."""
    exploration = Exploration[State]()
    initial = model.initial()
    came_from = exploration._came_from
    came_from[initial] = None
    queue = deque([initial])
    before: dict[State, list[State]] = {}
    finals: list[State] = []
    while queue:
        state = queue.popleft()
        if model.is_final(state):
            finals.append(state)
        try:
            for step, after in model.steps(state):
                exploration.steps += 1
                broken = model.broken(state, after)
                if broken is not None:
                    return _ended(
                        exploration, Violation(broken, (*_path(model, came_from, state), _shown(model, step, after)))
                    )
                if live:
                    before.setdefault(after, []).append(state)
                if after not in came_from:
                    came_from[after] = (state, step)
                    queue.append(after)
        except Violated as violated:
            return _ended(exploration, Violation(str(violated), _path(model, came_from, state)))
        assert len(came_from) <= limit, f"more than {limit} states: the model is not small"
    exploration.finals = len(finals)
    if live:
        stuck = _stuck(came_from, before, finals)
        if stuck is not None:
            path = _path(model, came_from, stuck)
            return _ended(exploration, Violation("from here on nothing leads to the end any more", path))
    return _ended(exploration, None)


def _ended(exploration: Exploration[State], violation: Violation | None) -> Exploration[State]:
    exploration.states, exploration.violation = len(exploration._came_from), violation
    exploration._came_from = {}
    return exploration


def _stuck(states: Iterable[State], before: dict[State, list[State]], finals: list[State]) -> State | None:
    """The first state from which no final state can be reached, found by walking back from the final states."""
    reached = set(finals)
    todo = list(finals)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in reached:
                reached.add(state)
                todo.append(state)
    return next((state for state in states if state not in reached), None)


def _path(
    model: Model[State], came_from: dict[State, tuple[State, str] | None], state: State
) -> tuple[tuple[str, str], ...]:
    return tuple(reversed(list(_steps_back(model, came_from, state))))


def _steps_back(
    model: Model[State], came_from: dict[State, tuple[State, str] | None], state: State
) -> Iterator[tuple[str, str]]:
    while (last := came_from[state]) is not None:
        yield _shown(model, last[1], state)
        state = last[0]


def _shown(model: Model[State], step: str, state: State) -> tuple[str, str]:
    return step, model.describe(state)
