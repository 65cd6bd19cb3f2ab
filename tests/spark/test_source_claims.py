"""`dedup=ledger`: two pipelines on one queue. Even if one dies or is paused too long, only one gives out each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from semel.ledger.contract import ClaimRequest, Won
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.spark import crash_points
from semel.spark.segments.codec import Meta
from semel.spark.segments.model import Sealed, SegmentId
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import LocalStore
from semel.spark.source import claims
from semel.spark.source.reader import Assignment
from spark.intake import BY_HAND, Intake, intake

ASSIGNMENT = Assignment(1, 0, "orders", rows=1_000, bytes=1 << 30, plan=BY_HAND)
AGAIN = replace(ASSIGNMENT, replay=True)
NEXT = replace(ASSIGNMENT, batch=2)
VISIBILITY = 120
ADDRESS = "sqlite:///shared"


class Died(BaseException):
    """The process is gone."""


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    with intake(tmp_path / "one") as place, SqliteLedger(":memory:", clock=place.clock) as ledger:
        monkeypatch.setitem(claims._ledgers, ADDRESS, ledger)
        yield place.with_options(dedup="ledger", ledger=ADDRESS, key="$.id", visibility=VISIBILITY)


@pytest.fixture
def second(first: Intake, tmp_path: Path) -> Intake:
    """Another pipeline on the same queue, with the same ledger."""
    folder = str(tmp_path / "two")
    return replace(first.with_options(segments=folder), store=LocalStore(folder))


def dies(place: Intake, point: str, assignment: Assignment = ASSIGNMENT) -> None:
    def reached(name: str) -> None:
        if name == point:
            raise Died

    with at_points(reached), pytest.raises(Died):
        place.run(assignment)


@contextmanager
def at_points(reached: Callable[[str], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_points, "reached", reached)
        yield


def order(number: int) -> str:
    return f'{{"id": {number}}}'


def test_what_another_took_over_from_a_sealed_segment_is_not_given_out_by_its_replay(
    first: Intake, second: Intake
) -> None:
    first.send(order(1), order(2))
    dies(first, "after-seal")
    first.clock.advance(VISIBILITY + 1)
    assert sorted(second.run(ASSIGNMENT)) == [order(1), order(2)]
    assert first.run(AGAIN) == []
    assert first.run(AGAIN) == []
    assert first.waiting() == (0, 0)


def test_what_another_took_over_and_died_with_comes_back_and_is_given_out_once(first: Intake, second: Intake) -> None:
    first.send(order(1))
    dies(first, "after-seal")
    first.clock.advance(VISIBILITY + 1)
    dies(second, "before-seal")
    given_out = first.run(AGAIN)
    first.clock.advance(VISIBILITY + 1)
    given_out += second.run(AGAIN) + first.run(NEXT)
    assert given_out == [order(1)]
    first.clock.advance(VISIBILITY + 1)
    assert first.waiting() == (0, 0)


def test_what_is_replayed_before_anybody_took_it_over_is_given_out_and_known_to_others(
    first: Intake, second: Intake
) -> None:
    first.send(order(1))
    dies(first, "after-seal")
    first.clock.advance(VISIBILITY + 1)
    assert first.run(AGAIN) == [order(1)]
    assert second.run(ASSIGNMENT) == []
    assert first.waiting() == (0, 0)


def test_another_task_of_the_replayed_batch_may_take_it_over_too(first: Intake) -> None:
    first.send(order(1))
    dies(first, "after-seal")
    first.clock.advance(VISIBILITY + 1)
    other = first.run(replace(AGAIN, task=1))
    assert sorted(first.run(AGAIN) + other) == [order(1)]
    assert first.waiting() == (0, 0)


def test_a_twin_that_loses_the_race_with_a_newer_claim_gives_the_message_back(first: Intake) -> None:
    """A zombie seals what it had claimed long ago, just before its successor does."""
    late: list[tuple[SegmentId, pa.Table, Meta]] = []

    def keep(self: SegmentLog, place: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        late.append((place, table, meta))
        raise Died

    first.send(order(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentLog, "seal", keep)
        with pytest.raises(Died):
            first.run(ASSIGNMENT)
    first.clock.advance(VISIBILITY + 1)

    def wakes(point: str) -> None:
        if point == "before-seal" and late:
            first.log.seal(*late.pop())

    with at_points(wakes):
        assert first.run(ASSIGNMENT) == []
    assert first.run(AGAIN) == []
    assert first.run(NEXT) == [order(1)]
    assert first.waiting() == (0, 0)


def test_with_ack_committed_what_another_took_over_is_not_deleted_under_its_hands(
    first: Intake, second: Intake
) -> None:
    first = first.with_options(ack="committed")
    first.send(order(1))
    dies(first, "after-seal")
    first.clock.advance(VISIBILITY + 1)
    dies(second, "before-seal")
    planner = first.planner()
    start = planner.initial()
    assert first.run(AGAIN) == []
    planner.latest({**start, "batch": 1}, 10)  # the batch is committed
    first.clock.advance(VISIBILITY + 1)
    assert second.run(AGAIN) == [order(1)]


def test_with_ack_committed_what_the_ledger_knows_as_done_stays_in_the_queue_until_its_batch_is_committed(
    first: Intake,
) -> None:
    first = first.with_options(ack="committed")
    first.send(order(1))
    assert first.run(ASSIGNMENT) == [order(1)]
    first.clock.advance(VISIBILITY + 1)
    for again in (AGAIN, ASSIGNMENT):  # it comes back, and is in no table yet
        assert first.run(replace(again, task=1 + again.replay)) == []
        assert sum(first.waiting()) == 1
        first.clock.advance(VISIBILITY + 1)


def test_a_message_without_a_key_is_known_by_its_id_as_before(first: Intake) -> None:
    first.send("no order")
    dies(first, "after-seal")
    first.clock.advance(VISIBILITY + 1)
    assert first.run(replace(AGAIN, task=1)) == []
    assert first.run(AGAIN) == ["no order"]


def test_fifo_the_rest_of_a_group_waits_for_a_message_whose_key_another_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with intake(tmp_path / "fifo", "orders.fifo") as plain, SqliteLedger(":memory:", clock=plain.clock) as ledger:
        monkeypatch.setitem(claims._ledgers, ADDRESS, ledger)
        place = plain.with_options(dedup="ledger", ledger=ADDRESS, key="$.id", visibility=VISIBILITY)
        assignment = replace(ASSIGNMENT, queue="orders.fifo")
        scope = place.queue.scope
        (handler,) = ledger.claim([ClaimRequest(f"{scope}/2")], claimant="handler", lease=30)
        assert isinstance(handler, Won)
        place.send(order(1), order(2), "no key", order(3), group="g")
        place.send(order(4), "no key either", order(5), group="h")
        assert place.run(assignment) == [order(1), order(4), "no key either", order(5)]
        assert place.waiting() == (0, 3)
        assert [entry for entry in ledger.get([f"{scope}/3"]) if entry and entry.status == "done"] == []
        place.clock.advance(31)
        assert place.run(replace(assignment, batch=2)) == [order(2), "no key", order(3)]
        assert place.waiting() == (0, 0)
