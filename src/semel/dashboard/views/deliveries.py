"""Deliveries against effects: what the workers counted, added up, and how it went over time.

The rules: a worker that has ended keeps what it counted, so totals never fall; a worker that is new counts from when it
was first seen, as far as rates go. That comes from the workers' own metrics; why duplicates came, from their log.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.views.duplicate_causes import CauseCounter
from semel.dashboard.views.model import Annotation, Caught, DeliveriesPage, DeliverySeries, QueueDeliveries
from semel.dashboard.views.workers import HOW, WorkerDirectory

EVERY: Final = 10.0  # seconds between samples that nobody asked for
KEPT: Final = 2_160  # samples: six hours
SHOWN: Final = 360
MOST_WORKERS: Final = 1_000  # remembered after their end
_MOMENT: Final = 1.0
_SAMPLE: Final = re.compile(r'semel_(\w+?)(?:_total)?\{queue="((?:[^"\\]|\\.)*)"\} (\S+)')
_COUNTERS: Final = (
    "received",
    "delivered_again",
    "completed",
    "duplicates_deleted",
    "claimed_elsewhere",
    "fenced",
    "taken_over",
    "conflicts",
    "retried",
    "rejected",
    "skipped",
    "heartbeat_lost",
)
_WANTED: Final = frozenset({*_COUNTERS, "in_flight"})
# cause: (title, what happened and why it did no harm)
_CAUGHT: Final[Mapping[str, tuple[str, str]]] = {
    "duplicates_deleted": (
        "Done before",
        "Delivered after its effect was recorded: a lost delete, a second sending, a redrive. Deleted, not run.",
    ),
    "claimed_elsewhere": (
        "Claimed elsewhere",
        "Delivered while another worker had its key. Returned to the queue, not run.",
    ),
    "fenced": (
        "Fenced",
        "A worker that had lost its claim tried to record an outcome. Refused: a newer claim has the key.",
    ),
    "conflicts": (
        "One key, two contents",
        "The key was known with another payload. Not run over what was recorded.",
    ),
}

# queue -> name -> value
Counts = dict[str, dict[str, float]]


class DeliveryCounts:
    """Takes a sample each ten seconds, and whenever somebody looks. Thread-safe."""

    def __init__(
        self, directory: WorkerDirectory, *, logs: Sequence[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._crew, self._clock = directory, clock
        self._causes = CauseCounter(logs, clock=clock)
        self._latest: dict[str, Counts] = {}
        self._samples: deque[tuple[float, float, float, float]] = deque(maxlen=KEPT)  # at, deliveries, effects, caught
        self._lock = threading.Lock()
        self._sampled: TtlCache[int] = TtlCache(_MOMENT)
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._answering = 0

    def begin(self) -> None:
        """Keep a past from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_on, name="semel-once", daemon=True)
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
            caught=tuple(sorted(caught, key=lambda one: -one.count)),
            claimed_elsewhere=of_all("claimed_elsewhere"),
            duplicates_deleted=of_all("duplicates_deleted"),
            fenced=of_all("fenced"),
            taken_over=of_all("taken_over"),
            queues=queues,
            series=_series(samples),
            workers=answering,
            causes=self._causes.latest(),
            annotations=annotations,
            notes=() if latest else (f"No worker has told anything yet. {HOW}",),
        )

    def sample(self) -> None:
        self._sampled.get("", self._sample)

    def _sample(self) -> int:
        texts = self._crew.metrics()
        found = {worker: parsed(text) for worker, text in texts.items()}
        with self._lock:
            before = {worker: self._latest[worker] for worker in found if worker in self._latest}
            grown = _difference(
                added_up(before.values()), added_up(counts for worker, counts in found.items() if worker in before)
            )
            deliveries, effects, caught = self._samples[-1][1:] if self._samples else (0.0, 0.0, 0.0)
            self._samples.append((self._clock(), deliveries + grown[0], effects + grown[1], caught + grown[2]))
            # What is in flight ends with the worker; what it counted stays.
            ended = {worker: _counted(counts) for worker, counts in self._latest.items() if worker not in found}
            self._latest = ended | found
            while len(self._latest) > MOST_WORKERS:
                del self._latest[next(iter(self._latest))]
            self._answering = len(found)
        return len(found)

    def _keep_on(self) -> None:
        while not self._end.wait(EVERY):
            if self._crew.addresses():
                self.sample()


def parsed(text: str) -> Counts:
    """What a metrics page says of each queue, of what is wanted here."""
    found: Counts = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match[1] in _WANTED:
            found.setdefault(match[2], {})[match[1]] = float(match[3])
    return found


def _counted(counts: Counts) -> Counts:
    return {queue: {name: values[name] for name in _COUNTERS if name in values} for queue, values in counts.items()}


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
    def of(counter: str) -> int:
        return int(counts.get(counter, 0))

    return QueueDeliveries(
        queue=name,
        deliveries=of("received"),
        delivered_again=of("delivered_again"),
        effects=of("completed"),
        duplicates_deleted=of("duplicates_deleted"),
        claimed_elsewhere=of("claimed_elsewhere"),
        fenced=of("fenced"),
        taken_over=of("taken_over"),
        conflicts=of("conflicts"),
        retried=of("retried"),
        rejected=of("rejected"),
        skipped=of("skipped"),
        in_flight=of("in_flight"),
        lost=of("heartbeat_lost"),
    )


def _series(samples: list[tuple[float, float, float, float]]) -> DeliverySeries:
    """Totals as rates; at most `SHOWN` of them, evenly taken."""
    step = max(1, -(-len(samples) // SHOWN))
    chosen = samples[::-1][::step][::-1]
    pairs = [(old, new) for old, new in pairwise(chosen) if new[0] > old[0]]

    def rates(column: int) -> tuple[float, ...]:
        return tuple(round((new[column] - old[column]) / (new[0] - old[0]), 3) for old, new in pairs)

    return DeliverySeries(tuple(new[0] for _, new in pairs), rates(1), rates(2), rates(3))
