"""Settling: outcomes into the ledger, claims back to it, then what had to wait for that. Many messages a call."""

from __future__ import annotations

from collections.abc import Sequence

from semel.consumer.attempts import Step
from semel.consumer.delivery import Delivery
from semel.consumer.lane import Lane, Settlement
from semel.consumer.life import Action, Event
from semel.ledger.contract import Finish, LedgerError, Status


def settle(lane: Lane, items: Sequence[Settlement]) -> list[Settlement]:
    """Returns what the ledger could not take: to be tried again."""
    records = [item for item in items if item[1] in (Action.RECORD, Action.RECORD_REJECTED)]
    again = _record(lane, records) if records else []
    for tried, action in ((True, Action.GIVE_BACK), (False, Action.GIVE_BACK_UNTRIED)):
        releases = [item for item in items if item[1] is action]
        if releases:
            _release(lane, releases, tried=tried)
    return again


def _record(lane: Lane, items: Sequence[Settlement]) -> list[Settlement]:
    keep = lane.settings.keep
    finishes = [
        Finish(
            lane.claim_of(delivery),
            Status.DONE if action is Action.RECORD else Status.REJECTED,
            delivery.result,
            keep,
        )
        for delivery, action, _ in items
    ]
    before = lane.tools.monotonic()
    try:
        recorded = lane.ledger.record(finishes)
    except LedgerError as error:
        lane.ledger_failed("record", error)
        # The work is done. However long the ledger is away: nobody else can claim it meanwhile.
        return list(items)
    lane.ledger_answers(True)
    now = lane.tools.monotonic()
    lane.metrics.record.observe(now - before)
    lane.tools.crash("after_record")
    steps, done = [], []
    for (delivery, action, _), well in zip(items, recorded, strict=True):
        steps.append((delivery, lane.advance(delivery, Event.RECORDED if well else Event.FENCED)))
        if not well:
            lane.metrics.fenced.add(1)
            lane.log(Step.FENCED, (delivery,), error="a newer claim exists: its outcome does not count")
        elif action is Action.RECORD:
            done.append(delivery)
    _count(lane, done, now)
    lane.carry_out(steps)
    return []


def _count(lane: Lane, done: Sequence[Delivery], now: float) -> None:
    lane.metrics.completed.add(len(done))
    if lane.tools.log is not None:
        for delivery in done:
            lane.log(Step.RECORDED, (delivery,), now - delivery.started_at if delivery.started_at else 0.0)


def _release(lane: Lane, items: Sequence[Settlement], *, tried: bool) -> None:
    claims = [lane.claim_of(delivery) for delivery, _, _ in items]
    try:
        lane.ledger.release(claims, tried=tried)
    except LedgerError as error:
        lane.ledger_failed("release", error)  # the lease will end by itself
    lane.tools.crash("after_release")
    lane.carry_out([(delivery, rest) for delivery, _, rest in items])
