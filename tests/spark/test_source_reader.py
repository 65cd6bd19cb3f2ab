"""One task of a batch: it seals before it deletes, one attempt wins, and no message is given out twice."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

from semel.ledger.contract import ClaimRequest, Completion, Ledger, LedgerError, Won
from semel.messages import dead_letter_attributes
from semel.spark.segments.codec import Meta, SegmentDamaged
from semel.spark.segments.model import Committed, SegmentId
from semel.spark.segments.segment_log import BatchAlreadyCommitted, LogError, OtherQuery, SegmentLog
from semel.spark.segments.storage import LocalStore
from semel.spark.source.columns import SEALED_COLUMNS
from semel.spark.source.reader import Assignment
from semel.spark.source.receiver import Arrival, Receiver
from semel.sqs.errors import Unreachable
from spark.intake import BY_HAND, Intake, bodies, down, intake

ORDERS = "us-east-1:000000000000:orders/"  # what precedes its keys in the ledger
ASSIGNMENT = Assignment(1, 0, "orders", rows=1_000, bytes=1 << 30, plan=BY_HAND)


def test_what_a_task_received_is_sealed_deleted_and_given_out(place: Intake) -> None:
    place.send(*map(str, range(25)))
    assert sorted(place.run(ASSIGNMENT), key=int) == [str(n) for n in range(25)]
    assert place.waiting() == (0, 0)
    ack = place.ack()
    assert ack is not None
    assert (ack.rows, ack.received, dict(ack.unconfirmed)) == (25, 25, {})


def test_a_task_that_runs_again_gives_out_the_same_and_receives_nothing(place: Intake) -> None:
    place.send("a", "b")
    first = place.run(ASSIGNMENT)
    place.send("c")
    assert place.run(ASSIGNMENT) == first
    assert place.waiting() == (1, 0)


def test_an_empty_receive_is_sealed_too(place: Intake) -> None:
    assert place.run(ASSIGNMENT) == []
    place.send("late")
    assert place.run(ASSIGNMENT) == []
    assert place.waiting() == (1, 0)


def test_a_task_takes_no_more_than_it_was_told(place: Intake) -> None:
    place.send(*map(str, range(30)))
    assert len(place.run(replace(ASSIGNMENT, rows=12))) == 12
    assert place.waiting() == (18, 0)


def test_a_task_stops_receiving_when_it_has_enough_bytes(place: Intake) -> None:
    place.send(*["x" * 1_000] * 40)
    assert len(place.run(replace(ASSIGNMENT, bytes=5_000))) < 40


def test_a_twin_gives_out_the_winners_rows_and_gives_its_own_back(place: Intake) -> None:
    place.send(*map(str, range(20)))
    twin = place.task(replace(ASSIGNMENT, rows=10))
    other = place.task(replace(ASSIGNMENT, rows=10))
    seal = twin.log.seal

    def sealed_second(*arguments: object) -> object:
        rows.extend(body for table in other.tables() for body in bodies(table))
        return seal(*arguments)  # type: ignore[arg-type]

    rows: list[str] = []
    twin.log.seal = sealed_second  # type: ignore[method-assign,assignment]
    assert [body for table in twin.tables() for body in bodies(table)] == rows
    assert len(rows) == 10
    assert place.waiting() == (10, 0)


def test_a_zombie_of_a_finished_batch_gives_its_messages_back(place: Intake) -> None:
    place.send("a")
    place.log.finish(Committed(1), None, place.log.files(1).names)
    with pytest.raises(BatchAlreadyCommitted, match="batch 1"):
        place.run(ASSIGNMENT)
    assert place.waiting() == (1, 0)
    assert place.log.read(SegmentId(1, 0, 0)) is None


def test_what_a_zombie_has_sealed_of_a_finished_batch_is_not_deleted_from_the_queue(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: the zombie dies between its seal and its look at the commits, and another attempt finds
    the segment. It belongs to no batch and is dropped later, so its messages must stay in the queue."""
    place.send("a")
    zombie = place.task(ASSIGNMENT)

    def die(_log: SegmentLog) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SegmentLog, "through", die)
        with pytest.raises(KeyboardInterrupt):
            list(zombie.tables())
    assert place.log.read(SegmentId(1, 0, 0)) is not None
    assert place.log.finish(Committed(1), None, ()), "another driver, which dies before it drops the files"
    with pytest.raises(BatchAlreadyCommitted, match="batch 1"):
        place.run(ASSIGNMENT)
    assert sum(place.waiting()) == 1


