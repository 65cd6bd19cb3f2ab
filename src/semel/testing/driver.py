"""An app driven by hand in a test: against a broker in the process, by its clock, with crashes at named places."""

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

# Where a worker can die, in the order in which a message passes, and which messages pass there.
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
    """The worker dies here, as by SIGKILL: nothing is given back, nothing is cleaned up."""


class DrivenWorker:
    """One worker whose stages are run by the caller, step by step: nothing happens that was not asked for, and a crash
    is an exception that leaves everything just as a killed process would."""

    def __init__(self, setups: Sequence[QueueSetup], ledger: Ledger, client: Client, tools: Tools) -> None:
        self.ledger = ledger
        self.client = client
        self.tools = tools
        self.heartbeat = Heartbeat(tools.monotonic, tools.chance)
        self.outbox = OutboxDispatcher(ledger, client, tools)
        self.consumers = [QueueConsumer(setup, on_received=self.heartbeat.watch) for setup in setups]

    def drain(self) -> None:
        """Receive and work until no queue gives anything."""
        for _ in range(MOST_ROUNDS):
            came = sum(self.receive(consumer) for consumer in self.consumers)
            for consumer in self.consumers:
                self.work(consumer)
            self.dispatch_outbox()
            if not came:
                break

    def receive(self, consumer: QueueConsumer) -> int:
        """One receive, and the claim of what came; returns how many messages came."""
        came = consumer.receiver.run_once()
        while consumer.claimer.run_once():
            pass
        return came

    def work(self, consumer: QueueConsumer) -> None:
        """Handle every message that can start, and those that can after others have ended."""
        while True:
            if not consumer.worker.run_once():
                self.finish(consumer)
                if not len(consumer.scheduler):
                    return

    def finish(self, consumer: QueueConsumer) -> None:
        """Dead-letter, record, release, delete and return, until there is nothing left to do. What the ledger could
        not take is left for the next time: it may answer then."""
        stages = (consumer.dead_letter_sender, consumer.recorder, consumer.acknowledger, consumer.returner)
        while sum(stage.run_once() for stage in stages):
            pass

    def beat(self) -> None:
        """Do what the heartbeat has due by now."""
        while self.heartbeat.run_once():
            pass

    def dispatch_outbox(self) -> int:
        return self.outbox.run_once() if self.ledger.transactional else 0


class Driver:
    """One worker after the other: when one crashes, the next `drain` is done by a new one, which knows nothing.

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
        """Where the worker is to die, once."""
        if point is not None and point not in CRASH_POINTS:
            raise SemelError(f"there is no crash point {point!r}; there are {', '.join(CRASH_POINTS)}")
        self._crash_at = point

    def check_crashed(self) -> None:
        """Internal. A test whose crash never came has shown nothing."""
        if self._crash_at is not None:
            raise SemelError(
                f"no worker came to the crash point {self._crash_at!r}, which is passed by {_PASSED_BY[self._crash_at]}"
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
            # No two workers may bear one name, nor those of two drivers: the ledger tells claims apart by it.
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
        """Work off what can be received now; returns how many messages were completed. A crash ends it, silently."""
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
        """The worker dies now, with all messages that it has in progress."""
        self._worker = None


@contextmanager
def driving(
    app: App, broker: EmbeddedBroker, *, crash_at: str | None = None, ledger: Ledger | str | None = None, **options: Any
) -> Iterator[Driver]:
    """Inside this block `app.drain()` works on `broker`'s queues, on the caller's thread, by `broker`'s clock.

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

    `crash_at`: where the first worker dies, one of CRASH_POINTS. The block fails if no worker came there.

    `ledger`, which always goes by the broker's clock: by default an empty SQLite ledger in memory. The app's own is
    never opened, as a test must not write to production; so if a handler takes `tx` from another store than SQLite,
    name one. An address, "postgresql://localhost/test", means an empty ledger there, under a name of its own (a
    schema, a prefix, a table) which is removed with the block. A Ledger is used as it is, and stays open.
    `driver.ledger.transaction()` is the way to create tables before the first `drain`, and to look into them after it.

    `options` are those of a handler, and count most; `chance`: what back-offs draw their jitter from.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(ledger_for(app, ledger, broker.clock.now))
        # Retries wait by the real clock, which has nothing to do with this test.
        client = Client(broker.url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _seconds: None)
        stack.callback(client.close)
        driver = Driver(app, broker, client, opened, **options)
        driver.crash_at(crash_at)
        stack.enter_context(app.driven_by(driver.drain))
        yield driver
        driver.check_crashed()
