"""Running an app: start a consumer for each queue, watch over them, drain, stop.

Beside the consumers there are one heartbeat for all messages, the outbox dispatcher, the clean-up of the ledger, and a
supervisor that restarts hanging polls. The shutdown has one deadline for everything: the drain, and a few seconds more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from semel.consumer.circuit_breaker import CircuitBreaker
from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.empty_check import EmptyCheck
from semel.consumer.heartbeat import Heartbeat, HeartbeatThreads
from semel.consumer.in_flight import InFlight
from semel.consumer.outbox_dispatcher import OutboxDispatcher, described_status
from semel.consumer.queue_consumer import QueueConsumer
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.consumer.run_report import Report
from semel.ledger.contract import Ledger, LedgerError
from semel.sqs import Client
from semel.telemetry.health_server import Health
from semel.text import count as counted
from semel.user_exceptions import described

PURGE_EVERY: Final = 60.0
WATCHDOG: Final = 3  # polls are restarted if none has come back for as long as this many polls may take
FLUSH: Final = 4.0  # seconds after the drain by which everything that is done must have reached the ledger and SQS
EMPTY_WAIT: Final = 1  # seconds of a poll that looks whether a queue is empty
TICK: Final = 0.25


class Runtime:
    def __init__(
        self,
        setups: Sequence[QueueSetup],
        ledger: Ledger,
        client: Client,
        tools: Tools,
        *,
        drain: float = 25.0,
        exit_when_empty: bool = False,
    ) -> None:
        self.tools = tools
        self.ledger = ledger
        self.client = client
        self.drain = drain
        self.stopping = threading.Event()
        self._asked_to_stop = False
        self._hurry = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.breaker = CircuitBreaker(tools.monotonic, tools.chance)
        self.heartbeat = Heartbeat(tools.monotonic, tools.chance)
        self._beaters = HeartbeatThreads(self.heartbeat, self._spawn, tools.monotonic)
        self.outbox = OutboxDispatcher(ledger, client, tools, sends=any(setup.handler.transaction for setup in setups))
        self.empty_check = EmptyCheck(setups, ledger, tools.monotonic) if exit_when_empty else None
        self.consumers = [
            QueueConsumer(
                setup,
                self.breaker,
                on_received=self._on_received,
                on_returned=self.empty_check.on_returned
                if self.empty_check
                else lambda _table, _delivery, _seconds: None,
                on_commit=self.outbox.on_commit,
                on_fatal=self.fail,
                loop=self.loop,
                wait=EMPTY_WAIT if exit_when_empty else None,
            )
            for setup in setups
        ]
        for consumer in self.consumers:
            self._offer_gauges(consumer)
        if ledger.transactional:
            gauge = tools.metrics.queue().gauge
            gauge("outbox_waiting", lambda: self.outbox.status.waiting)
            gauge("outbox_stuck", lambda: self.outbox.status.refused)

    def _on_received(self, table: InFlight, chunk: list[Delivery]) -> None:
        self.heartbeat.watch(table, chunk)
        if self.empty_check is not None:
            self.empty_check.on_received(table, chunk)

    def _offer_gauges(self, consumer: QueueConsumer) -> None:
        gauge, in_flight = consumer.metrics.gauge, consumer.in_flight
        gauge("in_flight", lambda: len(in_flight.deliveries))
        gauge("free_slots", lambda: in_flight.admission.free)
        gauge("bytes_in_flight", lambda: in_flight.admission.bytes)
        gauge("circuit_open", lambda: float(self.breaker.is_open))
        gauge("receivers", lambda: consumer.receiver.count)
        gauge("oldest_in_flight_seconds", lambda: _oldest(in_flight, self.tools.monotonic()))
        gauge("concurrency", lambda: in_flight.concurrency)
        gauge("paused", lambda: float(in_flight.paused))

    # Running.

    def run(self) -> Report:
        """Start, work until told to stop, and drain."""
        self.start()
        # With a timeout: the kernel may hand a signal to another thread, and Python's handler runs only when this one
        # wakes up.
        while not self.stopping.wait(TICK):
            pass
        return self.finish()

    def start(self) -> None:
        for consumer in self.consumers:
            consumer.start()
        self._beaters.start()
        self._spawn("supervise", self._supervise)
        self._spawn("purge", self._purge)
        if self.ledger.transactional:
            self._spawn("outbox", partial(self.outbox.run, self.stopping))

    def stop(self) -> None:
        """Stop receiving and drain; a second call ends the drain at once. Returns immediately; see `finish`."""
        if self._asked_to_stop:
            self._hurry.set()
        self._asked_to_stop = True
        self.stopping.set()

    def stop_once(self) -> None:
        """Stop receiving and drain, however often it is called."""
        if not self._asked_to_stop:
            self.stop()

    def fail(self, error: BaseException) -> None:
        """Stop because of an error that no retry can fix, and report it."""
        if self._error is None:
            self._error = error
            logger.error("stopping: %s", error)
        self.stopping.set()

    def _spawn(self, role: str, run: Callable[[], object]) -> None:
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"semel-{role}", daemon=True)
        self._threads = [known for known in self._threads if known.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _guarded(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - logged, and the whole run stops
            logger.exception("a thread of the runtime ended with an error: this is a bug in Semel")
            self.fail(error)

    def _join(self, role: str, deadline: float) -> None:
        for thread in self._threads:
            if thread.name == f"semel-{role}":
                thread.join(max(0.0, deadline - self.tools.monotonic()))

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of all async handlers, on a thread of its own."""
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._spawn("loop", partial(self._run_loop, self._loop))
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until it is stopped. A SystemExit in a task that a handler has left behind must not end other
        handlers."""
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                logger.error("a task that an async handler started has failed: %s", described(error))
            else:
                return

    # Beside the work.

    def _supervise(self) -> None:
        while not self.stopping.wait(TICK):
            now = self.tools.monotonic()
            for consumer in self.consumers:
                consumer.fit()
                if not consumer.in_flight.paused:
                    self._watch_polls(consumer, now)
            if self.empty_check is not None and self.empty_check.is_over(self.consumers, len(self.outbox.unsendable)):
                self.stopping.set()

    def _watch_polls(self, consumer: QueueConsumer, now: float) -> None:
        allowed = _longest_silence(consumer)
        if now - consumer.receiver.last_poll > allowed:
            logger.error("no poll of %s has come back for %.0f s: restarting it", consumer.name, allowed)
            consumer.metrics.watchdog_restarts.add(1)
            consumer.receiver.restart()
        elif not consumer.receiver.count and not self.stopping.is_set():
            consumer.receiver.add_thread()

    def _purge(self) -> None:
        while not self.stopping.wait(PURGE_EVERY):
            try:
                while self.ledger.purge() and not self.stopping.wait(0.1):
                    pass
            except LedgerError as error:
                logger.warning("cleaning up the ledger failed: %s", error)

    # The end.

    def finish(self) -> Report:
        """Drain within the limit, return what was not started, flush what is done, and report what is left."""
        began = self.tools.monotonic()
        for consumer in self.consumers:
            consumer.stop_receiving()
        for consumer in self.consumers:
            consumer.give_up()
        ends = began + self.drain
        while self._in_progress() and self.tools.monotonic() < ends and not self._hurry.wait(0.02):
            pass
        if self._in_progress():
            self._cancel_async_handlers()
        left = {consumer.name: count for consumer in self.consumers if (count := consumer.at_work())}
        drained_for = self.tools.monotonic() - began
        # One deadline for everything, and all queues in parallel: many queues take no longer than one.
        flushed_by = (self.tools.monotonic() if self._hurry.is_set() else ends) + FLUSH
        with ThreadPoolExecutor(len(self.consumers) or 1, "semel-close") as closing:
            list(closing.map(lambda consumer: consumer.close(flushed_by), self.consumers))
        self.heartbeat.close()
        outbox_left = self._outbox_left(flushed_by)
        self._stop_loop()
        self._report_left(left, drained_for)
        metrics = [consumer.metrics for consumer in self.consumers]
        return Report(
            completed=sum(queue.completed.count for queue in metrics),
            left=left,
            error=self._error,
            duplicates=sum(queue.duplicates_deleted.count for queue in metrics),
            retried=sum(queue.retried.count for queue in metrics),
            dead_lettered=sum(queue.rejected.count for queue in metrics),
            waiting=self.empty_check.waiting() if self.empty_check is not None else {},
            outbox=outbox_left,
        )

    def _report_left(self, left: dict[str, int], drained_for: float) -> None:
        if self._hurry.is_set():
            limit = f"the second signal, {drained_for:.1f} s after the first"
        else:
            limit = f"the end of the drain, {self.drain:g} s"
        for name, count in left.items():
            logger.error(
                "%s of %s still running at %s: the messages will come back", counted(count, "handler"), name, limit
            )

    def _in_progress(self) -> bool:
        return any(consumer.in_flight.deliveries for consumer in self.consumers)

    def _cancel_async_handlers(self) -> None:
        """The drain is over: cancel async handlers. Plain ones cannot be cancelled."""
        asynchronous = [consumer for consumer in self.consumers if consumer.worker.calls_on_loop]
        for consumer in asynchronous:
            consumer.worker.cancel_tasks()
        ends = time.monotonic() + 2.0
        while any(consumer.at_work() for consumer in asynchronous) and time.monotonic() < ends:
            time.sleep(0.01)

    def _outbox_left(self, deadline: float) -> int:
        if not self.ledger.transactional:
            return 0
        self.outbox.on_commit()  # wakes it
        self._join("outbox", deadline)  # nobody else can send what it has taken
        return self.outbox.flush(deadline)

    def _stop_loop(self) -> None:
        if self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            if thread.name == "semel-loop":
                thread.join(2.0)
                if not thread.is_alive():
                    self._loop.close()

    # Health.

    def health(self) -> Health:
        now = self.tools.monotonic()
        queues = {}
        polling = True
        for consumer in self.consumers:
            in_flight = consumer.in_flight
            paused = in_flight.paused  # read first: `resume` sets the time of the last poll before it sets this
            silent = now - consumer.receiver.last_poll
            queues[consumer.name] = {
                "seconds_since_poll": round(silent, 1),
                "in_progress": len(in_flight.deliveries),
                "receivers": consumer.receiver.count,
                "free_slots": in_flight.admission.free,
                "paused": paused,
            }
            polling = polling and (paused or silent < _longest_silence(consumer))
        stopping = self.stopping.is_set()
        details: dict[str, Any] = {
            "queues": queues,
            "ledger": "unreachable" if self.breaker.is_open else "ok",
            "stopping": stopping,
        }
        if self.ledger.transactional:
            details["outbox"] = described_status(self.outbox.status)
        if self._error is not None:
            details["error"] = str(self._error)
        dead = {consumer.name: stages for consumer in self.consumers if (stages := consumer.dead_stages())}
        if not stopping and self._beaters.is_dead():
            dead["all queues"] = ["heartbeat"]
        if dead:
            details["dead"] = dead
        live = self._error is None and polling and not dead
        return Health(live=live, ready=live and not stopping and not self.breaker.is_open, details=details)


def _longest_silence(consumer: QueueConsumer) -> float:
    """Seconds without a poll after which something is wrong."""
    return WATCHDOG * max(5, consumer.setup.settings.wait)


def _oldest(in_flight: InFlight, now: float) -> float:
    return max((now - delivery.received_at for delivery in list(in_flight.deliveries.values())), default=0.0)