def test_with_ack_committed_a_twin_deletes_nothing_of_what_the_winner_has_sealed(place: Intake) -> None:
    """Found by the simulation: the twin stood still until its messages were visible again, and the winner got them."""
    place = place.with_options(ack="committed")
    place.send("a")
    twin = place.task(ASSIGNMENT)
    seal = twin.log.seal

    def sealed_second(*arguments: object) -> object:
        place.clock.advance(place.options.visibility + 1)
        assert place.run(ASSIGNMENT) == ["a"]
        return seal(*arguments)  # type: ignore[arg-type]

    twin.log.seal = sealed_second  # type: ignore[method-assign,assignment]
    assert [body for table in twin.tables() for body in bodies(table)] == ["a"]
    assert place.waiting() == (0, 1)


@pytest.mark.parametrize("other_plan", [False, True])
def test_a_task_whose_log_was_replaced_meanwhile_deletes_nothing(place: Intake, other_plan: bool) -> None:
    """Found by the simulation: an older copy of the log was restored while a task was receiving. No driver of that log
    knows of the task's segment."""
    place.send("a")
    task, late = place.task(ASSIGNMENT), place.task(ASSIGNMENT)
    seal = task.log.seal

    def sealed_in_another_log(*arguments: object) -> object:
        place.store.delete(place.log.files(1).names)
        if other_plan:
            place.log.seal_plan({"log": "", "id": "other", "batch": 1, "plan": {"orders": 1}})
        return seal(*arguments)  # type: ignore[arg-type]

    task.log.seal = sealed_in_another_log  # type: ignore[method-assign,assignment]
    with pytest.raises(LogError, match="does not see the segment log of its driver"):
        list(task.tables())
    assert place.waiting() == (0, 1)
    with pytest.raises(LogError, match="does not see the segment log of its driver"):
        late._acknowledge_replayed(place.log.read(SegmentId(1, 0, 0)))  # type: ignore[arg-type]
    assert place.waiting() == (0, 1)


def test_a_task_of_a_query_whose_log_a_reset_has_taken_deletes_nothing(place: Intake) -> None:
    """Found by the simulation: the table had the batch, an older copy of the log was restored, and a late task of the
    former query sealed under a name that was free again, while a reset was about to end the batch."""
    place = place.with_options(owner="former")
    place.send("a")
    task, late = place.task(ASSIGNMENT), place.task(ASSIGNMENT)
    seal = task.log.seal

    def sealed_after_the_reset_began(*arguments: object) -> object:
        place.log.hand_over("next")
        return seal(*arguments)  # type: ignore[arg-type]

    task.log.seal = sealed_after_the_reset_began  # type: ignore[method-assign,assignment]
    with pytest.raises(OtherQuery, match=r"belongs to another query \(next\).* deletes nothing from the queue"):
        list(task.tables())
    with pytest.raises(OtherQuery):
        late._acknowledge_replayed(place.log.read(SegmentId(1, 0, 0)))  # type: ignore[arg-type]
    assert place.waiting() == (0, 1)
    place.clock.advance(place.options.visibility + 1)
    assert place.with_options(owner="next").run(ASSIGNMENT) == ["a"]  # the batch goes on with what is sealed
    assert place.waiting() == (0, 0)


def test_what_is_sealed_by_no_task_of_the_batch_is_received_again_and_not_taken_for_a_duplicate(place: Intake) -> None:
    """Found by the simulation: of such a task's messages nothing is deleted, as no driver knows its segment."""
    place.send("a")
    stray = place.task(replace(ASSIGNMENT, task=2))
    stray._acknowledge = lambda sealed, *_: sealed  # type: ignore[method-assign]
    assert [body for table in stray.tables() for body in bodies(table)] == ["a"]
    place.clock.advance(place.options.visibility + 1)
    assert place.run(ASSIGNMENT) == ["a"]
    assert place.waiting() == (0, 0)


def test_a_damaged_segment_stops_the_batch(place: Intake, tmp_path: Path) -> None:
    place.send("a", "b")
    place.run(ASSIGNMENT)
    file = tmp_path / "log" / SegmentId(1, 0, 0).name
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        place.run(ASSIGNMENT)


def test_an_ack_without_its_segment_is_damage_and_no_other_messages_are_received_in_its_place(
    place: Intake, tmp_path: Path
) -> None:
    place.send("a")
    assert place.run(ASSIGNMENT) == ["a"]
    (tmp_path / "log" / SegmentId(1, 0, 0).name).unlink()
    place.send("b")
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        place.run(ASSIGNMENT)
    assert place.waiting() == (1, 0)


