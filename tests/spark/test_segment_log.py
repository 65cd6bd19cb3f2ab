"""The end of batches in the segment log: what is kept of them, even if another process writes it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from semel.spark.segments.model import Committed, Totals, folder
from semel.spark.segments.segment_log import COMMITS, FORMAT, IDENTITY, PLAN, LogError, SegmentLog
from semel.spark.segments.storage import LocalStore

IN_DOUBT = {"orders": {"m1": 1}}


@pytest.fixture
def log(tmp_path: Path) -> SegmentLog:
    return SegmentLog(LocalStore(str(tmp_path)))


def test_a_driver_that_comes_late_takes_back_nothing_that_another_has_committed(log: SegmentLog) -> None:
    assert log.finish(Committed(1), IN_DOUBT, ())
    assert not log.finish(Committed(1), {}, ()), "the same batch: the first one decides"
    assert log.last_commit() == (Committed(1), IN_DOUBT)
    assert log.finish(Committed(2), IN_DOUBT, ())
    assert not log.finish(Committed(1), {}, ()), "and though nothing of that batch is left"
    assert log.last_commit() == (Committed(2), IN_DOUBT)
    assert log.through() == 2


def test_a_commit_whose_answer_was_lost_is_still_ours(log: SegmentLog) -> None:
    committed = Committed(1, Totals(batches=1, rows=7))
    assert [log.finish(committed, IN_DOUBT, ()) for _ in range(2)] == [True, True]


def test_of_all_commits_the_newest_is_kept(log: SegmentLog) -> None:
    for batch in range(1, 4):
        log.finish(Committed(batch), None, ())
    assert log.store.names(COMMITS) == ["commits/0000000003.json"]


def test_a_log_of_the_format_before_is_gone_on_with(log: SegmentLog) -> None:
    log.store.put(IDENTITY, orjson.dumps({"id": "a", "format": 3, "queues": ["orders"], "owner": "me"}))
    log.store.put("committed.json", orjson.dumps({"through": 7, "totals": {"batches": 7, "rows": 70}}))
    log.store.put("unconfirmed.json", orjson.dumps(IN_DOUBT))
    log.check("a", ("orders",), "me")
    identity = log.identity()
    assert identity is not None
    assert identity["format"] == FORMAT, "the version before refuses it from now on: it would see an older commit"
    assert (log.through(), log.last_commit()) == (7, (Committed(7, Totals(batches=7, rows=70)), IN_DOUBT))
    assert log.finish(Committed(8), None, ())
    assert log.last_commit() == (Committed(8), IN_DOUBT)


def test_a_log_that_was_removed_during_a_reset_is_not_handed_over(log: SegmentLog) -> None:
    with pytest.raises(LogError, match="is empty or was removed meanwhile"):
        log.hand_over("me")


@pytest.mark.parametrize(
    "plan",
    [
        {"batch": 1, "plan": {"orders": 1}},
        {"id": "p", "plan": {"orders": 1}},
        {"id": "p", "batch": 1},
        {"id": "p", "batch": 1, "plan": {"orders": "1"}},
        {"id": "p", "batch": 1, "plan": [1]},
    ],
)
def test_a_plan_that_is_damaged_is_named(log: SegmentLog, plan: dict[str, Any]) -> None:
    name = f"{folder(1)}/{PLAN}"
    log.store.put(name, orjson.dumps(plan))
    with pytest.raises(LogError, match=name):
        log.plan(1)
