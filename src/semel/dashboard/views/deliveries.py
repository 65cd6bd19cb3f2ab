"""Deliveries and effects: the sums of the workers' metrics, and their history.

The counts of a worker that has ended are kept, so totals never fall; the rates count a new worker from its first
sample. The causes of duplicates come from the attempt log.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Final

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.views.duplicate_causes import CauseCounter
from semel.dashboard.views.model import Caught, DeliveriesPage, DeliverySeries, QueueDeliveries
from semel.dashboard.views.workers import HOW, WorkerDirectory
from semel.telemetry.annotation_log import Annotation

SAMPLE_SECONDS: Final = 10.0
MAX_SAMPLES: Final = 2_160  # six hours
CHART: Final = 360  # samples
MAX_WORKERS: Final = 1_000  # whose counts are kept, including workers that have ended
_CACHE_SECONDS: Final = 1.0
_SAMPLE: Final = re.compile(r'semel_(\w+?)(?:_total)?\{queue="((?:[^"\\]|\\.)*)"\} (\S+)')
# Fields whose counter has another name.
_RENAMED: Final = {"deliveries": "received", "effects": "completed", "lost": "heartbeat_lost"}
_COUNTERS: Final = {
    field.name: _RENAMED.get(field.name, field.name) for field in fields(QueueDeliveries) if field.name != "queue"
}
_WANTED: Final = frozenset(_COUNTERS.values())
# cause: (title, text)
_CAUGHT: Final[Mapping[str, tuple[str, str]]] = {
    "duplicates_deleted": (
        "Duplicate of finished work",
        "Delivered after its effect was recorded: a lost delete, a second send, a redrive. Deleted, not run.",
    ),
    "claimed_elsewhere": (
        "Claimed by another worker",
        "Delivered while another worker had claimed its key. Returned to the queue, not run.",
    ),
    "fenced": (
        "Fenced",
        "A worker that had lost its claim tried to record an outcome. Rejected: a newer claim has the key.",
    ),
    "conflicts": ("One key, two contents", "The key was recorded with another payload. Not run."),
}

# queue -> name -> value
Counts = dict[str, dict[str, float]]


class DeliveryCounts:
    """Takes a sample every ten seconds and at each request. Thread-safe."""

    def __init__(
        self, directory: WorkerDirectory, *, logs: Sequence[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._directory, self._clock = directory, clock
        self._causes = CauseCounter(logs, clock=clock)
        self._latest: dict[str, Counts] = {}
        self._samples: deque[tuple[float, float, float, float]] = deque(
            maxlen=MAX_SAMPLES
        )  # at, deliveries, effects, caught
        self._lock = threading.Lock()
        self._sampled: TtlCache[int] = TtlCache(_CACHE_SECONDS)
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._answering = 0

    def begin(self) -> None:
        """Starts the history."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample_regularly, name="semel-deliveries", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._causes.close()

    def page(self, annotations: tuple[Annotation, ...] = ()) -> DeliveriesPage:
        self.sample()
        with self._lock:
            latest, samples, answering = dict(self._latest), list(self._samples), self._answering
        total = added_up(latest.values())
        queues = tuple(_queue(name, counts) for name, counts in sorted(total.items()))

        def of_all(name: str) -> int:
            return int(sum(counts.get(name, 0) for counts in total.values()))

        caught = [Caught(cause, *words, count=of_all(cause)) for cause, words in _CAUGHT.items()]
        return DeliveriesPage(
            deliveries=of_all("received"),
            effects=of_all("completed"),
            delivered_again=of_all("delivered_again"),
            caught=tuple(sorted(caught, key=lambda row: -row.count)),
            claimed_elsewhere=of_all("claimed_elsewhere"),
            duplicates_deleted=of_all("duplicates_deleted"),
            fenced=of_all("fenced"),
            taken_over=of_all("taken_over"),
            queues=queues,
            series=_series(samples),
            workers=answering,
            causes=self._causes.latest(),
            annotations=annotations,
            notes=() if latest else (f"No worker has reported yet. {HOW}",),
        )

    def sample(self) -> None:
        self._sampled.get("", self._sample)

    def _sample(self) -> int:
        texts = self._directory.metrics()
        latest = {worker: parsed(text) for worker, text in texts.items()}
        with self._lock:
            before = {worker: self._latest[worker] for worker in latest if worker in self._latest}
            grown = _difference(
                added_up(before.values()), added_up(counts for worker, counts in latest.items() if worker in before)
            )
            deliveries, effects, caught = self._samples[-1][1:] if self._samples else (0.0, 0.0, 0.0)
            self._samples.append((self._clock(), deliveries + grown[0], effects + grown[1], caught + grown[2]))
            # Messages in flight end with the worker; its counters stay.
            ended = {worker: _counted(counts) for worker, counts in self._latest.items() if worker not in latest}
            self._latest = ended | latest
            while len(self._latest) > MAX_WORKERS:
                del self._latest[next(iter(self._latest))]
            self._answering = len(latest)
        return len(latest)

    def _sample_regularly(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            if self._directory.addresses():
                self.sample()


def parsed(text: str) -> Counts:
    """The counters of each queue on a metrics page."""
    counts: Counts = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match[1] in _WANTED:
            counts.setdefault(match[2], {})[match[1]] = float(match[3])
    return counts


def _counted(counts: Counts) -> Counts:
    return {
        queue: {name: value for name, value in values.items() if name != "in_flight"}
        for queue, values in counts.items()
    }


def added_up(all_counts: Iterable[Counts]) -> Counts:
    total: Counts = {}
    for counts in all_counts:
        for queue, values in counts.items():
            into = total.setdefault(queue, {})
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + value
    return total


def _difference(before: Counts, after: Counts) -> tuple[float, float, float]:
    def grown(*names: str) -> float:
        old, new = (
            sum(values.get(name, 0.0) for values in counts.values() for name in names) for counts in (before, after)
        )
        return max(0.0, new - old)

    return grown("received"), grown("completed"), grown("duplicates_deleted", "claimed_elsewhere", "fenced")


def _queue(name: str, counts: Mapping[str, float]) -> QueueDeliveries:
    return QueueDeliveries(name, **{field: int(counts.get(counter, 0)) for field, counter in _COUNTERS.items()})


def _series(samples: list[tuple[float, float, float, float]]) -> DeliverySeries:
    """Totals as rates; at most `CHART` of them, evenly spaced."""
    step = max(1, -(-len(samples) // CHART))
    chosen = samples[::-1][::step][::-1]
    pairs = [(old, new) for old, new in pairwise(chosen) if new[0] > old[0]]

    def rates(column: int) -> tuple[float, ...]:
        return tuple(round((new[column] - old[column]) / (new[0] - old[0]), 3) for old, new in pairs)

    return DeliverySeries(tuple(new[0] for _, new in pairs), rates(1), rates(2), rates(3))
