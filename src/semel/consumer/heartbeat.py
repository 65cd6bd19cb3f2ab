"""One heartbeat for all messages in flight, beside the line: it keeps them hidden, and their leases alive.

The rules:
1. It starts at the receive and stops before a delete, a back-off or a release, which wait for a beat that is under way.
2. A beat is due at a third of the lease, with jitter: two may fail before anything is lost.
3. Deadlines are counted from before a call. If an extension is not confirmed by a margin before the deadline, the lease
   or the visibility counts as lost.
4. Visibility and lease are extended together, but can be lost separately. A message that was not started is dropped if
   either is lost. A running handler is notified only if its claim may be lost; without its visibility it goes on,
   because its lease keeps others off.
5. A beat must not take so long that the next one is late: SQS and the ledger each have a sixth of the lease to answer.
6. SQS hides a message for at most twelve hours from its receive, and a handler may run for at most `max_runtime`.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from semel.consumer.delivery import Delivery
from semel.consumer.handler_caller import MARGIN
from semel.consumer.in_flight import InFlight
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.lifecycle import BEATING, LEASED, State
from semel.consumer.stage import IDLE
from semel.ledger.contract import Claim, LedgerError, LedgerUnavailable
from semel.messages.visibility import LONGEST
from semel.messages.visibility import MARGIN as CAP_MARGIN
from semel.sqs import Failure
from semel.sqs.errors import SqsError
from semel.telemetry.attempt_log import Step

SHARE: Final = 1 / 3
AT_ONCE: Final = 100  # messages of one queue in one round; ten a call
CALL_SHARE: Final = 1 / 6  # of the lease: how long SQS, and the ledger, may take in a round; nothing is tried twice
MOST_THREADS: Final = 4
LONG_ROUND: Final = 0.5  # seconds
TOGETHER: Final = 0.05  # what is due within this share of the lease goes with the batch, to fill it up


class Heartbeat:
    """Knows when each queue has an extension due. It finds the messages among the queue's deliveries in flight, so it
    never keeps a message that has ended. `run_once` makes the extensions that are due; threads or a test call it."""

    def __init__(self, monotonic: Callable[[], float], chance: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self._due: list[tuple[float, int, InFlight]] = []
        self._next: dict[InFlight, float] = {}  # when each queue is looked at next
        self._order = count()
        self._changed = threading.Condition(threading.Lock())
        self.closed = False
        self.last_round = 0.0  # seconds

    def watch(self, table: InFlight, deliveries: Sequence[Delivery]) -> None:
        """Watch messages that were just received."""
        due = self._monotonic() + self._interval(table)
        for delivery in deliveries:
            delivery.beat_at = due
        self._look_at(table, due)

    def _interval(self, table: InFlight) -> float:
        return table.setup.settings.lease * SHARE * (0.85 + 0.15 * self._chance())

    def _look_at(self, table: InFlight, due: float) -> None:
        with self._changed:
            if self._next.get(table, math.inf) <= due:
                return
            self._next[table] = due
            first = not self._due or due < self._due[0][0]
            heapq.heappush(self._due, (due, next(self._order), table))
            if first:
                self._changed.notify()

    def take(self, timeout: float) -> tuple[InFlight, list[Delivery]] | None:
        """Messages of one queue whose extension is due; None if none was due in time, or if the heartbeat is closed."""
        with self._changed:
            now = self._monotonic()
            if not self._due or self._due[0][0] > now:
                wait = min(timeout, self._due[0][0] - now) if self._due else timeout
                if wait > 0 and not self.closed:
                    self._changed.wait(wait)
                now = self._monotonic()
            if self.closed or not self._due or self._due[0][0] > now:
                return None
            due, _, table = heapq.heappop(self._due)
            if self._next.get(table) == due:
                del self._next[table]
        return table, self._begin(table, now)

    def run_once(self, timeout: float = 0.0) -> bool:
        """Wait until extensions are due, and make them. False if none were due in time."""
        due = self.take(timeout)
        if due is None:
            return False
        table, alive = due
        if alive:
            began = self._monotonic()
            try:
                self._beat(table, alive)
            finally:
                self._end(table, alive)
                self.last_round = self._monotonic() - began
        return True

    def _begin(self, table: InFlight, now: float) -> list[Delivery]:
        """The messages that need a beat now or soon, marked as having one under way. The next look at the queue is in
        time for the others."""
        soon = now + table.setup.settings.lease * TOGETHER
        due: list[Delivery] = []
        left = math.inf
        with table.lock:
            for delivery in table.deliveries.values():
                if delivery.stopped or delivery.beating or delivery.state not in BEATING:
                    continue
                if delivery.beat_at <= soon and len(due) < AT_ONCE:
                    delivery.beating = True
                    due.append(delivery)
                elif delivery.beat_at < left:
                    left = delivery.beat_at
        if left < math.inf:
            self._look_at(table, left)
        return due

    def _end(self, table: InFlight, deliveries: Sequence[Delivery]) -> None:
        """The call is over: do what had to wait for it."""
        waiting = []
        with table.lock:
            for delivery in deliveries:
                delivery.beating = False
                if delivery.after_beat:
                    waiting.append((delivery.after_beat, delivery))
                    delivery.after_beat = ()
        for actions, delivery in waiting:
            table.follow(actions, [delivery])

    def _beat(self, table: InFlight, deliveries: Sequence[Delivery]) -> None:
        """Extend visibility and lease, and set when each message is due again."""
        before = self._monotonic()
        wanted = self._not_over(table, deliveries, before)
        hideable = [d for d in wanted if d.hidden and _may_be_hidden(d, before) >= 1]
        hidden = self._extend_visibility(table, hideable, before)
        unanswered = set(hideable) - hidden
        held = self._extend_leases(table, [d for d in wanted if d.claim is not None and d.state in LEASED], before)
        now = self._monotonic()
        well = 0
        again = before + self._interval(table)
        for delivery in wanted:
            delivery.beat_at = again
            unconfirmed = []
            if delivery in held.refused:
                table.lose(delivery, "the ledger has a newer claim on its key")
            elif delivery in held.failed:
                unconfirmed.append(delivery.lease_ends)
                if now >= delivery.lease_ends - MARGIN:
                    table.lose(delivery, "the ledger did not confirm in time that the claim is still ours")
            if delivery in unanswered and delivery.hidden:
                unconfirmed.append(delivery.visible_at)
                if now >= delivery.visible_at - MARGIN:
                    table.visibility_lost(delivery, "SQS did not confirm in time that it is still hidden")
            # While there is time, try again soon. After that nothing is urgent any more.
            for left in (end - MARGIN - now for end in unconfirmed if end - MARGIN > now):
                delivery.beat_at = min(delivery.beat_at, now + max(0.05, min(1.0, left / 4)))
            well += not unconfirmed and delivery not in unanswered and delivery not in held.refused
        if well:
            table.setup.metrics.heartbeat_ok.add(well)
        if hidden:
            table.reporter.log(Step.HEARTBEAT, hidden, now - before)
        if failed := len(wanted) - well:
            table.setup.metrics.heartbeat_failed.add(failed)
        self._look_at(table, min((delivery.beat_at for delivery in wanted), default=math.inf))

    def _not_over(self, table: InFlight, deliveries: Sequence[Delivery], now: float) -> list[Delivery]:
        """The messages that are to be extended. Those whose time is up are lost."""
        wanted = []
        for delivery in deliveries:
            runs = now - delivery.started_at if delivery.state in (State.WORKING, State.LOST_AT_WORK) else 0.0
            if runs > table.setup.settings.max_runtime:
                table.lose(delivery, f"it has run for {runs:.0f} s, longer than max_runtime")
                delivery.beat_at = math.inf
                continue
            if delivery.hidden and now >= delivery.visible_at - MARGIN:
                over = _may_be_hidden(delivery, now) < table.setup.settings.lease
                table.visibility_lost(
                    delivery,
                    "SQS hides a message for twelve hours at most, and they are over"
                    if over
                    else "this process was held up for so long that its visibility has ended",
                )
            if delivery.state in BEATING:
                wanted.append(delivery)
        return wanted

    def _extend_visibility(self, table: InFlight, deliveries: Sequence[Delivery], before: float) -> set[Delivery]:
        """The messages that SQS confirms to be hidden for a lease from `before`."""
        if not deliveries:
            return set()
        lease = math.ceil(table.setup.settings.lease)
        pairs = [(delivery.receipt, min(lease, _may_be_hidden(delivery, before))) for delivery in deliveries]
        try:
            failures = table.setup.queue.change_visibility(pairs, timeout=table.setup.settings.lease * CALL_SHARE)
        except SqsError as error:
            table.reporter.sqs_failed(error, "got no heartbeat", len(deliveries))
            return set()
        confirmed = set()
        for delivery, (_, seconds), failure in zip(deliveries, pairs, failures, strict=True):
            if failure is None:
                delivery.visible_at = before + seconds
                confirmed.add(delivery)
            else:
                self._refused(table, delivery, failure)
        return confirmed

    def _refused(self, table: InFlight, delivery: Delivery, failure: Failure) -> None:
        if failure.gone:
            table.visibility_lost(delivery, f"SQS has taken it back: {failure.message}")
        else:
            table.reporter.limited.error(
                "heartbeat", "the heartbeat of %s failed: %s", delivery.received.message_id, failure.message
            )

    def _extend_leases(self, table: InFlight, deliveries: Sequence[Delivery], before: float) -> _Held:
        held = _Held()
        if not deliveries:
            return held
        lease = table.setup.settings.lease
        claims: list[Claim] = [delivery.owned_claim for delivery in deliveries]
        try:
            answers = one_by_one(
                lambda part: table.setup.ledger.extend(part, lease, timeout=lease * CALL_SHARE), claims
            )
        except LedgerUnavailable as error:
            table.reporter.ledger_failed("extend", error)
            held.failed.update(deliveries)
            return held
        for delivery, answer in zip(deliveries, answers, strict=True):
            if isinstance(answer, LedgerError):
                table.reporter.ledger_refused("extension", answer)
                held.failed.add(delivery)
            elif answer:
                delivery.lease_ends = before + lease
            elif delivery.state in (State.CLAIMED, State.WORKING):
                held.refused.add(delivery)
        return held

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class HeartbeatThreads:
    """One thread, and more while rounds take so long that the next ones would be late."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        spawn: Callable[[str, Callable[[], object]], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._heartbeat = heartbeat
        self._spawn = spawn
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._count = 0
        self._alive = 0

    def start(self) -> None:
        self._add()

    def _add(self) -> None:
        with self._lock:
            self._count += 1
            self._alive += 1
        self._spawn("heartbeat", self._run)

    def _run(self) -> None:
        try:
            idle_since = self._monotonic()
            while not self._heartbeat.closed:
                if self._heartbeat.run_once(1.0):
                    idle_since = self._monotonic()
                    if self._heartbeat.last_round > LONG_ROUND and self._count < MOST_THREADS:
                        self._add()
                elif self._monotonic() - idle_since > IDLE:
                    with self._lock:
                        if self._count > 1:
                            self._count -= 1
                            return
        finally:
            with self._lock:
                self._alive -= 1

    def is_dead(self) -> bool:
        return self._count > 0 and not self._alive


class _Held:
    def __init__(self) -> None:
        self.refused: set[Delivery] = set()
        self.failed: set[Delivery] = set()


def _may_be_hidden(delivery: Delivery, now: float) -> int:
    """For how many more seconds SQS can hide it."""
    return LONGEST - CAP_MARGIN - math.ceil(now - delivery.received_at)
