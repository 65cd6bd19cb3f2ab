"""Which batch comes next, and what is kept of finished batches."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from semel.spark.pipeline.agreement import DriverLog
from semel.spark.segments.model import BatchFiles, Committed, SegmentId
from semel.spark.segments.segment_log import LogError, OtherQuery, SegmentLog, counts
from semel.spark.segments.storage import LocalStore
from semel.spark.source import committer
from semel.spark.source.committer import TooManyUnconfirmed
from semel.spark.source.options import OptionError
from semel.spark.source.planner import assignments
from semel.spark.source.queue_ids import queue_id
from spark.intake import Intake, crash, down, intake


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
    assignment = planner.assignments(start, end)[0]
    tables = place.task(assignment)
    tables._acknowledger.acknowledge = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(tables.tables())
    place.clock.advance(place.options.visibility + 1)
    assert place.waiting() == (2, 0)

    restarted = place.planner()
    again = [body for assignment in restarted.assignments(start, end) for body in place.run(assignment)]
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
    rows = [body for assignment in reversed(again) for body in two.run(assignment)]
    assert len(set(rows)) == len(rows)


def test_a_driver_whose_commit_came_second_goes_on_with_what_the_first_one_remembers(place: Intake) -> None:
    place.send("a")
    planner = place.planner()
    end, _ = place.batch(planner, planner.initial())
    in_doubt = {"orders": {"m1": 1_700_000_000_000}}
    assert place.log.finish(Committed(end["batch"]), in_doubt, ()), "another driver"
    assert planner._committer.commit_through(end["batch"], end["id"]) == []
    assert planner._committer.any_unconfirmed
    planner.stop()


@pytest.mark.parametrize("ack", ["sealed", "committed"])
@pytest.mark.parametrize("ahead", [-600.0, 600.0])
@pytest.mark.parametrize("left", [5.0, -1.0])
def test_a_delete_on_another_host_is_believed_while_the_message_is_hidden_whatever_the_clocks_of_hosts_say(
    place: Intake, ack: str, ahead: float, left: float
) -> None:
    """The segment says until when its messages are hidden; its executor dies. Others delete them, `left` seconds before
    SQS shows them again."""
    place = place.with_options(ack=ack)
    place.send("a")
    planner = place.planner_of(
        {"orders": place.queue}, clock=lambda: place.now() - ahead, monotonic=lambda: place.now() - 7e6
    )
    start = planner.initial()
    end = planner.latest(start, 100)
    task = place.task(planner.assignments(start, end)[0], wall=ahead, up=-9e6)
    task._acknowledger.acknowledge = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(task.tables())
    place.clock.advance(place.options.visibility - left)
    for again in planner.assignments(start, end):
        list(place.task(again, wall=-ahead, up=-8e6).tables())
    planner.latest(end, 100)
    planner.stop()
    assert place.waiting() == (0, 0)
    assert len(place.log.unconfirmed_deletes().get(queue_id(place.queue), {})) == (left < 0)


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
        (assignment,) = planner.assignments(start, end)
        assert [segment_id.part for segment_id in place.log.files(1).sealed] == [0]
        assert place.run(assignment) == ["a"]
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
    assert [body for assignment in restarted.assignments(start, end) for body in place.run(assignment)] == ["a"]
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
    (assignment,) = planner.assignments(start, end)
    assert place.waiting()[0] == 1  # given back
    assert sorted(place.run(assignment)) == ["a", "b"]


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
        for assignment in planner.assignments(offset, end):
            four.run(assignment)
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
    planner, other = place.planner(), place.planner()
    start = planner.initial()
    ours, theirs = planner.latest(start, 100), other.latest(start, 100)
    planner.assignments(start, ours)
    with pytest.raises(OtherQuery, match="planned by another query"):
        other.assignments(start, theirs)
    assert planner.assignments(start, ours) == place.planner().assignments(start, ours)  # a replay is none of these
    assert place.waiting() == (1, 0)


def test_of_two_drivers_that_end_one_batch_the_second_forgets_no_unconfirmed_delete(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place.with_options(ack="committed")
    place.send("0")
    planner, second = place.planner(), place.planner()
    start = planner.initial()
    second._committer  # noqa: B018 - it knows what was committed when it began
    end, rows = place.batch(planner, start)
    assert rows == ["0"]
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
    end, rows = place.batch(planner, planner.initial())
    assert rows == ["a"]
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
