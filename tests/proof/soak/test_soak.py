"""Short runs of the soak and the overloads: correctness and leaks are asserted, not times. The soak must find flaws."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from soak import overload, report
from soak.app import FLAWS
from soak.run import Plan, Result, Soak

FINDINGS: Final = {
    "memory": "the memory of the worker 1 grew by",
    "files": "the worker 1 leaks open files",
    "threads": "the worker 1 leaks threads",
    "doubled": "messages are doubled",
    "lost": "messages are lost",
}


def soaked(plan: Plan) -> Result:
    result = Soak(plan).run()
    print("\n".join(report.summary(result)))
    return result


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("store", "seconds"), [("sqlite", 60), ("postgres", 20), ("redis", 20)])
def test_at_70_percent_of_the_peak_with_faults_on_nothing_is_lost_doubled_or_leaked(
    tmp_path: Path, store: str, seconds: int
) -> None:
    result = soaked(Plan(seconds, tmp_path, store=store, peak_seconds=5))
    assert result.findings == []
    assert {"duplicate", "lost-delete", "latency"} <= result.faults.keys()
    assert len(result.effects) > seconds


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flaw", FLAWS)
def test_the_soak_finds_an_app_that_leaks_loses_or_doubles(tmp_path: Path, flaw: str) -> None:
    result = soaked(Plan(12, tmp_path, workers=1, rate=150, peak_seconds=1, faults=False, flaw=flaw))
    assert [finding for finding in result.findings if FINDINGS[flaw] in finding], result.findings


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_at_three_times_its_peak_the_broker_refuses_and_loses_nothing_that_it_accepted(tmp_path: Path) -> None:
    result = overload.overload_broker(tmp_path, 12, peak_seconds=3)
    print("\n".join(result.lines()))
    assert result.findings == []
    load = result.overload
    assert load.accepted
    assert load.unsent + load.unanswered + load.refused.total() > 0  # it was more than the broker could do


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_whose_queue_fills_faster_than_it_works_holds_no_more_than_its_slots_and_bytes(tmp_path: Path) -> None:
    result = overload.overload_worker(tmp_path, 8)
    print("\n".join(result.lines()))
    assert result.findings == []
    assert result.sent > 2 * result.capacity
