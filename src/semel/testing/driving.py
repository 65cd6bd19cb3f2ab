"""An app driven by hand in a test: against a broker in the process, by its clock, with crashes at named places."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from semel.broker import EmbeddedBroker
from semel.consumer.app import App
from semel.consumer.attempts import AttemptLog
from semel.consumer.inline import Inline
from semel.consumer.lane import Lane, Tools
from semel.errors import SemelError
from semel.ledger.contract import Ledger
from semel.ledger.sqlite import SqliteLedger
from semel.sqs import Client

# In the order in which a message passes them.
CRASH_POINTS: Final = (
    "after_receive",
    "after_claim",
    "before_work",
    "after_work",
    "before_commit",
    "after_record",
    "after_release",
    "after_bury",
    "before_delete",
    "after_delete",
    "after_outbox_send",
)


class Crash(BaseException):
    """The worker dies here, as by SIGKILL: nothing is given back, nothing is cleaned up."""


class Driver:
    """One worker after the other: when one crashes, the next `drain` is done by a new one, which knows nothing."""

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
        self._inline: Inline | None = None

    def crash_at(self, point: str | None) -> None:
        """Where the worker is to die, once."""
        if point is not None and point not in CRASH_POINTS:
            raise SemelError(f"there is no crash point {point!r}; there are {', '.join(CRASH_POINTS)}")
        self._crash_at = point

    def _crash(self, point: str) -> None:
        if point == self._crash_at:
            self._crash_at, self.crashed_at = None, point
            raise Crash(point)

    @property
    def worker(self) -> Inline:
        """The worker that is alive."""
        if self._inline is None:
            self.workers += 1
            # No two workers may bear one name, nor those of two drivers: the ledger tells claims apart by it.
            name = f"worker-{self.workers}/{uuid.uuid4().hex}"
            now = self._now
            tools = Tools(monotonic=now, now=now, chance=self._chance, worker=name, crash=self._crash, log=self._log)
            lanes = self.app.lanes(self.client, self.ledger, tools, **self._options)
            self._inline = Inline(lanes, self.ledger, self.client, tools)
        return self._inline

    def lane(self, queue: str) -> Lane:
        return next(lane for lane in self.worker.lanes if lane.name == queue)

    def drain(self) -> int:
        """Work off what can be received now; returns how many messages were completed. A crash ends it, silently."""
        worker = self.worker
        before = self._completed(worker)
        try:
            worker.drain()
        except Crash:
            self._inline = None
        return self._completed(worker) - before

    def _completed(self, worker: Inline) -> int:
        return sum(lane.metrics.completed.count for lane in worker.lanes)

    def kill(self) -> None:
        """The worker dies now, with all that it has in hand."""
        self._inline = None


@contextmanager
def driving(
    app: App, broker: EmbeddedBroker, *, crash_at: str | None = None, ledger: Ledger | None = None, **options: Any
) -> Iterator[Driver]:
    """Inside this block `app.drain()` works on `broker`'s queues, by `broker`'s clock.

    Without a `ledger`, one in memory is used, by the same clock. `crash_at` names the place where the first worker
    dies: see CRASH_POINTS. `options` are those of a handler, and `chance`: what back-offs draw their jitter from.
    """
    with ExitStack() as stack:
        if ledger is None:
            ledger = stack.enter_context(SqliteLedger(":memory:", ahead=lambda: broker.clock.now() - time.time()))
        # Retries wait by the real clock, which has nothing to do with this test.
        client = Client(broker.url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _seconds: None)
        stack.callback(client.close)
        driver = Driver(app, broker, client, ledger, **options)
        driver.crash_at(crash_at)
        stack.enter_context(app.driven_by(driver.drain))
        yield driver
