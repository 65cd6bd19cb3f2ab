"""One heartbeat for all messages in hand: it keeps them hidden, and their leases alive.

The rules:
1. It starts at the receipt and stops before a delete, a back-off or a release; a beat under way is waited for.
2. A beat is due at a third of the lease, with jitter: two may fail before anything is lost.
3. Deadlines are counted from before a call. What was not confirmed by the margin before its deadline is lost.
4. Visibility and lease are extended together; either one refused is a loss.
5. SQS hides a message for twelve hours from its receipt at most, and a handler may run for `max_runtime`.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from semel.consumer.attempts import Step
from semel.consumer.backoff import LONGEST
from semel.consumer.backoff import MARGIN as CAP_MARGIN
from semel.consumer.delivery import Delivery
from semel.consumer.lane import MARGIN, Lane
from semel.consumer.life import BEATING, LEASED, State
from semel.consumer.one_by_one import one_by_one
from semel.ledger.contract import Claim, LedgerError, LedgerUnavailable
from semel.sqs import Failure
from semel.sqs.errors import SqsError

SHARE: Final = 1 / 3
AT_ONCE: Final = 100  # messages of one lane in one round; ten a call
TOGETHER: Final = 0.05  # what is due within this share of the lease goes with the batch, to fill it up


class Heartbeat:
    """Knows which lane has a beat due when; whose beat it is, the lane's messages in hand say themselves. So nothing
    here keeps a message alive that is over. `round` does what is due now; threads or a test call it."""

    def __init__(self, monotonic: Callable[[], float], chance: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self._due: list[tuple[float, int, Lane]] = []
        self._next: dict[Lane, float] = {}  # when each lane is looked at next
        self._order = count()
        self._changed = threading.Condition(threading.Lock())
        self.closed = False

    def watch(self, deliveries: Sequence[Delivery]) -> None:
        """Messages that have just been received, all of one lane."""
        lane = deliveries[0].lane
        due = self._monotonic() + self._interval(lane)
        for delivery in deliveries:
            delivery.beat_at = due
        self._look_at(lane, due)

    def _interval(self, lane: Lane) -> float:
        return lane.settings.lease * SHARE * (0.85 + 0.15 * self._chance())

    def _look_at(self, lane: Lane, due: float) -> None:
        with self._changed:
            if self._next.get(lane, math.inf) <= due:
                return
            self._next[lane] = due
            first = not self._due or due < self._due[0][0]
            heapq.heappush(self._due, (due, next(self._order), lane))
            if first:
                self._changed.notify()

    def take(self, timeout: float) -> tuple[Lane, list[Delivery]] | None:
        """Messages of one lane whose beat is due; None if no lane's was in time, or if it is closed."""
        with self._changed:
            now = self._monotonic()
            if not self._due or self._due[0][0] > now:
                wait = min(timeout, self._due[0][0] - now) if self._due else timeout
                if wait > 0 and not self.closed:
                    self._changed.wait(wait)
                now = self._monotonic()
            if self.closed or not self._due or self._due[0][0] > now:
                return None
            due, _, lane = heapq.heappop(self._due)
            if self._next.get(lane) == due:
                del self._next[lane]
        return lane, self._begin(lane, now)

    def round(self, timeout: float) -> bool:
        """Wait for something to be due, and beat. False if nothing was."""
        found = self.take(timeout)
        if found is None:
            return False
        lane, alive = found
        if alive:
            try:
                self._beat(lane, alive)
            finally:
                self._end(lane, alive)
        return True

    def _begin(self, lane: Lane, now: float) -> list[Delivery]:
        """Those that want a beat now or soon, marked as having one under way. The lane is looked at again in time."""
        soon = now + lane.settings.lease * TOGETHER
        taken: list[Delivery] = []
        left = math.inf
        with lane.lock:
            for delivery in lane.in_hand.values():
                if delivery.stopped or delivery.beating or delivery.state not in BEATING:
                    continue
                if delivery.beat_at <= soon and len(taken) < AT_ONCE:
                    delivery.beating = True
                    taken.append(delivery)
                elif delivery.beat_at < left:
                    left = delivery.beat_at
        if left < math.inf:
            self._look_at(lane, left)
        return taken

    def _end(self, lane: Lane, deliveries: Sequence[Delivery]) -> None:
        """The call is over: do what had to wait for it."""
        waiting = []
        with lane.lock:
            for delivery in deliveries:
                delivery.beating = False
                if delivery.after_beat:
                    waiting.append((delivery, delivery.after_beat))
                    delivery.after_beat = ()
        lane.carry_out(waiting)

    def _beat(self, lane: Lane, deliveries: Sequence[Delivery]) -> None:
        """Extend visibility and lease, and say when each is to beat again."""
        before = self._monotonic()
        wanted = self._not_over(lane, deliveries, before)
        confirmed = self._extend_visibility(lane, wanted, before)
        held = self._extend_leases(lane, [d for d in confirmed if d.claim is not None and d.state in LEASED], before)
        now = self._monotonic()
        well = 0
        again = before + self._interval(lane)
        for delivery in deliveries:  # those with nothing left to ask for are looked at when they are over
            over = delivery.deadline - MARGIN
            delivery.beat_at = over if over > now else again  # past that, nothing here ends an outcome under way
        for delivery, _ in wanted:
            if delivery in confirmed and delivery not in held.refused and delivery not in held.failed:
                well += 1
                delivery.beat_at = again
            elif delivery in held.refused:
                lane.lose(delivery, "the ledger has a newer claim on its key")
            elif now > delivery.deadline - MARGIN:
                lane.lose(delivery, "neither SQS nor the ledger confirmed in time that it is still ours")
            elif not delivery.is_lost and not delivery.stopped:
                left = delivery.deadline - MARGIN - now
                delivery.beat_at = now + max(0.05, min(1.0, left / 4))
        if well:
            lane.metrics.heartbeat_ok.add(well)
            lane.log(Step.HEARTBEAT, confirmed, now - before)
        if failed := len(wanted) - well:
            lane.metrics.heartbeat_failed.add(failed)
        self._look_at(lane, min(delivery.beat_at for delivery in deliveries))

    def _not_over(self, lane: Lane, deliveries: Sequence[Delivery], now: float) -> list[tuple[Delivery, int]]:
        """Each with the seconds that it may be hidden for; whose time is up is lost."""
        wanted = []
        lease = math.ceil(lane.settings.lease)
        for delivery in deliveries:
            left = LONGEST - CAP_MARGIN - math.ceil(now - delivery.received_at)
            runs = now - delivery.started_at if delivery.state is State.WORKING else 0.0
            if runs > lane.settings.max_runtime:
                lane.lose(delivery, f"it has run for {runs:.0f} s, longer than max_runtime")
            elif now > delivery.deadline - MARGIN:
                over = left < lease
                lane.lose(
                    delivery,
                    "SQS hides a message for twelve hours at most, and they are over"
                    if over
                    else "this process was held up for so long that its visibility or its lease has ended",
                )
            elif left >= 1:
                wanted.append((delivery, min(lease, left)))
        return wanted

    def _extend_visibility(self, lane: Lane, wanted: Sequence[tuple[Delivery, int]], before: float) -> set[Delivery]:
        if not wanted:
            return set()
        try:
            failures = lane.queue.change_visibility([(delivery.receipt, seconds) for delivery, seconds in wanted])
        except SqsError as error:
            lane.sqs_failed(error, "got no heartbeat", len(wanted))
            return set()
        confirmed = set()
        for (delivery, seconds), failure in zip(wanted, failures, strict=True):
            if failure is None:
                delivery.visible_at = before + seconds
                confirmed.add(delivery)
            else:
                self._refused(lane, delivery, failure)
        return confirmed

    def _refused(self, lane: Lane, delivery: Delivery, failure: Failure) -> None:
        if failure.gone:
            lane.lose(delivery, f"SQS has taken it back: {failure.message}")
        else:
            lane.limited_log.error(
                "heartbeat", "the heartbeat of %s failed: %s", delivery.received.message_id, failure.message
            )

    def _extend_leases(self, lane: Lane, deliveries: Sequence[Delivery], before: float) -> _Held:
        held = _Held()
        if not deliveries:
            return held
        claims: list[Claim] = [lane.claim_of(delivery) for delivery in deliveries]
        try:
            kept = one_by_one(lambda some: lane.ledger.extend(some, lane.settings.lease), claims)
        except LedgerUnavailable as error:
            lane.ledger_failed("extend", error)
            held.failed.update(deliveries)
            return held
        for delivery, well in zip(deliveries, kept, strict=True):
            if isinstance(well, LedgerError):
                lane.ledger_refused("extension", well)
                held.failed.add(delivery)
            elif well:
                delivery.lease_ends = before + lane.settings.lease
            elif delivery.state in (State.CLAIMED, State.WORKING):
                held.refused.add(delivery)
        return held

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class _Held:
    def __init__(self) -> None:
        self.refused: set[Delivery] = set()
        self.failed: set[Delivery] = set()
