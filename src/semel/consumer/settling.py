"""Settling: outcomes into the ledger, claims back to it, then what had to wait for that. Many messages a call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from semel.consumer.delivery import Delivery
from semel.consumer.lane import Lane, Settlement
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.life import Action, Event
from semel.ledger.contract import Completion, LedgerError, LedgerUnavailable, Status
from semel.telemetry.attempt_log.log import Step


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
    keep = lane.settings.retention
    finishes = [
        Completion(
            lane.claim_of(delivery),
            Status.DONE if action is Action.RECORD else Status.REJECTED,
            delivery.result,
            keep,
        )
        for delivery, action, _ in items
    ]
    before = lane.tools.monotonic()
    try:
        recorded = one_by_one(lane.ledger.record, finishes)
    except LedgerUnavailable as error:
        lane.ledger_failed("record", error)
        # The work is done. However long the ledger is away: nobody else can claim it meanwhile.
        return list(items)
    refused = [(item, answer) for item, answer in zip(items, recorded, strict=True) if isinstance(answer, LedgerError)]
    if len(refused) < len(items):
        lane.ledger_answers(True)
    again = _not_taken(lane, refused)
    now = lane.tools.monotonic()
    lane.metrics.record.observe(now - before)
    lane.tools.crash("after_record")
    steps, done = [], []
    for (delivery, action, _), well in zip(items, recorded, strict=True):
        if isinstance(well, LedgerError):
            continue
        steps.append((delivery, lane.advance(delivery, Event.RECORDED if well else Event.FENCED)))
        if not well:
            lane.metrics.fenced.add(1)
            lane.log(Step.FENCED, (delivery,), error="a newer claim exists: its outcome does not count")
        elif action is Action.RECORD:
            done.append(delivery)
    _count(lane, done, now)
    lane.carry_out(steps)
    return again


def _count(lane: Lane, done: Sequence[Delivery], now: float) -> None:
    lane.metrics.completed.add(len(done))
    if lane.tools.log is not None:
        for delivery in done:
            lane.log(Step.RECORDED, (delivery,), now - delivery.started_at if delivery.started_at else 0.0)


def _not_taken(lane: Lane, refused: Sequence[tuple[Settlement, LedgerError]]) -> list[Settlement]:
    """The ledger answers, and does not take these. Their effect is there: they are recorded without their result, and
    what has none is tried again as in an outage."""
    without, again = [], []
    for item, error in refused:
        delivery = item[0]
        lane.ledger_refused("record", error)
        if delivery.result:
            delivery.result = b""
            lane.metrics.results_dropped.add(1)
            delivery.context.log.warning("the result is not stored, the message is done without it: %s", error)
            without.append(item)
        else:
            again.append(item)
    return (_record(lane, without) if without else []) + again


def _release(lane: Lane, items: Sequence[Settlement], *, tried: bool) -> None:
    claims = [lane.claim_of(delivery) for delivery, _, _ in items]
    try:
        released = one_by_one(partial(lane.ledger.release, tried=tried), claims)
        for answer in released:
            if isinstance(answer, LedgerError):
                lane.ledger_refused("release", answer)
    except LedgerUnavailable as error:
        lane.ledger_failed("release", error)  # the lease will end by itself
    lane.tools.crash("after_release")
    lane.carry_out([(delivery, rest) for delivery, _, rest in items])
