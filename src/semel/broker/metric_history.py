"""The metrics of the last six hours: one sample of every queue every ten seconds of the broker's time.

It is kept in memory only, has a limit on samples and queues, and is empty after a restart. As in CloudWatch's sums, a
count is what happened since the previous sample.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from semel.broker.engine import Engine

PERIOD: Final = 10  # seconds
KEPT: Final = 6 * 3600 // PERIOD  # samples of each queue
MOST_QUEUES: Final = 100
MOST_ANSWERED: Final = 50_000  # samples in one answer
_EARLY: Final = 500  # milliseconds: a timer that is a little early is on time
_COUNTED: Final = ("sent", "received", "deleted", "empty_receives", "dead_lettered")
_MEASURED: Final = ("visible", "in_flight", "delayed", "oldest_age")
# `at` is when the sample was taken, `seconds` how long the period was that ended then.
COLUMNS: Final = ("at", "seconds", *_COUNTED, *_MEASURED)


class _Track:
    """The samples of one queue, in a ring: rows of `COLUMNS`."""

    __slots__ = ("next", "rows", "totals")

    def __init__(self, totals: list[int]) -> None:
        self.totals = totals
        self.rows = array("d")
        self.next = 0

    def add(self, row: Sequence[float]) -> None:
        width = len(COLUMNS)
        if len(self.rows) < KEPT * width:
            self.rows.extend(row)
        else:
            self.rows[self.next * width : (self.next + 1) * width] = array("d", row)
            self.next = (self.next + 1) % KEPT

    def columns(self, since: float, most: int) -> dict[str, list[float]]:
        """The newest `most` samples that were taken after `since`, oldest first."""
        width = len(COLUMNS)
        split = self.next * width
        rows = self.rows[split:] + self.rows[:split]
        ats = rows[::width]
        first = next((place for place, at in enumerate(ats) if at > since), len(ats))
        first = max(first, len(ats) - most)
        return {name: _plain(rows[first * width + place :: width]) for place, name in enumerate(COLUMNS)}


def _plain(values: Sequence[float]) -> list[float]:
    return [int(value) if value == int(value) else round(value, 3) for value in values]


class History:
    """Belongs to the broker's event loop; `take` runs inside its transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tracks: dict[str, _Track] = {}
        self._began = 0
        self.due = 0  # when the next sample is, in milliseconds

    def begin(self, now: int) -> None:
        """Begins a period; the next sample is taken at its end."""
        self._began, self.due = now, now + PERIOD * 1000 - _EARLY

    def take(self, now: int) -> None:
        """One sample of every queue."""
        queues = self._engine.store.queues
        for name in self._tracks.keys() - queues.keys():
            del self._tracks[name]
        seconds = (now - self._began) / 1000 if self._began else 0.0
        for name in queues:
            track = self._tracks.get(name)
            if track is None:
                if len(self._tracks) >= MOST_QUEUES:
                    continue
                # A queue that is younger than the last sample began at zero, like all counts when the broker starts.
                track = self._tracks[name] = _Track([0] * len(_COUNTED))
            self._sample(name, track, now, seconds)
        self.begin(now)

    def _sample(self, name: str, track: _Track, now: int, seconds: float) -> None:
        counters = self._engine.store.totals
        totals = [counters[name, counter] for counter in _COUNTED]
        measures = self._engine.measure(name, now, wholly=False)
        # A total that went down belongs to a queue that was deleted and created again.
        counted = [new - old if new >= old else new for new, old in zip(totals, track.totals, strict=True)]
        track.totals = totals
        track.add([now / 1000, seconds, *counted, *(getattr(measures, name) for name in _MEASURED)])

    def described(self, queues: Sequence[str] = (), since: float = 0.0) -> dict[str, Any]:
        """The samples as columns, of all queues or of some."""
        wanted = [name for name in sorted(self._tracks) if not queues or name in queues]
        most = max(1, MOST_ANSWERED // max(1, len(wanted)))
        return {
            "period": PERIOD,
            "kept": KEPT * PERIOD,
            "left_out": max(0, len(self._engine.store.queues) - len(self._tracks)),
            "queues": {name: self._tracks[name].columns(since, most) for name in wanted},
        }
