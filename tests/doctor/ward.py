"""Queues that are made ill on purpose, each in one way, and how many duplicates that made: the truth about a log.

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
SICK = 0.1


def made_ill(folder: Path, messages: int, seed: int = 7) -> Truth:
    """Writes the log into `folder`; returns the truth about it."""
    with ExitStack() as stack:
        place = stack.enter_context(new_place())
        log = stack.enter_context(AttemptLog.open(str(folder), clock=place.clock.now, buffer=100 * messages))
        ward = Ward(place, log, messages, Random(seed))
        return {name: treat(ward, name) for name, treat in TREATMENTS.items()}


class Ward:
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


def healthy(ward: Ward, queue: str) -> dict[str, int]:
    ward.fill(queue)
    ward.until_empty(ward.worker(queue), queue=queue)
    return {}


def retried(ward: Ward, queue: str) -> dict[str, int]:
    """Handlers fail, and put their messages back: no duplicates."""
    ward.fill(queue)

    def act(ctx: Context) -> None:
        if ctx.attempt == 1 and ward.random.random() < SICK:
            raise Retry("try again", after=1)

    ward.until_empty(ward.worker(queue, act), queue=queue)
    return {}


def delivered_twice(ward: Ward, queue: str) -> dict[str, int]:
    """One worker has ten messages in hand; those that SQS shows nevertheless go to another."""
    before = ward.injected("duplicate")
    ward.open(queue)
    first, second = ward.worker(queue), ward.worker(queue)
    for number in range(ward.messages):
        ward.place.send({"id": f"{queue}-{number}"}, queue)
        if number % 10 < 9:
            continue
        ward.place.broker.faults.set("duplicate", SICK, queue=queue)
        lane = first.consumer(queue)
        first.worker.receive(lane)
        ward.place.broker.faults.clear()
        ward.place.clock.advance(0.01)
        second.drain()
        first.worker.work(lane)
        first.worker.finish(lane)
    ward.until_empty(first, second, queue=queue)
    return {"concurrent": ward.injected("duplicate") - before}


def deletes_lost(ward: Ward, queue: str) -> dict[str, int]:
    before = ward.injected("lost-delete")
    ward.fill(queue)
    ward.place.broker.faults.set("lost-delete", SICK, queue=queue)
    ward.until_empty(ward.worker(queue), ward.worker(queue), queue=queue)
    ward.place.broker.faults.clear()
    return {"lost-delete": ward.injected("lost-delete") - before}


def too_slow(ward: Ward, queue: str) -> dict[str, int]:
    """A worker without a heartbeat is held up with ten messages in hand; another one gets them."""
    ward.open(queue)
    slow, other = ward.worker(queue), ward.worker(queue)
    taken = 0
    for number in range(ward.messages):
        ward.place.send({"id": f"{queue}-{number}"}, queue)
        if number % 100 != 9:
            continue
        lane = slow.consumer(queue)
        slow.worker.receive(lane)
        taken += ward.in_flight(queue)
        ward.place.clock.advance(LEASE + 3)
        other.drain()
        slow.worker.work(lane)
        slow.worker.finish(lane)
        ward.until_empty(slow, other, queue=queue)
    ward.until_empty(slow, other, queue=queue)
    return {"visibility": taken}


def killed(ward: Ward, queue: str) -> dict[str, int]:
    """Workers die at all the points before they recorded anything."""
    ward.fill(queue)
    lost = 0
    for number in range(max(1, ward.messages // 100)):
        worker = ward.worker(queue)
        lane = worker.consumer(queue)
        if number % 2:
            worker.worker.receive(lane)
            lost += len(lane.in_flight.deliveries)
        else:
            worker.crash_at("before_work")
            before = ward.in_flight(queue)
            worker.drain()
            lost += ward.in_flight(queue) - before
        worker.kill()
    ward.until_empty(ward.worker(queue), queue=queue)
    return {"crash": lost}


def sent_twice(ward: Ward, queue: str) -> dict[str, int]:
    doubles = ward.fill(queue, again=SICK)
    ward.until_empty(ward.worker(queue), queue=queue)
    return {"producer": doubles}


def redriven(ward: Ward, queue: str) -> dict[str, int]:
    """What was rejected comes back from the dead-letter queue, under a new message id."""
    ward.fill(queue)
    rejected: set[str] = set()

    def act(ctx: Context) -> None:
        if ctx.key not in rejected and ward.random.random() < SICK:
            rejected.add(ctx.key)
            raise Reject("not today")

    ward.until_empty(ward.worker(queue, act), queue=queue)
    ward.place.clock.advance(60)
    ward.place.redrive(f"{queue}-dead", queue)
    dead = len(rejected)
    ward.until_empty(ward.worker(queue), queue=queue)
    return {"redrive": dead}


TREATMENTS: dict[str, Callable[[Ward, str], dict[str, int]]] = {
    "healthy": healthy,
    "retried": retried,
    "delivered-twice": delivered_twice,
    "deletes-lost": deletes_lost,
    "too-slow": too_slow,
    "killed": killed,
    "sent-twice": sent_twice,
    "redriven": redriven,
}
