"""Queues with duplicates of a known cause, each in one way, and how many duplicates that made: the truth about a log.

Semel's own consumer works on a real broker, by the broker's clock, and writes its attempt log. What the broker's faults
did is what the broker counted; what we did ourselves is what we counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from driven import LEASE, Place, new_place
from semel import App, Context, Reject, Retry
from semel.telemetry.attempt_log import AttemptLog
from semel.testing.driver import Driver

Truth = dict[str, dict[str, int]]  # queue -> cause -> duplicates
SHARE = 0.1


def write_attempt_log(folder: Path, messages: int, seed: int = 7) -> Truth:
    """Writes the log into `folder`; returns the truth about it."""
    with ExitStack() as stack:
        place = stack.enter_context(new_place())
        log = stack.enter_context(AttemptLog.open(str(folder), clock=place.clock.now, buffer=100 * messages))
        testbed = Testbed(place, log, messages, Random(seed))
        return {name: scenario(testbed, name) for name, scenario in SCENARIOS.items()}


class Testbed:
    def __init__(self, place: Place, log: AttemptLog, messages: int, random: Random) -> None:
        self.place, self.log, self.messages, self.random = place, log, messages, random

    def open(self, queue: str) -> None:
        self.place.queue(queue, dlq=f"{queue}-dead")

    def fill(self, queue: str, again: float = 0.0) -> int:
        """Send the orders, some of them twice; returns how many were."""
        self.open(queue)
        doubles = 0
        for number in range(self.messages):
            self.place.send({"id": f"{queue}-{number}"}, queue)
            if self.random.random() < again:
                self.place.send({"id": f"{queue}-{number}"}, queue)
                doubles += 1
        return doubles

    def worker(self, queue: str, act: Callable[[Context], None] = lambda _: None) -> Driver:
        app = App()

        @app.handler(queue, key="$.id")
        def handle(order: dict[str, Any], ctx: Context) -> None:
            self.place.clock.advance(0.002)
            act(ctx)

        return self.place.worker(app, log=self.log)

    def until_empty(self, *workers: Driver, queue: str) -> None:
        """They take turns; what is hidden becomes visible in between."""
        while True:
            while sum(worker.drain() for worker in workers):
                pass
            if self.place.is_empty(queue):
                return
            self.place.clock.advance(LEASE / 2)

    def in_flight(self, queue: str) -> int:
        (found,) = (one for one in self.place.broker.admin("GET", "queues")["queues"] if one["name"] == queue)
        return int(found["in_flight"])

    def injected(self, kind: str) -> int:
        return self.place.broker.faults.counts().get(kind, 0)


def healthy(testbed: Testbed, queue: str) -> dict[str, int]:
    testbed.fill(queue)
    testbed.until_empty(testbed.worker(queue), queue=queue)
    return {}


def retried(testbed: Testbed, queue: str) -> dict[str, int]:
    """Handlers fail, and put their messages back: no duplicates."""
    testbed.fill(queue)

    def act(ctx: Context) -> None:
        if ctx.attempt == 1 and testbed.random.random() < SHARE:
            raise Retry("try again", after=1)

    testbed.until_empty(testbed.worker(queue, act), queue=queue)
    return {}


def delivered_twice(testbed: Testbed, queue: str) -> dict[str, int]:
    """One worker has ten messages in hand; those that SQS shows nevertheless go to another."""
    before = testbed.injected("duplicate")
    testbed.open(queue)
    first, second = testbed.worker(queue), testbed.worker(queue)
    for number in range(testbed.messages):
        testbed.place.send({"id": f"{queue}-{number}"}, queue)
        if number % 10 < 9:
            continue
        testbed.place.broker.faults.set("duplicate", SHARE, queue=queue)
        lane = first.consumer(queue)
        first.worker.receive(lane)
        testbed.place.broker.faults.clear()
        testbed.place.clock.advance(0.01)
        second.drain()
        first.worker.work(lane)
        first.worker.finish(lane)
    testbed.until_empty(first, second, queue=queue)
    return {"concurrent": testbed.injected("duplicate") - before}


def deletes_lost(testbed: Testbed, queue: str) -> dict[str, int]:
    before = testbed.injected("lost-delete")
    testbed.fill(queue)
    testbed.place.broker.faults.set("lost-delete", SHARE, queue=queue)
    testbed.until_empty(testbed.worker(queue), testbed.worker(queue), queue=queue)
    testbed.place.broker.faults.clear()
    return {"lost-delete": testbed.injected("lost-delete") - before}


def too_slow(testbed: Testbed, queue: str) -> dict[str, int]:
    """A worker without a heartbeat is held up with ten messages in hand; another one gets them."""
    testbed.open(queue)
    slow, other = testbed.worker(queue), testbed.worker(queue)
    taken = 0
    for number in range(testbed.messages):
        testbed.place.send({"id": f"{queue}-{number}"}, queue)
        if number % 100 != 9:
            continue
        lane = slow.consumer(queue)
        slow.worker.receive(lane)
        taken += testbed.in_flight(queue)
        testbed.place.clock.advance(LEASE + 3)
        other.drain()
        slow.worker.work(lane)
        slow.worker.finish(lane)
        testbed.until_empty(slow, other, queue=queue)
    testbed.until_empty(slow, other, queue=queue)
    return {"visibility": taken}


def killed(testbed: Testbed, queue: str) -> dict[str, int]:
    """Workers die at all the points before they recorded anything."""
    testbed.fill(queue)
    lost = 0
    for number in range(max(1, testbed.messages // 100)):
        worker = testbed.worker(queue)
        lane = worker.consumer(queue)
        if number % 2:
            worker.worker.receive(lane)
            lost += len(lane.in_flight.deliveries)
        else:
            worker.crash_at("before_work")
            before = testbed.in_flight(queue)
            worker.drain()
            lost += testbed.in_flight(queue) - before
        worker.kill()
    testbed.until_empty(testbed.worker(queue), queue=queue)
    return {"crash": lost}


def sent_twice(testbed: Testbed, queue: str) -> dict[str, int]:
    doubles = testbed.fill(queue, again=SHARE)
    testbed.until_empty(testbed.worker(queue), queue=queue)
    return {"producer": doubles}


def redriven(testbed: Testbed, queue: str) -> dict[str, int]:
    """What was rejected comes back from the dead-letter queue, under a new message id."""
    testbed.fill(queue)
    rejected: set[str] = set()

    def act(ctx: Context) -> None:
        if ctx.key not in rejected and testbed.random.random() < SHARE:
            rejected.add(ctx.key)
            raise Reject("not today")

    testbed.until_empty(testbed.worker(queue, act), queue=queue)
    testbed.place.clock.advance(60)
    testbed.place.redrive(f"{queue}-dead", queue)
    dead = len(rejected)
    testbed.until_empty(testbed.worker(queue), queue=queue)
    return {"redrive": dead}


SCENARIOS: dict[str, Callable[[Testbed, str], dict[str, int]]] = {
    "healthy": healthy,
    "retried": retried,
    "delivered-twice": delivered_twice,
    "deletes-lost": deletes_lost,
    "too-slow": too_slow,
    "killed": killed,
    "sent-twice": sent_twice,
    "redriven": redriven,
}
