"""One simulated worker process: the real line of stages, run by tasks of the simulator in place of threads."""

from __future__ import annotations

import dataclasses
from asyncio import CancelledError
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from semel import App, Batch, Context, Transaction
from semel.consumer.circuit_breaker import CircuitBreaker
from semel.consumer.heartbeat import Heartbeat
from semel.consumer.outbox_dispatcher import OutboxDispatcher
from semel.consumer.queue_consumer import QueueConsumer
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.consumer.runtime import FLUSH
from semel.consumer.settings import Settings, resolve
from semel.sqs.errors import Cancelled, SqsError
from simulation.broker import arn, url
from simulation.ledger import SimulatedLedger
from simulation.simulator import Process, Task

if TYPE_CHECKING:
    from simulation.consumer_world import World

SKEWS: Final = (0.0, 0.0, 0.0, 240.0, -240.0)
AT_ONCE: Final = 3  # messages per receive
MOST_BEATS: Final = 50  # entries that an idle heartbeat may still have in its plan
CANCEL: Final = 2.0  # seconds that cancelled handlers have to end, as in `Runtime`


@dataclasses.dataclass
class StageTasks:
    """The tasks of a stage. A stage that has nothing to do has none."""

    name: str
    run_once: Callable[[], bool]
    is_ready: Callable[[], int]
    most: int = 1
    running: int = 0


