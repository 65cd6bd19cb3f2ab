"""The head of the line: polls the queue and puts the received messages into the claimer's inbox.

The number of polls under way grows while they come back full and the claimer has little to do, and shrinks to one when
they come back empty.

The polls of one generation share one `Cancel`. Pausing, stopping and the watchdog end a generation. A new one begins
only under the lock, and only if the queue is neither paused nor stopping. So in whatever order these happen, no poll
remains that one of them was to end.
"""

from __future__ import annotations

import threading
import uuid
from typing import Final

from semel.consumer.circuit_breaker import CircuitBreaker
from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import InFlight
from semel.consumer.stage import Inbox, Threads
from semel.ledger.contract import LedgerError
from semel.sqs import Cancel
from semel.sqs.errors import (
    AccessDenied,
    Cancelled,
    CredentialsRefused,
    NoCredentials,
    QueueNotFound,
    SqsError,
    Unreachable,
)

CALL: Final = 10  # messages
MOST_THREADS: Final = 24
MANY: Final = 100  # if more messages than this wait to be claimed, one poll ends
CALM: Final = 0.5  # seconds without a change before a poll ends for that reason
BACKLOG: Final = 5_000  # deletes waiting for SQS at which receiving pauses
FEW: Final = 20  # a poll is added only if at most this many messages wait to be claimed
TICK: Final = 1.0
PROBE: Final = "semel/probe"  # a key that no message has


