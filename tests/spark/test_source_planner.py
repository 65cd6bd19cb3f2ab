"""Which batch comes next, and what is remembered of those that are over."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semel.spark.pipeline.agreement import DriverLog
from semel.spark.segments.codec import SegmentDamaged
from semel.spark.segments.log import LogError, OtherQuery, SegmentLog, counts
from semel.spark.segments.model import BatchFiles, Committed, SegmentId
from semel.spark.segments.storage import LocalStore
from semel.spark.source import committer
from semel.spark.source.committer import TooManyUnconfirmed
from semel.spark.source.options import OptionError
from semel.spark.source.planner import Offset, Planner, assignments
from semel.spark.source.queue_ids import queue_id
from semel.spark.source.sqs_clock import sqs_time
from semel.sqs.errors import Unreachable
from spark.intake import Intake, bodies, crash, down, intake


def test_nothing_waiting_is_no_batch(place: Intake) -> None:
    planner = place.planner()
    start = planner.initial()
    assert planner.latest(start, 100) == start
    assert planner.assignments(start, start) == []


def test_the_offset_says_all_that_a_replay_needs(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    start = planner.initial()
    end = planner.latest(start, 100)
    assert end["batch"] == 1
    assert end["plan"] == {"orders": 1}
    assert assignments(end) == planner.assignments(start, end) == place.planner().assignments(start, end)


def test_the_time_of_a_batch_never_goes_back_whatever_the_drivers_clock_does(place: Intake) -> None:
    """`planned_at` is the event time of deduplication by key: a row that it makes late would be dropped."""
    place.send("a")
    planner = place.planner()
    first, _ = place.batch(planner, planner.initial())
    assert first["planned_at"] == int(place.now() * 1_000)
    place.send("b")
    behind = place.planner_of({"orders": place.queue}, clock=lambda: place.now() - 3_600)
    second, _ = place.batch(behind, first)
    assert second["planned_at"] == first["planned_at"]
    place.clock.advance(60)
    place.send("c")
    third, _ = place.batch(place.planner(), second)
    assert third["planned_at"] == first["planned_at"] + 60_000


def test_more_waiting_gets_more_receivers_up_to_the_limit(place: Intake) -> None:
    many = place.with_options(receivers=3)
    planner = many.planner()
    start = planner.initial()
    assert planner.plan(start, {"orders": 999}, 50_000)["plan"] == {"orders": 1}
    assert planner.plan(start, {"orders": 2_001}, 50_000)["plan"] == {"orders": 3}
    assert planner.plan(start, {"orders": 2_000_000}, 30_000)["rows"] == 10_000


def test_a_batch_is_dropped_once_the_next_is_asked_for(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    first, rows = place.batch(planner, planner.initial())
    assert rows == ["a"]
    assert place.store.names("b0000000001") != []
    assert planner.latest(first, 100) == first
    assert place.store.names("b0000000001") == []
    assert counts(place.store.url).rows == 1


def test_an_unconfirmed_delete_is_recognised_when_it_comes_back_also_after_a_restart(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    start = planner.initial()
    end = planner.latest(start, 100)
    task = place.task(planner.assignments(start, end)[0])
    task.queue.delete = down  # type: ignore[method-assign]
    assert [len(table) for table in task.tables()] == [1]
    del task.queue.delete
    place.clock.advance(place.options.visibility + 1)
    place.send("b")

    restarted = place.planner()
    after, rows = place.batch(restarted, end)
    assert rows == ["b"]
    assert place.waiting() == (0, 0)
    restarted.latest(after, 100)
    assert place.log.unconfirmed_deletes() == {}
    assert counts(place.store.url).redelivered == 1


def test_a_crash_between_seal_and_delete_neither_loses_nor_doubles(place: Intake) -> None:
    place.send("a", "b")
    planner = place.planner()
    start = planner.initial()
    end = planner.latest(start, 100)
    given = planner.assignments(start, end)[0]
    tables = place.task(given)
    tables._acknowledger.acknowledge = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(tables.tables())
    place.clock.advance(place.options.visibility + 1)
    assert place.waiting() == (2, 0)

    restarted = place.planner()
    again = [body for given in restarted.assignments(start, end) for body in place.run(given)]
    assert sorted(again) == ["a", "b"]
    assert place.batch(restarted, end)[1] == []
    assert place.waiting() == (0, 0)


def test_a_task_of_a_replayed_batch_does_not_take_what_another_has_sealed(place: Intake) -> None:
    two = place.with_options(receivers=2)
    two.send(*map(str, range(1_500)))
    planner = two.planner()
    start = planner.initial()
    end = planner.latest(start, 1_500)
    first = two.task(planner.assignments(start, end)[0])
    first._acknowledger.acknowledge = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(first.tables())
    two.clock.advance(two.options.visibility + 1)

    again = two.planner().assignments(start, end)
    rows = [body for given in reversed(again) for body in two.run(given)]
    assert len(set(rows)) == len(rows)


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


def test_a_driver_whose_commit_came_second_goes_on_with_what_the_first_one_remembers(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    end, _ = place.batch(planner, planner.initial())
    in_doubt = {"orders": {"m1": 1_700_000_000_000}}
    assert place.log.finish(Committed(end["batch"]), in_doubt, ()), "another driver"
    assert planner._committer.commit_through(end["batch"], end["id"]) == []
    assert planner._committer.any_unconfirmed
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
    for given in planner.assignments(start, end):
        replace(late, queue=late.queue if given.queue == "orders" else returns).run(given)
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
        (given,) = planner.assignments(start, end)
        ids = {row["body"]: row["message_id"] for table in late.task(given).tables() for row in table.to_pylist()}
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
    for given in reversed(again.assignments(start, end)):
        two.run(given)
    again.stop()
    assert sum(two.waiting()) == 1_500


def test_committed_remembers_what_was_delivered_to_two_tasks_of_a_batch(place: Intake) -> None:
    """The driver deletes by the receipt of the first, which is not the newest: SQS may forget such a delete."""
    two = place.with_options(ack="committed", receivers=2)
    two.send(*map(str, range(1_500)))
    planner = two.planner()
    start = planner.initial()
    end = planner.latest(start, 1_500)
    first, second = planner.assignments(start, end)
    sealed = two.run(first)
    two.clock.advance(two.options.visibility + 1)
    two.run(second)
    planner.stop()
    ack = two.log.read_ack(SegmentId(1, 1, 0))
    assert ack is not None
    assert len(ack.unconfirmed) == len(sealed) > 0


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


@pytest.mark.parametrize("ack", ["sealed", "committed"])
@pytest.mark.parametrize("ahead", [-600.0, 600.0])
@pytest.mark.parametrize("left", [5.0, -1.0])
def test_a_delete_on_another_host_is_believed_while_the_message_is_hidden_whatever_the_clocks_of_hosts_say(
    place: Intake, ack: str, ahead: float, left: float
) -> None:
    """The segment says until when its messages are hidden; its executor dies. Others delete them, `left` seconds before
    SQS shows them again."""
    given = place.with_options(ack=ack)
    given.send("a")
    planner = given.planner_of(
        {"orders": given.queue}, clock=lambda: given.now() - ahead, monotonic=lambda: given.now() - 7e6
    )
    start = planner.initial()
    end = planner.latest(start, 100)
    task = given.task(planner.assignments(start, end)[0], wall=ahead, up=-9e6)
    task._acknowledger.acknowledge = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(task.tables())
    given.clock.advance(given.options.visibility - left)
    for again in planner.assignments(start, end):
        list(given.task(again, wall=-ahead, up=-8e6).tables())
    planner.latest(end, 100)
    planner.stop()
    assert given.waiting() == (0, 0)
    assert len(given.log.unconfirmed_deletes().get(queue_id(given.queue), {})) == (left < 0)


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
    for given in planner.assignments(start, end):
        list(late.task(given, wall=ahead, up=-9e6).tables())
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


@pytest.mark.parametrize("who", ["sealer", "driver"])
def test_a_delete_on_another_host_is_not_believed_if_sqs_did_not_say_its_time(place: Intake, who: str) -> None:
    late = place.with_options(ack="committed")
    late.send("a")
    planner = late.planner()
    start = planner.initial()
    end = planner.latest(start, 100)
    task = late.task(planner.assignments(start, end)[0])
    (task if who == "sealer" else planner)._sqs_clock._ask = down
    list(task.tables())
    planner.latest(end, 100)
    planner.stop()
    assert late.waiting() == (0, 0)
    assert len(late.log.unconfirmed_deletes()[queue_id(late.queue)]) == 1


def test_available_now_ends_with_the_backlog_although_more_is_sent(place: Intake) -> None:
    place.send(*map(str, range(30)))
    planner = place.planner()
    offset = planner.initial()
    planner.available_now()
    place.clock.advance(10)
    rows: list[str] = []
    while True:
        end, more = place.batch(planner, offset, rows=10)
        if end == offset:
            break
        rows += more
        place.send("new")
        offset = end
    assert {str(n) for n in range(30)} <= set(rows)
    assert place.waiting()[0] > 0


def test_available_now_does_not_end_with_a_batch_that_an_earlier_run_has_left_behind(place: Intake) -> None:
    """Found by the simulation: the messages of that batch had come after the earlier run began, so that the next one
    took the queue for done, and ended with the rest of it unread."""
    planner = place.planner()
    start = planner.initial()
    planner.available_now()
    place.clock.advance(60)
    place.send("a")
    end = planner.plan(start, {"orders": 1}, 10)
    list(place.task(planner.assignments(start, end)[0]).tables())
    place.send("b")
    place.clock.advance(60)

    again = place.planner()
    again.available_now()
    for given in again.assignments(start, end):
        assert place.run(given) == ["a"]
    assert place.batch(again, end)[1] == ["b"]


def test_available_now_ends_when_what_is_counted_cannot_be_received(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    offset = planner.initial()
    planner.look = lambda: ({"orders": 1}, {"orders": 0})  # type: ignore[method-assign]
    planner.available_now()
    place.queue.receive(visibility=600, wait=0)
    assert all_batches(place, planner, offset) == []


def test_available_now_gets_what_is_waiting_although_the_counts_say_that_nothing_is(place: Intake) -> None:
    """SQS's counts are only eventually consistent: right after a send they may be 0."""
    place.send(*map(str, range(25)))
    planner = place.planner()
    offset = planner.initial()
    planner.look = lambda: ({"orders": 0}, {"orders": 0})  # type: ignore[method-assign]
    planner.available_now()
    assert sorted(all_batches(place, planner, offset), key=int) == [str(n) for n in range(25)]


