"""Bugs that are put in on purpose. The simulation of the consumer must find each of them. Many were real once.

A mutant patches Semel's own code, and undoes this at the end of its `with` block. Its name says what it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from greenlet import getcurrent

from semel.broker.engine import dead_letters, generation, move_tasks, store
from semel.consumer import (
    circuit_breaker,
    claimer,
    handler_caller,
    in_flight,
    lifecycle,
    outbox_dispatcher,
    queue_setup,
    receiver,
    recorder,
    scheduler,
)
from semel.consumer.lifecycle import Action, Event, State
from semel.ledger.contract import Claim, Completion, LedgerError, Status, Won
from semel.ledger.rules import Winning, decide
from semel.ledger.sqlite import operations
from semel.sqs import Failure, Sent, limits
from simulation.ledger import SimulatedLedger, WatchedTransaction

Mutant = Callable[[], Any]
MUTANTS: Final[dict[str, Mutant]] = {}
ASYNC_MUTANTS: Final[dict[str, Mutant]] = {}  # of async handlers
_ANY_FENCE: Final = "(fence = ? OR 1)"


def mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    MUTANTS[make.__name__.replace("_", " ")] = contextmanager(make)
    return make


def async_mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    ASYNC_MUTANTS[make.__name__.replace("_", " ")] = contextmanager(make)
    return make


@contextmanager
def transition(state: State, event: Event, follows: lifecycle.Next | None) -> Iterator[None]:
    before = lifecycle.TABLE[state][event]
    lifecycle.TABLE[state][event] = follows
    try:
        yield
    finally:
        lifecycle.TABLE[state][event] = before


# The ledger.


@mutant
def no_fence_check_at_the_record() -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("_RECORD", "_RECORD_MANY"):
            stack.enter_context(
                patch.object(operations, name, getattr(operations, name).replace("fence = ?", _ANY_FENCE))
            )
        yield


@mutant
def no_fence_check_at_the_extension() -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("_EXTEND", "_EXTEND_MANY"):
            stack.enter_context(
                patch.object(operations, name, getattr(operations, name).replace("fence = ?", _ANY_FENCE))
            )
        yield


@mutant
def no_fence_check_at_the_release() -> Iterator[None]:
    with patch.object(operations, "_RELEASE", operations._RELEASE.replace("fence = ?", _ANY_FENCE)):
        yield


@mutant
def a_claim_that_checks_and_then_sets() -> Iterator[None]:
    real = SimulatedLedger.claim

    def claim(self: SimulatedLedger, requests: Sequence[Any], *, claimant: str, lease: float) -> list[Any]:
        free = [
            request.key
            for request, entry in zip(requests, self.get([r.key for r in requests]), strict=True)
            if entry is None or (entry.status is Status.CLAIMED and entry.lease_ends < (self.clock() or 0.0))
        ]
        if free:
            self.forget(free)
        return real(self, requests, claimant=claimant, lease=lease)

    with patch.object(SimulatedLedger, "claim", claim):
        yield


@mutant
def a_lease_that_nobody_respects() -> Iterator[None]:
    with patch.object(
        operations,
        "decide",
        lambda request, known, *, claimant, now: decide(request, known, claimant=claimant, now=now + 86_400),
    ):
        yield


@mutant
def a_fence_that_does_not_grow_at_a_takeover() -> Iterator[None]:
    real = operations._won

    def won(how: Winning, request: Any, row: Any, terms: Any, floor: int) -> Any:
        answer = real(how, request, row, terms, floor)
        return answer._replace(fence=row.fence) if how is Winning.TAKEOVER else answer

    with patch.object(operations, "_won", won):
        yield


@mutant
def one_claimant_for_all_claims_of_a_worker() -> Iterator[None]:
    with patch.object(queue_setup.Tools, "claimant", lambda self: self.worker):
        yield


@mutant
def a_key_that_is_done_can_be_claimed_again() -> Iterator[None]:
    def wrong(request: Any, known: Any, *, claimant: str, now: float) -> Any:
        if known is not None and known.status == Status.DONE:
            return Winning.RETRY
        return decide(request, known, claimant=claimant, now=now)

    with patch.object(operations, "decide", wrong):
        yield


# The life of one message.


@mutant
def acknowledged_before_it_is_recorded() -> Iterator[None]:
    with transition(State.WORKING, Event.SUCCEEDED, (State.RECORDED, lifecycle._DELETE)):
        yield


@mutant
def held_by_another_worker_is_taken_for_done() -> Iterator[None]:
    with transition(State.RECEIVED, Event.HELD, (State.RECORDED, lifecycle._DELETE)):
        yield


@mutant
def deleted_when_the_ledger_is_away() -> Iterator[None]:
    with transition(State.RECEIVED, Event.LEDGER_DOWN, (State.RECORDED, lifecycle._DELETE)):
        yield


@mutant
def rejected_without_a_copy_in_the_dead_letter_queue() -> Iterator[None]:
    with transition(State.WORKING, Event.REFUSED, (State.DEAD_LETTERED, (Action.RECORD_REJECTED,))):
        yield


@mutant
def finished_work_is_dropped_when_its_lease_was_lost() -> Iterator[None]:
    with transition(State.LOST_AT_WORK, Event.SUCCEEDED, (State.LOST, lifecycle._LET_GO)):
        yield


@mutant
def a_failed_message_keeps_its_slot() -> Iterator[None]:
    with transition(State.WORKING, Event.FAILED, (State.BACKING_OFF, lifecycle._RETRY[:-1])):
        yield


@mutant
def a_slot_is_given_back_twice() -> Iterator[None]:
    with transition(State.RECEIVED, Event.FOUND_DONE, (State.RECORDED, (*lifecycle._DELETE, Action.END))):
        yield


@mutant
def an_extension_under_way_is_not_waited_for() -> Iterator[None]:
    def may_go_on(self: Any, delivery: Any, actions: Any) -> bool:
        if actions[0] is Action.STOP_BEAT:
            delivery.stopped = True
        return True

    with patch.object(in_flight.InFlight, "_may_go_on", may_go_on):
        yield


# Stages.


@mutant
def a_record_that_failed_is_forgotten() -> Iterator[None]:
    real = recorder.Recorder._record

    def record(self: Any, items: Any) -> list[Any]:
        real(self, items)
        return []

    with patch.object(recorder.Recorder, "_record", record):
        yield


@mutant
def the_circuit_breaker_never_closes() -> Iterator[None]:
    real = circuit_breaker.CircuitBreaker.pause
    with patch.object(
        circuit_breaker.CircuitBreaker, "pause", lambda self: max(1.0, real(self)) if self.is_open else real(self)
    ):
        yield


@mutant
def a_message_overtakes_the_one_that_failed_before_it() -> Iterator[None]:
    real = scheduler.Scheduler.ended

    def ended(self: Any, chunk: Any) -> list[Any]:
        real(self, chunk)
        return []

    with patch.object(scheduler.Scheduler, "ended", ended):
        yield


@mutant
def a_message_overtakes_a_waiting_one_that_was_lost_alone() -> Iterator[None]:
    real = scheduler.Scheduler.ended

    def ended(self: Any, chunk: Any) -> list[Any]:
        chunk = list(chunk)
        heads = [group.members[0] for group in self._groups.values()]
        blocked = real(self, chunk)
        alone = all(delivery not in heads and delivery.state not in scheduler.ENDED_WELL for delivery in chunk)
        return [] if alone else blocked

    with patch.object(scheduler.Scheduler, "ended", ended):
        yield


@mutant
def a_group_is_released_before_its_first_message_is_recorded() -> Iterator[None]:
    def is_ready(self: Any) -> bool:
        return any(member.state is State.CLAIMED and member not in self.started for member in self.members)

    def startable(self: Any, group: Any, most: int) -> list[Any]:
        return [d for d in group.members if d.state is State.CLAIMED and d not in group.started][:1]

    real = scheduler.Scheduler.take

    def take(self: Any, most: int) -> list[Any]:
        chosen = real(self, most)
        for group in self._groups.values():
            self._offer(group)
        return chosen

    with (
        patch.object(scheduler.Scheduler, "take", take),
        patch.object(scheduler._Group, "is_ready", property(is_ready)),
        patch.object(scheduler.Scheduler, "_startable", startable),
    ):
        yield


@mutant
def messages_are_handled_while_the_ledger_is_away() -> Iterator[None]:
    real = claimer.Claimer._claim

    def claim(self: Any, chunk: Any, keys: Any) -> list[Any]:
        answers = real(self, chunk, keys)
        return [
            Won(Claim(key, 1), 30.0) if answer is None else answer for key, answer in zip(keys, answers, strict=True)
        ]

    with patch.object(claimer.Claimer, "_claim", claim):
        yield


@mutant
def a_stop_does_not_wait_for_receivers() -> Iterator[None]:
    with patch.object(receiver.Receiver, "close", lambda _self, _deadline: None):
        yield


@mutant
def a_stop_returns_nothing_of_what_comes_later() -> Iterator[None]:
    real = in_flight.InFlight.give_up

    def give_up(self: Any, chunk: Any) -> Any:
        return real(self, [delivery for delivery in chunk if delivery.state is not State.RECEIVED])

    with patch.object(in_flight.InFlight, "give_up", give_up):
        yield


# Transactions.


@mutant
def an_unknown_outcome_is_taken_for_a_commit() -> Iterator[None]:
    with patch.object(handler_caller.HandlerCaller, "_look_up", lambda _self, _deliveries: Event.COMMITTED):
        yield


@mutant
def a_refused_record_does_not_undo_the_transaction() -> Iterator[None]:
    real = WatchedTransaction.record

    def record(self: WatchedTransaction, completions: Sequence[Completion]) -> list[bool]:
        real(self, completions)
        self.records.clear()
        return [True] * len(completions)

    with patch.object(WatchedTransaction, "record", record):
        yield


@mutant
def the_record_is_not_part_of_the_transaction() -> Iterator[None]:
    real = handler_caller.HandlerCaller._in_transaction
    later: dict[Any, list[Completion]] = {}  # by the greenlet that is in a transaction

    def record(_self: WatchedTransaction, completions: Sequence[Completion]) -> list[bool]:
        later.setdefault(getcurrent(), []).extend(completions)
        return [True] * len(completions)

    def in_transaction(self: Any, deliveries: Any, call: Any, batch: Any = None) -> Event:
        later.pop(getcurrent(), None)
        event = real(self, deliveries, call, batch)
        try:
            self._setup.ledger.record(later.pop(getcurrent(), []))
        except LedgerError:
            return Event.LEDGER_DOWN
        return event

    with (
        patch.object(WatchedTransaction, "record", record),
        patch.object(handler_caller.HandlerCaller, "_in_transaction", in_transaction),
    ):
        yield


@mutant
def the_outbox_forgets_what_sqs_did_not_take() -> Iterator[None]:
    real = outbox_dispatcher._hand_over

    def hand_over(client: Any, name: str, messages: Any) -> Iterator[Any]:
        for message, outcome in real(client, name, messages):
            yield message, Sent("lost") if isinstance(outcome, Failure | Exception) else outcome

    with patch.object(outbox_dispatcher, "_hand_over", hand_over):
        yield


@mutant
def the_outbox_sends_a_group_out_of_order() -> Iterator[None]:
    real = outbox_dispatcher._hand_over
    with patch.object(
        outbox_dispatcher, "_hand_over", lambda client, name, messages: real(client, name, list(messages)[::-1])
    ):
        yield


# The broker.


@mutant
def the_broker_answers_before_it_has_synced() -> Iterator[None]:
    real = store.Store.flush

    def flush(self: Any) -> None:
        real(self)
        self.must_sync = False

    with patch.object(store.Store, "flush", flush):
        yield


@mutant
def a_receipt_handle_is_given_out_again_after_a_power_cut() -> Iterator[None]:
    with patch.object(store.Store, "_count_start", lambda _self: 1):
        yield


@mutant
def the_dedup_window_is_a_second_short() -> Iterator[None]:
    with patch.object(limits, "DEDUP_WINDOW", 298):
        yield


@mutant
def a_group_is_not_locked_while_a_message_of_it_is_in_flight() -> Iterator[None]:
    with patch.object(generation.Generation, "add_in_flight", lambda _self, _group, _number: None):
        yield


@mutant
def a_message_gets_lost_on_its_way_to_the_dead_letter_queue() -> Iterator[None]:
    with patch.object(dead_letters, "_insert", lambda *_arguments, **_options: None):
        yield


@mutant
def a_move_task_deletes_without_sending() -> Iterator[None]:
    def redrive(broker: Any, source: Any, target: Any, row: Any, now: int) -> None:
        from semel.broker.engine.expiry import remove
        from semel.broker.engine.schema import NUMBER_MASK

        remove(broker, source, {row.id & NUMBER_MASK: row.group}, now)

    with patch.object(move_tasks, "redrive", redrive):
        yield


@mutant
def a_rollback_leaves_the_memory_as_it_was() -> Iterator[None]:
    def rollback(self: Any) -> None:
        self.db.execute("ROLLBACK")
        self._sent_plain, self._sent, self._deleted = [], [], []
        self.log.forget()
        self.touched.clear()

    with patch.object(store.Store, "rollback", rollback):
        yield


# Async handlers.


@async_mutant
def a_cancelled_handler_counts_as_done() -> Iterator[None]:
    real = handler_caller.HandlerCaller._finish

    def finish(self: Any, chunk: Sequence[Any], event: Event) -> None:
        real(self, chunk, Event.SUCCEEDED if event is Event.ABANDONED else event)

    with patch.object(handler_caller.HandlerCaller, "_finish", finish):
        yield


@async_mutant
def a_cancelled_handler_has_no_end() -> Iterator[None]:
    real = handler_caller.HandlerCaller._finish

    def finish(self: Any, chunk: Sequence[Any], event: Event) -> None:
        if event is not Event.ABANDONED:
            real(self, chunk, event)

    with patch.object(handler_caller.HandlerCaller, "_finish", finish):
        yield


@async_mutant
def an_error_that_looks_like_a_cancel_counts_as_done() -> Iterator[None]:
    real = handler_caller.HandlerCaller._finish

    def finish(self: Any, chunk: Sequence[Any], event: Event) -> None:
        looks_so = event is Event.FAILED and chunk[0].error == "CancelledError"
        real(self, chunk, Event.SUCCEEDED if looks_so else event)

    with patch.object(handler_caller.HandlerCaller, "_finish", finish):
        yield
