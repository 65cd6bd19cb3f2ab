"""Processes and tasks in virtual time, one step at a time, on one thread.

A task is a greenlet: it runs real code until that code calls something that takes time, and continues when that time
has passed. The delays alone decide which task runs next, and they come from the seed. A process can be paused, as by
SIGSTOP, and killed, as by SIGKILL: from then on, none of its calls has any effect.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from greenlet import getcurrent, greenlet

from semel.user_exceptions import Killed
from simulation.choices import Choices

START: Final = 1_800_000_000.0  # the Unix time at which every simulation begins


class Violation(AssertionError):
    """A promise was broken. A shrunk schedule must still show a violation of the same `kind`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind

    def __str__(self) -> str:
        return ": ".join(self.args)


class Task:
    __slots__ = ("due", "greenlet", "name", "process")

    def __init__(self, process: Process, name: str, run: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.greenlet = greenlet(run)
        self.due = 0  # the number of its newest entry in the plan; older entries are ignored


class Process:
    """`skew`: seconds by which its wall clock is ahead of the true time."""

    def __init__(self, simulator: Simulator, name: str, skew: float = 0.0) -> None:
        self.simulator = simulator
        self.name = name
        self.skew = skew
        self.alive = True
        self.paused_until = 0.0
        self.tasks: list[Task] = []

    def now(self) -> float:
        """Its wall clock."""
        return self.simulator.now + self.skew

    def monotonic(self) -> float:
        return self.simulator.now

    def spawn(self, name: str, run: Callable[[], None], after: float = 0.0) -> Task:
        task = Task(self, name, run)
        self.tasks.append(task)
        self.simulator.wake(task, after)
        return task

    def note(self, *what: Any) -> None:
        self.simulator.note(self.name, *what)

    def pause(self, seconds: float) -> None:
        """The process stands still for this long, without noticing it."""
        self.note("paused for", seconds, "s")
        self.paused_until = self.simulator.now + seconds

    def kill(self) -> None:
        if not self.alive:
            return
        self.note("killed")
        self.alive = False
        simulator, current = self.simulator, getcurrent()
        tasks, self.tasks = self.tasks, []
        running = simulator._current
        for task in tasks:
            if task.greenlet is not current and task.greenlet:
                task.greenlet.parent = current
                simulator._current = task
                with suppress(Killed):
                    task.greenlet.throw(Killed)
        simulator._current = running
        if any(task.greenlet is current for task in tasks):
            raise Killed


class Simulator:
    """`timeline` is what happened: tuples of time, actor and details, made into text only if somebody reads them."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = START
        self.timeline: list[tuple[Any, ...]] = []
        self.violations: list[Violation] = []
        self.after_step: Callable[[Process], None] | None = None
        self.steps = 0
        self._plan: list[tuple[float, int, Task]] = []
        self._entries = 0
        self._current: Task | None = None
        self._hub = getcurrent()
        self._until = START
        self._done: Callable[[], bool] = lambda: False

    # For tasks.

    def sleep(self, seconds: float) -> None:
        """Suspend the calling task for this long. Raises Killed if its process was killed meanwhile."""
        task = self._current
        if task is None:  # not called by a task, but while the simulation is being prepared
            self.now += seconds
            return
        process, due, plan = task.process, self.now + seconds, self._plan
        if not process.alive:
            raise Killed
        if (
            (not plan or due < plan[0][0])
            and due <= self._until
            and process.paused_until <= due
            and not self.violations
            and self.after_step is None
            and not self._done()
        ):  # this task is the next one anyway: skip the way through the loop
            self.steps += 1
            task.due = self._entries = self._entries + 1
            self.now = due
            return
        self.wake(task, seconds)
        self._hub.switch()
        if not task.process.alive:
            raise Killed

    def wake(self, task: Task, after: float = 0.0) -> None:
        """Plan the task to run `after` seconds from now, instead of when it was planned before."""
        self._entries += 1
        task.due = self._entries
        heapq.heappush(self._plan, (self.now + after, self._entries, task))

    def sleep_until_woken(self) -> None:
        task = self._current
        assert task is not None
        if not task.process.alive:
            raise Killed
        self._hub.switch()
        if not task.process.alive:
            raise Killed

    @property
    def task(self) -> Task:
        """The running task."""
        assert self._current is not None
        return self._current

    def note(self, who: str, *what: Any) -> None:
        self.timeline.append((self.now, who, *what))

    def violate(self, kind: str, text: str) -> None:
        self.note("CHECK", "violated:", kind, text)
        self.violations.append(Violation(kind, text))

    # The loop.

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Carry out everything that is due until `until`, or until `done`, which is called after each step, is true."""
        self._hub, self._until, self._done = getcurrent(), until, done
        plan = self._plan
        while plan and plan[0][0] <= until and not self.violations:
            due, entry, task = heapq.heappop(plan)
            process = task.process
            if entry != task.due or not process.alive:
                continue
            if process.paused_until > due:
                task.due = self._entries = self._entries + 1
                heapq.heappush(plan, (process.paused_until, task.due, task))
                continue
            if due > self.now:
                self.now = due
            self._step(task)
            if done():
                return
        self.now = max(self.now, min(until, plan[0][0] if plan else until))

    def _step(self, task: Task) -> None:
        self.steps += 1
        self._current = task
        try:
            task.greenlet.parent = self._hub
            task.greenlet.switch()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            text = "".join(traceback.format_exception(error)[-6:])
            self.violate("unexpected error", f"task {task.name} of {task.process.name} ended:\n{text}")
        finally:
            self._current = None
        if task.greenlet.dead and task in task.process.tasks:
            task.process.tasks.remove(task)
        if self.after_step is not None and task.process.alive:
            self.after_step(task.process)

    def close(self) -> None:
        """Kill all processes of this simulation."""
        for process in {id(task.process): task.process for _, _, task in self._plan}.values():
            process.kill()


def rendered(timeline: list[tuple[Any, ...]]) -> str:
    return "\n".join(f"{at - START:10.3f}  {who:<12} " + " ".join(map(_text, what)) for at, who, *what in timeline)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