@pytest.mark.parametrize("ahead", [-300, 0, 300])
@pytest.mark.parametrize("counted", [0, 1])
def test_available_now_ends_under_steady_producers_and_not_before_whatever_our_clock_says(
    place: Intake, ahead: int, counted: int
) -> None:
    place.send(*map(str, range(5)))
    place.clock.advance(10)
    planner = place.planner_of({"orders": place.queue}, clock=lambda: place.now() + ahead)
    offset = planner.initial()
    planner.look = lambda: ({"orders": counted}, {"orders": 0})  # type: ignore[method-assign]
    planner.available_now()
    place.clock.advance(10)
    rows = all_batches(place, planner, offset, meanwhile=lambda: place.send("new"))
    assert {str(n) for n in range(5)} <= set(rows)


def test_available_now_does_not_guess_what_time_it_is_if_sqs_does_not_answer(place: Intake) -> None:
    """Found by the simulation: where the clock of the host was minutes slow, nothing was read, and that was success."""
    planner = place.planner_of({"orders": place.queue}, sqs_time=down)
    with pytest.raises(Unreachable):
        planner.available_now()


def test_available_now_does_not_end_with_a_batch_of_duplicates_of_the_backlog(place: Intake) -> None:
    """What was recognised is no row, but it was sent before the start: more of that time may be waiting."""
    place.send(*map(str, range(20)))
    planner = place.planner()
    offset = planner.initial()
    planner.available_now()
    end = planner.latest(offset, 10)
    task = place.task(planner.assignments(offset, end)[0])
    task.queue.delete = down  # type: ignore[method-assign]
    first = [body for table in task.tables() for body in table.column("body").to_pylist()]
    del task.queue.delete
    place.clock.advance(place.options.visibility + 1)
    assert sorted([*first, *all_batches(place, planner, end, rows=10)], key=int) == [str(n) for n in range(20)]


