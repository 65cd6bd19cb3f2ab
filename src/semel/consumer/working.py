"""Calling the handler: plain, async, in batches, and inside the ledger's transaction.

Whatever a handler raises becomes one event of its message's life; no handler can bring its worker down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from semel.consumer.attempts import Step
from semel.consumer.batches import Batch
from semel.consumer.context import CURRENT, logger
from semel.consumer.delivery import Delivery
from semel.consumer.lane import MARGIN, Lane
from semel.consumer.life import Event, State
from semel.consumer.outcomes import Lost, Reject, Retry, Skip
from semel.ledger.contract import (
    Fenced,
    Finish,
    LedgerError,
    LedgerUnavailable,
    OutcomeUnknown,
    Status,
    Transaction,
)

LOOKS: Final = 5  # times that an unknown outcome is looked up before the next delivery is left to find out
# What a handler may raise: not KeyboardInterrupt, and not what tests use to end the process.
RAISED: Final = (Exception, SystemExit)


def work(lane: Lane, delivery: Delivery) -> None:
    """Handle one message with a plain function, on the caller's thread."""
    if not lane.begin(delivery):
        return
    lane.tools.crash("before_work")
    token = CURRENT.set(delivery.context)
    try:
        if lane.handler.transaction:
            event = _in_transaction(lane, [delivery], lambda tx: _call(lane, delivery, tx))
        else:
            _keep_result(lane, delivery, _call(lane, delivery, None))
            event = Event.SUCCEEDED
    except RAISED as error:
        event = judge(delivery, error)
    finally:
        CURRENT.reset(token)
    lane.finish(delivery, event)


def _call(lane: Lane, delivery: Delivery, tx: Transaction | None) -> Any:
    handler = lane.handler
    return handler.function(delivery.value, **handler.arguments(delivery.context, delivery.received, tx))


async def work_async(lane: Lane, delivery: Delivery) -> None:
    """Handle one message with an async function; a lost claim or the end of a shutdown cancels it."""
    if not lane.begin(delivery):
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        loop.call_soon_threadsafe(task.cancel)

    delivery.cancel = cancel
    lane.tools.crash("before_work")
    CURRENT.set(delivery.context)
    handler = lane.handler
    try:
        result = await handler.function(delivery.value, **handler.arguments(delivery.context, delivery.received, None))
        _keep_result(lane, delivery, result)
        event = Event.SUCCEEDED
    except asyncio.CancelledError:
        delivery.error = "cancelled"
        event = Event.ABANDONED if lane.stopping or delivery.is_lost else Event.FAILED
    except RAISED as error:
        event = judge(delivery, error)
    lane.finish(delivery, event)


def work_batch(lane: Lane, deliveries: Sequence[Delivery]) -> None:
    """Handle many messages with as few calls as possible."""
    for run in _runs(lane, deliveries):
        _run_batch(lane, [delivery for delivery in lane.in_turn(run) if lane.begin(delivery)])


def _runs(lane: Lane, deliveries: Sequence[Delivery]) -> list[list[Delivery]]:
    """What goes into one call. Those that were tried before go alone, so that a bad one fails alone; except where all
    that fails is undone and can be halved. FIFO messages keep their order, whatever goes with what."""
    if lane.handler.transaction and not lane.fifo:
        return [list(deliveries)]
    if not lane.fifo:
        tried = [delivery for delivery in deliveries if delivery.attempt > 1]
        return [[delivery for delivery in deliveries if delivery.attempt <= 1], *([delivery] for delivery in tried)]
    runs: list[list[Delivery]] = []
    for delivery in deliveries:
        if runs and delivery.attempt <= 1 and runs[-1][-1].attempt <= 1:
            runs[-1].append(delivery)
        else:
            runs.append([delivery])
    return runs


def _run_batch(lane: Lane, deliveries: list[Delivery]) -> None:
    while deliveries:
        deliveries = _call_once(lane, deliveries)


def _call_once(lane: Lane, deliveries: list[Delivery]) -> list[Delivery]:
    """Returns those that are to be in a further call: what a transaction would have done was undone."""
    lane.tools.crash("before_work")
    batch: Batch[Any] = Batch(deliveries)
    try:
        if lane.handler.transaction:
            event = _in_transaction(lane, deliveries, lambda tx: _call_batch(lane, batch, tx), batch)
        else:
            _call_batch(lane, batch, None)
            event = Event.SUCCEEDED
    except _SetAside:
        return _set_aside(lane, batch, deliveries)
    except RAISED as error:
        bad_one = lane.handler.transaction and not lane.fifo and not isinstance(error, LedgerUnavailable)
        if bad_one and len(deliveries) > 1:
            # All of it was undone: find the bad one by halves, and let the others through.
            half = len(deliveries) // 2
            _run_batch(lane, deliveries[:half])
            _run_batch(lane, deliveries[half:])
            return []
        for delivery in deliveries:
            event = judge(delivery, error, quiet=delivery is not deliveries[0])
        lane.finish_all(deliveries, event)
        _hold_back(lane, deliveries)
        return []
    _finish_items(lane, batch, deliveries, event)
    return []


class _SetAside(Exception):
    """Items of a transaction's batch were rejected or put off: it is undone, and the call repeated without them."""