class Worker:
    """Two tasks call handlers. Every other stage has one task, and so have the heartbeat and the outbox."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.world = world
        self.simulator = world.simulator
        self.process = Process(world.simulator, name, world.choices.one_of(SKEWS))
        self.options = options
        self.consumer: QueueConsumer | None = None
        self.heartbeat = Heartbeat(self.process.monotonic, lambda: 0.5)
        self._stages: list[StageTasks] = []
        self._beat: Task | None = None
        self._receiver: Task | None = None
        self._outbox: tuple[OutboxDispatcher, Task] | None = None
        self._may_be_woken = False  # whether the receiver is waiting, and not in a call
        self._awaited: tuple[Task, Callable[[], bool]] | None = None  # a task that waits, and until when
        self._beat_at = 0.0
        self.stopping = self.receiving = False
        self.process.spawn("start", self._start)

    def _start(self) -> None:
        world, process = self.world, self.process
        process.note("starts", self.options)
        client = world.broker.client(process)
        ledger = SimulatedLedger(world.ledger, world.observer, process, world.ledger_faults, world.outage)
        tools = Tools(monotonic=process.monotonic, now=process.now, chance=client.chance, worker=process.name)
        setup = self._setup(client, ledger, tools)
        consumer = QueueConsumer(
            setup, CircuitBreaker(process.monotonic, client.chance), on_received=self.heartbeat.watch
        )
        self.consumer = consumer
        recorder = consumer.recorder
        self._stages = [
            StageTasks("work", consumer.worker.run_once, consumer.scheduler.__len__, most=2),
            StageTasks("record", recorder.run_once, lambda: len(recorder.inbox._items) or len(recorder._again)),
        ]
        for stage in (consumer.claimer, consumer.dead_letter_sender, consumer.acknowledger, consumer.returner):
            # `is_ready` is called after every step, so it has to be fast.
            self._stages.append(StageTasks(stage.role, stage.run_once, stage.inbox._items.__len__))
        threads: Any = consumer.claimer._threads  # all stages have the same
        threads.join = self._join
        self._beat = process.spawn("heartbeat", self._keep_beating)
        self._receiver = process.spawn("receive", partial(self._receive, consumer))
        if world.plan.sends:
            outbox = OutboxDispatcher(ledger, client, tools)
            self._outbox = outbox, process.spawn("outbox", partial(self._dispatch, outbox))

    def _setup(self, client: Any, ledger: SimulatedLedger, tools: Tools) -> QueueSetup:
        plan = self.world.plan
        queue, dead_letters = client.queue(plan.queue), client.queue(arn(plan.dead_letters))
        for known in (queue, dead_letters, client.queue(plan.receipts)):
            known.set_url(url(known.name))
        while True:
            try:
                attributes = queue.attributes()
                break
            except SqsError:
                self.simulator.sleep(5.0)
        asynchronous = self.world.asyncio is not None
        function = self.world.handle_async if asynchronous else self.world.handle
        handler = app_of(plan.queue, plan.transactional, plan.batch, asynchronous).handlers[plan.queue]
        handler = dataclasses.replace(handler, function=partial(function, self))
        settings = resolved(plan.queue, plan.batch, tuple(self.options.items()), attributes["RedrivePolicy"])
        return QueueSetup(handler, settings, queue, dead_letters, ledger, tools)

    # The loops that threads would run.

    def _work_off(self, stage: StageTasks) -> None:
        """Run the stage until it has nothing to do. What the ledger could not take is tried again after a pause."""
        try:
            while stage.run_once():
                pass
            if stage.is_ready():
                self.simulator.sleep(0.5)
        except CancelledError:  # the drain ended after a coroutine had started, but before it called its handler
            self.process.note("a start is cancelled")
        finally:
            stage.running -= 1

    def _keep_beating(self) -> None:
        due = self.heartbeat._due
        while True:
            self._beat_at = 0.0  # the heartbeat is running and need not be woken
            while self.heartbeat.run_once():
                pass
            self._beat_at = due[0][0] if due else float("inf")
            if due:
                self.simulator.sleep(max(0.001, self._beat_at - self.simulator.now))
            else:
                self.simulator.sleep_until_woken()

    def _receive(self, consumer: QueueConsumer) -> None:
        errors = 0
        while not consumer.in_flight.stopping:
            if consumer.receiver._must_wait(self):  # type: ignore[arg-type]
                continue
            self.receiving = True
            try:
                slots = consumer.in_flight.admission.take(AT_ONCE, 0)
                came = consumer.receiver._poll(slots, 0, consumer.receiver.cancel) if slots else 0
                errors = 0
            except Cancelled:
                return
            except SqsError:
                errors += 1
                self.receiving = False
                self._wait(partial(self.simulator.sleep, min(30.0, 0.5 * 2 ** min(errors, 6))))
                continue
            finally:
                self.receiving = False
            if not came:
                self._wait(partial(self.world.broker.wait_for_messages, self.world.plan.queue))

    def _wait(self, pause: Callable[[], None]) -> None:
        self._may_be_woken = True
        pause()
        self._may_be_woken = False

    def wait(self, seconds: float) -> None:
        """Called by the real receiver when it must not poll yet."""
        self.simulator.sleep(max(0.01, seconds))

    def _dispatch(self, outbox: OutboxDispatcher) -> None:
        while not self.stopping:
            if not outbox.run_once():
                self.simulator.sleep(5.0)

    def after_step(self) -> None:
        """Start or wake the tasks that have something to do now."""
        for stage in self._stages:
            if stage.running < stage.most and stage.is_ready():
                stage.running += 1
                self.process.spawn(stage.name, partial(self._work_off, stage))
        if self._awaited is not None and not self._awaited[1]():
            self.simulator.wake(self._awaited[0])
            self._awaited = None
        due = self.heartbeat._due
        if self._beat is not None and due and due[0][0] < self._beat_at:
            self._beat_at = due[0][0]
            self.simulator.wake(self._beat, max(0.0, self._beat_at - self.simulator.now))

    # The end.

    def stop(self, drain: float) -> None:
        """As on SIGTERM: messages that were not started are returned; running handlers get `drain` seconds to end."""
        if self.stopping:
            return
        self.process.note("stops")
        self.stopping = True
        if self.consumer is None:
            self.process.kill()
            return
        self.process.spawn("finish", partial(self._finish, self.consumer, drain))

    def _finish(self, consumer: QueueConsumer, drain: float) -> None:
        """The steps of `Runtime.finish`, with the real stages. Only the waiting is in virtual time."""
        simulator, ends = self.simulator, self.simulator.now + drain
        consumer.stop_receiving()
        if self._may_be_woken and self._receiver is not None:
            simulator.wake(self._receiver)
        consumer.give_up()
        self._sleep_while(lambda: bool(consumer.in_flight.deliveries), ends)
        drained = not consumer.in_flight.deliveries
        if not drained and self.world.asyncio is not None:
            self.world.asyncio.cancel_all(self.process)
            self._sleep_while(lambda: bool(consumer.at_work()), simulator.now + CANCEL)
        flushed_by = ends + FLUSH
        consumer.close(flushed_by)
        if drained and simulator.now < flushed_by and (left := self._left_behind(consumer)):
            simulator.violate("left behind at a stop", f"{self.process.name} had time, and ends with {left}")
        self.heartbeat.close()
        if self._outbox is not None:
            outbox, task = self._outbox
            self._sleep_while(lambda: task in self.process.tasks, flushed_by)
            outbox.flush(flushed_by)
        self.process.note("has stopped")
        self.process.kill()

    def _join(self, role: str, deadline: float) -> None:
        """Replaces the join of a stage's threads."""
        if role == "receive":
            self._sleep_while(lambda: self._receiver in self.process.tasks, deadline)
        else:
            stages = [stage for stage in self._stages if stage.name == role]
            self._sleep_while(lambda: any(stage.running or stage.is_ready() for stage in stages), deadline)

    def _sleep_while(self, busy: Callable[[], bool], deadline: float) -> None:
        while busy() and self.simulator.now < deadline:
            self._awaited = self.simulator.task, busy
            self.simulator.sleep(deadline - self.simulator.now)  # `after_step` wakes this task when `busy` is false
        self._awaited = None

    def _left_behind(self, consumer: QueueConsumer) -> list[str]:
        waiting = [stage.name for stage in self._stages if stage.running or stage.is_ready()]
        if self._receiver in self.process.tasks:
            waiting.append("a receive that is under way")
        return [
            *waiting,
            *[f"a message that is {delivery.state.name}" for delivery in consumer.in_flight.deliveries.values()],
        ]

    @property
    def is_idle(self) -> bool:
        consumer = self.consumer
        if consumer is None:
            return False
        at_work = any(stage.running or stage.is_ready() for stage in self._stages)
        return not (self.receiving or at_work or consumer.in_flight.deliveries)

    def leftovers(self) -> dict[str, int]:
        """Slots, keys and so on that this worker still has, although it is idle."""
        consumer = self.consumer
        if consumer is None or not self.process.alive:
            return {}
        counts = {
            "slots": consumer.in_flight.admission.in_use,
            "keys": len(consumer.in_flight._by_key),
            "groups": consumer.scheduler.groups,
            "beats": max(0, len(self.heartbeat._due) - MOST_BEATS),
        }
        return {name: count for name, count in counts.items() if count}


