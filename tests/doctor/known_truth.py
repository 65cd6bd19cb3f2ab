"""Logs for which the number of duplicates in each queue and their causes are known.

Semel's own consumer, or a plain loop, runs on a real broker with the broker's clock. The rule: the truth is counted on
the broker. A message that is still there after its delete is either visible again (the delete came too late) or still
hidden (the delete was lost).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from driven import LEASE, Place, new_place
from semel import App, Context, Reject, Retry
from semel.telemetry.attempt_log import Attempt, AttemptLog
from semel.testing.driver import Driver

Causes = Counter[str]  # cause -> duplicates
SHARE: Final = 0.1  # the share of messages for which something happens, where that is random
BATCH: Final = 10
SHORT: Final = 2  # seconds: the shorter of the two visibility timeouts
PAUSE: Final = 0.4  # seconds from the delete to the next delivery
# When a message is recorded and when it is deleted, in seconds after its receive with a timeout of SHORT.
LATE: Final = ((2.0, 2.01), (2.0, 2.05), (2.0, 2.1), (2.4, 2.5), (3.9, 4.0), (20.0, 20.1))
RECORDED_IN_TIME: Final = ((0.1, 2.01), (1.0, 2.05), (1.7, 2.1), (1.95, 2.5), (1.0, 4.0))
IN_TIME: Final = ((0.1, 0.11), (0.5, 1.0), (1.0, 1.5), (1.7, 1.75))
# The same with a timeout of LEASE.
MIXED: Final = ((30.0, 30.01), (10.0, 30.5), (28.0, 28.5), (40.0, 40.1), (1.0, 20.0))


@dataclass(frozen=True)
class Truth:
    causes: dict[str, dict[str, int]] = field(default_factory=dict)  # queue -> cause -> duplicates
    messages: dict[str, int] = field(default_factory=dict)  # queue -> different message ids


# Semel's consumer and its attempt log.


def write_attempt_log(folder: Path, messages: int, seed: int = 7) -> Truth:
    """Write the log of all scenarios to `folder`, each on a queue with `messages` messages; returns the truth."""
    truth = Truth()
    with ExitStack() as stack:
        place = stack.enter_context(new_place())
        log = stack.enter_context(AttemptLog.open(str(folder), clock=place.clock.now, buffer=1_000 * messages))
        for queue, scenario in SCENARIOS.items():
            testbed = Testbed(place, log, messages, Random(seed))
            truth.causes[queue] = dict(+scenario(testbed, queue))
            truth.messages[queue] = testbed.sent
    assert not log.dropped
    return truth


class WorkerLog:
    """The attempt log, with the events written under the name of one worker."""

    def __init__(self, log: AttemptLog, worker: str) -> None:
        self._log, self._worker = log, worker

    def add_all(self, events: Sequence[Attempt]) -> None:
        self._log.add_all([event._replace(worker=self._worker) for event in events])


class Worker:
    """One consumer of one queue, driven step by step."""

    def __init__(self, driver: Driver, queue: str) -> None:
        self.driver, self.queue = driver, queue

    def receive(self) -> None:
        self.driver.worker.receive(self.driver.consumer(self.queue))

    def handle(self) -> None:
        while self.driver.consumer(self.queue).worker.run_once():
            pass

    def record(self) -> None:
        self.driver.consumer(self.queue).recorder.run_once()

    def delete(self) -> None:
        self.driver.consumer(self.queue).acknowledger.run_once()

    def finish(self) -> None:
        consumer = self.driver.consumer(self.queue)
        self.driver.worker.work(consumer)
        self.driver.worker.finish(consumer)

    def release(self) -> None:
        self.driver.consumer(self.queue).give_up()
        self.finish()


class Testbed:
    """A broker, its clock, the attempt log, and workers for one queue."""

    __test__ = False

    def __init__(self, place: Place, log: AttemptLog, messages: int, random: Random) -> None:
        self.place, self.log, self.messages, self.random = place, log, messages, random
        self.sent = self._keys = self._workers = 0

    def open(self, queue: str) -> None:
        name, dot, fifo = queue.partition(".")
        self.place.queue(queue, dlq=f"{name}-dead{dot}{fifo}")

    def send(self, queue: str, times: int = 1) -> None:
        """Send a message with a new key; `times` > 1 is a mistake of the producer."""
        self._keys += 1
        options = {"group": f"group-{self._keys}"} if queue.endswith(".fifo") else {}
        for _ in range(times):
            self.place.send({"id": f"{queue}-{self._keys}"}, queue, **options)
            self.sent += 1

    def fill(self, queue: str) -> None:
        self.open(queue)
        for _ in range(self.messages):
            self.send(queue)

    def batches(self, queue: str) -> Iterator[int]:
        """Send the messages in batches, each when the caller has finished the one before; yields the batch numbers."""
        self.open(queue)
        for number in range(self.messages // BATCH):
            for _ in range(BATCH):
                self.send(queue)
            yield number

    def worker(
        self,
        queue: str,
        act: Callable[[Context], None] = lambda _: None,
        *,
        lease: int = LEASE,
        clock_offset: float = 0.0,
    ) -> Worker:
        app = App()

        @app.handler(queue, key="$.id", lease=lease)
        def handle(order: dict[str, Any], ctx: Context) -> None:
            self.place.clock.advance(0.002)
            act(ctx)

        self._workers += 1
        log: Any = WorkerLog(self.log, f"{queue}-worker-{self._workers}")
        place, now = self.place, self.place.clock.now
        driver = Driver(
            *(app, place.broker, place.client, place.ledger),
            chance=lambda: 0.5,
            now=lambda: now() + clock_offset,
            log=log,
        )
        return Worker(driver, queue)

    def advance_to(self, moment: float) -> None:
        self.place.clock.advance(max(0.0, moment - self.place.clock.now()))

    def until_empty(self, *workers: Worker) -> None:
        """Let the workers take turns until the queue is empty; in between, hidden messages become visible."""
        while True:
            while sum(worker.driver.drain() for worker in workers):
                pass
            if self.place.is_empty(workers[0].queue):
                return
            self.place.clock.advance(LEASE / 2)

    @contextmanager
    def fault(self, kind: str, rate: float, queue: str) -> Iterator[None]:
        self.place.broker.faults.set(kind, rate, queue=queue)
        try:
            yield
        finally:
            self.place.broker.faults.clear()

    def count(self, queue: str, state: str) -> int:
        (counts,) = (entry for entry in self.place.broker.admin("GET", "queues")["queues"] if entry["name"] == queue)
        return int(counts[state])

    def injected(self, kind: str) -> int:
        return self.place.broker.faults.counts().get(kind, 0)

    def still_there(self, queue: str) -> Causes:
        """The causes for which messages that are still in the queue after their deletes will be delivered again."""
        return Counter({"visibility": self.count(queue, "visible"), "lost-delete": self.count(queue, "in_flight")})


def healthy(testbed: Testbed, queue: str) -> Causes:
    testbed.fill(queue)
    testbed.until_empty(testbed.worker(queue))
    return Counter()


def retried(testbed: Testbed, queue: str) -> Causes:
    """Handlers fail, and their messages are hidden until the next attempt: no duplicates."""
    testbed.fill(queue)

    def act(ctx: Context) -> None:
        if ctx.attempt == 1 and testbed.random.random() < SHARE:
            raise Retry("try again", after=1)

    testbed.until_empty(testbed.worker(queue, act))
    return Counter()


def released(testbed: Testbed, queue: str) -> Causes:
    """A worker shuts down and returns the messages that it has received: no duplicates."""
    leaving, other = testbed.worker(queue), testbed.worker(queue)
    for _ in testbed.batches(queue):
        leaving.receive()
        leaving.release()
        testbed.until_empty(other)
    return Counter()


def delivered_twice(testbed: Testbed, queue: str) -> Causes:
    """One worker has ten messages in progress; another worker gets those that SQS delivers a second time."""
    before = testbed.injected("duplicate")
    first, second = testbed.worker(queue), testbed.worker(queue)
    for _ in testbed.batches(queue):
        with testbed.fault("duplicate", SHARE, queue):
            first.receive()
        testbed.place.clock.advance(0.01)
        second.driver.drain()
        first.finish()
    testbed.until_empty(first, second)
    return Counter({"concurrent": testbed.injected("duplicate") - before})


def deletes_lost(testbed: Testbed, queue: str) -> Causes:
    before = testbed.injected("lost-delete")
    testbed.fill(queue)
    with testbed.fault("lost-delete", SHARE, queue):
        testbed.until_empty(testbed.worker(queue), testbed.worker(queue))
    return Counter({"lost-delete": testbed.injected("lost-delete") - before})


def kept(
    testbed: Testbed,
    queue: str,
    moments: Sequence[tuple[float, float]],
    *,
    lease: int = SHORT,
    clock_offset: float = 0.0,
) -> Causes:
    """Every second batch is recorded and deleted at one of these moments, but not removed: SQS may keep a message that
    is deleted with an old receipt handle, and refuses such a handle on FIFO queues. Another worker gets it again."""
    causes: Causes = Counter()
    first = testbed.worker(queue, lease=lease)
    second = testbed.worker(queue, lease=lease, clock_offset=clock_offset)
    for number in testbed.batches(queue):
        if number % 2:
            testbed.until_empty(second)
            continue
        received_at = testbed.place.clock.now()
        first.receive()
        first.handle()
        recorded, deleted = moments[number // 2 % len(moments)]
        testbed.advance_to(received_at + recorded)
        first.record()
        testbed.advance_to(received_at + deleted)
        with testbed.fault("lost-delete", 1, queue):
            first.delete()
        causes += testbed.still_there(queue)
        testbed.place.clock.advance(PAUSE)
        testbed.until_empty(second)
    return causes


def too_slow(testbed: Testbed, queue: str) -> Causes:
    """A worker without a heartbeat starts its messages when another worker has them, or is too late to start at all."""
    slow, other = testbed.worker(queue), testbed.worker(queue)
    duplicates = 0
    for number in testbed.batches(queue):
        if number % 5 == 0:
            slow.receive()
            if number % 2:
                testbed.place.clock.advance(LEASE - 0.2)
                slow.finish()
            testbed.place.clock.advance(3 if number % 2 else LEASE + 3)
            duplicates += testbed.count(queue, "visible")
            other.driver.drain()
            slow.finish()
        testbed.until_empty(slow, other)
    return Counter({"visibility": duplicates})


def heartbeat_stops(testbed: Testbed, queue: str) -> Causes:
    """Two heartbeats extend the visibility timeout, then the worker stalls. It deletes when another worker has its
    messages, or too late, or in time but after the end of the first timeout. SQS keeps the deleted messages."""
    causes: Causes = Counter()
    first, second = testbed.worker(queue), testbed.worker(queue)
    for number in testbed.batches(queue):
        first.receive()
        first.handle()
        for _ in range(2):
            testbed.place.clock.advance(LEASE / 3)
            first.driver.worker.beat()
        testbed.place.clock.advance((LEASE + 5, LEASE + 0.5, LEASE / 2)[number % 3])
        if number % 3 == 0:
            causes["visibility"] += testbed.count(queue, "visible")
            second.driver.drain()
        first.driver.worker.beat()
        first.record()
        with testbed.fault("lost-delete", 1, queue):
            first.delete()
        if number % 3:
            causes += testbed.still_there(queue)
        testbed.place.clock.advance(PAUSE)
        testbed.until_empty(second)
    return causes


def killed(testbed: Testbed, queue: str) -> Causes:
    """Workers die at several points before they have recorded anything."""
    testbed.fill(queue)
    crashed = 0
    for number in range(max(2, testbed.messages // 100)):
        worker = testbed.worker(queue)
        before = testbed.count(queue, "in_flight")
        if number % 2:
            worker.receive()
        else:
            worker.driver.crash_at("before_work")
            worker.driver.drain()
        crashed += testbed.count(queue, "in_flight") - before
        worker.driver.kill()
    testbed.until_empty(testbed.worker(queue))
    return Counter({"crash": crashed})


def sent_twice(testbed: Testbed, queue: str) -> Causes:
    testbed.open(queue)
    before = testbed.sent
    for _ in range(testbed.messages):
        testbed.send(queue, times=2 if testbed.random.random() < SHARE else 1)
    testbed.until_empty(testbed.worker(queue))
    return Counter({"producer": testbed.sent - before - testbed.messages})


def redriven(testbed: Testbed, queue: str) -> Causes:
    """Rejected messages come back from the dead-letter queue, with new message ids."""
    testbed.fill(queue)
    rejected: set[str] = set()

    def act(ctx: Context) -> None:
        if ctx.key not in rejected and testbed.random.random() < SHARE:
            rejected.add(ctx.key)
            raise Reject("not today")

    testbed.until_empty(testbed.worker(queue, act))
    testbed.place.clock.advance(60)
    dead = testbed.count(f"{queue}-dead", "visible")
    testbed.place.redrive(f"{queue}-dead", queue)
    testbed.sent += dead
    testbed.until_empty(testbed.worker(queue))
    return Counter({"redrive": dead})


def mixed(testbed: Testbed, queue: str) -> Causes:
    """Several causes in one queue."""
    causes: Causes = Counter()
    late = partial(kept, moments=MIXED, lease=LEASE)
    for scenario in (healthy, retried, delivered_twice, late, too_slow, killed, sent_twice, redriven, heartbeat_stops):
        causes += scenario(testbed, queue)
    return causes


SCENARIOS: Final[dict[str, Callable[[Testbed, str], Causes]]] = {
    "healthy": healthy,
    "healthy.fifo": healthy,
    "retried": retried,
    "released": released,
    "released.fifo": released,
    "delivered-twice": delivered_twice,
    "deletes-lost": deletes_lost,
    "deletes-lost-in-time": partial(kept, moments=IN_TIME),
    "deletes-late": partial(kept, moments=LATE),
    "deletes-late.fifo": partial(kept, moments=LATE),
    "recorded-in-time-deleted-late": partial(kept, moments=RECORDED_IN_TIME),
    "recorded-in-time-deleted-late.fifo": partial(kept, moments=RECORDED_IN_TIME),
    "too-slow": too_slow,
    "too-slow.fifo": too_slow,
    "heartbeat-stops": heartbeat_stops,
    "killed": killed,
    "killed.fifo": killed,
    "clock-ahead": partial(kept, moments=MIXED, lease=LEASE, clock_offset=3.0),
    "clock-behind": partial(kept, moments=MIXED, lease=LEASE, clock_offset=-3.0),
    "sent-twice": sent_twice,
    "redriven": redriven,
    "mixed": mixed,
}
