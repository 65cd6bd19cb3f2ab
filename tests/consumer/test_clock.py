"""Leases are measured with a clock that continues while the machine is suspended."""

from __future__ import annotations

import sys
import time

import pytest

from semel.consumer import clock
from semel.consumer.queue_setup import Tools

SUSPENDED = 3_600.0


@pytest.mark.skipif(sys.platform != "linux", reason="CLOCK_BOOTTIME is Linux's")
def test_the_clock_of_leases_counts_the_time_that_the_machine_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    gettime = time.clock_gettime
    before = gettime(time.CLOCK_BOOTTIME)
    assert before <= Tools().monotonic() <= gettime(time.CLOCK_BOOTTIME)

    def after_a_suspend(number: int) -> float:
        return gettime(number) + SUSPENDED * (number == time.CLOCK_BOOTTIME)

    monkeypatch.setattr(time, "clock_gettime", after_a_suspend)
    assert Tools().monotonic() >= before + SUSPENDED


def test_where_no_clock_counts_suspends_it_is_pythons_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_CLOCK", None)
    before = time.monotonic()
    assert before <= clock.monotonic() <= time.monotonic()