def _set_aside(lane: Lane, batch: Batch[Any], deliveries: Sequence[Delivery]) -> list[Delivery]:
    """End what the handler has rejected or put off, with nothing of it written. Returns the others. In a FIFO group
    those behind it are given back: they must not be done before it is."""
    left: list[Delivery] = []
    behind: list[Delivery] = []
    by_event: dict[Event, list[Delivery]] = {}
    stuck: set[str | None] = set()
    for item, delivery in zip(batch, deliveries, strict=True):
        if lane.fifo and delivery.group in stuck:
            behind.append(delivery)
        elif item.is_set_aside:
            assert item.outcome is not None
            by_event.setdefault(judge(delivery, item.outcome), []).append(delivery)
            stuck.add(delivery.group)
        else:
            left.append(delivery)
    if behind:
        by_event[Event.GIVE_UP] = behind
    for event, those in by_event.items():
        lane.finish_all(those, event)
    _hold_back(lane, [*behind, *(delivery for those in by_event.values() for delivery in those)])
    return left


def _call_batch(lane: Lane, batch: Batch[Any], tx: Transaction | None) -> None:
    result = lane.handler.function(batch, **lane.handler.arguments(None, None, tx))
    if asyncio.iscoroutine(result):
        asyncio.run(result)


def _finish_items(lane: Lane, batch: Batch[Any], deliveries: Sequence[Delivery], event: Event) -> None:
    """The call is over; items that the handler had an outcome for part from the others."""
    by_event: dict[Event, list[Delivery]] = {}
    for item, delivery in zip(batch, deliveries, strict=True):
        this = event
        if item.outcome is not None and event is not Event.LEDGER_DOWN:
            this = judge(delivery, item.outcome)
        # What a transaction has committed, it has recorded.
        by_event.setdefault(event if this is Event.SUCCEEDED else this, []).append(delivery)
    for this, those in by_event.items():
        lane.finish_all(those, this)
    _hold_back(lane, deliveries)


def _hold_back(lane: Lane, deliveries: Sequence[Delivery]) -> None:
    """What follows a FIFO message that is not done is given back: it must not be part of the next call."""
    if not lane.fifo:
        return
    well = (State.DONE, State.RECORDED, State.ACKED)
    with lane.lock:
        groups = {delivery.group for delivery in deliveries if delivery.state not in well}
        behind = [other for other in lane.in_hand.values() if other.group in groups and other.state is State.CLAIMED]
    lane.give_up(behind)


def judge(delivery: Delivery, error: BaseException, *, quiet: bool = False) -> Event:
    """What an exception means for the message."""
    delivery.error = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    match error:
        case Skip():
            delivery.lane.metrics.skipped.add(1)
            delivery.lane.log(Step.SKIPPED, (delivery,), error=str(error))
            return Event.SUCCEEDED
        case Retry():
            delivery.retry_after = error.after
            return Event.FAILED
        case Reject():
            delivery.error = f"rejected: {error.reason}"
            return Event.REFUSED
        case Lost() | Fenced():
            return Event.FENCED
        case LedgerUnavailable():
            return Event.LEDGER_DOWN
    if not quiet:
        delivery.context.log.warning("the handler failed: %s", delivery.error, exc_info=error)
    return Event.FAILED


def _in_transaction(
    lane: Lane, deliveries: Sequence[Delivery], call: Callable[[Transaction], Any], batch: Batch[Any] | None = None
) -> Event:
    """Call the handler, record its messages, and commit both as one."""
    ledger = lane.ledger
    try:
        with ledger.transaction() as tx:
            result = call(tx)
            if batch is None:
                _keep_result(lane, deliveries[0], result)
            elif any(item.is_set_aside for item in batch):
                raise _SetAside
            keep = lane.settings.keep
            finishes = [Finish(lane.claim_of(d), Status.DONE, d.result, keep) for d in deliveries]
            lane.tools.crash("before_commit")
            if any(delivery.is_lost for delivery in deliveries) or not all(tx.record(finishes)):
                raise Fenced("a newer claim exists: this transaction is undone")
        lane.tools.crash("after_record")
    except OutcomeUnknown as error:
        lane.ledger_failed("commit", error)
        return _look_up(lane, deliveries)
    except LedgerUnavailable as error:
        lane.ledger_failed("transaction", error)
        raise
    lane.committed()
    return Event.COMMITTED


def _look_up(lane: Lane, deliveries: Sequence[Delivery]) -> Event:
    """The connection broke during the commit: the ledger knows whether it happened."""
    for _ in range(LOOKS):
        if lane.tools.monotonic() > min(delivery.deadline for delivery in deliveries) - MARGIN:
            break
        try:
            (entry,) = lane.ledger.look([deliveries[0].ledger_key])
        except LedgerError as error:
            lane.ledger_failed("look", error)
            continue
        if entry is not None and entry.fence == deliveries[0].fence and entry.status in (Status.DONE, Status.REJECTED):
            lane.committed()
            return Event.COMMITTED
        break
    for delivery in deliveries:
        delivery.error = "the connection to the ledger broke during the commit"
    return Event.LEDGER_DOWN


def _keep_result(lane: Lane, delivery: Delivery, result: Any) -> None:
    if not lane.settings.keep_result:
        return
    try:
        delivery.result = orjson.dumps(result)
    except TypeError as error:
        logger.warning("the result of %s is not kept: %s", delivery.received.message_id, error)
