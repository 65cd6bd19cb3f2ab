"""Back-off: rules without I/O."""

from __future__ import annotations

from datetime import timedelta

import pytest

from semel.consumer.backoff import Exponential, Fixed, Jitter, Schedule
from semel.durations import Duration
from semel.errors import SemelError


def test_exponential_doubles_from_its_base_and_stops_at_its_cap() -> None:
    rule = Exponential(base=2, cap=30, jitter="none")
    assert [rule.delay(attempt, 0.5) for attempt in range(1, 7)] == [2, 4, 8, 16, 30, 30]


def test_exponential_grows_by_its_factor() -> None:
    rule = Exponential(base=1, cap=1_000, factor=3, jitter="none")
    assert [rule.delay(attempt, 0.0) for attempt in (1, 2, 3)] == [1, 3, 9]


@pytest.mark.parametrize(("jitter", "low", "high"), [("full", 0, 8), ("equal", 4, 8), ("none", 8, 8)])
def test_jitter_spreads_a_delay_over_its_range(jitter: Jitter, low: float, high: float) -> None:
    rule = Exponential(base=8, jitter=jitter)
    assert rule.delay(1, 0.0) == low
    assert rule.delay(1, 0.999_999) == pytest.approx(high, rel=1e-3)


def test_jitter_is_full_unless_asked_otherwise() -> None:
    assert Exponential(base=8).delay(1, 0.25) == 2


def test_a_thousandth_attempt_waits_for_the_cap_like_any_late_one() -> None:
    assert Exponential(cap=900, jitter="none").delay(10_000, 0.0) == 900


def test_an_attempt_before_the_first_waits_like_the_first() -> None:
    assert Exponential(base=2, jitter="none").delay(0, 0.0) == 2
    assert Schedule([1, 5]).delay(0, 0.0) == 1


def test_fixed_waits_the_same_each_time() -> None:
    assert {Fixed("30s").delay(attempt, 0.3) for attempt in (1, 2, 50)} == {30}


def test_a_schedule_repeats_its_last_wait() -> None:
    rule = Schedule([1, "30s", timedelta(minutes=5)])
    assert [rule.delay(attempt, 0.0) for attempt in (1, 2, 3, 4, 99)] == [1, 30, 300, 300, 300]


def test_a_schedule_does_not_change_with_the_list_it_was_made_from() -> None:
    waits: list[Duration] = [1, 2]
    rule = Schedule(waits)
    waits[0] = 99
    assert rule.delay(1, 0.0) == 1


def test_a_rule_that_cannot_be_kept_is_refused_when_it_is_made() -> None:
    with pytest.raises(SemelError, match="factor"):
        Exponential(factor=0.5)
    with pytest.raises(SemelError, match="jitter"):
        Exponential(jitter="some")  # type: ignore[arg-type]
    with pytest.raises(SemelError, match="duration"):
        Exponential(base="soon")
    with pytest.raises(SemelError, match="schedule"):
        Schedule([])
    with pytest.raises(SemelError, match="schedule"):
        Schedule("30s")
