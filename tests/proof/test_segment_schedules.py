"""The segment log under random crashes: drivers and tasks die at any call, zombies wake up later, twins race for a
seal, and time passes in between. However it goes: each message is given out in exactly one committed batch.

The driver here is Spark's contract and nothing more: a batch is planned, logged, run, committed, and after a crash the
logged batch is run again with the same offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

import suite
from semel.spark import planning
from semel.spark.log import BatchIsOver
from semel.spark.planning import Offset
from semel.spark.receiving import Assignment, Task
from semel.sqs import Failure
from semel.sqs.errors import SqsError
from spark.intake import Intake, bodies, intake

MESSAGES: Final = 40
CALLS: Final = ("put", "put_if_absent", "read", "delete")


class Killed(BaseException):
    """The process is gone; nothing after this line runs."""


class Fate:
    """Kills at a random call, before or after it took effect."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.left: int | None = None

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    self.left = None
                    if self.random.random() < 0.5:
                        call(*arguments, **named)
                    raise Killed
            return call(*arguments, **named)

        return wrapped


class World:
    def __init__(self, place: Intake, random: Random) -> None:
        self.place = place
        self.random = random
        self.fate = Fate(random)
        self.wal: list[Offset] = []
        self.committed: list[list[str]] = []
        self.zombies: list[Callable[[], None]] = []
        self.sent = 0
        for name in CALLS:
            setattr(place.store, name, self.fate.wrap(getattr(place.store, name)))
        for name in ("delete", "receive", "change_visibility"):
            setattr(place.queue, name, self.fate.wrap(getattr(place.queue, name)))
        self._delete = place.queue.delete
        place.queue.delete = self.delete  # type: ignore[method-assign]

    def delete(self, receipts: Sequence[str]) -> list[Failure | None]:
        """Now and then the network is down for a while."""
        if self.random.random() < 0.2:
            raise SqsError("the network is down")
        return self._delete(receipts)

    def send(self) -> None:
        if self.sent < MESSAGES:
            count = self.random.randint(1, 8)
            self.place.send(*map(str, range(self.sent, self.sent + count)))
            self.sent += count

    def life(self) -> bool:
        """One driver, until it is killed or has nothing to do; whether it had something to do."""
        planner = self.place.planner()
        try:
            if not self.wal:
                self.wal.append(planner.initial())
            busy = False
            for _ in range(4):
                if len(self.wal) == len(self.committed) + 1:
                    end = planner.latest(self.wal[-1], 15)
                    if end == self.wal[-1]:
                        return busy
                    self.wal.append(end)
                busy = True
                start, end = self.wal[-2:]
                self.committed.append(self.run(planner.assignments(start, end)))
                self.send()
            return busy
        except Killed:
            return True
        finally:
            planner.stop()

    def run(self, tasks: list[Assignment]) -> list[str]:
        self.random.shuffle(tasks)
        return [body for given in tasks for body in self.attempt(given)]

    def attempt(self, given: Assignment) -> list[str]:
        task = self.place.task(given)
        chance = self.random.random()
        if chance < 0.15:
            self.fall_asleep(task)
        elif chance < 0.3:
            self.race(task, self.place.task(given))
        return [body for table in task.tables() for body in bodies(table)]

    def fall_asleep(self, task: Task) -> None:
        """Before its seal, this task's process stops for a while; Spark gives up on it and on its driver."""

        def pause(*arguments: Any, **named: Any) -> Any:
            def wake() -> None:
                task._seal = Task._seal.__get__(task)  # type: ignore[method-assign]
                task._seal(*arguments, **named)
                for finish in task._unfinished:
                    finish()

            self.zombies.append(wake)
            raise Killed

        task._seal = pause  # type: ignore[method-assign]

    def race(self, task: Task, twin: Task) -> None:
        """The twin does all of it between this task's receive and its seal."""
        seal = task._seal

        def second(*arguments: Any, **named: Any) -> Any:
            list(twin.tables())
            return seal(*arguments, **named)

        task._seal = second  # type: ignore[method-assign]

    def wake_zombies(self) -> None:
        for wake in self.zombies:
            with suppress(BatchIsOver, Killed):
                wake()
        self.zombies = []


@pytest.mark.parametrize("ack", ["sealed", "committed"])
@pytest.mark.parametrize("seed", range(suite.effort(fast=8, full=30)))
def test_each_message_is_in_exactly_one_committed_batch(
    tmp_path: Path, seed: int, ack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WORTH_A_TASK", 4)
    random = Random(f"{seed} {ack}")
    with intake(tmp_path / "log") as found:
        place = replace(found, options=replace(found.options, threads=1, receivers=2, ack=ack))
        world = World(place, random)
        world.send()
        for _ in range(25):
            world.fate.left = random.randint(1, 60)
            world.life()
            world.fate.left = None
            if random.random() < 0.5:
                world.wake_zombies()
            place.clock.advance(random.choice([0, 1, 20, 70, 130]))
            world.send()
        for _ in range(20):  # the storm is over
            world.wake_zombies()
            place.clock.advance(130)
            if not world.life() and world.sent >= MESSAGES and place.waiting() == (0, 0):
                break
            world.send()
        given_out = Counter(body for batch in world.committed for body in batch)
        assert given_out == Counter(map(str, range(world.sent)))
        assert place.waiting() == (0, 0)