def test_a_segment_that_is_gone_is_damage_also_if_a_late_attempt_has_sealed_its_name_meanwhile(
    place: Intake, tmp_path: Path
) -> None:
    """It had looked before the other one sealed, and stood still since."""
    place.send("a")
    zombie = place.task(ASSIGNMENT)
    assert place.run(ASSIGNMENT) == ["a"]
    (tmp_path / "log" / SegmentId(1, 0, 0).name).unlink()
    place.send("b")
    zombie._sealed = lambda segment_id: None  # type: ignore[method-assign]
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        list(zombie.tables())
    assert place.waiting() == (0, 1), "nothing is deleted"
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        place.run(ASSIGNMENT)
    assert place.waiting() == (0, 1)


def test_a_task_whose_segment_is_gone_right_after_its_seal_deletes_nothing(place: Intake, tmp_path: Path) -> None:
    """Somebody has put an older copy of the log in its place."""
    place.send("a")
    task = place.task(ASSIGNMENT)
    check = task._check_log

    def check_log() -> None:
        (tmp_path / "log" / SegmentId(1, 0, 0).name).unlink(missing_ok=True)
        check()

    task._check_log = check_log  # type: ignore[method-assign]
    with pytest.raises(LogError, match="is not there any more"):
        list(task.tables())
    assert place.waiting() == (0, 1)


def test_a_segment_that_is_replaced_after_a_late_attempt_has_looked_is_damage(place: Intake, tmp_path: Path) -> None:
    place.send("a")
    zombie = place.task(ASSIGNMENT)
    assert place.run(ASSIGNMENT) == ["a"]
    (tmp_path / "log" / SegmentId(1, 0, 0).name).unlink()
    place.send("b")
    zombie._sealed = lambda segment_id: None  # type: ignore[method-assign]
    zombie._check_not_replaced = lambda sealed: None  # type: ignore[method-assign]
    assert [body for table in zombie.tables() for body in bodies(table)] == ["b"]
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        place.log.content(1)
    planner = place.planner()
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        planner.committed({**planner.initial(), "batch": 1, "id": BY_HAND})
    assert place.log.committed().through == 0


def test_a_first_part_that_is_gone_is_damage_also_if_only_a_later_one_tells_of_it(tmp_path: Path) -> None:
    with intake(tmp_path / "log", "orders.fifo") as place:
        assignment = replace(ASSIGNMENT, queue="orders.fifo")
        place.send(*map(str, range(25)), group="g")
        place.run(assignment)
        place.store.delete(name for name in place.log.files(1).names if "p00000" in name)
        with pytest.raises(SegmentDamaged, match="t0000-p00000"):
            place.run(assignment)


def test_an_executor_that_does_not_see_the_drivers_log_receives_nothing(place: Intake, tmp_path: Path) -> None:
    place.send("a")
    place.task(ASSIGNMENT)  # its driver has sealed the plan
    elsewhere = replace(place, store=LocalStore(str(tmp_path / "a disk of its own")))
    for there in (elsewhere, replace(elsewhere, store=LocalStore(str(tmp_path / "with a log of its own")))):
        task = there.task(replace(ASSIGNMENT, plan="the driver's"))
        with pytest.raises(LogError, match="does not see the segment log of its driver"):
            list(task.tables())
        there.log.create(place.options.queues)
    assert place.waiting() == (1, 0)


def test_a_retried_task_does_not_take_what_a_sibling_has_sealed_in_the_same_run(place: Intake) -> None:
    place.send("a", "b")
    first, other = ASSIGNMENT, replace(ASSIGNMENT, task=1)
    dead = place.task(first)
    dead._acknowledger.acknowledge = _dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):  # the executor dies between seal and delete
        list(dead.tables())
    place.clock.advance(place.options.visibility + 1)
    assert place.run(other) == []
    assert sorted(place.run(first)) == ["a", "b"]


def test_fifo_a_retried_task_does_not_take_what_it_has_sealed_itself(tmp_path: Path) -> None:
    with intake(tmp_path / "log", "orders.fifo") as place:
        place.send(*map(str, range(5)), group="g")
        assignment = replace(ASSIGNMENT, queue="orders.fifo")
        dead = place.task(assignment)
        dead._acknowledger.acknowledge = _dies  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            list(dead.tables())
        place.clock.advance(place.options.visibility + 1)
        assert place.run(assignment) == [str(n) for n in range(5)]