def test_available_now_gets_what_is_waiting_though_sqs_does_not_say_its_time(place: Intake) -> None:
    place.send(*map(str, range(5)))
    planner = place.planner_of({"orders": place.queue}, sqs_time=lambda _: None)
    offset = planner.initial()
    planner.available_now()
    assert sorted(all_batches(place, planner, offset)) == [str(n) for n in range(5)]


def test_available_now_asks_sqs_for_the_time(place: Intake) -> None:
    """The broker tells the real time in its answers, whatever its manual clock says."""
    answered = sqs_time(place.queue.client)
    assert answered is not None
    assert abs(answered - time.time()) < 60


def test_in_flight_wait_waits_for_what_others_hold_and_no_longer_than_they_may_hold_it(place: Intake) -> None:
    waits = place.with_options(in_flight="wait")
    waits.send("a", "b")
    assert len(place.queue.receive(1, wait=0, visibility=60)) == 1
    planner = waits.planner()
    offset = planner.initial()
    look = planner.look

    def later() -> tuple[dict[str, int], dict[str, int]]:
        waits.clock.advance(10)
        return look()

    planner.look = later  # type: ignore[method-assign]
    planner.available_now()
    assert sorted(all_batches(waits, planner, offset)) == ["a", "b"]

    waits.send("c")
    assert len(place.queue.receive(1, wait=0, visibility=43_000)) == 1
    again = waits.planner()
    offset = {**offset, "batch": waits.log.committed().through}
    look = again.look
    again.look = later  # type: ignore[method-assign]
    again.available_now()
    assert all_batches(waits, again, offset) == []


