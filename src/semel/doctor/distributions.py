"""Distributions of durations, read from counts of durations with the same first digits (`durations` in figures.sql)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from semel.doctor.engine.contract import Row
from semel.doctor.events import MICROSECONDS
from semel.doctor.model import HistogramBar, Times

PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
BARS_PER_DECADE: Final = 8
SHORTEST_BAR: Final = 0.001


def times(buckets: Iterable[Row]) -> Times | None:
    """The distribution of durations that are counted in buckets."""
    counts: Counter[int] = Counter()
    longest: dict[int, int] = defaultdict(int)
    for row in buckets:
        counts[row["bucket"]] += row["count"]
        longest[row["bucket"]] = max(longest[row["bucket"]], row["longest"])
    total = sum(counts.values())
    if not total:
        return None
    ranks = [math.ceil(share * total) for share in PERCENTILES]
    percentiles: list[float] = []
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        while len(percentiles) < len(ranks) and passed >= ranks[len(percentiles)]:
            percentiles.append(_seconds(longest[bucket]))
    p50, p90, p99, p999 = percentiles
    return Times(total, p50, p90, p99, p999, _seconds(max(longest.values())))


def bars(buckets: Iterable[Row]) -> tuple[HistogramBar, ...]:
    """Wider bars for a chart, the empty ones in between included."""
    counts: Counter[int] = Counter()
    for row in buckets:
        seconds = max(row["bucket"] / MICROSECONDS, SHORTEST_BAR)
        counts[math.floor(math.log10(seconds) * BARS_PER_DECADE)] += row["count"]
    if not counts:
        return ()
    places = range(min(counts), max(counts) + 1)
    return tuple(HistogramBar(_edge(place), _edge(place + 1), counts.get(place, 0)) for place in places)


def _edge(place: int) -> float:
    return float(10 ** (place / BARS_PER_DECADE))


def _seconds(microseconds: int) -> float:
    return microseconds / MICROSECONDS