@cache
def resolved(queue: str, batch: bool, options: tuple[tuple[str, Any], ...], redrive_policy: str) -> Settings:
    """Settings resolved as an app does. Cached, because resolving takes a tenth of the time of a schedule."""
    handler = {"concurrency": 1, "size": 3} if batch else {"concurrency": 2}
    return resolve(
        queue=queue,
        command_line=dict(options),
        handler=handler,
        app={},
        environment={},
        attributes={"VisibilityTimeout": "30", "RedrivePolicy": redrive_policy},
    )


@cache
def app_of(queue: str, transactional: bool, batch: bool, asynchronous: bool) -> App:
    """An app whose handler has the right signature. Each worker replaces the handler's function by its own."""
    app = App()
    options: dict[str, Any] = {"key": "$.id", "concurrency": 2}
    register: Any = partial(app.batch_handler, size=3) if batch else app.handler

    def book_all(orders: Batch[dict[str, Any]], tx: Transaction) -> None: ...
    def book(order: dict[str, Any], ctx: Context, tx: Transaction) -> None: ...
    def ship_all(orders: Batch[dict[str, Any]]) -> None: ...
    def ship(order: dict[str, Any], ctx: Context) -> None: ...
    async def fetch_all(orders: Batch[dict[str, Any]]) -> None: ...
    async def fetch(order: dict[str, Any], ctx: Context) -> None: ...

    if asynchronous:
        register(queue, **options)(fetch_all if batch else fetch)
    elif transactional:
        register(queue, **options)(book_all if batch else book)
    else:
        register(queue, **options)(ship_all if batch else ship)
    return app
