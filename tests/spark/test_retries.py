"""Retries continue for as long as they may help, and no longer."""

from __future__ import annotations

import pytest

from semel.spark import retries
from semel.spark.retries import retry


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries, "time", clock)
    return clock


def test_a_passing_error_is_tried_again_until_it_has_passed(clock: Clock) -> None:
    def action() -> str:
        if clock.now < 5:
            raise ConnectionError
        return "done"

    assert retry(action, lambda error: isinstance(error, ConnectionError)) == "done"


def test_an_error_that_does_not_pass_is_raised_after_fifteen_seconds(clock: Clock) -> None:
    calls: list[float] = []

    def action() -> None:
        calls.append(clock.now)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        retry(action, lambda _: True)
    assert 10 < clock.now <= retries.SECONDS == 15
    assert len(calls) > 8


def test_any_other_error_is_raised_at_once(clock: Clock) -> None:
    def action() -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        retry(action, lambda error: isinstance(error, ConnectionError))
    assert clock.now == 0