def _dies(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_message_that_is_about_to_be_visible_again_is_not_sealed(place: Intake) -> None:
    place.send("slow")
    task = place.task(ASSIGNMENT)
    receive = task.queue.receive

    def slow(*arguments: object, **named: object) -> object:
        messages = receive(*arguments, **named)  # type: ignore[arg-type]
        place.clock.advance(place.options.visibility - place.options.margin + 1)
        return messages

    task.queue.receive = slow  # type: ignore[method-assign,assignment]
    assert [body for table in task.tables() for body in bodies(table)] == []
    del task.queue.receive
    place.clock.advance(60)
    assert place.waiting() == (1, 0)


def test_a_message_is_not_sealed_if_its_claim_in_the_ledger_took_too_long(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        address = f"sqlite:///{tmp_path}/ledger.db"
        place = plain.with_options(dedup="ledger", ledger=address, key="$.id")
        place.send('{"id": 1}')
        task = place.task(ASSIGNMENT)
        claim = task._claims.claim

        def slow(*arguments: object) -> object:
            claimed = claim(*arguments)  # type: ignore[arg-type]
            place.clock.advance(place.options.visibility - place.options.margin + 1)
            return claimed

        task._claims.claim = slow  # type: ignore[method-assign,assignment]
        assert [body for table in task.tables() for body in bodies(table)] == []
        assert place.waiting() == (1, 0)  # it is another's at once, and so is its key
        assert place.run(replace(ASSIGNMENT, batch=2)) == ['{"id": 1}']


def test_a_segment_whose_deletes_failed_leaves_unconfirmed_deletes(place: Intake) -> None:
    place.send("a")
    task = place.task(ASSIGNMENT)
    task.queue.delete = down  # type: ignore[method-assign]
    assert [body for table in task.tables() for body in bodies(table)] == ["a"]
    del task.queue.delete
    ack = place.ack()
    assert ack is not None
    assert len(ack.unconfirmed) == 1


def test_a_delete_after_the_visibility_ended_is_not_believed(place: Intake) -> None:
    place.send("a")
    task = place.task(ASSIGNMENT)
    delete = task.queue.delete

    def late(receipts: list[str]) -> object:
        place.clock.advance(place.options.visibility + 1)
        return delete(receipts)

    task.queue.delete = late  # type: ignore[method-assign,assignment]
    assert [body for table in task.tables() for body in bodies(table)] == ["a"]
    del task.queue.delete
    ack = place.ack()
    assert ack is not None
    assert len(ack.unconfirmed) == 1


def test_messages_received_before_a_call_failed_are_not_lost(place: Intake) -> None:
    place.send(*map(str, range(10)))
    task = place.task(ASSIGNMENT)
    receive, calls = task.queue.receive, [0]

    def once(*arguments: object, **named: object) -> object:
        calls[0] += 1
        if calls[0] > 1:
            raise Unreachable("down")
        return receive(*arguments, **named)  # type: ignore[arg-type]

    task.queue.receive = once  # type: ignore[method-assign,assignment]
    rows = [body for table in task.tables() for body in bodies(table)]
    del task.queue.receive
    assert len(rows) + place.waiting()[0] == 10
    assert rows


def test_one_message_delivered_twice_to_a_task_is_one_row(place: Intake) -> None:
    place.send("a", "b")
    place.broker.faults.set("duplicate", 1.0)
    task = place.task(replace(ASSIGNMENT, rows=40))
    rows = [body for table in task.tables() for body in bodies(table)]
    assert sorted(rows) == ["a", "b"]
    ack = place.ack()
    assert ack is not None
    assert ack.duplicates > 0


def test_fifo_a_group_goes_on_within_the_batch_and_in_order(tmp_path: Path) -> None:
    with intake(tmp_path / "log", "orders.fifo") as place:
        for number in range(35):
            place.send(f"{number}", group="g")
        assert place.run(replace(ASSIGNMENT, queue="orders.fifo")) == [str(n) for n in range(35)]
        assert place.waiting() == (0, 0)
        assert len(place.log.files(1).sealed) >= 4  # no more than ten of a group are in flight at once


def test_fifo_a_replay_gives_out_all_parts(tmp_path: Path) -> None:
    with intake(tmp_path / "log", "orders.fifo") as place:
        place.send(*map(str, range(25)), group="g")
        assignment = replace(ASSIGNMENT, queue="orders.fifo")
        assert place.run(assignment) == place.run(assignment)


def test_a_ledger_keeps_out_what_a_handler_has_done(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        address = f"sqlite:///{tmp_path}/ledger.db"
        place = plain.with_options(dedup="ledger", ledger=address, key="$.id")
        with Ledger.connect(address) as ledger:
            won, held = ledger.claim(
                [ClaimRequest(ORDERS + "1"), ClaimRequest(ORDERS + "2")], claimant="handler", lease=600
            )
            assert isinstance(won, Won)
            assert isinstance(held, Won)
            ledger.record([Completion(won.claim)])
            place.send('{"id": 1}', '{"id": 2}', '{"id": 3}', '{"id": 3, "again": true}')
            assert [body[:8] for body in place.run(ASSIGNMENT)] == ['{"id": 3']
            assert place.waiting() == (0, 1)  # the one that the handler holds comes back when its lease ends
            assert [entry.status if entry else None for entry in ledger.get([ORDERS + "3"])] == ["done"]


def test_a_dead_letter_that_was_sent_back_counts_under_the_message_id_that_it_had(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        address = f"sqlite:///{tmp_path}/ledger.db"
        place = plain.with_options(dedup="ledger", ledger=address)
        with Ledger.connect(address) as ledger:
            (won,) = ledger.claim([ClaimRequest(ORDERS + "its-first-id")], claimant="handler", lease=600)
            assert isinstance(won, Won)
            ledger.record([Completion(won.claim)])
            place.queue.send("sent back", attributes={dead_letter_attributes.MESSAGE_ID: "its-first-id"})
            place.queue.send("never seen", attributes={dead_letter_attributes.MESSAGE_ID: "another-id"})
            assert place.run(ASSIGNMENT) == ["never seen"]
            assert place.waiting() == (0, 0)
            assert [entry.status if entry else None for entry in ledger.get([ORDERS + "another-id"])] == ["done"]


def test_rows_come_again_after_a_crash_although_the_key_is_not_among_the_columns(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        address = f"sqlite:///{tmp_path}/ledger.db"
        place = plain.with_options(dedup="ledger", ledger=address, key="$.id", columns=("message_id", "body"))
        place.send('{"id": 1}', '{"id": 2}')
        task = place.task(ASSIGNMENT)
        task._acknowledger.acknowledge = _dies  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            list(task.tables())
        assert sorted(place.run(ASSIGNMENT)) == ['{"id": 1}', '{"id": 2}']
        with Ledger.connect(address) as ledger:
            assert [entry.status if entry else None for entry in ledger.get([ORDERS + "1", ORDERS + "None"])] == [
                "done",
                None,
            ]


def test_a_claim_that_was_sealed_without_its_key_is_an_error(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        place = plain.with_options(dedup="ledger", ledger=f"sqlite:///{tmp_path}/ledger.db", key="$.id")
        message = {"message_id": "m1", "receipt": "r", "body": "{}", "fence": 1}
        table = pa.Table.from_pylist([message], SEALED_COLUMNS)
        place.log.seal(SegmentId(1, 0, 0), table, Meta(ORDERS.rstrip("/"), "an earlier version", True, 0.0))
        with pytest.raises(LedgerError, match=r"orders: message m1 was sealed .* without its key"):
            place.run(ASSIGNMENT)


def arrivals(place: Intake, count: int) -> list[Arrival]:
    """What somebody else has received for a task."""
    receiver = Receiver(
        place.queue,
        rows=count,
        size=1 << 30,
        until=place.now() + 10,
        visibility=place.options.visibility,
        threads=1,
        first_wait=0,
        clock=place.now,
        monotonic=place.now,
    )
    return receiver.run()


def test_what_the_driver_received_for_a_task_is_sealed_first_and_the_task_goes_on_from_there(place: Intake) -> None:
    place.send(*map(str, range(5)))
    place.task(ASSIGNMENT).seal_first(arrivals(place, 5))
    assert place.waiting() == (0, 5)  # nothing is acknowledged yet
    place.send("later")
    assert sorted(place.run(ASSIGNMENT)) == ["0", "1", "2", "3", "4", "later"]
    assert place.waiting() == (0, 0)
    assert [s.part for s in place.log.files(1).sealed] == [0, 1]
    first, second = (place.log.read_ack(*acked) for acked in sorted(place.log.files(1).acked.items()))
    assert first is not None
    assert second is not None
    assert (first.rows, first.received, second.rows) == (5, 5, 1)


def test_what_was_sealed_first_counts_against_the_rows_of_the_task(place: Intake) -> None:
    place.send(*map(str, range(30)))
    assignment = replace(ASSIGNMENT, rows=12)
    place.task(assignment).seal_first(arrivals(place, 10))
    assert len(place.run(assignment)) == 12
    assert place.waiting() == (18, 0)


def test_what_the_driver_received_returns_to_the_queue_if_the_task_has_sealed_before(place: Intake) -> None:
    place.send("a")
    assert place.run(ASSIGNMENT) == ["a"]
    place.send("b")
    place.task(ASSIGNMENT).seal_first(arrivals(place, 1))
    assert place.waiting() == (1, 0)
    assert place.run(ASSIGNMENT) == ["a"]


def test_so_does_what_loses_the_race_for_the_seal(place: Intake) -> None:
    place.send(*map(str, range(3)))
    task, messages = place.task(ASSIGNMENT), arrivals(place, 1)
    seal = task.log.seal

    def sealed_second(*arguments: object) -> object:
        rows.extend(place.run(ASSIGNMENT))
        return seal(*arguments)  # type: ignore[arg-type]

    rows: list[str] = []
    task.log.seal = sealed_second  # type: ignore[method-assign,assignment]
    task.seal_first(messages)
    assert len(rows) == 2
    assert place.waiting() == (1, 0)


def test_what_is_known_already_is_not_sealed_first_and_the_task_deletes_it(place: Intake) -> None:
    place.send("a")
    dead = place.task(replace(ASSIGNMENT, task=1))
    dead._acknowledger.acknowledge = _dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(dead.tables())
    place.clock.advance(place.options.visibility + 1)
    place.task(ASSIGNMENT).seal_first(arrivals(place, 1))
    assert place.log.read(SegmentId(1, 0, 0)) is None
    assert place.waiting() == (1, 0)
    assert place.run(ASSIGNMENT) == []
    assert place.waiting() == (0, 0)


def test_with_a_ledger_what_was_sealed_first_is_recorded_by_the_task(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        address = f"sqlite:///{tmp_path}/ledger.db"
        place = plain.with_options(dedup="ledger", ledger=address, key="$.id")
        place.send('{"id": 1}', '{"id": 1, "again": true}')
        place.task(ASSIGNMENT).seal_first(arrivals(place, 2))
        assert place.waiting() == (1, 1)  # the second one of a key returns
        assert len(place.run(ASSIGNMENT)) == 1
        assert place.waiting() == (0, 0)
        with Ledger.connect(address) as ledger:
            assert [entry.status if entry else None for entry in ledger.get([ORDERS + "1"])] == ["done"]


def test_fifo_a_group_that_was_sealed_first_goes_on_in_order(tmp_path: Path) -> None:
    with intake(tmp_path / "log", "orders.fifo") as place:
        place.send(*map(str, range(25)), group="g")
        assignment = replace(ASSIGNMENT, queue="orders.fifo")
        place.task(assignment).seal_first(arrivals(place, 10))
        assert place.run(assignment) == [str(n) for n in range(25)]
        assert place.waiting() == (0, 0)


def test_an_unexpected_error_in_a_receiving_thread_ends_the_task(place: Intake) -> None:
    place.send(*map(str, range(30)))
    task = place.task(ASSIGNMENT)
    receive = task.queue.receive

    calls, received_some = [0], threading.Event()

    def breaks(*arguments: object, **named: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            assert received_some.wait(30)
            raise RuntimeError("a bug")
        calls[0] += 1
        if calls[0] == 2:
            received_some.set()
        return receive(*arguments, **named)  # type: ignore[arg-type]

    task.queue.receive = breaks  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="a bug"):
        list(task.tables())
    del task.queue.receive


def test_the_limit_of_a_task_counts_bytes_and_not_characters(place: Intake) -> None:
    place = place.with_options(threads=1)
    place.send(*["€" * 1_000] * 40)
    assert len(place.run(replace(ASSIGNMENT, bytes=45_000))) == 20


def test_the_parts_of_ten_thousand_tasks_are_known_and_in_order(place: Intake) -> None:
    for task in (10_000, 9_999, 3):
        assert place.run(replace(ASSIGNMENT, task=task)) == []
    files = place.log.files(1)
    assert [segment.task for segment in files.all] == [3, 9_999, 10_000]
    assert set(files.sealed) == set(files.acked)
