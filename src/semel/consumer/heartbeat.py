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
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from semel.consumer.attempts import Step
from semel.consumer.backoff import LONGEST
from semel.consumer.backoff import MARGIN as CAP_MARGIN
from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.lane import MARGIN, Lane
from semel.consumer.life import BEATING, LEASED, State
from semel.ledger.contract import Claim, LedgerError
from semel.sqs import Failure
from semel.sqs.errors import SqsError

SHARE: Final = 1 / 3
AT_ONCE: Final = 100  # messages of one lane in one round; ten a call
TOGETHER: Final = 0.05  # what is due within this share of the lease goes with the batch, to fill it up

Due = tuple[float, int, Lane, list[Delivery]]


class Heartbeat:
    """Holds who is due when. `round` does what is due now; threads or a test call it."""

    def __init__(self, monotonic: Callable[[], float], chance: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._chance = chance
        self._due: list[Due] = []
        self._order = count()
        self._changed = threading.Condition(threading.Lock())
        self.closed = False

    def watch(self, deliveries: Sequence[Delivery]) -> None:
        """Messages that have just been received, all of one lane."""
        lane = deliveries[0].lane
        self._push(self._monotonic() + self._interval(lane), lane, list(deliveries))

    def _interval(self, lane: Lane) -> float:
        return lane.settings.lease * SHARE * (0.85 + 0.15 * self._chance())

    def _push(self, due: float, lane: Lane, deliveries: list[Delivery]) -> None:
        with self._changed:
            first = not self._due or due < self._due[0][0]
            heapq.heappush(self._due, (due, next(self._order), lane, deliveries))
            if first:
                self._changed.notify()

    def take(self, timeout: float) -> tuple[Lane, list[Delivery]] | None:
        """Messages of one lane whose beat is due; None if none was in time, or if it is closed."""
        with self._changed:
            now = self._monotonic()
            if not self._due or self._due[0][0] > now:
                wait = min(timeout, self._due[0][0] - now) if self._due else timeout
                if wait > 0 and not self.closed:
                    self._changed.wait(wait)
                now = self._monotonic()
            if self.closed or not self._due or self._due[0][0] > now:
                return None
            _, _, lane, taken = heapq.heappop(self._due)
            soon = now + lane.settings.lease * TOGETHER
            while len(taken) < AT_ONCE and self._due and self._due[0][0] <= soon and self._due[0][2] is lane:
                taken = taken + heapq.heappop(self._due)[3]
            if self._due and self._due[0][0] <= now:
                self._changed.notify()
            return lane, taken

    def round(self, timeout: float) -> bool:
        """Wait for something to be due, and beat. False if nothing was."""
        found = self.take(timeout)
        if found is None:
            return False
        lane, deliveries = found
        alive = self._begin(lane, deliveries)
        if not alive:
            return True
        try:
            again = self._beat(lane, alive)
        finally:
            self._end(lane, alive)
        self._again(lane, again)
        return True

    def _begin(self, lane: Lane, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that still want a beat, marked as having one under way."""
        with lane.lock:
            alive = [d for d in deliveries if not d.stopped and d.state in BEATING]
            for delivery in alive:
                delivery.beating = True
        return alive

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

    def _beat(self, lane: Lane, deliveries: Sequence[Delivery]) -> list[tuple[float, Delivery]]:
        """Extend visibility and lease. Returns who is to beat again, and when."""
        before = self._monotonic()
        wanted = self._not_over(lane, deliveries, before)
        confirmed = self._extend_visibility(lane, wanted, before)
        held = self._extend_leases(lane, [d for d in confirmed if d.claim is not None and d.state in LEASED], before)
        now = self._monotonic()
        again: list[tuple[float, Delivery]] = []
        well = 0
        hidden_to_the_end = set(deliveries) - {delivery for delivery, _ in wanted}
        again += [(delivery.deadline - MARGIN, delivery) for delivery in hidden_to_the_end if not delivery.is_lost]
        for delivery, _ in wanted:
            if delivery in confirmed and delivery not in held.refused and delivery not in held.failed:
                well += 1
                again.append((before + self._interval(lane), delivery))
            elif delivery in held.refused:
                lane.lose(delivery, "the ledger has a newer claim on its key")
            elif now > delivery.deadline - MARGIN:
                lane.lose(delivery, "neither SQS nor the ledger confirmed in time that it is still ours")
            elif not delivery.is_lost and not delivery.stopped:
                left = delivery.deadline - MARGIN - now
                again.append((now + max(0.05, min(1.0, left / 4)), delivery))
        if well:
            lane.metrics.heartbeat_ok.add(well)
            lane.log(Step.HEARTBEAT, confirmed, now - before)
        if failed := len(wanted) - well:
            lane.metrics.heartbeat_failed.add(failed)
        return again

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
            logger.warning("the heartbeat of %s failed: %s", delivery.received.message_id, failure.message)

    def _extend_leases(self, lane: Lane, deliveries: Sequence[Delivery], before: float) -> _Held:
        held = _Held()
        if not deliveries:
            return held
        claims: list[Claim] = [lane.claim_of(delivery) for delivery in deliveries]
        try:
            kept = lane.ledger.extend(claims, lane.settings.lease)
        except LedgerError as error:
            lane.ledger_failed("extend", error)
            held.failed.update(deliveries)
            return held
        for delivery, well in zip(deliveries, kept, strict=True):
            if well:
                delivery.lease_ends = before + lane.settings.lease
            elif delivery.state in (State.CLAIMED, State.WORKING):
                held.refused.add(delivery)
        return held

    def _again(self, lane: Lane, again: Sequence[tuple[float, Delivery]]) -> None:
        """Back into the heap, those that are due together as one."""
        by_time: defaultdict[int, list[tuple[float, Delivery]]] = defaultdict(list)
        for due, delivery in again:
            by_time[int(due / max(0.05, lane.settings.lease * TOGETHER))].append((due, delivery))
        for those in by_time.values():
            self._push(min(due for due, _ in those), lane, [delivery for _, delivery in those])

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class _Held:
    def __init__(self) -> None:
        self.refused: set[Delivery] = set()
        self.failed: set[Delivery] = set()
