"""The circuit breaker: when it opens, who may probe, and what a late answer must not do. Time is only a number here."""

from __future__ import annotations

import pytest

from semel.consumer import circuit_breaker
from semel.consumer.backoff import Schedule
from semel.consumer.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(circuit_breaker, "BACKOFF", Schedule([10, 40, 90]))
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(clock, lambda: 0.0)


@pytest.fixture
def opened(breaker: CircuitBreaker) -> CircuitBreaker:
    """Since 100, for 10 seconds."""
    for _ in range(3):
        breaker.report(False)
    return breaker


def test_a_new_breaker_lets_polls_through(breaker: CircuitBreaker) -> None:
    assert breaker.pause() == 0
    assert not breaker.is_open


def test_it_opens_after_three_failures_in_a_row(breaker: CircuitBreaker) -> None:
    breaker.report(False)
    breaker.report(False)
    assert (breaker.is_open, breaker.pause()) == (False, 0)
    breaker.report(False)
    assert (breaker.is_open, breaker.pause()) == (True, 10)


def test_a_success_in_between_starts_the_count_anew(breaker: CircuitBreaker) -> None:
    for answered in (False, False, True, False, False):
        breaker.report(answered)
    assert not breaker.is_open


def test_when_its_wait_is_over_one_probe_may_go_and_no_other_beside_it(opened: CircuitBreaker, clock: Clock) -> None:
    clock.now = 104.0
    assert opened.pause() == 6
    clock.now = 110.0
    assert opened.pause() == 0
    assert opened.is_open
    assert opened.pause() == circuit_breaker.PROBE_LOST_AFTER


def test_a_probe_that_succeeds_closes_it_and_waits_start_short_again(opened: CircuitBreaker, clock: Clock) -> None:
    clock.now = 110.0
    assert opened.pause() == 0
    opened.report(True)
    assert (opened.is_open, opened.pause()) == (False, 0)
    for _ in range(3):
        opened.report(False)
    assert opened.pause() == 10


def test_a_probe_that_fails_opens_it_again_for_longer(opened: CircuitBreaker, clock: Clock) -> None:
    for now, wait in ((110.0, 40), (150.0, 90)):
        clock.now = now
        assert opened.pause() == 0
        opened.report(False)
        assert opened.pause() == wait


@pytest.mark.parametrize("answered", [True, False])
def test_a_late_answer_to_a_call_from_before_it_opened_changes_nothing(
    opened: CircuitBreaker, clock: Clock, answered: bool
) -> None:
    for now in (100.1, 105.0, 109.9):
        clock.now = now
        opened.report(answered)
    assert opened.is_open
    assert opened.pause() == pytest.approx(0.1)


def test_a_probe_that_never_answers_is_given_up_and_another_may_go(opened: CircuitBreaker, clock: Clock) -> None:
    clock.now = 110.0
    assert opened.pause() == 0
    clock.now = 120.0
    assert opened.pause() == 50
    clock.now = 170.0
    assert opened.pause() == 0
    assert opened.pause() > 0


def test_its_waits_are_spread_by_chance() -> None:
    waits = set()
    for chance in (0.0, 0.5, 0.9):
        breaker = CircuitBreaker(lambda: 0.0, lambda chance=chance: chance)  # type: ignore[misc]
        for _ in range(3):
            breaker.report(False)
        waits.add(breaker.pause())
    assert len(waits) == 3
