"""Judges figures: percentiles, growth by a robust fit, leaks. Pure functions: numbers in, numbers and sentences out.

Rule: a check compares one part of a run with another part of the same run, never with a figure from another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

MIB: Final = 1 << 20
WARM_UP: Final = 0.2  # part of a run in which caches fill, threads start, and the allocator takes its first arenas
# Growth over the second half that still counts as flat, because allocators give memory back late. For the 150,000
# messages in half a five-minute run it is about 60 bytes a message, less than one Python object. So anything that is
# kept for each message exceeds it, and more clearly in longer runs.
FLAT_BYTES: Final = 8 * MIB
FLAT_SHARE: Final = 0.05
# Files and threads that may be added late: pools fill up to their limits when a machine is slow for a moment. A leak of
# one a minute exceeds this within an hour.
SLACK: Final = 16
RATIO: Final = 1.2  # p99 of the last part of a run to that of the first
CLEAR_RATIO: Final = 2.0  # noise of a shared machine does not excuse more than this
CLEAR_SECONDS: Final = 0.05  # a ratio of two short times says little
_MOST_POINTS: Final = 300

Point = tuple[float, float]  # seconds since the start, value


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process uses at one moment."""

    at: float  # seconds since the start of the run
    process: str
    rss: int
    files: int
    threads: int


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def slope(points: Sequence[Point]) -> float:
    """Growth per second: the median over all pairs of points (Theil-Sen), which tolerates 29 % outliers."""
    step = max(1, len(points) // _MOST_POINTS)
    chosen = points[::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(chosen)
        for later in chosen[place + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0


def second_half(points: Sequence[Point], seconds: float) -> list[Point]:
    return [point for point in points if point[0] >= seconds / 2]


def growth(points: Sequence[Point], seconds: float) -> float:
    """By how much a value grew over the second half of a run of `seconds`."""
    return slope(second_half(points, seconds)) * seconds / 2


def memory_findings(samples: Sequence[Sample], seconds: float, filling: Mapping[str, float] | None = None) -> list[str]:
    """The processes whose memory is not flat. `filling`: by how much caches of a known size may still grow."""
    findings = []
    for process in processes(samples):
        points = [(sample.at, float(sample.rss)) for sample in samples if sample.process == process]
        later = second_half(points, seconds)
        if not later:
            continue
        allowed = FLAT_BYTES + FLAT_SHARE * median(value for _, value in later) + (filling or {}).get(process, 0.0)
        grown = growth(points, seconds)
        if grown > allowed:
            findings.append(
                f"the memory of the {process} grew by {grown / MIB:.1f} MiB in the second half of the run; "
                f"{allowed / MIB:.1f} MiB would be flat"
            )
    return findings


def leak_findings(samples: Sequence[Sample], seconds: float) -> list[str]:
    """The processes whose files or threads grow: their minimum in the last fifth of the run exceeds their maximum in
    the fifth after the warm-up by more than SLACK. Temporary peaks are no leak."""
    findings = []
    for process in processes(samples):
        own = [sample for sample in samples if sample.process == process]
        first = [s for s in own if WARM_UP * seconds <= s.at < 2 * WARM_UP * seconds]
        last = [s for s in own if s.at >= (1 - WARM_UP) * seconds]
        if not first or not last:
            continue
        for what, before, after in (
            ("open files", max(s.files for s in first), min(s.files for s in last)),
            ("threads", max(s.threads for s in first), min(s.threads for s in last)),
        ):
            if after > before + SLACK:
                findings.append(f"the {process} leaks {what}: at most {before} at first, at least {after} at the end")
    return findings


def processes(samples: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(sample.process for sample in samples))


@dataclass(frozen=True, slots=True)
class LatencyTrend:
    """p99 in the first and the last part of a run, in seconds."""

    first: float
    last: float

    @property
    def ratio(self) -> float:
        return self.last / self.first if self.first else 0.0

    @property
    def holds(self) -> bool:
        return self.ratio <= RATIO

    @property
    def fails_clearly(self) -> bool:
        return self.ratio > CLEAR_RATIO and self.last - self.first > CLEAR_SECONDS


def compared_seconds(seconds: float) -> float:
    """How much of each end of a run is compared: a minute, or a fifth of a short run."""
    return 60.0 if seconds >= 300 else seconds / 5


def window_seconds(seconds: float) -> float:
    """The time that one line of the report covers: a minute, or a tenth of a short run."""
    return 60.0 if seconds >= 600 else seconds / 10
