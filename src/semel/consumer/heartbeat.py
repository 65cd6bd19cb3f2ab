"""One heartbeat for all messages in hand: it keeps them hidden, and their leases alive.

The rules:
1. It starts at the receipt and stops before a delete, a back-off or a release; a beat under way is waited for.
2. A beat is due at a third of the lease, with jitter: two may fail before anything is lost.
3. Deadlines are counted from before a call. What was not confirmed by the margin before its deadline is lost.
4. Visibility and lease are extended together, and lost apart. What is not begun is dropped with either. A handler at
   work is told only if its claim may be gone; without its visibility it goes on, as its lease keeps others off.
5. A beat never takes so long itself that the next one would be late: SQS has a sixth of the lease to answer in.
6. SQS hides a message for twelve hours from its receipt at most, and a handler may run for `max_runtime`.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from semel.consumer.delivery import Delivery
from semel.consumer.lane import MARGIN, Lane
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.life import BEATING, LEASED, State
from semel.ledger.contract import Claim, LedgerError, LedgerUnavailable
from semel.messages.visibility import LONGEST
from semel.messages.visibility import MARGIN as CAP_MARGIN
from semel.sqs import Failure
from semel.sqs.errors import SqsError
from semel.telemetry.attempt_log.log import Step

SHARE: Final = 1 / 3
AT_ONCE: Final = 100  # messages of one lane in one round; ten a call
CALL_SHARE: Final = 1 / 6  # of the lease: how long SQS may take for all calls of a round; nothing is tried twice in it
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
        hideable = [d for d in wanted if d.hidden and _may_be_hidden(d, before) >= 1]
        hidden = self._extend_visibility(lane, hideable, before)
        unanswered = set(hideable) - hidden
        held = self._extend_leases(lane, [d for d in wanted if d.claim is not None and d.state in LEASED], before)
        now = self._monotonic()
        well = 0
        again = before + self._interval(lane)
        for delivery in wanted:
            delivery.beat_at = again
            unconfirmed = []
            if delivery in held.refused:
                lane.lose(delivery, "the ledger has a newer claim on its key")
            elif delivery in held.failed:
                unconfirmed.append(delivery.lease_ends)
                if now >= delivery.lease_ends - MARGIN:
                    lane.lose(delivery, "the ledger did not confirm in time that the claim is still ours")
            if delivery in unanswered and delivery.hidden:
                unconfirmed.append(delivery.visible_at)
                if now >= delivery.visible_at - MARGIN:
                    lane.visibility_lost(delivery, "SQS did not confirm in time that it is still hidden")
            # While there is time, once more before long. After that nothing is urgent any more.
            for left in (end - MARGIN - now for end in unconfirmed if end - MARGIN > now):
                delivery.beat_at = min(delivery.beat_at, now + max(0.05, min(1.0, left / 4)))
            well += not unconfirmed and delivery not in unanswered and delivery not in held.refused
        if well:
            lane.metrics.heartbeat_ok.add(well)
        if hidden:
            lane.log(Step.HEARTBEAT, hidden, now - before)
        if failed := len(wanted) - well:
            lane.metrics.heartbeat_failed.add(failed)
        self._look_at(lane, min((delivery.beat_at for delivery in wanted), default=math.inf))

    def _not_over(self, lane: Lane, deliveries: Sequence[Delivery], now: float) -> list[Delivery]:
        """Those that are to be kept. Whose time is up is lost."""
        wanted = []
        for delivery in deliveries:
            runs = now - delivery.started_at if delivery.state in (State.WORKING, State.LOST_AT_WORK) else 0.0
            if runs > lane.settings.max_runtime:
                lane.lose(delivery, f"it has run for {runs:.0f} s, longer than max_runtime")
                delivery.beat_at = math.inf
                continue
            if delivery.hidden and now >= delivery.visible_at - MARGIN:
                over = _may_be_hidden(delivery, now) < lane.settings.lease
                lane.visibility_lost(
                    delivery,
                    "SQS hides a message for twelve hours at most, and they are over"
                    if over
                    else "this process was held up for so long that its visibility has ended",
                )
            if delivery.state in BEATING:
                wanted.append(delivery)
        return wanted

    def _extend_visibility(self, lane: Lane, deliveries: Sequence[Delivery], before: float) -> set[Delivery]:
        """Those that are hidden now, for a lease from `before`."""
        if not deliveries:
            return set()
        lease = math.ceil(lane.settings.lease)
        pairs = [(delivery.receipt, min(lease, _may_be_hidden(delivery, before))) for delivery in deliveries]
        try:
            failures = lane.queue.change_visibility(pairs, timeout=lane.settings.lease * CALL_SHARE)
        except SqsError as error:
            lane.sqs_failed(error, "got no heartbeat", len(deliveries))
            return set()
        confirmed = set()
        for delivery, (_, seconds), failure in zip(deliveries, pairs, failures, strict=True):
            if failure is None:
                delivery.visible_at = before + seconds
                confirmed.add(delivery)
            else:
                self._refused(lane, delivery, failure)
        return confirmed

    def _refused(self, lane: Lane, delivery: Delivery, failure: Failure) -> None:
        if failure.gone:
            lane.visibility_lost(delivery, f"SQS has taken it back: {failure.message}")
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


def _may_be_hidden(delivery: Delivery, now: float) -> int:
    """Seconds for which SQS would still hide it."""
    return LONGEST - CAP_MARGIN - math.ceil(now - delivery.received_at)
