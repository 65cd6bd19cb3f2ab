"""Any order of crashes, duplicates, lost deletes, early visibility ends and pauses: each effect once, nothing lost.

Three workers on one broker and one ledger, driven by a schedule that Hypothesis makes up. Handlers stop in the middle
of their work, and go on whenever the schedule says so: long after somebody else has taken over, for example.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

import suite
from driven import LEASE, Place, new_place
from semel import App, Context, Transaction
from semel.ledger.contract import Status
from semel.testing.driver import CRASH_POINTS, Crash, Driver

WORKERS: Final = 3
KEYS: Final = 4
QUEUE: Final = "orders"

Move = tuple[Any, ...]
worker = st.integers(0, WORKERS - 1)
key = st.integers(0, KEYS - 1)
pause = st.tuples(worker, st.integers(0, 2 * LEASE))  # who comes meanwhile, and after how long
moves = st.one_of(
    # A whole round of one worker, with all that may happen to it; and single parts of one.
    st.tuples(
        st.just("go"),
        worker,
        st.none() | st.sampled_from(CRASH_POINTS),
        st.none() | pause,
        st.booleans(),
        st.booleans(),
    ),
    st.tuples(st.just("go"), worker, st.none(), st.tuples(worker, st.just(LEASE + 1)), st.booleans(), st.booleans()),
    st.tuples(st.just("send"), key),
    st.tuples(st.just("send twice"), key),
    st.tuples(st.just("receive"), worker),
    st.tuples(st.just("receive while visible"), worker),  # the message stays visible: others get it too
    st.tuples(st.just("work"), worker),
    st.tuples(st.just("work, and pause in it"), worker, pause),
    st.tuples(st.just("settle"), worker),
    st.tuples(st.just("settle, losing deletes"), worker),
    st.tuples(st.just("beat"), worker),
    st.tuples(st.just("crash"), worker, st.sampled_from(CRASH_POINTS)),
    st.tuples(st.just("kill"), worker),
    st.tuples(st.just("advance"), st.sampled_from([1, LEASE // 3, LEASE + 1])),
)
schedules = st.lists(moves, min_size=5, max_size=40).map(lambda some: [("send", 0), ("send twice", 1), *some])


@dataclass
class Hold:
    """One call of a handler, as the world sees it."""

    key: str
    fence: int


@dataclass
class World:
    place: Place
    transactional: bool
    drivers: list[Driver] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    busy: Driver | None = None
    pauses: list[tuple[int, int]] = field(default_factory=list)

    def start(self) -> None:
        self.place.queue(QUEUE, dlq="dead", receives=1_000)
        if self.transactional:
            with self.place.ledger.transaction() as tx:
                tx.execute("CREATE TABLE effects (id text, fence integer)")
        self.drivers = [self.place.worker(self.app()) for _ in range(WORKERS)]

    def app(self) -> App:
        app = App()
        if self.transactional:

            @app.handler(QUEUE, key="$.id")
            def book(order: dict[str, Any], ctx: Context, tx: Transaction) -> None:
                self.hold(ctx)
                tx.execute("INSERT INTO effects VALUES (?, ?)", (ctx.key, ctx.fence))

        else:

            @app.handler(QUEUE, key="$.id")
            def ship(order: dict[str, Any], ctx: Context) -> None:
                self.hold(ctx)

        return app

    def hold(self, ctx: Context) -> None:
        self.holds.append(Hold(ctx.key, ctx.fence))
        if self.pauses:
            other, seconds = self.pauses.pop()
            self.place.clock.advance(seconds)
            if self.drivers[other] is not self.busy:
                self.drain(self.drivers[other])
            assert self.busy is not None
            self.busy.worker.beat()  # it is awake again, and finds out what it has lost

    def drain(self, driver: Driver) -> None:
        """Everything that this worker can do now, unless it is the one that pauses."""
        with self.surviving(driver):
            inline = driver.worker
            lane = driver.consumer(QUEUE)
            inline.receive(lane)
            inline.work(lane)
            inline.finish(lane)

    @contextlib.contextmanager
    def surviving(self, driver: Driver) -> Iterator[None]:
        try:
            yield
        except Crash:
            driver.kill()

    def move(self, move: Move) -> None:
        match move:
            case ("send", n) | ("send twice", n):
                for _ in range(1 + (move[0] == "send twice")):
                    self.place.send({"id": n})
                    self.sent[str(n)] += 1
            case ("advance", seconds):
                self.place.clock.advance(seconds)
            case ("kill", who):
                self.drivers[who].kill()
            case ("crash", who, point):
                self.drivers[who].crash_at(point)
            case (what, who, *_):
                with self.surviving(self.drivers[who]):
                    self.act(what, self.drivers[who], move)

    def act(self, what: str, driver: Driver, move: Move) -> None:
        inline, lane = driver.worker, driver.consumer(QUEUE)
        self.busy = driver
        before = len(self.holds)
        match what:
            case "go":
                _, _, point, paused, duplicate, lose = move
                driver.crash_at(point)
                self.pauses = [paused] if paused else []
                with self.fault("duplicate" if duplicate else None):
                    inline.receive(lane)
                inline.work(lane)
                with self.fault("lost-delete" if lose else None):
                    inline.finish(lane)
                self.check_nothing_is_discarded(before)
            case "receive":
                inline.receive(lane)
            case "receive while visible":
                with self.fault("duplicate"):
                    inline.receive(lane)
            case "work":
                inline.work(lane)
            case "work, and pause in it":
                self.pauses = [move[2]]
                inline.work(lane)
            case "settle":
                inline.finish(lane)
            case "settle, losing deletes":
                with self.fault("lost-delete"):
                    inline.finish(lane)
            case "beat":
                inline.beat()
        self.pauses = []

    def check_nothing_is_discarded(self, before: int) -> None:
        """Handlers have returned, and no worker died: what they did counts, unless somebody else took over."""
        for hold in self.holds[before:]:
            entry = self.place.known(hold.key)
            assert entry.status is Status.DONE or entry.fence > hold.fence, f"{hold} was discarded: {entry}"

    @contextlib.contextmanager
    def fault(self, kind: str | None) -> Iterator[None]:
        if kind:
            self.place.broker.faults.set(kind, 1.0)
        try:
            yield
        finally:
            self.place.broker.faults.clear()

    def come_to_rest(self) -> None:
        """No more trouble: one worker, and as much time as it takes."""
        self.pauses = []
        for driver in self.drivers:
            driver.kill()
            driver.crash_at(None)
        last = self.drivers[0]
        for _ in range(20):
            last.drain()
            if self.place.is_empty():
                return
            self.place.clock.advance(LEASE + 2)
        raise AssertionError(f"still in the queue: {self.place.messages()}")

    def effects(self) -> Counter[str]:
        with self.place.ledger.transaction() as tx:
            return Counter(key for (key,) in tx.execute("SELECT id FROM effects"))


def check(world: World) -> None:
    for name in world.sent:
        entry = world.place.known(name)
        assert entry.status is Status.DONE, f"{name} was lost: {entry}"
        # By fence order nobody holds a key that a newer holder has: each call had a fence of its own, and a larger one.
        fences = [hold.fence for hold in world.holds if hold.key == name]
        assert fences == sorted(set(fences)), f"two holders of {name} at once: {fences}"
        assert entry.fence >= max(fences)
    assert world.place.is_empty("dead")
    if world.transactional:
        assert world.effects() == Counter(dict.fromkeys(world.sent, 1))


def run(schedule: list[Move], *, transactional: bool) -> World:
    with new_place() as place:
        world = World(place, transactional)
        world.start()
        for move in schedule:
            world.move(move)
        world.come_to_rest()
        check(world)
        return world


@settings(max_examples=suite.effort(fast=25, full=100), deadline=None)
@given(schedules)
def test_in_transactions_each_key_has_one_effect_and_none_is_lost(schedule: list[Move]) -> None:
    run(schedule, transactional=True)


@settings(max_examples=suite.effort(fast=25, full=100), deadline=None)
@given(schedules)
def test_with_leases_no_key_has_two_holders_by_fence_order_and_none_is_lost(schedule: list[Move]) -> None:
    run(schedule, transactional=False)


def test_a_schedule_can_make_zombies_duplicates_and_takeovers() -> None:
    """The two above would prove nothing if no schedule ever made trouble."""
    schedule: list[Move] = [
        ("send twice", 0),
        ("send", 1),
        ("receive while visible", 0),
        ("receive", 1),  # what the first one holds
        ("work, and pause in it", 0, (2, 2 * LEASE)),
        ("crash", 1, "after_record"),
        ("send", 2),
        ("receive", 1),
        ("work", 1),
        ("settle", 1),
        ("settle, losing deletes", 0),
    ]
    world = run(schedule, transactional=False)
    assert Counter(hold.key for hold in world.holds)["0"] == 2  # a zombie and its successor
    assert world.drivers[1].crashed_at == "after_record"
