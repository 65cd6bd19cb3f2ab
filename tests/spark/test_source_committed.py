"""`ack = "committed"`: messages stay hidden, and are deleted only after their batch is committed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semel.spark.segments.codec import SegmentDamaged
from semel.spark.segments.model import BatchFiles, Sealed, SegmentId
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.source.planner import Offset, Planner, assignments
from semel.spark.source.reader import Assignment
from spark.intake import Intake, bodies, down, intake


def of_two_tasks(place: Intake) -> tuple[Intake, Planner, Offset, list[Assignment]]:
    """A batch of 1,500 messages that is planned, and not run yet."""
    two = place.with_options(ack="committed", receivers=2)
    two.send(*map(str, range(1_500)))
    planner = two.planner()
    start = planner.initial()
    end = planner.latest(start, 1_500)
    return two, planner, end, planner.assignments(start, end)


def test_committed_deletes_only_what_the_sink_has(place: Intake) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, rows = late.batch(planner, planner.initial())
    assert rows == ["a"]
    assert late.waiting() == (0, 1)
    planner.latest(end, 100)
    assert late.waiting() == (0, 0)
    planner.stop()


def test_committed_keeps_messages_hidden_while_the_sink_works(place: Intake) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    assert planner._heartbeat is not None
    for _ in range(5):
        late.clock.advance(late.options.visibility - 6)
        assert planner._heartbeat.extend(end["batch"]) == 1
    assert late.waiting() == (0, 1)
    planner.latest(end, 100)
    assert (late.waiting(), late.log.unconfirmed_deletes()) == ((0, 0), {})
    planner.stop()


def test_committed_does_not_trust_a_delete_after_another_may_have_received_the_message_meanwhile(
    place: Intake,
) -> None:
    """A driver stood still past the visibility. Its next heartbeat is accepted though the receipt is not the newest any
    more, and with that one SQS may answer a delete and forget it."""
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    assert planner._heartbeat is not None
    assert planner._heartbeat.extend(end["batch"]) == 1
    late.clock.advance(late.options.visibility + 1)
    (again,) = late.queue.receive(1, 0, visibility=late.options.visibility)
    for _ in range(2):
        assert planner._heartbeat.extend(end["batch"]) == 1
    planner.latest(end, 100)
    (unconfirmed,) = late.log.unconfirmed_deletes().values()
    assert set(unconfirmed) == {again.message_id}
    planner.stop()


def test_committed_keeps_hidden_what_it_can_if_one_queue_does_not_answer(place: Intake) -> None:
    late = place.with_options(ack="committed", queues=("orders", "returns"))
    returns = late.queue.client.create_queue("returns")
    late.send("a")
    returns.send("b")
    planner = late.planner_of({"orders": late.queue, "returns": returns})
    start = planner.initial()
    end = planner.latest(start, 100)
    for assignment in planner.assignments(start, end):
        replace(late, queue=late.queue if assignment.queue == "orders" else returns).run(assignment)
    late.queue.change_visibility = down  # type: ignore[method-assign]
    late.clock.advance(late.options.visibility - 5)
    assert planner._heartbeat is not None
    assert planner._heartbeat.extend(end["batch"]) == 1
    del late.queue.change_visibility
    planner.stop()


def test_committed_keeps_nothing_hidden_that_is_committed(place: Intake) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    assert planner._heartbeat is not None
    assert planner._heartbeat.extend(end["batch"]) == 1
    planner.latest(end, 100)
    calls: list[object] = []
    late.queue.change_visibility = calls.append  # type: ignore[method-assign,assignment]
    planner._heartbeat.extend(end["batch"])
    del late.queue.change_visibility
    planner.stop()
    assert calls == []


def test_committed_gives_back_what_the_sink_has_not_finished_and_a_group_stays_in_order(tmp_path: Path) -> None:
    with intake(tmp_path / "log", "orders.fifo") as plain:
        late = plain.with_options(ack="committed")
        for body in ("a1", "a2", "a3"):
            late.send(body, group="a")
        planner = late.planner()
        start = planner.initial()
        end = planner.latest(start, 100)
        (assignment,) = planner.assignments(start, end)
        ids = {row["body"]: row["message_id"] for table in late.task(assignment).tables() for row in table.to_pylist()}
        assert len(late.log.files(1).sealed) == 1  # the group is blocked: there is nothing to ask for
        late.log.give_back(0, {ids["a2"]: late.now() + 50, ids["a3"]: late.now() + 50})
        assert planner.latest(end, 100) == end
        assert late.waiting() == (0, 2)
        late.clock.advance(51)
        after, rows = late.batch(planner, end)
        assert rows == ["a2", "a3"]
        late.log.give_back(1, {})
        planner.latest(after, 100)
        planner.stop()
        assert (late.waiting(), late.log.unconfirmed_deletes()) == ((0, 0), {})


def test_committed_deletes_nothing_that_a_batch_has_sealed_before_it_is_committed(place: Intake) -> None:
    """The batch is run again, and one of its tasks receives what another has sealed."""
    two = place.with_options(ack="committed", receivers=2)
    two.send(*map(str, range(1_500)))
    planner = two.planner()
    start = planner.initial()
    end = planner.latest(start, 1_500)
    list(two.task(planner.assignments(start, end)[0]).tables())
    planner.stop()
    two.clock.advance(two.options.visibility + 1)
    again = two.planner()
    for assignment in reversed(again.assignments(start, end)):
        two.run(assignment)
    again.stop()
    assert sum(two.waiting()) == 1_500


def test_committed_remembers_what_was_delivered_to_two_tasks_of_a_batch(place: Intake) -> None:
    """The driver deletes by the receipt of the first, which is not the newest: SQS may forget such a delete."""
    two, planner, _, (first, second) = of_two_tasks(place)
    sealed = two.run(first)
    two.clock.advance(two.options.visibility + 1)
    two.run(second)
    planner.stop()
    ack = two.log.read_ack(SegmentId(1, 1, 0))
    assert ack is not None
    assert len(ack.unconfirmed) == len(sealed) > 0


def test_committed_deletes_nothing_that_its_batch_has_sealed_though_the_log_is_replaced_meanwhile(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, planner, _, (first, second) = of_two_tasks(place)
    two.run(first)
    two.clock.advance(two.options.visibility + 1)
    task = two.task(second)
    look = task._check_not_replaced

    def look_for_the_last_time(sealed: Sealed) -> None:
        look(sealed)
        two.store.delete([name for name in two.store.names("b0000000001") if "t0000" in name])

    monkeypatch.setattr(task, "_check_not_replaced", look_for_the_last_time)
    list(task.tables())
    planner.stop()
    assert sum(two.waiting()) == 1_500


def test_committed_remembers_nothing_as_deleted_that_the_sink_has_put_off(place: Intake) -> None:
    """It was delivered to two tasks of its batch. When it comes back for its next attempt, it is no duplicate."""
    two, planner, end, (first, second) = of_two_tasks(place)
    ids = {row["body"]: row["message_id"] for table in two.task(first).tables() for row in table.to_pylist()}
    two.clock.advance(two.options.visibility + 1)
    two.run(second)
    put_off = next(iter(ids))
    two.log.give_back(0, {ids[put_off]: two.now()})
    planner.committed(end)
    (unconfirmed,) = two.log.unconfirmed_deletes().values()
    assert set(unconfirmed) == set(ids.values()) - {ids[put_off]}
    planner.stop()


def test_committed_recognises_what_came_back_while_the_driver_was_away(place: Intake) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    planner.stop()
    late.clock.advance(late.options.visibility + 1)
    late.send("b")
    restarted = late.planner()
    assert late.batch(restarted, end)[1] == ["b"]
    restarted.stop()


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
@pytest.mark.parametrize("left", [5.0, -1.0])
def test_committed_counts_a_heartbeat_while_the_message_is_hidden_whatever_the_clocks_of_hosts_say(
    place: Intake, ahead: float, left: float
) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner_of(
        {"orders": late.queue}, clock=lambda: late.now() - ahead, monotonic=lambda: late.now() - 7e6
    )
    start = planner.initial()
    end = planner.latest(start, 100)
    for assignment in planner.assignments(start, end):
        list(late.task(assignment, wall=ahead, up=-9e6).tables())
    assert planner._heartbeat is not None
    for _ in range(2):
        late.clock.advance(late.options.visibility - left)
        planner._heartbeat.extend(end["batch"])
    planner.latest(end, 100)
    planner.stop()
    assert bool(late.log.unconfirmed_deletes()) == (left < 0)


def test_committed_counts_a_heartbeat_though_sqs_did_not_say_its_time_at_the_first_one(place: Intake) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    assert planner._heartbeat is not None
    planner._sqs_clock._ask = down
    for _ in range(3):
        late.clock.advance(late.options.visibility / 3)
        planner._heartbeat.extend(end["batch"])
        planner._sqs_clock._ask = late.now
    late.clock.advance(late.options.visibility / 2)
    planner.latest(end, 100)
    planner.stop()
    assert late.log.unconfirmed_deletes() == {}


def test_committed_deletes_nothing_of_a_segment_that_was_replaced_after_its_batch_was_listed(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    end, _ = late.batch(planner, planner.initial())
    zombie, files = late.task(assignments(end)[0]), SegmentLog.files
    late.send("b")
    zombie._sealed = lambda segment_id: None  # type: ignore[method-assign]

    def listed(log: SegmentLog, batch: int) -> BatchFiles:
        """Then the segment is lost, and a late attempt seals its name."""
        batch_files = files(log, batch)
        monkeypatch.setattr(SegmentLog, "files", files)
        late.store.delete([SegmentId(1, 0, 0).name])
        assert [body for table in zombie.tables() for body in bodies(table)] == ["b"]
        return batch_files

    monkeypatch.setattr(SegmentLog, "files", listed)
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        planner.latest(end, 100)
    assert late.waiting() == (0, 2)
    planner.stop()
