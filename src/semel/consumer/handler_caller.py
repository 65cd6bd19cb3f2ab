"""Calls the handler: plain, async, in batches, and inside the ledger's transaction.

Whatever a handler raises becomes one event of its message; no handler can bring its worker down.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from semel.consumer.batch import Batch
from semel.consumer.claimer import STARTED
from semel.consumer.context import CURRENT, logger
from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import InFlight
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.lifecycle import Event, State
from semel.consumer.outcomes import Lost, Reject, Retry, Skip
from semel.durations import seconds
from semel.errors import SemelError
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
from semel.telemetry.attempt_log import Step
from semel.user_exceptions import described, is_failure, text_of

MARGIN: Final = 0.5  # seconds before the end of its claim at which a message is no longer started
LOOKS: Final = 5  # how often an unknown outcome is looked up, before it is left to the next delivery to find out


class HandlerCaller:
    """`on_commit` is called after each transaction, which may have sent messages."""

    def __init__(self, in_flight: InFlight, on_commit: Callable[[], None] = lambda: None) -> None:
        self._setup = in_flight.setup
        self._handler = in_flight.setup.handler
        self._in_flight = in_flight
        self._reporter = in_flight.reporter
        self._on_commit = on_commit
        self._extras = bool(self._handler.context or self._handler.message or self._handler.transaction)

    # Which messages are started.

    def _start(self, chunk: Sequence[Delivery]) -> list[Delivery]:
        """The messages whose handler is to be called now. The others get their event here."""
        now = self._setup.tools.monotonic()
        chosen = self._in_flight.apply_by(lambda delivery: self._event_at_start(delivery, now), chunk)
        started = chosen.pop(Event.STARTED, [])
        for event, deliveries in chosen.items():
            if event is Event.LOST:
                self._setup.metrics.heartbeat_lost.add(len(deliveries))
                self._reporter.log(
                    Step.LOST, deliveries, error="its visibility timeout was about to end before it started"
                )
            elif event is Event.GIVE_UP:
                self._report_end(deliveries, event)
        started = [delivery for delivery in started if delivery.attempt == 1 or self._save_start(delivery)]
        if self._reporter.logs_attempts:
            for delivery in started:
                self._reporter.log(Step.STARTED, (delivery,), now - delivery.received_at)
        return started

    def _event_at_start(self, delivery: Delivery, now: float) -> Event | None:
        if delivery.state is not State.CLAIMED:
            return None
        settings = self._setup.settings
        if self._in_flight.stopping and not delivery.problem:
            return Event.GIVE_UP
        if now > delivery.deadline - MARGIN:
            return Event.LOST
        if delivery.problem:
            delivery.error = delivery.problem
            skip = settings.missing_key == "skip" and delivery.problem.startswith("no key")
            return Event.SUCCEEDED if skip else Event.REFUSED
        if settings.max_attempts is not None and delivery.starts > settings.max_attempts:
            delivery.error = f"out of attempts: {delivery.starts - 1} began and none came to an end"
            return Event.REFUSED
        delivery.started_at = now
        return Event.STARTED

    def _save_start(self, delivery: Delivery) -> bool:
        """From the second attempt on, the ledger stores that the handler is called. A worker that dies has also claimed
        messages that it had not started, and these must not lose an attempt."""
        starts = delivery.steps.get(STARTED, b"")
        starts = b"%b,%d" % (starts, delivery.attempt) if starts else b"%d" % delivery.attempt
        ledger = self._setup.ledger
        try:
            (saved,) = one_by_one(lambda claims: [ledger.save_step(claims[0], STARTED, starts)], [delivery.owned_claim])
        except LedgerUnavailable as error:
            self._reporter.ledger_failed("save_step", error)
            delivery.error = f"the ledger could not save its start: {error}"
            event = Event.LEDGER_DOWN
        else:
            if isinstance(saved, LedgerError):  # such as if steps take up all the space: it starts without it
                self._reporter.ledger_refused("step", saved)
                return True
            if saved:
                return True
            event = Event.FENCED
        self._in_flight.apply(event, (delivery,))
        self._report_end((delivery,), event)
        return False

    # What a handler's end means.

    def _finish(self, chunk: Sequence[Delivery], event: Event) -> None:
        """The handler of these messages has ended, with the same event for all. Decides whether a failed attempt was
        the last one."""
        if not chunk:
            return
        tools = self._setup.tools
        tools.crash("after_work")
        now = tools.monotonic()
        for delivery in chunk:
            delivery.finished_at = now
        by_event: dict[Event, list[Delivery]] = {event: list(chunk)}
        if event is Event.FAILED:
            by_event = {}
            for delivery in chunk:
                last = self._last_attempt(delivery)
                if last:
                    delivery.error = f"{last}: {delivery.error}"
                by_event.setdefault(Event.REFUSED if last else event, []).append(delivery)
        if event is not Event.SUCCEEDED or self._handler.is_batch:
            self._measure(chunk, now)
        if event is Event.COMMITTED:  # before the event is applied: its delete follows at once, and is logged too
            self._report_committed(chunk, now)
        for this, deliveries in by_event.items():
            self._in_flight.apply(this, deliveries)
            if this not in (Event.SUCCEEDED, Event.COMMITTED):
                self._report_end(deliveries, this)
        if event is Event.COMMITTED:
            self._in_flight.measure(chunk, now)

    def _measure(self, chunk: Sequence[Delivery], now: float) -> None:
        metrics = self._setup.metrics
        metrics.receive_to_start.observe_all([delivery.started_at - delivery.received_at for delivery in chunk])
        metrics.handler.observe(now - chunk[0].started_at)

    def _last_attempt(self, delivery: Delivery) -> str:
        settings = self._setup.settings
        if self._setup.fifo and settings.on_failure == "skip_message":
            return "skipped"
        if settings.max_attempts is not None and delivery.starts >= settings.max_attempts:
            return "out of attempts"
        if settings.max_receives is not None and delivery.received.receive_count >= settings.max_receives:
            # SQS would move it at its next receive, without a reason.
            return "out of receives"
        return ""

    def _report_committed(self, chunk: Sequence[Delivery], now: float) -> None:
        self._setup.metrics.completed.add(len(chunk))
        for delivery in chunk if self._reporter.logs_attempts else ():
            self._reporter.log(Step.RECORDED, (delivery,), now - delivery.started_at if delivery.started_at else 0.0)

    def _report_end(self, chunk: Sequence[Delivery], event: Event) -> None:
        metrics, now = self._setup.metrics, self._setup.tools.monotonic()
        for delivery in chunk:
            spent = now - delivery.started_at if delivery.started_at else 0.0
            if delivery.state in (State.LOST, State.LOST_AT_WORK):
                metrics.fenced.add(1)
                self._reporter.log(Step.FENCED, (delivery,), spent, delivery.error)
            elif event in (Event.FAILED, Event.LEDGER_DOWN):
                metrics.retried.add(1)
                self._reporter.log(Step.RETRIED, (delivery,), spent, delivery.error)
            elif event in (Event.GIVE_UP, Event.ABANDONED):
                metrics.released.add(1)
                self._reporter.log(Step.RELEASED, (delivery,), spent)

    def _event_for(self, delivery: Delivery, error: BaseException, *, quiet: bool = False) -> Event:
        """The event that an exception of the handler leads to. An exception that is not a failure is raised again."""
        if not is_failure(error):
            raise error
        delivery.error = described(error)
        match error:
            case Skip():
                self._setup.metrics.skipped.add(1)
                self._reporter.log(Step.SKIPPED, (delivery,), error=text_of(error))
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

    # Single messages.

    def handle(self, delivery: Delivery) -> None:
        """Call a plain handler on this thread."""
        if not self._start((delivery,)):
            return
        self._setup.tools.crash("before_work")
        token = CURRENT.set(delivery)
        try:
            if self._handler.transaction:
                event = self._in_transaction((delivery,), lambda tx: self._call(delivery, tx))
            else:
                result = self._call(delivery, None)
                if self._setup.settings.keep_result:
                    self._keep_result(delivery, result)
                event = Event.SUCCEEDED
        except BaseException as error:  # noqa: BLE001 - whatever the handler raises
            event = self._event_for(delivery, error)
        finally:
            CURRENT.reset(token)
        self._finish((delivery,), event)

    def _call(self, delivery: Delivery, tx: Transaction | None) -> Any:
        handler = self._handler
        if not self._extras:
            return _done(handler.function(delivery.value))
        return _done(handler.function(delivery.value, **handler.arguments(delivery.context, delivery.received, tx)))

    async def handle_async(self, delivery: Delivery) -> None:
        """Call an async handler. It is cancelled if its claim is lost, or when the drain is over."""
        # From the second attempt on the ledger is called, which must not block the loop.
        started = (
            self._start((delivery,)) if delivery.attempt <= 1 else await asyncio.to_thread(self._start, (delivery,))
        )
        if not started:
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        delivery.cancel = cancel
        self._setup.tools.crash("before_work")
        CURRENT.set(delivery)
        handler = self._handler
        try:
            extras = handler.arguments(delivery.context, delivery.received, None) if self._extras else {}
            result = await handler.function(delivery.value, **extras)
            self._keep_result(delivery, _done(result))
            event = Event.SUCCEEDED
        except asyncio.CancelledError as error:
            if self._in_flight.stopping or delivery.is_lost:
                event, delivery.error = Event.ABANDONED, "cancelled"
                if not delivery.is_lost:  # that is in the log already
                    delivery.context.log.warning("the handler was cancelled: the worker is stopping")
            else:
                event = self._event_for(delivery, error)
        except BaseException as error:  # noqa: BLE001 - whatever the handler raises
            event = self._event_for(delivery, error)
        self._finish((delivery,), event)

    def _keep_result(self, delivery: Delivery, result: Any) -> None:
        if not self._setup.settings.keep_result:
            return
        try:
            kept = orjson.dumps(result)
            check_result(kept, "it")
        except BaseException as error:
            if not is_failure(error):
                raise
            # The effect has happened: even without its result the message is done, and must not run again.
            self._setup.metrics.results_dropped.add(1)
            delivery.context.log.warning("the result is not stored, the message is done without it: %s", text_of(error))
        else:
            delivery.result = kept

    # Batches.

    def handle_batch(self, chunk: Sequence[Delivery]) -> None:
        deliveries = self._start(chunk)
        while deliveries:
            deliveries = self._call_once(deliveries)

    def _call_once(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Returns the messages for a further call, if the transaction was rolled back to set some of them aside."""
        self._setup.tools.crash("before_work")
        batch: Batch[Any] = Batch(deliveries)
        handler, fifo = self._handler, self._setup.fifo
        try:
            if handler.transaction:
                event = self._in_transaction(deliveries, lambda tx: self._call_batch(batch, tx), batch)
            else:
                self._call_batch(batch, None)
                event = Event.SUCCEEDED
        except _SetAside:
            return self._set_aside(batch, deliveries)
        except BaseException as error:
            if not is_failure(error):
                raise
            bad_one = handler.transaction and not fifo and not isinstance(error, LedgerUnavailable)
            if bad_one and len(deliveries) > 1:
                # All of it was rolled back: halve the batch to find the bad message, and let the others through.
                half = len(deliveries) // 2
                for part in (deliveries[:half], deliveries[half:]):
                    while part:
                        part = self._call_once(part)
                return []
            for delivery in deliveries:
                event = self._event_for(delivery, error, quiet=delivery is not deliveries[0])
            self._finish(deliveries, event)
            return []
        self._finish_items(batch, deliveries, event)
        return []

    def _call_batch(self, batch: Batch[Any], tx: Transaction | None) -> None:
        copied = copy.copy(batch)
        copied.items = list(batch.items)  # a list for the handler: what it does to the list must not affect us
        result = self._handler.function(copied, **self._handler.arguments(None, None, tx))
        _done(asyncio.run(result) if self._handler.is_async else result)

    def _finish_items(self, batch: Batch[Any], deliveries: Sequence[Delivery], event: Event) -> None:
        """The call is over: items that the handler gave an outcome get an event of their own."""
        by_event: dict[Event, list[Delivery]] = {}
        for item, delivery in zip(batch, deliveries, strict=True):
            this = event
            if item.outcome is not None and event is not Event.LEDGER_DOWN:
                this = self._event_for(delivery, item.outcome)
            # If the transaction has committed, it has also recorded the skipped items.
            by_event.setdefault(event if this is Event.SUCCEEDED else this, []).append(delivery)
        for this, ended in by_event.items():
            self._finish(ended, this)

    def _set_aside(self, batch: Batch[Any], deliveries: Sequence[Delivery]) -> list[Delivery]:
        """End the items that the handler has rejected or wants to retry; nothing was written for them. Returns the
        others. In a FIFO group, the messages behind such an item are returned to the queue: they must not be done
        before it."""
        left: list[Delivery] = []
        behind: list[Delivery] = []
        by_event: dict[Event, list[Delivery]] = {}
        stuck: set[str | None] = set()
        for item, delivery in zip(batch, deliveries, strict=True):
            if self._setup.fifo and delivery.group in stuck:
                behind.append(delivery)
            elif item.is_set_aside:
                assert item.outcome is not None
                by_event.setdefault(self._event_for(delivery, item.outcome), []).append(delivery)
                stuck.add(delivery.group)
            else:
                left.append(delivery)
        if behind:
            by_event[Event.GIVE_UP] = behind
        for event, ended in by_event.items():
            self._finish(ended, event)
        return left

    # Transactions.

    def _in_transaction(
        self, deliveries: Sequence[Delivery], call: Callable[[Transaction], Any], batch: Batch[Any] | None = None
    ) -> Event:
        """Call the handler, record its messages, and commit both as one."""
        setup = self._setup
        try:
            with setup.ledger.transaction() as tx:
                result = call(tx)
                if batch is None:
                    self._keep_result(deliveries[0], result)
                elif any(item.is_set_aside for item in batch):
                    raise _SetAside
                retention = setup.settings.retention
                completions = [Completion(d.owned_claim, Status.DONE, d.result, retention) for d in deliveries]
                setup.tools.crash("before_commit")
                if not all(tx.record(completions)):
                    raise Fenced("a newer claim exists: this transaction is undone")
            setup.tools.crash("after_record")
        except OutcomeUnknown as error:
            self._reporter.ledger_failed("commit", error)
            return self._look_up(deliveries)
        except LedgerUnavailable as error:
            self._reporter.ledger_failed("transaction", error)
            raise
        self._on_commit()
        return Event.COMMITTED

    def _look_up(self, deliveries: Sequence[Delivery]) -> Event:
        """The connection broke during the commit: the ledger knows whether it happened."""
        first = deliveries[0]
        for _ in range(LOOKS):
            if self._setup.tools.monotonic() > min(delivery.deadline for delivery in deliveries) - MARGIN:
                break
            try:
                (entry,) = self._setup.ledger.get([first.ledger_key])
            except LedgerError as error:
                self._reporter.ledger_failed("get", error)
                continue
            if entry is not None and entry.fence == first.fence and entry.status in (Status.DONE, Status.REJECTED):
                self._on_commit()
                return Event.COMMITTED
            break
        for delivery in deliveries:
            delivery.error = "the connection to the ledger broke during the commit"
        return Event.LEDGER_DOWN


class _SetAside(Exception):
    """The handler has rejected or retried items of a batch in a transaction: the transaction is rolled back, and the
    call is repeated without them."""


def _done(result: Any) -> Any:
    """What a handler has returned. Raises if that still has to be awaited or iterated over: the work was not done, and
    must not be recorded as done."""
    if result is not None and (kind := callables.unfinished(result)):
        raise SemelError(
            f"the handler returned {kind}, so its work is not done: await it, or make the handler and every decorator "
            "around it `async def`; a generator has to be iterated over"
        )
    return result


def _wished(retry: Retry) -> float | None:
    """The seconds that a handler asked for; None: its back-off decides, as it asked for none, or for what is not
    possible."""
    after = getattr(retry, "after", None)  # a subclass may lack it, or have anything there
    try:
        return None if after is None else seconds(after)
    except SemelError as error:
        logger.warning("a handler asked for a retry at an impossible time, its back-off is used: %s", error)
        return None
