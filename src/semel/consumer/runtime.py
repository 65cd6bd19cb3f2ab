"""Running an app on threads: start, watch over, drain, stop.

A runtime starts the threads of each lane, keeps one heartbeat for all of them, dispatches the outbox, cleans the
ledger up, restarts a receiver that hangs, and at the end hands back everything that was not begun.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from semel.consumer import outbox
from semel.consumer.burst import Burst
from semel.consumer.context import logger
from semel.consumer.guard import Guard
from semel.consumer.heartbeat import Heartbeat
from semel.consumer.lane import Lane, Tools
from semel.consumer.life import LEASED, State
from semel.consumer.threads import LaneThreads
from semel.failures import described
from semel.ledger.contract import Ledger, LedgerError, OutboxStatus
from semel.sqs import Client
from semel.telemetry.health_server import Health

MOST_BEATERS: Final = 4
OUTBOX_LOOK_EVERY: Final = 10.0  # seconds between two looks at what waits there
PURGE_EVERY: Final = 60.0
WATCHDOG: Final = 3  # polls' worth of silence
FLUSH: Final = 4.0  # seconds after the drain in which all that is done must have reached the ledger and SQS
BURST_WAIT: Final = 1  # seconds of a poll that looks whether a queue is empty
AT_WORK: Final = LEASED - {State.CLAIMED}


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. By queue: `left`, messages whose handler still ran at the end of the drain, and `waiting`,
    messages that a burst put back for another attempt. `outbox`: messages that are still to be sent.
    """

    completed: int = 0
    left: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    duplicates: int = 0
    retried: int = 0
    dead_lettered: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    outbox: int = 0

    @property
    def clean(self) -> bool:
        return not self.left and self.error is None

    def __str__(self) -> str:
        counts = {
            "duplicates deleted": self.duplicates,
            "put back for a retry": self.retried,
            "dead-lettered": self.dead_lettered,
            "still running": sum(self.left.values()),
            "waiting for a retry": sum(self.waiting.values()),
            "left in the outbox": self.outbox,
        }
        others = [f"{what}: {count:,}" for what, count in counts.items() if count]
        return ", ".join([f"messages completed: {self.completed:,}", *others])

    @classmethod
    def sum(cls, reports: Sequence[Report]) -> Report:
        """Of workers that share their queues and their outbox. The first error counts."""
        return cls(
            completed=sum(report.completed for report in reports),
            left=_added(report.left for report in reports),
            error=next((report.error for report in reports if report.error is not None), None),
            duplicates=sum(report.duplicates for report in reports),
            retried=sum(report.retried for report in reports),
            dead_lettered=sum(report.dead_lettered for report in reports),
            waiting=_added(report.waiting for report in reports),
            outbox=max((report.outbox for report in reports), default=0),
        )


