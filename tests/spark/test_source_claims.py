"""`dedup=ledger`: two pipelines on one queue. Whoever dies or sleeps too long: each key is given out by one of them."""

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

GIVEN = Assignment(1, 0, "orders", rows=1_000, bytes=1 << 30, plan=BY_HAND)
AGAIN = replace(GIVEN, replay=True)
NEXT = replace(GIVEN, batch=2)
VISIBILITY = 120
ADDRESS = "sqlite:///shared"


class Died(BaseException):
    """The process is gone."""


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    with intake(tmp_path / "one") as place, SqliteLedger(":memory:", clock=place.clock) as ledger:
        monkeypatch.setitem(claims._ledgers, ADDRESS, ledger)
        yield place.with_options(dedup="ledger", ledger=ADDRESS, key="$.id", visibility=VISIBILITY)


@pytest.fixture
def two(one: Intake, tmp_path: Path) -> Intake:
    """Another pipeline on the same queue, with the same ledger."""
    folder = str(tmp_path / "two")
    return replace(one.with_options(segments=folder), store=LocalStore(folder))


def dies(place: Intake, point: str, given: Assignment = GIVEN) -> None:
    def reached(name: str) -> None:
        if name == point:
            raise Died

    with at_points(reached), pytest.raises(Died):
        place.run(given)


@contextmanager
def at_points(reached: Callable[[str], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_points, "reached", reached)
        yield


def order(number: int) -> str:
    return f'{{"id": {number}}}'


def test_what_another_took_over_from_a_sealed_segment_is_not_given_out_by_its_replay(one: Intake, two: Intake) -> None:
    one.send(order(1), order(2))
    dies(one, "after-seal")
    one.clock.advance(VISIBILITY + 1)
    assert sorted(two.run(GIVEN)) == [order(1), order(2)]
    assert one.run(AGAIN) == []
    assert one.run(AGAIN) == []
    assert one.waiting() == (0, 0)


def test_what_another_took_over_and_died_with_comes_back_and_is_given_out_once(one: Intake, two: Intake) -> None:
    one.send(order(1))
    dies(one, "after-seal")
    one.clock.advance(VISIBILITY + 1)
    dies(two, "before-seal")
    given_out = one.run(AGAIN)
    one.clock.advance(VISIBILITY + 1)
    given_out += two.run(AGAIN) + one.run(NEXT)
    assert given_out == [order(1)]
    one.clock.advance(VISIBILITY + 1)
    assert one.waiting() == (0, 0)


def test_what_is_replayed_before_anybody_took_it_over_is_given_out_and_known_to_others(
    one: Intake, two: Intake
) -> None:
    one.send(order(1))
    dies(one, "after-seal")
    one.clock.advance(VISIBILITY + 1)
    assert one.run(AGAIN) == [order(1)]
    assert two.run(GIVEN) == []
    assert one.waiting() == (0, 0)


def test_another_task_of_the_replayed_batch_may_take_it_over_too(one: Intake) -> None:
    one.send(order(1))
    dies(one, "after-seal")
    one.clock.advance(VISIBILITY + 1)
    other = one.run(replace(AGAIN, task=1))
    assert sorted(one.run(AGAIN) + other) == [order(1)]
    assert one.waiting() == (0, 0)


def test_a_twin_that_loses_the_race_with_a_newer_claim_gives_the_message_back(one: Intake) -> None:
    """A zombie seals what it had claimed long ago, just before its successor does."""
    late: list[tuple[SegmentId, pa.Table, Meta]] = []

    def keep(self: SegmentLog, place: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        late.append((place, table, meta))
        raise Died

    one.send(order(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentLog, "seal", keep)
        with pytest.raises(Died):
            one.run(GIVEN)
    one.clock.advance(VISIBILITY + 1)

    def wakes(point: str) -> None:
        if point == "before-seal" and late:
            one.log.seal(*late.pop())

    with at_points(wakes):
        assert one.run(GIVEN) == []
    assert one.run(AGAIN) == []
    assert one.run(NEXT) == [order(1)]
    assert one.waiting() == (0, 0)


def test_with_ack_committed_what_another_took_over_is_not_deleted_under_its_hands(one: Intake, two: Intake) -> None:
    one = one.with_options(ack="committed")
    one.send(order(1))
    dies(one, "after-seal")
    one.clock.advance(VISIBILITY + 1)
    dies(two, "before-seal")
    planner = one.planner()
    start = planner.initial()
    assert one.run(AGAIN) == []
    planner.latest({**start, "batch": 1}, 10)  # the batch is committed
    one.clock.advance(VISIBILITY + 1)
    assert two.run(AGAIN) == [order(1)]


def test_with_ack_committed_what_the_ledger_knows_as_done_stays_in_the_queue_until_its_batch_is_committed(
    one: Intake,
) -> None:
    one = one.with_options(ack="committed")
    one.send(order(1))
    assert one.run(GIVEN) == [order(1)]
    one.clock.advance(VISIBILITY + 1)
    for again in (AGAIN, GIVEN):  # it comes back, and is in no table yet
        assert one.run(replace(again, task=1 + again.replay)) == []
        assert sum(one.waiting()) == 1
        one.clock.advance(VISIBILITY + 1)


def test_a_message_without_a_key_is_known_by_its_id_as_before(one: Intake) -> None:
    one.send("no order")
    dies(one, "after-seal")
    one.clock.advance(VISIBILITY + 1)
    assert one.run(replace(AGAIN, task=1)) == []
    assert one.run(AGAIN) == ["no order"]


def test_fifo_the_rest_of_a_group_waits_for_a_message_whose_key_another_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with intake(tmp_path / "fifo", "orders.fifo") as plain, SqliteLedger(":memory:", clock=plain.clock) as ledger:
        monkeypatch.setitem(claims._ledgers, ADDRESS, ledger)
        place = plain.with_options(dedup="ledger", ledger=ADDRESS, key="$.id", visibility=VISIBILITY)
        given = replace(GIVEN, queue="orders.fifo")
        scope = place.queue.scope
        (handler,) = ledger.claim([ClaimRequest(f"{scope}/2")], claimant="handler", lease=30)
        assert isinstance(handler, Won)
        place.send(order(1), order(2), "no key", order(3), group="g")
        place.send(order(4), "no key either", order(5), group="h")
        assert place.run(given) == [order(1), order(4), "no key either", order(5)]
        assert place.waiting() == (0, 3)
        assert [entry for entry in ledger.get([f"{scope}/3"]) if entry and entry.status == "done"] == []
        place.clock.advance(31)
        assert place.run(replace(given, batch=2)) == [order(2), "no key", order(3)]
        assert place.waiting() == (0, 0)
