"""Deleting sealed messages: unconfirmed deletes are recorded, and a delete that SQS refuses for good is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from semel.broker import running
from semel.spark.source import columns
from semel.spark.source.acknowledger import PAGE, Acknowledger, DeleteRefused
from semel.spark.source.columns import SourceMessage
from semel.spark.source.options import OptionError
from semel.spark.source.planner import Planner
from semel.spark.source.queue_ids import by_id
from semel.spark.source.reader import Assignment
from semel.sqs import Client, Failure
from semel.sqs.errors import AccessDenied, NoCredentials, SqsError, Throttled, Unreachable
from spark.intake import BY_HAND, Intake, bodies, intake

ASSIGNMENT = Assignment(1, 0, "orders", rows=1_000, bytes=1 << 30, plan=BY_HAND)
DENIED = Failure("AccessDenied", "not allowed to do that")


def received(place: Intake, count: int) -> pa.Table:
    place.send(*map(str, range(count)))
    messages = [m for _ in range(count) for m in place.queue.receive(10, 0, visibility=100)]
    assert len(messages) == count
    return columns.table([SourceMessage(m, 0.0, 0.0, None) for m in messages], "orders", ())


def answers(place: Intake, answer: Callable[[list[str]], list[Failure | None]]) -> None:
    place.queue.delete = answer  # type: ignore[method-assign,assignment]


def fails_with(error: SqsError) -> Callable[[list[str]], list[Failure | None]]:
    def delete(_receipts: list[str]) -> list[Failure | None]:
        raise error

    return delete


def test_messages_are_deleted_in_pages_and_none_is_unconfirmed(place: Intake) -> None:
    messages = received(place, PAGE + 5)
    with Acknowledger(place.queue, 3, place.now) as acknowledger:
        pending = acknowledger.acknowledge(messages, place.now() + 100)
        assert pending.unconfirmed() == {}
        assert pending.ids == messages.column("message_id").to_pylist()
    assert place.waiting() == (0, 0)


def test_what_may_pass_is_an_unconfirmed_delete_with_the_time_it_was_sent(place: Intake) -> None:
    messages = received(place, 2)
    first, second = messages.column("message_id").to_pylist()
    sent = {row["message_id"]: int(row["sent_at"].timestamp() * 1_000) for row in messages.to_pylist()}
    with Acknowledger(place.queue, 1, place.now) as acknowledger:
        answers(place, lambda _: [None, Failure("InternalFailure", "again", sender_fault=False)])
        assert acknowledger.acknowledge(messages, place.now() + 100).unconfirmed() == {second: sent[second]}
        answers(place, lambda _: [Failure("ReceiptHandleIsInvalid", "expired"), None])
        assert acknowledger.acknowledge(messages, place.now() + 100).unconfirmed() == {first: sent[first]}
        for error in (Unreachable("down"), Throttled("slow down")):
            answers(place, fails_with(error))
            assert acknowledger.acknowledge(messages, place.now() + 100).unconfirmed() == sent


def test_a_delete_that_was_answered_after_the_visibility_ended_is_unconfirmed(place: Intake) -> None:
    messages = received(place, 1)
    with Acknowledger(place.queue, 1, place.now) as acknowledger:
        assert len(acknowledger.acknowledge(messages, place.now()).unconfirmed()) == 1


@pytest.mark.parametrize("error", [AccessDenied("you may not"), NoCredentials("there are none")])
def test_a_delete_that_is_refused_for_good_is_an_error_that_names_queue_and_permission(
    place: Intake, error: SqsError
) -> None:
    messages = received(place, 1)
    answers(place, fails_with(error))
    with Acknowledger(place.queue, 1, place.now) as acknowledger:
        with pytest.raises(DeleteRefused, match=rf"queue orders: .*{error}.* sqs:DeleteMessage"):
            acknowledger.acknowledge(messages, place.now() + 100).unconfirmed()


def test_so_is_one_of_a_single_entry(place: Intake) -> None:
    messages = received(place, 2)
    answers(place, lambda _: [None, DENIED])
    with Acknowledger(place.queue, 1, place.now) as acknowledger:
        with pytest.raises(DeleteRefused, match="not allowed to do that"):
            acknowledger.acknowledge(messages, place.now() + 100).unconfirmed()


def test_a_queue_that_is_gone_is_an_error_and_the_query_goes_on_once_it_is_there_again(place: Intake) -> None:
    place.send("a")
    delete = place.queue.delete

    def dropped(receipts: list[str]) -> list[Failure | None]:
        place.queue.drop()
        return delete(receipts)

    answers(place, dropped)
    with pytest.raises(DeleteRefused, match="queue orders: SQS refuses to delete messages"):
        place.run(ASSIGNMENT)
    place.clock.advance(61)  # SQS gives a name away again after a minute
    place.queue.client.create_queue("orders")
    answers(place, delete)
    assert place.run(ASSIGNMENT) == ["a"]
    ack = place.ack()
    assert ack is not None
    assert len(ack.unconfirmed) == 1


def test_the_end_of_a_batch_fails_too_if_its_deletes_are_refused(place: Intake) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    delete = place.queue.delete
    answers(place, fails_with(AccessDenied("you may not")))
    with pytest.raises(DeleteRefused, match="sqs:DeleteMessage"):
        planner.latest(end, 100)
    assert late.log.committed().through == 0
    answers(place, delete)
    planner.latest(end, 100)
    planner.stop()
    assert late.waiting() == (0, 0)


def test_an_ack_that_fails_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as place:
        place.send("a")
        task = place.task(ASSIGNMENT)
        tables = task.tables()
        assert bodies(next(tables)) == ["a"]
        task._at_end.callback(fails_with(Unreachable("the disk is full")), [])
        with pytest.raises(Unreachable, match="the disk is full"):
            list(tables)
        assert place.ack() is not None
        assert task._acknowledger._pool is None


def test_one_queue_under_two_names_is_refused(place: Intake) -> None:
    twice = {"orders": place.queue, place.queue.url: place.queue.client.queue(place.queue.url)}
    with pytest.raises(OptionError, match="names one queue twice: orders and http"):
        by_id(twice)
    planner = Planner(replace(place.options, queues=tuple(twice)), place.log, twice)
    with pytest.raises(OptionError, match="names one queue twice"):
        planner.latest(planner.initial(), 100)


def test_queues_of_two_accounts_with_one_name_are_two_queues(place: Intake) -> None:
    """What was received from one of them is deleted from that one, at the end of the batch as in its tasks."""
    with running(account="111111111111") as broker, Client(broker.url, region="us-east-1") as client:
        other = replace(place, queue=client.create_queue("orders"))
        place.send("ours")
        other.send("theirs")
        queues = {"orders": place.queue, other.queue.url: other.queue}
        end = None
        for ack in ("sealed", "committed"):
            options = replace(place.options, queues=tuple(queues), ack=ack)
            planner = Planner(options, place.log, queues, clock=place.now)
            start = end or planner.initial()
            end = planner.latest(start, 100)
            labels = set()
            for assignment in planner.assignments(start, end):
                for table in replace(place, queue=queues[assignment.queue], options=options).task(assignment).tables():
                    labels |= set(table.column("queue").to_pylist())
            assert labels == {place.queue.url, other.queue.url}  # else one key of both would be one message
            planner.latest(end, 100)
            planner.stop()
            assert place.waiting() == other.waiting() == (0, 0)
            assert place.log.unconfirmed_deletes() == {}
            place.send("ours again")
            other.send("theirs again")