def test_in_flight_wait_can_be_stopped(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as plain:
        waits = plain.with_options(in_flight="wait")
        waits.send("a")
        assert len(waits.queue.receive(1, wait=0, visibility=600)) == 1
        planner = waits.planner_of({"orders": waits.queue}, poll_seconds=20)
        start = planner.initial()
        planner.available_now()
        threading.Timer(0.5, planner.stop).start()
        began = time.monotonic()
        assert planner.latest(start, 100) == start
        assert time.monotonic() - began < 10


# While a query is idle.


def test_an_idle_query_sees_a_message_at_once_and_asks_for_no_counts_before(tmp_path: Path) -> None:
    with intake(tmp_path / "log") as place:
        planner = place.planner_of({"orders": place.queue}, poll_seconds=20, monotonic=time.monotonic)
        start = planner.initial()
        planner._idle_since = time.monotonic()  # Spark asks often
        assert planner.latest(start, 100) == start
        planner.look = lambda: pytest.fail("counts were asked for")  # type: ignore[method-assign]
        assert planner.latest(start, 100) == start
        del planner.look
        threading.Timer(0.2, place.send, ["a"]).start()
        began = time.monotonic()
        end = planner.latest(start, 100)
        assert (end["plan"], time.monotonic() - began < 0.9) == ({"orders": 1}, True)
        (given,) = planner.assignments(start, end)
        assert [segment_id.part for segment_id in place.log.files(1).sealed] == [0]
        assert place.run(given) == ["a"]
        planner.latest(end, 100)
        planner.stop()
        assert (place.waiting(), counts(place.store.url).rows) == ((0, 0), 1)


def test_what_an_idle_poll_holds_goes_back_when_the_query_stops(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    start = planner.initial()
    planner._counts_hold = False
    assert planner.latest(start, 100)["plan"] == {"orders": 1}
    assert place.waiting() == (0, 1)
    planner.stop()
    assert place.waiting() == (1, 0)


def test_what_a_dead_planner_held_is_received_again_and_given_out_once(place: Intake) -> None:
    place.send("a")
    dead = place.planner()
    start = dead.initial()
    dead._counts_hold = False
    end = dead.latest(start, 100)
    place.clock.advance(place.options.visibility + 1)
    restarted = place.planner()
    assert [body for given in restarted.assignments(start, end) for body in place.run(given)] == ["a"]
    assert place.batch(restarted, end)[1] == []
    dead.stop()
    assert place.waiting() == (0, 0)


def test_what_a_poll_brought_is_not_sealed_twice_if_the_batch_was_begun_before(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    start = planner.initial()
    planner._counts_hold = False
    end = planner.latest(start, 100)
    planner.assignments(start, end)
    place.send("b")
    planner._poll.begin(["orders"], 0)
    planner._poll.wait()
    (given,) = planner.assignments(start, end)
    assert place.waiting()[0] == 1  # given back
    assert sorted(place.run(given)) == ["a", "b"]


# What it costs, and what is bounded.


class CountingStore(LocalStore):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.calls: Counter[str] = Counter()

    def read(self, name: str) -> bytes | None:
        self.calls["GET"] += 1
        return super().read(name)

    def names(self, folder: str = "") -> list[str]:
        self.calls["LIST"] += 1
        return super().names(folder)


def test_after_a_batch_of_four_tasks_the_driver_makes_two_lists_and_two_reads(place: Intake) -> None:
    four = place.with_options(receivers=4)
    planner = four.planner()
    offset = planner.initial()
    driver = CountingStore(str(Path(four.store.url)))
    log = DriverLog(SegmentLog(driver))
    log.content()  # which log it is, it reads once
    for _ in range(3):
        four.send(*map(str, range(40)))
        end = planner.plan(offset, {"orders": 4_000}, 40)
        for given in planner.assignments(offset, end):
            four.run(given)
        assert len(four.log.files(end["batch"]).acked) == 4
        driver.calls.clear()
        assert log.content() == str(four.log.content(end["batch"]))
        assert driver.calls["LIST"] <= 2
        assert driver.calls["GET"] <= 2
        planner.committed(end)
        offset = end


def test_a_segment_without_an_ack_is_named_by_what_is_sealed_in_it(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    end, _ = place.batch(planner, planner.initial())
    named = place.log.content(end["batch"])
    place.store.delete(name for name in place.log.files(end["batch"]).names if name.endswith(".ack"))
    assert place.log.content(end["batch"]) == named


def test_unconfirmed_deletes_are_bounded_and_the_query_goes_on_once_they_are_deleted(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_UNCONFIRMED", 2)
    place.send("a", "b", "c")
    planner = place.planner()
    start = planner.initial()
    end = planner.latest(start, 100)
    task = place.task(planner.assignments(start, end)[0])
    task.queue.delete = down  # type: ignore[method-assign]
    list(task.tables())
    del task.queue.delete
    with pytest.raises(TooManyUnconfirmed, match=r"orders: 3 messages .* sqs:DeleteMessage"):
        planner.latest(end, 100)
    place.clock.advance(place.options.visibility + 1)
    restarted = place.planner()
    after, rows = place.batch(restarted, end)
    assert rows == []
    restarted.latest(after, 100)
    assert place.log.unconfirmed_deletes() == {}


def test_a_queue_that_is_named_twice_in_two_ways_is_refused(place: Intake) -> None:
    both = place.with_options(queues=("orders", place.queue.url))
    planner = both.planner_of({"orders": place.queue, place.queue.url: place.queue.client.queue(place.queue.url)})
    with pytest.raises(OptionError, match="names one queue twice"):
        planner.latest(planner.initial(), 100)


def test_a_new_checkpoint_on_an_old_log_is_refused(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    end, _ = place.batch(planner, planner.initial())
    planner.latest(end, 100)
    with pytest.raises(LogError, match="checkpoint is new"):
        place.planner().initial()


def test_a_batch_has_one_plan_and_a_second_driver_with_another_is_refused(place: Intake) -> None:
    place.send("a")
    one, other = place.planner(), place.planner()
    start = one.initial()
    ours, theirs = one.latest(start, 100), other.latest(start, 100)
    one.assignments(start, ours)
    with pytest.raises(OtherQuery, match="planned by another query"):
        other.assignments(start, theirs)
    assert one.assignments(start, ours) == place.planner().assignments(start, ours)  # a replay is none of these
    assert place.waiting() == (1, 0)


def test_of_two_drivers_that_end_one_batch_the_second_forgets_no_unconfirmed_delete(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place.with_options(ack="committed")
    place.send("0")
    planner, second = place.planner(), place.planner()
    start = planner.initial()
    second._committer  # noqa: B018 - it knows what was committed when it began
    end, given = place.batch(planner, start)
    assert given == ["0"]
    place.clock.advance(200)  # the delete comes late: it does not count
    files = SegmentLog.files

    def listed(self: SegmentLog, batch: int) -> BatchFiles:
        """The other one ends the batch between two looks at it."""
        with monkeypatch.context() as patch:
            patch.setattr(SegmentLog, "files", files)
            planner.committed(end)
        return files(self, batch)

    monkeypatch.setattr(SegmentLog, "files", listed)
    second.committed(end)
    assert place.log.unconfirmed_deletes() != {}


def test_an_offset_of_a_batch_that_is_committed_is_refused_in_a_pipeline(place: Intake) -> None:
    """Found by the simulation: a driver from before a reset has written it into the progress of the new query."""
    named = place.with_options(owner="a")
    named.send("0")
    planner = named.planner()
    end, _ = named.batch(planner, planner.initial())
    named.commit_in_sink(1)
    planner.committed(end)
    begun_anew = named.planner()
    start = begun_anew.initial()
    assert start["batch"] == end["batch"]
    with pytest.raises(LogError, match=r"two drivers have written to the checkpoint.*semel pipeline reset"):
        begun_anew.assignments(start, end)


def test_a_batch_of_a_pipeline_is_committed_only_after_its_sink_has_it(place: Intake) -> None:
    """Found by the simulation: a driver that a reset had replaced wrote Spark's commit of its own batch 0 into the
    progress of the new query. The next driver took its batch 0 for done, and deleted what was in no table."""
    named = place.with_options(owner="a")
    named.send("0")
    planner = named.planner()
    end, _ = named.batch(planner, planner.initial())
    with pytest.raises(LogError, match=r"the sink has not committed it.*semel pipeline reset"):
        planner.committed(end)
    named.log.record_sink_commit(f"{end['log']}/1/other segments")
    with pytest.raises(LogError, match="the sink has not committed it as it is"):
        planner.committed(end)
    assert (place.log.through(), len(place.log.files(1).sealed)) == (0, 1)
    named.commit_in_sink(1)
    planner.committed(end)
    assert (place.log.through(), place.log.files(1).names) == (1, ())


def test_a_batch_without_data_is_run_only_after_the_one_before_it_is_committed(place: Intake) -> None:
    """A driver that stood still writes an offset again that another has written: its batch then looks empty, and its
    messages would be dropped unread."""
    place.send("a")
    planner = place.planner()
    end, given = place.batch(planner, planner.initial())
    assert given == ["a"]
    with pytest.raises(LogError, match="two drivers have written to the checkpoint"):
        place.planner().assignments(end, end)
    assert place.log.read(SegmentId(1, 0, 0)) is not None
    planner.committed(end)
    assert place.planner().assignments(end, end) == []


def test_a_checkpoint_that_was_lost_during_the_first_batch_is_refused_and_what_is_sealed_stays(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    place.batch(planner, planner.initial())
    place.send("b")
    again = place.planner()
    with pytest.raises(OtherQuery, match="planned by another query"):
        again.latest(again.initial(), 100)
    assert place.log.read(SegmentId(1, 0, 0)) is not None
    assert place.waiting() == (1, 0)


def test_a_query_with_a_name_goes_on_in_its_log_with_what_is_sealed(place: Intake) -> None:
    named = place.with_options(owner="q1")
    named.send("a")
    planner = named.planner()
    end, rows = named.batch(planner, planner.initial())
    named.send("b")
    again = named.planner()
    assert named.batch(again, again.initial()) == (end, rows)
    named.commit_in_sink(1)
    assert named.batch(again, end)[1] == ["b"]


def test_a_log_is_refused_to_a_query_of_another_name_and_to_who_had_it_before(place: Intake) -> None:
    named = place.with_options(owner="q1")
    planner = named.planner()
    start = planner.initial()
    for other in (place, place.with_options(owner="q2")):
        with pytest.raises(OtherQuery, match="belongs to another query"):
            other.planner().initial()
    place.send("a")
    end = planner.latest(start, 100)
    place.log.hand_over("q2")
    with pytest.raises(OtherQuery, match="planned by another query"):
        planner.assignments(start, end)
    assert place.waiting() == (1, 0)


def test_a_segment_of_a_task_that_the_plan_does_not_have_is_neither_deleted_nor_dropped(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    end, _ = place.batch(planner, planner.initial())
    place.send("b")
    stray = replace(assignments(end)[0], task=1)
    assert place.run(stray) == ["b"]
    with pytest.raises(LogError, match=r"t0001-p00000\.seg is of a task that the plan"):
        place.planner().latest(end, 100)
    assert place.log.read(SegmentId(1, 1, 0)) is not None


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
        found = files(log, batch)
        monkeypatch.setattr(SegmentLog, "files", files)
        late.store.delete([SegmentId(1, 0, 0).name])
        assert [body for table in zombie.tables() for body in bodies(table)] == ["b"]
        return found

    monkeypatch.setattr(SegmentLog, "files", listed)
    with pytest.raises(SegmentDamaged, match="t0000-p00000"):
        planner.latest(end, 100)
    assert late.waiting() == (0, 2)
    planner.stop()


def test_a_log_that_is_older_than_its_checkpoint_is_refused(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    end, _ = place.batch(planner, planner.initial())
    place.store.delete(place.store.names("b0000000001"))
    with pytest.raises(LogError, match="has no plan of it"):
        place.planner().latest(end, 100)


def test_another_log_under_an_old_checkpoint_is_refused(place: Intake) -> None:
    with pytest.raises(LogError, match="is empty or was removed"):
        place.planner().latest({"log": "abc", "batch": 3}, 100)
    place.planner().initial()
    with pytest.raises(LogError, match="holds another log"):
        place.planner().latest({"log": "abc", "batch": 3}, 100)


def test_a_queue_that_is_no_longer_named_is_refused_and_one_more_is_not(place: Intake) -> None:
    place.with_options(queues=("orders", "refunds")).planner().initial()
    offset = {"log": (place.log.identity() or {})["id"], "batch": 0}
    with pytest.raises(LogError, match="refunds"):
        place.planner().latest(offset, 100)
    more = place.with_options(queues=("orders", "refunds", "returns"))
    assert more.planner().latest(offset, 100) == offset
    assert (place.log.identity() or {})["queues"] == ["orders", "refunds", "returns"]


def test_what_a_dead_driver_left_of_finished_batches_is_dropped(place: Intake) -> None:
    planner = place.planner()
    offset = planner.initial()
    place.send("a")
    end, _ = place.batch(planner, offset)
    planner.latest(end, 100)
    place.store.put(SegmentId(1, 0, 0).name, b"left")
    place.planner().latest(end, 100)
    assert place.store.names("b0000000001") == []


def all_batches(
    place: Intake, planner: Planner, offset: Offset, *, rows: int = 1_000, meanwhile: Callable[[], None] = lambda: None
) -> list[str]:
    """What an AvailableNow query gives out from here to its end."""
    bodies: list[str] = []
    for _ in range(20):
        meanwhile()
        end, more = place.batch(planner, offset, rows)
        bodies += more
        if end == offset:
            return bodies
        offset = end
    raise AssertionError("it does not end")
