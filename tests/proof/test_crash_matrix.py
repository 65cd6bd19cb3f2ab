"""The crash matrix: each way in which something can break (`ROWS`), in both modes, on every store.

In lease mode, an effect that happened before the crash may happen again, always with the same key. In transaction mode,
the effects table has each key once. In both, no message is lost, and each one is out of the queue in the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest
from crash_cases import (
    CASES,
    TRANSACTION_MODE,
    Case,
    effects_of,
    impatient,
    known,
    lose_the_answer_to_a_commit,
    lose_the_answer_to_a_record,
)

from driven import LEASE, place_of, take
from ledger.lossy import lossy
from ledger.stores import STORES
from semel.broker import EmbeddedBroker
from semel.consumer.context import Context
from semel.consumer.outcomes import Reject
from semel.ledger.contract import Status
from semel.sqs.errors import SqsError
from semel.testing.driver import Crash, Driver

ROWS: Final = {
    "0": "the answer to a receive is lost",
    "1": "after receive, before claim",
    "2": "after claim, before work",
    "3": "during work",
    "4": "after work, before record",
    "5": "after record, before delete",
    "6": "a delete is lost, or made with an old handle",
    "7a": "a heartbeat fails for a moment, or for too long",
    "7b": "a heartbeat hears that the handle is invalid",
    "8": "a zombie wakes after the takeover",
    "9": "two copies are delivered at once",
    "10": "the producer sent twice",
    "11": "a dead letter is redriven, with a new message id",
    "12": "the ledger is down",
    "13": "the outcome of a commit is unknown",
    "14": "a late duplicate, after the record might have expired",
}
DAY: Final = 86_400
TRANSACTIONS: Final = [case for case in CASES if case[1] == TRANSACTION_MODE]


def tiered(cases: Iterable[tuple[str, str]]) -> list[Any]:
    """DynamoDB is slow: moto, which stands in for it, takes as long as all other stores together."""
    slow = {"dynamodb": [pytest.mark.slow]}
    return [pytest.param(case, id="-".join(case), marks=slow.get(case[0], [])) for case in cases]


@pytest.fixture(params=tiered(CASES))
def case(request: pytest.FixtureRequest, sqs_broker: EmbeddedBroker) -> Iterator[Case]:
    """A queue `orders` with one message, whose key is 7."""
    name, mode = request.param
    store = STORES[name](request)
    with place_of(sqs_broker, store.open) as place:
        with contextlib.closing(Case(place, store, mode, effects_of(store, mode, place.ledger))) as case:
            place.queue("orders", dlq="dead", MessageRetentionPeriod=14 * DAY)
            place.send({"id": 7})
            yield case
    store.drop()


def test_every_row_has_its_test() -> None:
    tested = {match[1] for name in globals() if (match := re.match(r"test_row_(\d+[ab]?)_", name))}
    assert tested == set(ROWS)


def test_row_0_a_receive_whose_answer_is_lost_delays_the_message_and_no_more(case: Case) -> None:
    place, worker = case.place, case.worker()
    consumer = worker.consumer("orders")
    with contextlib.closing(impatient(place)) as client:
        consumer.setup.queue = known(client, "orders")
        place.broker.faults.set("lost-answer", 1.0)
        with pytest.raises(SqsError):
            worker.drain()
        place.broker.faults.clear()
        worker.drain()
        case.assert_nothing_done()  # nobody has received it, and it stays hidden until its visibility timeout ends
        place.clock.advance(LEASE + 1)
        worker.drain()
    assert consumer.in_flight.admission.in_use == 0
    case.assert_done_once()


def test_row_0_a_fifo_receive_is_repeated_under_its_own_id_and_gets_the_same_messages(case: Case) -> None:
    place = case.place
    place.queue("orders.fifo")
    place.send({"id": 7}, "orders.fifo")
    worker = case.worker(queue="orders.fifo")
    consumer = worker.consumer("orders.fifo")
    with contextlib.closing(impatient(place)) as client:
        consumer.setup.queue = known(client, "orders.fifo")
        place.broker.faults.set("lost-answer", 1.0)
        with pytest.raises(SqsError):
            consumer.receiver.run_once()
        place.broker.faults.clear()
        assert consumer.receiver.run_once() == 1
        consumer.claimer.run_once()
        worker.drain()
    case.assert_done_once(queue="orders.fifo")


def test_row_1_a_crash_after_the_receive_costs_the_visibility_timeout(case: Case) -> None:
    worker = case.worker(crash_at="after_receive")
    worker.drain()
    assert worker.crashed_at == "after_receive"
    case.assert_nothing_done()
    worker.drain()
    case.assert_nothing_done()
    case.place.clock.advance(LEASE + 1)
    worker.drain()
    case.assert_done_once(fence=1)


@pytest.mark.parametrize("point", ["after_claim", "before_work"])
def test_row_2_the_claim_of_a_dead_worker_is_taken_over_when_its_lease_is_over_and_not_before(
    case: Case, point: str
) -> None:
    place = case.place
    place.broker.faults.set("duplicate", 1.0)  # SQS makes the message visible again at once
    first = case.worker(crash_at=point)
    first.drain()
    assert first.crashed_at == point
    place.broker.faults.clear()
    second = case.worker()
    second.drain()
    case.assert_nothing_done()
    assert LEASE <= place.hidden_for() <= LEASE + 2  # the rest of the lease, and jitter
    place.clock.advance(LEASE + 2)
    second.drain()
    case.assert_done_once(fence=2)


def test_row_3_half_of_an_external_effect_is_done_again_under_the_same_key_and_half_a_transaction_never_was(
    case: Case,
) -> None:
    def die(_ctx: Context) -> None:
        raise Crash

    case.worker(after=die).drain()
    assert case.effects.all() == ([] if case.transactional else [("7", 1)])
    case.place.clock.advance(LEASE + 1)
    case.worker().drain()
    assert case.effects.all() == ([("7", 2)] if case.transactional else [("7", 1), ("7", 2)])
    case.assert_recorded(fence=2)


def test_row_4_a_crash_between_the_work_and_its_record_repeats_the_work_or_undoes_it(case: Case) -> None:
    # In transaction mode both are one commit, so the last point before it is tested.
    worker = case.worker(crash_at="before_commit" if case.transactional else "after_work")
    worker.drain()
    assert worker.crashed_at is not None
    assert case.place.known("7").status is Status.CLAIMED
    assert len(case.place.messages()) == 1
    case.place.clock.advance(LEASE + 1)
    worker.drain()
    assert case.effects.all() == ([("7", 2)] if case.transactional else [("7", 1), ("7", 2)])
    case.assert_recorded(fence=2)


@pytest.mark.parametrize("point", ["after_record", "before_delete", "after_delete"])
def test_row_5_what_is_recorded_is_not_done_again_and_the_next_delivery_deletes_it(case: Case, point: str) -> None:
    worker = case.worker(crash_at=point)
    worker.drain()
    assert worker.crashed_at == point
    assert case.effects.all() == [("7", 1)]
    assert case.place.known("7").status is Status.DONE
    assert case.place.is_empty() == (point == "after_delete")
    case.place.clock.advance(LEASE + 1)
    assert worker.drain() == 0
    case.assert_done_once()


def test_row_6_a_lost_delete_is_made_up_for_by_the_next_delivery(case: Case) -> None:
    place, worker = case.place, case.worker()
    place.broker.faults.set("lost-delete", 1.0)
    assert worker.drain() == 1
    assert len(place.messages()) == 1
    place.clock.advance(LEASE + 1)
    place.broker.faults.clear()
    assert worker.drain() == 0
    assert worker.consumer("orders").metrics.duplicates_deleted.count == 1
    case.assert_done_once()


def test_row_6_a_delete_with_an_old_handle_is_made_up_for_by_whoever_has_the_fresh_one(case: Case) -> None:
    place, other = case.place, case.worker()

    def meanwhile(_ctx: Context) -> None:
        other.drain()  # receives the message too, finds it claimed, and returns it: now it has the newer handle

    place.broker.faults.set("duplicate", 1.0)
    first = case.worker(before=meanwhile)
    consumer = take(first)
    place.broker.faults.clear()
    first.worker.work(consumer)
    first.worker.finish(consumer)
    assert case.effects.all() == [("7", 1)]
    place.clock.advance(LEASE + 2)
    other.drain()
    case.assert_done_once()


def test_row_6_a_fifo_delete_with_an_expired_handle_is_an_error_that_the_next_delivery_makes_up_for(case: Case) -> None:
    place = case.place
    place.queue("orders.fifo")
    place.send({"id": 7}, "orders.fifo")
    worker = case.worker(queue="orders.fifo", after=lambda _ctx: place.clock.advance(LEASE + 1))
    consumer = take(worker, "orders.fifo")
    worker.worker.work(consumer)
    assert consumer.metrics.delete_failed.count == 1
    assert len(place.messages("orders.fifo")) == 1
    worker.drain()
    case.assert_done_once(queue="orders.fifo")


def test_row_7a_a_heartbeat_that_fails_for_a_moment_is_made_up_for_and_nothing_is_lost(case: Case) -> None:
    place = case.place

    def work_long(ctx: Context) -> None:
        place.broker.faults.set("server-error", 1.0)
        place.clock.advance(LEASE / 3)
        worker.worker.beat()
        assert worker.consumer("orders").metrics.heartbeat_failed.count == 1
        place.broker.faults.clear()
        place.clock.advance(LEASE / 3)
        worker.worker.beat()
        assert not ctx.lost.is_set()
        place.clock.advance(LEASE * 0.9)  # past the ends of the first visibility timeout and the first lease
        case.worker().drain()

    worker = case.worker(before=work_long)
    worker.drain()
    case.assert_done_once()


def test_row_7a_if_sqs_confirms_no_heartbeat_until_the_visibility_ends_the_work_goes_on_and_its_lease_keeps_others_off(
    case: Case,
) -> None:
    place = case.place

    def work_long(ctx: Context) -> None:
        place.broker.faults.set("server-error", 1.0)
        for _ in range(8):
            place.clock.advance(LEASE / 3)
            worker.worker.beat()
        assert not ctx.lost.is_set()
        place.broker.faults.clear()
        case.worker().drain()  # by now, SQS delivers it to others

    worker = case.worker(before=work_long)
    worker.drain()
    assert worker.consumer("orders").metrics.heartbeat_lost.count == 1
    place.clock.advance(LEASE + 2)
    case.worker().drain()
    case.assert_done_once(fence=1)


def test_row_7a_if_the_ledger_confirms_no_heartbeat_until_the_lease_ends_the_work_counts_unless_another_took_over(
    case: Case,
) -> None:
    place = case.place

    def work_long(ctx: Context) -> None:
        with case.store.outage():
            for _ in range(4):
                place.clock.advance(LEASE / 3)
                worker.worker.beat()
        assert ctx.lost.is_set()

    worker = case.worker(ledger=case.ledger(impatient=True), before=work_long)
    worker.drain()
    place.clock.advance(LEASE + 2)
    case.worker().drain()
    case.assert_done_once(fence=1)


def test_row_7b_work_whose_handle_has_become_invalid_goes_on_and_its_lease_keeps_others_off(case: Case) -> None:
    # On a FIFO queue, SQS refuses a handle whose message is visible again. On a Standard queue it accepts the call and
    # does nothing, and only the fence decides.
    place = case.place
    place.queue("orders.fifo")
    place.send({"id": 7}, "orders.fifo")
    losses: list[bool] = []

    def work_while_it_is_taken_away(ctx: Context) -> None:
        place.client.queue("orders.fifo").change_visibility([(ctx.message.receipt, 0)])
        for _ in range(8):
            place.clock.advance(LEASE / 3)
            worker.worker.beat()
        losses.append(ctx.lost.is_set())
        case.worker(queue="orders.fifo").drain()

    worker = case.worker(queue="orders.fifo", before=work_while_it_is_taken_away)
    worker.drain()
    assert losses == [False]
    assert worker.consumer("orders.fifo").metrics.heartbeat_lost.count == 1
    place.clock.advance(LEASE + 2)
    case.worker(queue="orders.fifo").drain()
    case.assert_done_once(fence=1, queue="orders.fifo")


@pytest.mark.parametrize("ends", ["by returning", "by raising"])
def test_row_8_a_zombie_that_wakes_after_the_takeover_changes_nothing(case: Case, ends: str) -> None:
    place, successor = case.place, case.worker(ledger=case.ledger())

    def sleep_through_the_lease(_ctx: Context) -> None:
        place.clock.advance(LEASE + 1)
        assert successor.drain() == 1

    def end(_ctx: Context) -> None:
        if ends == "by raising":
            raise ValueError("too late")

    zombie = case.worker(before=sleep_through_the_lease, after=end)
    consumer = take(zombie)
    zombie.worker.work(consumer)
    zombie.worker.finish(consumer)
    assert consumer.metrics.completed.count == 0
    assert consumer.in_flight.admission.in_use == 0
    assert case.effects.all() == ([("7", 2)] if case.transactional else [("7", 2), ("7", 1)])
    case.assert_recorded(fence=2)


def test_row_8_a_zombie_takes_nothing_away_from_a_successor_that_is_not_done_yet(case: Case) -> None:
    place, successor = case.place, case.worker(ledger=case.ledger(), crash_at="before_work")

    def sleep_through_the_lease(_ctx: Context) -> None:
        place.clock.advance(LEASE + 1)
        successor.drain()  # wins the claim, and dies with it

    zombie = case.worker(before=sleep_through_the_lease)
    consumer = take(zombie)
    zombie.worker.work(consumer)
    zombie.worker.finish(consumer)
    assert consumer.metrics.deleted.count == 0
    assert len(place.messages()) == 1
    assert (place.known("7").status, place.known("7").fence) == (Status.CLAIMED, 2)
    place.clock.advance(LEASE + 1)
    case.worker().drain()
    assert case.effects.all() == ([("7", 3)] if case.transactional else [("7", 1), ("7", 3)])
    case.assert_recorded(fence=3)


def test_row_9_of_two_copies_one_runs_and_the_other_waits_for_the_rest_of_the_lease(case: Case) -> None:
    place, second = case.place, case.worker()

    def meanwhile(_ctx: Context) -> None:
        place.clock.advance(10)
        second.drain()
        assert second.consumer("orders").metrics.claimed_elsewhere.count == 1
        assert LEASE - 10 <= place.hidden_for() <= LEASE - 10 + 2

    first = case.worker(before=meanwhile)
    place.broker.faults.set("duplicate", 1.0)
    consumer = take(first)
    place.broker.faults.clear()
    first.worker.work(consumer)
    first.worker.finish(consumer)
    place.clock.advance(LEASE)
    second.drain()
    case.assert_done_once()


def test_row_10_a_message_that_was_sent_twice_runs_once(case: Case) -> None:
    place, worker = case.place, case.worker()
    place.send({"id": 7})  # it comes in one receive with the first copy
    worker.drain()
    assert case.effects.all() == [("7", 1)]
    place.clock.advance(LEASE + 2)
    worker.drain()
    case.assert_done_once()
    place.send({"id": 7})  # this copy comes when the key is done
    worker.drain()
    case.assert_done_once()


def test_row_11_a_redriven_dead_letter_runs_once_more_under_its_first_key(case: Case) -> None:
    place = case.place
    (message,) = place.messages()
    first_id, keys, ready = message["MessageId"], list[str](), list[bool]()

    def refuse_at_first(ctx: Context) -> None:
        keys.append(ctx.key)
        if not ready:
            raise Reject("no such country")

    worker = case.worker(key=None, before=refuse_at_first)
    worker.drain()
    assert case.effects.all() == []
    assert place.known(first_id).status is Status.REJECTED
    assert place.is_empty()
    assert len(place.messages("dead")) == 1
    ready.append(True)
    place.redrive("dead")
    (back,) = place.messages()
    assert back["MessageId"] != first_id
    worker.drain()
    assert keys == [first_id, first_id]
    case.assert_done_once(first_id, fence=2)
    assert place.is_empty("dead")


def test_row_11_what_was_done_before_sqs_made_it_a_dead_letter_is_not_done_again_after_the_redrive(case: Case) -> None:
    place, worker = case.place, case.worker()
    place.queue("parcels", dlq="dead-parcels", receives=1)
    place.send({"id": 7}, "parcels")
    worker = case.worker(queue="parcels")
    place.broker.faults.set("lost-delete", 1.0)
    worker.drain()
    place.clock.advance(LEASE + 1)
    worker.drain()  # SQS moves it at this receive
    place.broker.faults.clear()
    assert len(place.messages("dead-parcels")) == 1
    place.redrive("dead-parcels", "parcels")
    assert len(place.messages("parcels")) == 1
    worker.drain()
    case.assert_done_once(queue="parcels")


def test_row_12_while_the_ledger_is_down_nothing_runs_and_the_message_comes_back(case: Case) -> None:
    place, worker = case.place, case.worker(ledger=case.ledger(impatient=True))
    heard: list[bool] = []
    worker.consumer("orders").reporter.on_ledger_result = heard.append
    with case.store.outage():
        take(worker)
        worker.worker.finish(worker.consumer("orders"))
    assert heard == [False]  # for the circuit breaker, which pauses polling
    case.assert_nothing_done()
    assert 0 < place.hidden_for() <= 2
    place.clock.advance(2)
    worker.drain()
    case.assert_done_once(fence=1)


def test_row_12_a_ledger_that_goes_down_during_the_work_loses_nothing_and_doubles_nothing(case: Case) -> None:
    place = case.place
    with contextlib.ExitStack() as outage:
        # In transaction mode before the first statement, in lease mode before the record.
        hook: dict[str, Any] = {
            "before" if case.transactional else "after": lambda _ctx: outage.enter_context(case.store.outage())
        }
        worker = case.worker(ledger=case.ledger(impatient=True), **hook)
        consumer = take(worker)
        worker.worker.work(consumer)
    assert len(place.messages()) == 1
    if not case.transactional:
        worker.worker.finish(consumer)  # the record succeeds, because the claim is still ours
        case.assert_done_once(fence=1)
        return
    case.assert_nothing_done()
    place.clock.advance(LEASE + 1)
    case.worker().drain()
    case.assert_done_once(fence=2)


def test_row_13_an_unheard_commit_is_looked_up_and_not_made_again(case: Case) -> None:
    ledger = case.ledger()
    if case.transactional:
        lose_the_answer_to_a_commit(ledger, carried_out=True)
    else:
        lose_the_answer_to_a_record(ledger)
    worker = case.worker(ledger=ledger)
    worker.drain()
    worker.drain()
    case.assert_done_once(fence=1)


@pytest.mark.parametrize("case", tiered(TRANSACTIONS), indirect=True)
def test_row_13_a_commit_that_did_not_happen_after_all_is_made_by_the_next_attempt(case: Case) -> None:
    ledger = case.ledger()
    lose_the_answer_to_a_commit(ledger, carried_out=False)
    worker = case.worker(ledger=ledger)
    take(worker)
    worker.worker.work(worker.consumer("orders"))
    case.assert_nothing_done()
    case.place.clock.advance(2)
    worker.drain()
    case.assert_done_once(fence=2)


WRITES: Final = {
    ("postgres", "transaction"): b"COMMIT",
    ("dynamodb", "transaction"): b"TransactWriteItems",
    ("dynamodb", "lease"): b"UpdateItem",
}


@pytest.mark.parametrize("case", tiered(WRITES), indirect=True)
def test_row_13_a_connection_that_breaks_over_the_answer_leaves_one_effect(case: Case) -> None:
    pattern = WRITES[case.store.name, case.mode]
    assert case.store.port is not None
    with lossy(case.store.port) as wire:
        worker = case.worker(ledger=case.ledger(via=wire.port), after=lambda _ctx: wire.lose(pattern))
        worker.drain()
        worker.drain()
        assert wire.lost == 1
        case.close()
    case.assert_done_once(fence=1)


def test_row_14_a_duplicate_that_comes_after_all_of_its_retention_is_still_known(case: Case) -> None:
    place, worker = case.place, case.worker()
    place.broker.faults.set("lost-delete", 1.0)
    worker.drain()
    place.broker.faults.clear()
    place.clock.advance(14 * DAY - 60)  # the last minute of the source's retention
    assert place.ledger.purge() == 0
    assert worker.drain() == 0
    case.assert_done_once()
    place.clock.advance(14 * DAY - 60)  # and after the same time again, as in a dead-letter queue
    assert place.ledger.purge() == 0
    place.send({"id": 7})
    assert worker.drain() == 0
    case.assert_done_once()


def test_every_crash_point_loses_nothing(case: Case) -> None:
    """All points in one sweep: with ten messages, a worker dies at each point in turn. In the end all effects exist."""
    place = case.place
    for n in range(100, 109):
        place.send({"id": n})
    points = ["after_receive", "after_claim", "before_work", "after_work", "before_commit", "after_record"]
    worker: Driver = case.worker()
    for point in [*points, "before_delete", "after_delete"]:
        worker.crash_at(point)
        worker.drain()
        place.clock.advance(LEASE + 2)
    worker.crash_at(None)
    worker.drain()
    keys = [key for key, _ in case.effects.all()]
    assert set(keys) == {"7", *map(str, range(100, 109))}
    if case.transactional:
        assert len(keys) == 10
    assert place.is_empty()
