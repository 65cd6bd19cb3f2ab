"""The circuit breaker: when it opens, who may probe, and what a late answer may not do. Time is a number here."""

from __future__ import annotations

import pytest

from semel.consumer.backoff import Fixed, Schedule
from semel.consumer.breaker import Breaker, Limits, State
from semel.errors import SemelError

CHANCE = 0.0


def closed(after: int = 3) -> Breaker:
    return Breaker(Limits(after=after, backoff=Fixed(10), probe_lost_after=60))


def opened(at: float = 100.0) -> Breaker:
    return closed().failed(at, CHANCE, outage=True)


def test_a_new_breaker_lets_calls_through() -> None:
    assert closed().allows(0.0)
    assert closed().state(0.0) is State.CLOSED


def test_it_opens_after_as_many_failures_in_a_row_as_its_limit() -> None:
    breaker = closed(after=3).failed(1.0, CHANCE).failed(2.0, CHANCE)
    assert breaker.state(2.0) is State.CLOSED
    breaker = breaker.failed(3.0, CHANCE)
    assert breaker.state(3.0) is State.OPEN
    assert not breaker.allows(3.0)


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = closed(after=2).failed(1.0, CHANCE).succeeded(2.0).failed(3.0, CHANCE)
    assert breaker.state(3.0) is State.CLOSED


def test_one_outage_opens_it_at_once() -> None:
    assert closed(after=100).failed(1.0, CHANCE, outage=True).state(1.0) is State.OPEN


def test_it_says_how_long_to_wait_and_then_allows_one_probe() -> None:
    breaker = opened(at=100.0)
    assert breaker.wait(104.0) == 6.0
    assert not breaker.allows(109.9)
    assert breaker.allows(110.0)
    assert breaker.state(110.0) is State.HALF_OPEN
    breaker = breaker.asked(110.0)
    assert not breaker.allows(110.0), "a second call may not go beside the probe"
    assert breaker.state(110.0) is State.HALF_OPEN


def test_a_probe_that_succeeds_closes_it_for_good() -> None:
    breaker = opened(at=100.0).asked(110.0).succeeded(110.1)
    assert breaker == closed()


def test_a_probe_that_fails_opens_it_again_for_longer() -> None:
    breaker = Breaker(Limits(backoff=Schedule([10, 40, 90]))).failed(0.0, CHANCE, outage=True)
    assert breaker.wait(0.0) == 10
    breaker = breaker.asked(10.0).failed(10.0, CHANCE)
    assert breaker.state(10.0) is State.OPEN
    assert breaker.wait(10.0) == 40
    breaker = breaker.asked(50.0).failed(50.0, CHANCE)
    assert breaker.wait(50.0) == 90


def test_waits_start_short_again_after_a_success() -> None:
    breaker = Breaker(Limits(backoff=Schedule([10, 40]))).failed(0.0, CHANCE, outage=True)
    breaker = breaker.asked(10.0).succeeded(10.0).failed(20.0, CHANCE, outage=True)
    assert breaker.wait(20.0) == 10


def test_late_failures_of_calls_from_before_it_opened_do_not_prolong_it() -> None:
    breaker = opened(at=100.0)
    for moment in (100.1, 105.0, 109.9):
        breaker = breaker.failed(moment, CHANCE, outage=True)
    assert breaker.allows(110.0)


def test_a_late_success_from_before_it_opened_does_not_close_it() -> None:
    assert not opened(at=100.0).succeeded(101.0).allows(101.0)


def test_a_probe_that_never_answers_is_given_up_and_another_may_go() -> None:
    breaker = opened(at=100.0).asked(110.0)
    assert breaker.wait(120.0) == 50.0
    assert breaker.allows(170.0)
    assert not breaker.asked(170.0).allows(171.0)


def test_asking_while_closed_or_while_it_must_wait_changes_nothing() -> None:
    assert closed().asked(1.0) == closed()
    assert opened(at=100.0).asked(101.0) == opened(at=100.0)


def test_its_waits_are_spread_by_chance() -> None:
    waits = {Breaker().failed(0.0, chance, outage=True).wait(0.0) for chance in (0.0, 0.5, 0.9)}
    assert len(waits) == 3


def test_a_limit_of_no_failures_is_refused() -> None:
    with pytest.raises(SemelError, match="1 is the least"):
        Limits(after=0)