class Runtime:
    def __init__(
        self,
        lanes: Sequence[Lane],
        ledger: Ledger,
        client: Client,
        tools: Tools,
        *,
        drain: float = 25.0,
        burst: bool = False,
    ) -> None:
        self.tools = tools
        self.ledger = ledger
        self.client = client
        self.drain = drain
        self.wait: int | None = BURST_WAIT if burst else None
        self.guard = Guard(tools.monotonic, tools.chance)
        self.heart = Heartbeat(tools.monotonic, tools.chance)
        self.lanes = [LaneThreads(lane, self) for lane in lanes]
        self._unsendable: set[str] = set()  # ids in the outbox
        self._outbox = OutboxStatus()  # as it was when it was last looked at
        self.stopping = threading.Event()
        self._told_to_stop = False
        self._hurry = threading.Event()
        self._committed = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._beaters = 0
        self._started = tools.monotonic()
        for lane in lanes:
            lane.arrived = self.heart.watch
            lane.ledger_answers = self.guard.heard
            lane.committed = self._committed.set
            lane.failed = self.fail
            self._offer_gauges(lane)
        if ledger.transactional:
            gauge = tools.metrics.queue().gauge
            gauge("outbox_waiting", lambda: self._outbox.waiting)
            gauge("outbox_stuck", lambda: self._outbox.refused)
        self.burst = Burst(self.lanes, ledger, tools.monotonic) if burst else None

    def _offer_gauges(self, lane: Lane) -> None:
        gauge = lane.metrics.gauge
        gauge("in_flight", lambda: len(lane.in_hand))
        gauge("free_slots", lambda: lane.slots.free)
        gauge("bytes_in_flight", lambda: lane.slots.bytes)
        gauge("circuit_open", lambda: float(self.guard.is_open))
        gauge("receivers", lambda: sum(threads.receivers for threads in self.lanes if threads.lane is lane))
        gauge("oldest_in_flight_seconds", lambda: _oldest(lane, self.tools.monotonic()))
        gauge("concurrency", lambda: lane.concurrency)
        gauge("paused", lambda: float(lane.paused))

    # Running.

    def run(self) -> Report:
        """Start, work until told to stop, and drain."""
        self.start()
        self.stopping.wait()
        return self.finish()

    def start(self) -> None:
        for threads in self.lanes:
            threads.start()
        self._add_beater()
        self._spawn("supervise", self._supervise)
        self._spawn("purge", self._purge)
        if self.ledger.transactional:
            self._spawn("outbox", self._dispatch_outbox)

    def stop(self) -> None:
        """Stop receiving and drain; called a second time: at once. Returns immediately; see `finish`."""
        if self._told_to_stop:
            self._hurry.set()
        self._told_to_stop = True
        self.stopping.set()

    def stop_once(self) -> None:
        """Stop receiving and drain, however often it is called."""
        if not self._told_to_stop:
            self.stop()

    def fail(self, error: BaseException) -> None:
        """Something that no retry will mend: stop, and say so."""
        if self._error is None:
            self._error = error
            logger.error("stopping: %s", error)
        self.stopping.set()

    def _spawn(self, role: str, run: Callable[[], object]) -> None:
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"semel-{role}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - said, and the whole run stops: messages would be lost unnoticed
            logger.exception("a thread of the runtime died: this is a mistake in Semel")
            self.fail(error)

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of all async handlers, on a thread of its own."""
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._spawn("loop", partial(self._run_loop, self._loop))
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until it is stopped: a SystemExit in a task that a handler has left behind ends no other handler."""
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                logger.error("a task that an async handler started has failed: %s", described(error))
            else:
                return

    # Beside the work.

    def _add_beater(self) -> None:
        self._beaters += 1
        self._spawn("beat", self._beat)

    def _beat(self) -> None:
        while not self.heart.closed:
            began = time.monotonic()
            beat = self.heart.round(1.0)
            if beat and time.monotonic() - began > 0.5 and self._beaters < MOST_BEATERS:
                self._add_beater()  # a round this long would make the next ones late

    def _supervise(self) -> None:
        while not self.stopping.wait(0.25):
            now = self.tools.monotonic()
            for threads in self.lanes:
                if threads.lane.paused:
                    continue
                allowed = WATCHDOG * max(5, threads.lane.settings.wait)
                if now - threads.last_poll > allowed:
                    logger.error("no poll of %s has come back for %.0f s: starting anew", threads.lane.name, allowed)
                    threads.lane.metrics.watchdog_restarts.add(1)
                    threads.restart_receivers()
                elif not threads.receivers and not self.stopping.is_set():
                    threads.add_receiver()
            if self.burst is not None and self.burst.is_over(len(self._unsendable)):
                self.stopping.set()

    def _purge(self) -> None:
        while not self.stopping.wait(PURGE_EVERY):
            try:
                while self.ledger.purge() and not self.stopping.wait(0.1):
                    pass
            except LedgerError as error:
                logger.warning("cleaning the ledger up failed: %s", error)

    def _dispatch_outbox(self) -> None:
        looked_at = -OUTBOX_LOOK_EVERY
        while not self.stopping.is_set():
            sent = self._outbox_round()
            if not sent and (now := self.tools.monotonic()) - looked_at >= OUTBOX_LOOK_EVERY:
                looked_at = now
                self.look_at_outbox()
            if not sent:
                self._committed.wait(1.0)
                self._committed.clear()

    def look_at_outbox(self) -> None:
        try:
            self._outbox = self.ledger.outbox_status()
        except LedgerError as error:
            logger.warning("the outbox cannot be read: %s", error)

    def _outbox_round(self) -> int:
        try:
            dispatched = outbox.dispatch(self.ledger, self.client, self.tools)
        except LedgerError as error:
            logger.warning("the outbox cannot be read: %s", error)
            return 0
        self._unsendable.update(dispatched.kept)
        self._unsendable.difference_update(dispatched.sent)
        return len(dispatched.sent)

    def _outbox_left(self, sent_by: float) -> int:
        """What is in the outbox after a last try. Another worker may be sending it."""
        if not self.ledger.transactional:
            return 0
        for thread in self._threads:
            if thread.name == "semel-outbox":
                self._committed.set()
                thread.join(max(0.0, sent_by - self.tools.monotonic()))  # what it has taken, nobody else can send
        while self.tools.monotonic() < sent_by and self._outbox_round():
            pass
        try:
            return self.ledger.count_outgoing()
        except LedgerError as error:
            logger.warning("the outbox cannot be read: %s", error)
            return 0

    # The end.

    def finish(self) -> Report:
        """Drain within the limit, hand back what was not begun, flush what is done, and report what is left."""
        began = self.tools.monotonic()
        for threads in self.lanes:
            threads.stop_receiving()
        for threads in self.lanes:
            threads.lane.give_up(list(threads.lane.in_hand.values()))
        ends = began + self.drain
        while self._at_work() and self.tools.monotonic() < ends and not self._hurry.wait(0.02):
            pass
        if self._at_work():
            self._abandon()
        left = {threads.lane.name: count for threads in self.lanes if (count := _working(threads.lane))}
        drained_for = self.tools.monotonic() - began
        # One time for all of it, and all queues side by side: whoever stops us does not wait longer for many of them.
        flushed_by = (self.tools.monotonic() if self._hurry.is_set() else ends) + FLUSH
        with ThreadPoolExecutor(len(self.lanes) or 1, "semel-close") as closing:
            list(closing.map(lambda threads: threads.close(flushed_by), self.lanes))
        self.heart.close()
        outbox_left = self._outbox_left(flushed_by)
        self._stop_loop()
        for name, count in left.items():
            limit = (
                f"the second signal, {drained_for:.1f} s after the first"
                if self._hurry.is_set()
                else (f"the end of the drain, {self.drain:g} s")
            )
            logger.error(
                "%d handlers of %s were still running at %s; their messages will come back", count, name, limit
            )
        waiting = self.burst.waiting() if self.burst is not None else {}
        metrics = [threads.lane.metrics for threads in self.lanes]
        return Report(
            completed=sum(lane.completed.count for lane in metrics),
            left=left,
            error=self._error,
            duplicates=sum(lane.duplicates_deleted.count for lane in metrics),
            retried=sum(lane.retried.count for lane in metrics),
            dead_lettered=sum(lane.rejected.count for lane in metrics),
            waiting=waiting,
            outbox=outbox_left,
        )

    def _at_work(self) -> bool:
        return any(threads.lane.in_hand for threads in self.lanes)

    def _abandon(self) -> None:
        """The limit is over: async handlers are cancelled, plain ones cannot be."""
        asynchronous = [threads for threads in self.lanes if threads.lane.handler.is_async]
        for threads in asynchronous:
            threads.cancel_tasks()
        ends = time.monotonic() + 2.0
        while any(_working(threads.lane) for threads in asynchronous) and time.monotonic() < ends:
            time.sleep(0.01)

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
        lanes = {}
        polling = True
        for threads in self.lanes:
            paused = threads.lane.paused  # asked first: what is resumed has polled, so to say, just then
            silent = now - threads.last_poll
            lanes[threads.lane.name] = {
                "seconds_since_poll": round(silent, 1),
                "in_progress": len(threads.lane.in_hand),
                "receivers": threads.receivers,
                "free_slots": threads.lane.slots.free,
                "paused": paused,
            }
            polling = polling and (paused or silent < WATCHDOG * max(5, threads.lane.settings.wait))
        stopping = self.stopping.is_set()
        details: dict[str, Any] = {
            "lanes": lanes,
            "ledger": "unreachable" if self.guard.is_open else "ok",
            "stopping": stopping,
        }
        if self.ledger.transactional:
            details["outbox"] = outbox.described(self._outbox)
        if self._error is not None:
            details["error"] = str(self._error)
        dead = {threads.lane.name: missing for threads in self.lanes if (missing := threads.missing())}
        beaters = [thread for thread in self._threads if thread.name == "semel-beat" and thread.ident is not None]
        if beaters and not stopping and not any(thread.is_alive() for thread in beaters):
            dead["all queues"] = ["heartbeat"]
        if dead:
            details["dead"] = dead
        live = self._error is None and polling and not dead
        return Health(live=live, ready=live and not stopping and not self.guard.is_open, details=details)


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _working(lane: Lane) -> int:
    return sum(1 for delivery in list(lane.in_hand.values()) if delivery.state in AT_WORK)


def _oldest(lane: Lane, now: float) -> float:
    return max((now - delivery.received_at for delivery in list(lane.in_hand.values())), default=0.0)
