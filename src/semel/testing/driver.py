"""Runs an app step by step in a test: against a broker in the same process, by its clock, with crashes on request."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from semel.broker import EmbeddedBroker
from semel.consumer.app import App
from semel.consumer.heartbeat import Heartbeat
from semel.consumer.outbox_dispatcher import OutboxDispatcher
from semel.consumer.queue_consumer import QueueConsumer
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.errors import SemelError
from semel.ledger.contract import Ledger
from semel.sqs import Client
from semel.telemetry.attempt_log import AttemptLog
from semel.testing.ledgers import ledger_for
from semel.user_exceptions import Killed

# The points at which a worker can die, in the order in which a message passes them, and which messages pass each.
_PASSED_BY: Final = {
    "after_receive": "every message that is received",
    "after_claim": "every message that is received, duplicates too",
    "before_work": "every message that a handler is called with",
    "after_work": "every message that a handler was called with, also if it failed; with `tx`, after the commit",
    "before_commit": "messages whose handler takes `tx` and has returned",
    "after_record": "messages that were handled or rejected",
    "after_release": "messages whose handler failed and that are tried again",
    "after_dead_letter": "messages that are sent to the dead-letter queue",
    "before_delete": "messages that were handled, rejected, or found to be done",
    "after_delete": "messages that were handled, rejected, or found to be done",
    "after_outbox_send": "messages that a handler has sent with `tx.send`",
}
CRASH_POINTS: Final = tuple(_PASSED_BY)
MOST_ROUNDS: Final = 10_000


class Crash(Killed):
    """The worker dies here, as if killed by SIGKILL: nothing is released or cleaned up."""


class DrivenWorker:
    """One worker whose stages the caller runs step by step. Nothing runs by itself, and a crash is an exception that
    leaves everything as a killed process would."""

    def __init__(self, setups: Sequence[QueueSetup], ledger: Ledger, client: Client, tools: Tools) -> None:
        self.ledger = ledger
        self.client = client
        self.tools = tools
        self.heartbeat = Heartbeat(tools.monotonic, tools.chance)
        self.outbox = OutboxDispatcher(ledger, client, tools)
        self.consumers = [QueueConsumer(setup, on_received=self.heartbeat.watch) for setup in setups]

    def drain(self) -> None:
        """Receive and work until no queue returns a message."""
        for _ in range(MOST_ROUNDS):
            came = sum(self.receive(consumer) for consumer in self.consumers)
            for consumer in self.consumers:
                self.work(consumer)
            self.dispatch_outbox()
            if not came:
                break

    def receive(self, consumer: QueueConsumer) -> int:
        """Receive once and claim the messages; returns how many were received."""
        came = consumer.receiver.run_once()
        while consumer.claimer.run_once():
            pass
        return came

    def work(self, consumer: QueueConsumer) -> None:
        """Handle every message that can start, including those that can start only after others have ended."""
        while True:
            if not consumer.worker.run_once():
                self.finish(consumer)
                if not len(consumer.scheduler):
                    return

    def finish(self, consumer: QueueConsumer) -> None:
        """Dead-letter, record, release, delete and return, until there is nothing left to do. Outcomes that
        the ledger could not take are left for the next call, when it may answer again."""
        stages = (consumer.dead_letter_sender, consumer.recorder, consumer.acknowledger, consumer.returner)
        while sum(stage.run_once() for stage in stages):
            pass

    def beat(self) -> None:
        """Run everything that is due in the heartbeat."""
        while self.heartbeat.run_once():
            pass

    def dispatch_outbox(self) -> int:
        return self.outbox.run_once() if self.ledger.transactional else 0


class Driver:
    """Runs one worker at a time. After a crash, the next `drain` uses a new worker that knows nothing of the old one.

    >>> from semel import App
    >>> from semel.testing import driving, running
    >>> app = App()
    >>> @app.handler("orders")
    ... def ship(order: dict) -> None: ...
    >>> with running(clock="manual") as broker, driving(app, broker) as driver:
    ...     sent = driver.client.create_queue("orders").send("{}")
    ...     driver.drain()
    1
    """

    def __init__(
        self,
        app: App,
        broker: EmbeddedBroker,
        client: Client,
        ledger: Ledger,
        *,
        chance: Callable[[], float] = random.random,
        now: Callable[[], float] | None = None,
        log: AttemptLog | None = None,
        **options: Any,
    ) -> None:
        """Internal. Use `driving`."""
        self.app = app
        self.broker = broker
        self.client = client
        self.ledger = ledger
        self.crashed_at: str | None = None
        self.workers = 0
        self._chance = chance
        self._now = now or broker.clock.now
        self._log = log
        self._options = options
        self._crash_at: str | None = None
        self._worker: DrivenWorker | None = None

    def crash_at(self, point: str | None) -> None:
        """Let the worker die at this point, once. None: it does not die."""
        if point is not None and point not in CRASH_POINTS:
            raise SemelError(f"there is no crash point {point!r}; there are {', '.join(CRASH_POINTS)}")
        self._crash_at = point

    def check_crashed(self) -> None:
        """Internal. Raises SemelError if the crash did not happen: such a test has shown nothing."""
        if self._crash_at is not None:
            raise SemelError(
                f"no worker reached the crash point {self._crash_at!r}, which is passed by {_PASSED_BY[self._crash_at]}"
            )

    def _crash(self, point: str) -> None:
        if point == self._crash_at:
            self._crash_at, self.crashed_at = None, point
            raise Crash(point)

    @property
    def worker(self) -> DrivenWorker:
        """Internal. The worker that is alive."""
        if self._worker is None:
            self.workers += 1
            # Each worker's name is unique, also among several drivers: the ledger tells claims apart by it.
            name = f"worker-{self.workers}/{uuid.uuid4().hex}"
            now = self._now
            tools = Tools(monotonic=now, now=now, chance=self._chance, worker=name, crash=self._crash, log=self._log)
            setups = self.app.queue_setups(self.client, self.ledger, tools, **self._options)
            self._worker = DrivenWorker(setups, self.ledger, self.client, tools)
        return self._worker

    def consumer(self, queue: str) -> QueueConsumer:
        """Internal. The queue consumer of this queue."""
        return next(consumer for consumer in self.worker.consumers if consumer.name == queue)

    def drain(self) -> int:
        """Process all messages that can be received now; returns how many were completed. A crash ends it silently."""
        worker = self.worker
        before = self._completed(worker)
        try:
            worker.drain()
        except Crash:
            self._worker = None
        return self._completed(worker) - before

    def _completed(self, worker: DrivenWorker) -> int:
        return sum(consumer.metrics.completed.count for consumer in worker.consumers)

    def kill(self) -> None:
        """Let the worker die now, with all messages that it has in progress."""
        self._worker = None


@contextmanager
def driving(
    app: App, broker: EmbeddedBroker, *, crash_at: str | None = None, ledger: Ledger | str | None = None, **options: Any
) -> Iterator[Driver]:
    """Inside this block, `app.drain()` processes `broker`'s queues on the calling thread, by `broker`'s clock.

    >>> from semel import App, Context
    >>> from semel.testing import driving, running
    >>> app, shipped = App(), []
    >>> @app.handler("orders", key="$.id")
    ... def ship(order: dict, ctx: Context) -> None:
    ...     shipped.append(ctx.key)
    >>> with running(clock="manual") as broker, driving(app, broker, crash_at="before_work") as driver:
    ...     message = driver.client.create_queue("orders").send('{"id": 7}')
    ...     app.drain()               # the worker dies
    ...     broker.clock.advance(31)  # its lease and the message's visibility end
    ...     app.drain()               # its successor
    0
    1
    >>> shipped
    ['7']

    `crash_at`: the point at which the first worker dies, one of CRASH_POINTS. The block fails if no worker reaches it.

    `ledger`: by default, an empty SQLite ledger in memory. The app's own ledger is never opened, because a test must
    not write to production. If a handler takes `tx` from a store other than SQLite, pass a ledger. An address such as
    "postgresql://localhost/test" creates an empty ledger there under a unique name (a schema, a prefix or a table),
    which is removed at the end of the block. A Ledger is used as it is and stays open. Every ledger uses the broker's
    clock. Use `driver.ledger.transaction()` to create tables before the first `drain`, and to read them after it.

    `options` are handler options, which override those of the app. `chance`: the random numbers for the jitter of
    back-offs.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(ledger_for(app, ledger, broker.clock.now))
        # The client's retries would wait by the real clock, which this test does not use.
        client = Client(broker.url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _seconds: None)
        stack.callback(client.close)
        driver = Driver(app, broker, client, opened, **options)
        driver.crash_at(crash_at)
        stack.enter_context(app.driven_by(driver.drain))
        yield driver
        driver.check_crashed()
