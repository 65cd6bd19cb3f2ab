"""A query with the trigger AvailableNow ends with the backlog of its start, not earlier and not later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.spark.source.planner import Offset, Planner
from semel.spark.source.sqs_clock import sqs_time
from semel.sqs.errors import Unreachable
from spark.intake import Intake, down, intake


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
    for assignment in again.assignments(start, end):
        assert place.run(assignment) == ["a"]
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
