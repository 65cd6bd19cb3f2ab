"""Calling the handler: plain, async, in batches, and inside the ledger's transaction.

Whatever a handler raises becomes one event of its message's life; no handler can bring its worker down.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from semel.consumer.batches import Batch
from semel.consumer.context import CURRENT, logger
from semel.consumer.delivery import Delivery
from semel.consumer.lane import MARGIN, Lane
from semel.consumer.life import Event, State
from semel.consumer.outcomes import Lost, Reject, Retry, Skip
from semel.durations import seconds
from semel.errors import SemelError
from semel.failures import described, is_failure, text_of
from semel.ledger import callables
from semel.ledger.contract import (
    Completion,
    Fenced,
    LedgerError,
    LedgerUnavailable,
    OutcomeUnknown,
    Status,
    Transaction,
    check_result,
)
from semel.telemetry.attempt_log.log import Step

LOOKS: Final = 5  # times that an unknown outcome is looked up before the next delivery is left to find out


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
    except BaseException as error:  # noqa: BLE001 - whatever the handler raises
        event = judge(delivery, error)
    finally:
        CURRENT.reset(token)
    lane.finish(delivery, event)


def _call(lane: Lane, delivery: Delivery, tx: Transaction | None) -> Any:
    handler = lane.handler
    return _done(handler.function(delivery.value, **handler.arguments(delivery.context, delivery.received, tx)))


def _done(result: Any) -> Any:
    """What a handler has returned. Work that it only promises was not done, and must not be recorded as done."""
    if result is not None and (kind := callables.unfinished(result)):
        raise SemelError(
            f"the handler returned {kind}, so its work is not done: await it, or make the handler and every decorator "
            "around it `async def`; a generator has to be iterated over"
        )
    return result


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
        _keep_result(lane, delivery, _done(result))
        event = Event.SUCCEEDED
    except asyncio.CancelledError:
        delivery.error = "cancelled"
        event = Event.ABANDONED if lane.stopping or delivery.is_lost else Event.FAILED
    except BaseException as error:  # noqa: BLE001 - whatever the handler raises
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
    except BaseException as error:
        if not is_failure(error):
            raise
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
    given = copy.copy(batch)
    given.items = list(batch.items)  # the handler's own: what it does to the list is not for us
    result = lane.handler.function(given, **lane.handler.arguments(None, None, tx))
    _done(asyncio.run(result) if lane.handler.is_async else result)


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
    """What an exception means for the message. What is no failure of a handler's is raised."""
    if not is_failure(error):
        raise error
    delivery.error = described(error)
    match error:
        case Skip():
            delivery.lane.metrics.skipped.add(1)
            delivery.lane.log(Step.SKIPPED, (delivery,), error=text_of(error))
            return Event.SUCCEEDED
        case Retry():
            delivery.retry_after = _wished(error)
            return Event.FAILED
        case Reject():
            delivery.error = f"rejected: {text_of(getattr(error, 'reason', error))}"
            return Event.REFUSED
        case Lost() | Fenced():
            return Event.FENCED
        case LedgerUnavailable():
            return Event.LEDGER_DOWN
    if not quiet:
        try:
            delivery.context.log.warning("the handler failed: %s", delivery.error, exc_info=error)
        except BaseException as odd:
            if not is_failure(odd):
                raise
            delivery.context.log.warning("the handler failed: %s; its traceback cannot be shown", delivery.error)
    return Event.FAILED


def _wished(retry: Retry) -> float | None:
    """The seconds that a handler asked for; None if that is not possible, and its back-off decides."""
    after = getattr(retry, "after", None)  # of a subclass, it may be missing, or anything
    try:
        return None if after is None else seconds(after)
    except SemelError as error:
        logger.warning("a handler asked for a retry at an impossible time, its back-off is used: %s", error)
        return None


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
            finishes = [Completion(lane.claim_of(d), Status.DONE, d.result, keep) for d in deliveries]
            lane.tools.crash("before_commit")
            if not all(tx.record(finishes)):
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
            (entry,) = lane.ledger.get([deliveries[0].ledger_key])
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
        kept = orjson.dumps(result)
        check_result(kept, "it")
    except BaseException as error:
        if not is_failure(error):
            raise
        # Its effect is there: without its result it is still done, and must not run again.
        lane.metrics.results_dropped.add(1)
        delivery.context.log.warning("the result is not stored, the message is done without it: %s", text_of(error))
    else:
        delivery.result = kept
