"""The threads of one lane: receivers, workers, settlers, and those that carry deletes and visibility to SQS.

Each kind grows with the work and shrinks without it; none of them spins, and none dies of an exception.

Receivers belong to a generation, which shares one `Cancel`. Pausing, stopping and the watchdog end a generation; a new
one begins only under the lock and only if the lane is neither paused nor stopping. So whichever of them comes first,
none leaves a poll behind that another wanted ended.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.consumer import claiming, deadletters, outbound, settling, working
from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.inbox import Inbox
from semel.consumer.lane import Lane, Settlement
from semel.consumer.life import State
from semel.ledger.contract import LedgerError
from semel.sqs import Cancel
from semel.sqs.errors import AccessDenied, Cancelled, CredentialsRefused, NoCredentials, QueueNotFound, SqsError

if TYPE_CHECKING:
    from semel.consumer.runtime import Runtime

TENS: Final = 10
MOST_RECEIVERS: Final = 10
MOST_CARRIERS: Final = 8
DELETE_LINGER: Final = 0.2
HIDE_LINGER: Final = 0.05
BACKLOG: Final = 5_000  # deletes waiting for SQS at which receiving pauses
CLAIMERS: Final = 2
CLAIM_AT_ONCE: Final = 200
SETTLE_AT_ONCE: Final = 500
SETTLE_LINGER: Final = 0.004
RECORD_AGAIN: Final = 1.0  # seconds, at most, until a record that failed is tried again
TICK: Final = 1.0


class LaneThreads:
    def __init__(self, lane: Lane, runtime: Runtime) -> None:
        self.lane = lane
        self.runtime = runtime
        self.cancel = Cancel()
        self.last_poll = runtime.tools.monotonic()
        self.empty_polls = 0  # in a row, with nothing in hand
        self.last_message = self.last_poll  # when the last one came
        self.receivers = 0  # of this generation
        self._begun = False
        self._ends = math.inf  # when closing gives up
        self._workers = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._watched: list[threading.Thread] = []
        self._collecting = {"delete": threading.Lock(), "hide": threading.Lock()}
        self._idle_carriers = {"delete": 0, "hide": 0}
        self._carriers = {"delete": 0, "hide": 0}
        self._claiming: Inbox[Delivery] = Inbox()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        lane = self.lane
        lane.to_be_claimed = self._claiming.put
        for _ in range(1 if lane.fifo else CLAIMERS):
            self._spawn("claim", self._claim)
        self._spawn("settle", self._settle)
        self._spawn("bury", self._bury)
        for kind in ("delete", "hide"):
            self._add_carrier(kind)
        if lane.handler.is_async and not lane.handler.is_batch:
            self._spawn("start", self._start_async)
        with self._lock:
            self._begun = True
        self._fit_workers()
        self.add_receiver()

    def _spawn(self, role: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"semel-{role}-{self.lane.name}", daemon=True)
        with self._lock:
            self._threads = [known for known in self._threads if known.is_alive()]
            self._threads.append(thread)
            thread.start()  # here, so that whoever ends them all finds none that is still to start
        return thread

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - said, and the whole run stops
            logger.exception("a thread of %s died: this is a mistake in Semel", self.lane.name)
            self.runtime.fail(error)

    # Receivers.

    def add_receiver(self) -> None:
        with self._lock:
            if not self._begun or self.lane.paused or self.lane.stopping:
                return
            self.receivers += 1
            cancel = self.cancel
        self._spawn("receive", lambda: self._receive(cancel))

    def most_receivers(self) -> int:
        return max(1, min(MOST_RECEIVERS, -(-self.lane.slots.count // TENS)))

    def _receive(self, cancel: Cancel) -> None:
        errors = 0
        try:
            while not self.lane.stopping and cancel is self.cancel:
                if self._must_wait(cancel):
                    continue
                taken = self.lane.slots.take(TENS, TICK)
                if not taken:
                    self.last_poll = self.runtime.tools.monotonic()  # not polling is right: all slots are taken
                    continue
                try:
                    came = self._poll(taken, cancel)
                except Cancelled:
                    return
                except SqsError as error:
                    if _final(error):
                        self.runtime.fail(error)
                        return
                    errors += 1
                    self.lane.metrics.poll_errors.add(1)
                    logger.warning("receiving from %s failed: %s", self.lane.name, error)
                    cancel.wait(min(30.0, 0.5 * 2 ** min(errors, 6)) * self.runtime.tools.chance())
                    continue
                errors = 0
                if self._leave(came, taken):
                    return
        finally:
            with self._lock:
                if cancel is self.cancel:
                    self.receivers -= 1

    def _must_wait(self, cancel: Cancel) -> bool:
        """Wait where polling would do harm: the ledger is away, or deletes pile up."""
        wait = self.runtime.guard.pause()
        if wait > 0:
            self.last_poll = self.runtime.tools.monotonic()
            cancel.wait(min(wait, TICK))
            return True
        if self.runtime.guard.is_open:
            try:
                self.lane.ledger.get(["semel/probe"])
            except LedgerError:
                self.runtime.guard.heard(False)
                return True
            self.runtime.guard.heard(True)
        if len(self.lane.deleting) > BACKLOG:
            cancel.wait(0.05)
            return True
        return False

    def _poll(self, taken: int, cancel: Cancel) -> int:
        lane = self.lane
        attempt_id = uuid.uuid4().hex if lane.fifo else None
        wait = self.runtime.wait if self.runtime.wait is not None else lane.settings.wait
        try:
            came = lane.receive(taken, wait=wait, cancel=cancel, attempt_id=attempt_id)
        except Cancelled:
            if lane.fifo:
                self._see_unseen(attempt_id)
            raise
        self.last_poll = self.runtime.tools.monotonic()
        if came:
            self.last_message = self.last_poll
        self.empty_polls = 0 if came or lane.slots.taken > taken else self.empty_polls + 1
        return came

    def _see_unseen(self, attempt_id: str | None) -> None:
        """A FIFO receive that was cancelled may have been answered, and would keep its groups from everybody until its
        visibility ends: the same attempt gets the same messages again. A lane that stops or pauses gives them back."""
        lane = self.lane
        taken = lane.slots.take(TENS, 0)
        if taken:
            try:
                lane.receive(taken, wait=0, attempt_id=attempt_id)
            except SqsError as error:
                logger.warning("what a cancelled receive of %s may have brought stays hidden: %s", lane.name, error)

    def _leave(self, came: int, taken: int) -> bool:
        """Grow while receives come back full and slots are free; shrink to one scout when they come back empty."""
        with self._lock:
            if came == 0:
                return self.receivers > 1
            grow = came >= taken and self.lane.slots.free > 0 and self.receivers < self.most_receivers()
        if grow and not self.lane.stopping:
            self.add_receiver()
        return False

    def restart_receivers(self) -> None:
        """The watchdog's: none has come back from a poll for too long. Those that hang are told to leave."""
        with self._lock:
            before = self._end_generation()
        before.set()
        self.add_receiver()

    def _end_generation(self) -> Cancel:
        """Under the lock. Returns what ends the polls that are under way."""
        before, self.cancel = self.cancel, Cancel()
        self.receivers = 0
        self.last_poll = self.runtime.tools.monotonic()
        return before

    def stop_receiving(self) -> None:
        """For good."""
        with self._lock:
            self.lane.stopping = True
            cancel = self.cancel
        cancel.set()
        self.lane.slots.wake()

    def pause(self) -> None:
        """Receive nothing more, and end the polls that are under way; what is in hand goes on."""
        with self._lock:
            if self.lane.paused:
                return
            self.lane.paused = True
            before = self._end_generation()
        before.set()

    def resume(self) -> None:
        with self._lock:
            if not self.lane.paused:
                return
            self.last_poll = self.runtime.tools.monotonic()  # before anybody asks how long ago the last one was
            self.empty_polls = 0
            self.lane.paused = False
        self.add_receiver()

    def _claim(self) -> None:
        """Claims what all receivers have brought meanwhile with one call. On a FIFO queue one after the other."""
        while taken := self._claiming.take(CLAIM_AT_ONCE, None):
            claiming.claim(self.lane, [delivery for delivery in taken if delivery.state is State.RECEIVED])

    # Workers.

    def set_concurrency(self, count: int) -> None:
        """While at work. Fewer: what is in hand goes on, and nothing is received until it is fewer than that."""
        with self._lock:
            self.lane.resize(count)
        self._fit_workers()

    def _fit_workers(self) -> None:
        """Each batch at a time has a thread that waits for it; of single messages it is enough if one is not busy: it
        sees to the next one. Threads that have become too many leave by themselves."""
        lane = self.lane
        with self._lock:
            if not self._begun or (lane.handler.is_async and not lane.handler.is_batch):
                return
            if not lane.handler.is_batch:
                work, wanted = self._work, min(lane.concurrency, self._workers + (not lane.runnable.idle))
            else:
                work, wanted = self._work_batches, 1 if lane.fifo else lane.concurrency
            missing = max(0, wanted - self._workers)
            self._workers += missing
        for _ in range(missing):
            self._spawn("work", work)

    def _is_surplus(self) -> bool:
        """Whether this worker is one too many. It then leaves: it is no longer counted."""
        if self._workers <= self.lane.concurrency:
            return False
        with self._lock:
            if self._workers <= self.lane.concurrency:
                return False
            self._workers -= 1
            return True

    def _work(self) -> None:
        lane, inbox = self.lane, self.lane.runnable
        while True:
            taken = inbox.take(1, None)
            if not taken:
                return  # closed
            if not inbox.idle and self._workers < lane.concurrency:  # whoever comes next must not wait for this one
                self._fit_workers()
            working.work(lane, taken[0])
            if self._is_surplus():
                return

    def _work_batches(self) -> None:
        lane, inbox = self.lane, self.lane.runnable
        size, linger = lane.settings.size, lane.settings.linger
        collecting = self._collecting.setdefault("batch", threading.Lock())
        while True:
            with collecting:
                if not lane.fifo and self._is_surplus():
                    return
                batch = _collect(inbox, size, linger, self.runtime.tools.monotonic)
            if not batch:
                return
            working.work_batch(lane, batch)

    def _start_async(self) -> None:
        """Hands messages to the event loop, as they become runnable."""
        inbox = self.lane.runnable
        loop = self.runtime.loop()
        while True:
            taken = inbox.take(100, None)
            if not taken:
                return
            loop.call_soon_threadsafe(self._create_tasks, taken)

    def _create_tasks(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            task = asyncio.get_running_loop().create_task(working.work_async(self.lane, delivery))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of %s died: this is a mistake in Semel", self.lane.name, exc_info=error)
            self.runtime.fail(error)

    # Health.

    def missing(self) -> list[str]:
        """Stages without a thread, while they are needed: then nothing passes them."""
        with self._lock:
            if not self._begun or self.lane.stopping:
                return []
            there = {thread.name.split("-")[1] for thread in self._threads if thread.is_alive()}
            needed = ["claim", "settle", "bury", "delete", "hide"]
            if self.lane.handler.is_async and not self.lane.handler.is_batch:
                needed.append("start")
            return [stage for stage in needed if stage not in there]

    # Settling and carrying.

    def _settle(self) -> None:
        """What the ledger did not take is tried again after a pause; meanwhile it holds nothing up that comes in."""
        lane, monotonic = self.lane, self.runtime.tools.monotonic
        waiting: list[Settlement] = []
        failures, again_at = 0, 0.0
        while True:
            pause = max(0.0, again_at - monotonic()) if waiting else None
            taken = lane.settling.take(SETTLE_AT_ONCE, pause)
            if not taken and lane.settling.closed:
                if not waiting or monotonic() > self._ends:
                    return
                time.sleep(max(0.0, again_at - monotonic()))
            if len(taken) < TENS and not lane.fifo and not lane.stopping:
                # Others are about to end: one record for all of them costs as much as for one.
                time.sleep(SETTLE_LINGER)
                taken += lane.settling.take(SETTLE_AT_ONCE, 0)
            if waiting and monotonic() >= again_at:
                taken, waiting = [*waiting, *taken], []
            if failed := settling.settle(lane, taken):
                failures += 1
                again_at = monotonic() + min(RECORD_AGAIN, 0.05 * 2 ** min(failures, 10))
                waiting += failed
            elif not waiting:
                failures = 0

    def _bury(self) -> None:
        while taken := self.lane.burying.take(TENS, None):
            deadletters.bury(self.lane, taken)

    def _add_carrier(self, kind: str) -> None:
        self._carriers[kind] += 1
        if kind == "delete":
            self._spawn(kind, lambda: self._carry(kind, self.lane.deleting, DELETE_LINGER, outbound.delete))
        else:
            self._spawn(kind, lambda: self._carry(kind, self.lane.hiding, HIDE_LINGER, outbound.hide))

    def _carry(self, kind: str, inbox: Inbox[Any], linger: float, send: Callable[[Lane, Any], None]) -> None:
        """One carrier at a time collects a batch; the others are on their way, or wait for their turn to collect."""
        while True:
            with self._lock:
                self._idle_carriers[kind] += 1
            with self._collecting[kind]:
                batch = _collect(inbox, TENS, linger, self.runtime.tools.monotonic)
            with self._lock:
                self._idle_carriers[kind] -= 1
                alone = not self._idle_carriers[kind] and self._carriers[kind] < MOST_CARRIERS
            if not batch:
                return
            if alone and len(inbox) >= TENS:
                self._add_carrier(kind)
            send(self.lane, batch)

    # The end.

    def cancel_tasks(self) -> None:
        """Async handlers that did not finish in time."""
        loop = self.runtime.loop()
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def close(self, ends: float) -> None:
        """Let everything that is settled reach the ledger and SQS, in that order."""
        lane: Lane = self.lane
        self._ends = ends
        stages: tuple[tuple[tuple[Inbox[Any], ...], tuple[str, ...]], ...] = (
            ((), ("receive",)),  # what a poll that was cancelled had got is handed back, too
            ((self._claiming,), ("claim",)),
            ((lane.runnable,), ("start",)),
            ((lane.burying,), ("bury",)),
            ((lane.settling,), ("settle",)),
            ((lane.deleting, lane.hiding), ("delete", "hide")),
        )
        for inboxes, roles in stages:
            for inbox in inboxes:
                inbox.close()
            self._join(roles, ends)

    def _join(self, roles: tuple[str, ...], ends: float) -> None:
        with self._lock:
            threads = [thread for thread in self._threads if thread.name.split("-")[1] in roles]
        for thread in threads:
            thread.join(max(0.0, ends - self.runtime.tools.monotonic()))


def _final(error: SqsError) -> bool:
    """No waiting will mend it. Credentials that SQS refuses may be renewed; they were good when the app started."""
    if isinstance(error, CredentialsRefused):
        return False
    return isinstance(error, AccessDenied | QueueNotFound | NoCredentials)


def _collect(inbox: Inbox[Any], size: int, linger: float, monotonic: Callable[[], float]) -> list[Any]:
    """Up to `size` items, as soon as they are there or `linger` has passed since the first; none if closed."""
    batch = inbox.take(size, None)
    if not batch:
        return batch
    ends = monotonic() + linger
    while len(batch) < size and not inbox.closed:
        left = ends - monotonic()
        if left <= 0:
            break
        batch += inbox.take(size - len(batch), left)
    return batch