class Receiver:
    role = "receive"

    def __init__(
        self,
        in_flight: InFlight,
        threads: Threads,
        claimer: Inbox[Delivery],
        deletes: Inbox[Delivery],
        breaker: CircuitBreaker,
        *,
        wait: int | None = None,
    ) -> None:
        """`wait`: seconds of a long poll, instead of the setting. `deletes`: an inbox that must not become too full."""
        self._setup = in_flight.setup
        self._in_flight = in_flight
        self._threads = threads
        self._claimer = claimer
        self._deletes = deletes
        self._breaker = breaker
        self._wait = in_flight.setup.settings.wait if wait is None else wait
        self._lock = threading.Lock()
        self._started = False
        self._unanswered: str | None = None  # the attempt id of a FIFO receive that got no answer
        self.cancel = Cancel()
        self.count = 0  # threads of this generation
        self.last_poll = in_flight.setup.tools.monotonic()
        self.last_message = self.last_poll  # when the last message came
        self.empty_polls = 0  # in a row, with nothing in flight
        self._changed_at = 0.0  # when a thread was added, or ended because there were too many

    # One receive.

    def run_once(self, most: int = CALL) -> int:
        """Receive as many messages as there are free slots, without waiting for any. Returns how many came."""
        slots = self._in_flight.admission.take(most, 0)
        return self._poll(slots, 0, None) if slots else 0

    def _receive(self, slots: int, *, wait: int, cancel: Cancel | None = None, attempt_id: str | None = None) -> int:
        """Receive up to `slots` messages. The caller has taken the slots."""
        in_flight, tools = self._in_flight, self._setup.tools
        before = tools.monotonic()
        lease = int(self._setup.settings.lease)
        try:
            received = self._setup.queue.receive(slots, wait, visibility=lease, attempt_id=attempt_id, cancel=cancel)
        except BaseException:
            in_flight.admission.receive_ended(slots)
            raise
        if not received:
            in_flight.admission.receive_ended(slots)
            return 0
        now = tools.monotonic()
        in_flight.prefetch.observe_receive(now - before)
        tools.crash("after_receive")
        # A long poll waits before SQS hands a message over. The answer may have taken longer than is allowed for here;
        # the claim decides even then: visibility saves work, it does not protect.
        chunk = in_flight.add(received, before if now - before < 1 else now - 1, now)
        in_flight.admission.receive_ended(slots, len(chunk), sum([delivery.size for delivery in chunk]))
        if not chunk:
            return len(received)
        if in_flight.stopping or in_flight.paused:
            in_flight.give_up(chunk)
        else:
            in_flight.on_received(in_flight, chunk)
            self._claimer.put(chunk)
        return len(received)

    # On threads.

    def start(self) -> None:
        with self._lock:
            self._started = True
        self.add_thread()

    def add_thread(self) -> None:
        with self._lock:
            if not self._started or self._in_flight.paused or self._in_flight.stopping:
                return
            self.count += 1
            cancel = self.cancel
        self._threads.spawn(self.role, lambda: self._run(cancel))

    def _run(self, cancel: Cancel) -> None:
        tools, errors = self._setup.tools, 0
        try:
            while not self._in_flight.stopping and cancel is self.cancel:
                if self._must_wait(cancel):
                    continue
                slots = self._in_flight.admission.take(CALL, TICK)
                if not slots:
                    self.last_poll = tools.monotonic()  # not polling is right: all slots are taken
                    continue
                try:
                    came = self._poll(slots, self._wait, cancel)
                except Cancelled:
                    return
                except SqsError as error:
                    if _is_final(error):
                        self._in_flight.reporter.on_fatal(error)
                        return
                    errors += 1
                    self._setup.metrics.poll_errors.add(1)
                    logger.warning("receiving from %s failed: %s", self._setup.name, error)
                    cancel.wait(min(30.0, 0.5 * 2 ** min(errors, 6)) * tools.chance())
                    continue
                errors = 0
                if self._leaves(came, slots):
                    return
        finally:
            with self._lock:
                if cancel is self.cancel:
                    self.count -= 1

    def _must_wait(self, cancel: Cancel) -> bool:
        """Wait if polling would do harm, because the ledger does not answer, or deletes pile up. False: poll now."""
        breaker = self._breaker
        wait = breaker.pause()
        if wait > 0:
            self.last_poll = self._setup.tools.monotonic()
            cancel.wait(min(wait, TICK))
            return True
        if breaker.is_open:
            try:
                self._setup.ledger.get([PROBE])
            except LedgerError:
                breaker.report(False)
                return True
            breaker.report(True)
        if len(self._deletes) > BACKLOG:
            cancel.wait(0.05)
            return True
        return False

    def _poll(self, slots: int, wait: int, cancel: Cancel | None) -> int:
        attempt_id = self._attempt_id()
        try:
            came = self._receive(slots, wait=wait, cancel=cancel, attempt_id=attempt_id)
        except Cancelled:
            if attempt_id is not None:
                self._recover(attempt_id)
            raise
        except Unreachable:
            self._unanswered = attempt_id
            raise
        self.last_poll = self._setup.tools.monotonic()
        if came:
            self.last_message = self.last_poll
        self.empty_polls = 0 if came or self._in_flight.admission.in_use > slots else self.empty_polls + 1
        return came

    def _attempt_id(self) -> str | None:
        """The attempt id of a receive from a FIFO queue. A receive that got no answer may have been carried out: with
        its id, the next receive gets the same messages, instead of a locked group."""
        if not self._setup.fifo:
            return None
        unanswered, self._unanswered = self._unanswered, None
        return unanswered or uuid.uuid4().hex

    def _recover(self, attempt_id: str) -> None:
        """A FIFO receive that was cancelled may have been carried out. Its groups would then be locked for everybody
        until the visibility timeout ends. A receive with the same attempt id gets the same messages again."""
        slots = self._in_flight.admission.take(CALL, 0)
        if slots:
            try:
                self._receive(slots, wait=0, attempt_id=attempt_id)
            except SqsError as error:
                logger.warning(
                    "what a cancelled receive of %s may have brought stays hidden: %s", self._setup.name, error
                )

    def _leaves(self, came: int, slots: int) -> bool:
        """Whether this poll must end. Adds a poll while receives come back full, slots are free and the claimer waits
        for messages. Polls end when messages pile up there, and all but one when receives come back empty."""
        admission, waiting = self._in_flight.admission, len(self._claimer)
        now = self._setup.tools.monotonic()
        with self._lock:
            if came == 0:
                return self.count > 1
            if waiting > MANY and self.count > 1 and now - self._changed_at > CALM:
                self._changed_at = now
                return True
            most = max(1, min(MOST_THREADS, -(-admission.count // CALL)))
            grow = came >= slots and admission.free > 0 and waiting <= FEW and self.count < most
            if grow:
                self._changed_at = now
        if grow and not self._in_flight.stopping:
            self.add_thread()
        return False

    # Generations.

    def restart(self) -> None:
        """End the polls that are under way, and start new ones: they hang, or have more slots than there are now."""
        with self._lock:
            before = self._end_generation()
        before.set()
        self.add_thread()

    def _end_generation(self) -> Cancel:
        """Called under the lock. Returns what ends the polls that are under way."""
        before, self.cancel = self.cancel, Cancel()
        self.count = 0
        self.last_poll = self._setup.tools.monotonic()
        return before

    def stop(self) -> None:
        """Stop receiving for good."""
        with self._lock:
            self._in_flight.stopping = True
            cancel = self.cancel
        cancel.set()
        self._in_flight.admission.wake()

    def pause(self) -> None:
        """Receive nothing more, and end the polls that are under way; what is in flight goes on."""
        with self._lock:
            if self._in_flight.paused:
                return
            self._in_flight.paused = True
            before = self._end_generation()
        before.set()

    def resume(self) -> None:
        with self._lock:
            if not self._in_flight.paused:
                return
            self.last_poll = self._setup.tools.monotonic()  # before anybody asks how long ago the last one was
            self.empty_polls = 0
            self._in_flight.paused = False
        self.add_thread()

    def close(self, deadline: float) -> None:
        """Wait for the polls to end: what a cancelled poll has received is returned, too."""
        self._threads.join(self.role, deadline)


def _is_final(error: SqsError) -> bool:
    """Whether waiting cannot help. Credentials that SQS refuses may be renewed; they were good when the app started."""
    if isinstance(error, CredentialsRefused):
        return False
    return isinstance(error, AccessDenied | QueueNotFound | NoCredentials)
