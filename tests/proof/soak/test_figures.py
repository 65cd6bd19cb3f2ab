"""The soak's checks find what they should in made-up figures: a leak, a slope, a latency that rises."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from soak import figures, history
from soak.effects import RECORD, Records
from soak.figures import MIB, LatencyTrend, Sample

SECONDS = 300.0


def samples(
    rss_per_second: float = 0.0, files_per_second: float = 0.0, threads_per_second: float = 0.0
) -> list[Sample]:
    """A process with noise, peaks, and growth."""
    chance = Random(7)
    return [
        Sample(
            at=float(at),
            process="worker 1",
            rss=int(70 * MIB + at * rss_per_second + chance.random() * 3 * MIB + 20 * MIB * (at % 37 == 0)),
            files=int(30 + at * files_per_second + chance.randrange(5) + 20 * (at % 41 == 0)),
            threads=int(50 + at * threads_per_second + chance.randrange(3)),
        )
        for at in range(int(SECONDS))
    ]


def test_noise_and_peaks_are_no_leak() -> None:
    assert figures.memory_findings(samples(), SECONDS) == []
    assert figures.leak_findings(samples(), SECONDS) == []


def test_memory_that_grows_by_a_hundred_bytes_a_message_is_found() -> None:
    (finding,) = figures.memory_findings(samples(rss_per_second=100 * 1_000), SECONDS)
    assert finding.startswith("the memory of the worker 1 grew by 14.")


def test_caches_of_a_known_size_may_fill_up() -> None:
    growing = samples(rss_per_second=100 * 1_000)
    assert figures.memory_findings(growing, SECONDS, {"worker 1": 4 * MIB}) == []
    assert figures.memory_findings(growing, SECONDS, {"broker": 4 * MIB}) != []


def test_growth_that_ends_with_the_warm_up_is_no_leak() -> None:
    warm = [
        Sample(s.at, s.process, s.rss + int(min(s.at, 100) * MIB), s.files + int(min(s.at, 50)), s.threads)
        for s in samples()
    ]
    assert figures.memory_findings(warm, SECONDS) == []
    assert figures.leak_findings(warm, SECONDS) == []


@pytest.mark.parametrize("what", ["files", "threads"])
def test_files_and_threads_that_grow_are_found(what: str) -> None:
    (finding,) = figures.leak_findings(samples(**{f"{what}_per_second": 0.3}), SECONDS)
    assert f"leaks {'open files' if what == 'files' else 'threads'}" in finding


def test_a_slope_is_not_moved_by_outliers() -> None:
    points = [(float(at), 2.0 * at + (1e9 if at % 4 == 0 else 0)) for at in range(100)]
    assert figures.slope(points) == pytest.approx(2.0, abs=0.1)
    assert figures.slope([]) == 0


def test_a_p99_that_rises_misses_the_bar_and_fails_only_if_it_rises_clearly() -> None:
    trends = [LatencyTrend(0.1, last) for last in (0.11, 0.15, 0.25)]
    assert [(trend.holds, trend.fails_clearly) for trend in trends] == [(True, False), (False, False), (False, True)]
    assert not LatencyTrend(0.001, 0.005).fails_clearly


def test_percentiles() -> None:
    assert [figures.percentile(list(range(100)), share) for share in (0, 0.5, 0.99, 1)] == [0, 50, 99, 99]
    assert figures.percentile([], 0.99) == 0


# The history.


def records(*numbers: int) -> Records:
    return np.array([(number, float(number)) for number in numbers], RECORD)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BLOCK", 500)


def test_a_history_with_one_effect_for_each_message_has_no_findings() -> None:
    everything = records(*range(1_200))
    assert history.findings(everything, everything[::-1]) == []


def test_a_message_without_an_effect_and_one_with_two_are_found_wherever_they_are() -> None:
    numbers = range(2 * history.BLOCK)
    lost, doubled = history.BLOCK - 1, history.BLOCK
    effects = records(*(n for n in numbers if n != lost), doubled)
    first, second = history.findings(records(*numbers), effects)
    assert first.startswith(f"1 messages are lost: {lost} ")
    assert second.startswith("1 messages are doubled: ")
    assert f"{doubled} " in second


def test_what_is_still_in_the_queue_is_not_lost_and_what_nobody_sent_is_found() -> None:
    assert history.findings(records(1, 2), records(1), present=[2]) == []
    (finding,) = history.findings(records(1), records(1, 3))
    assert finding.startswith("1 messages are unknown: 3 ")
