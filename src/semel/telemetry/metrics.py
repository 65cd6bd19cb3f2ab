"""What the consumer counts, by queue.

The rules: counters only grow, and count each event once. Adding is cheap enough to do for every message, which is why
these are our own counters and not those of prometheus_client. docs/reference/metrics.md says what each name means.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from semel.errors import SemelError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("semel.telemetry")

COUNTERS: Final = {
    "received": "Messages received.",
    "delivered_again": "Of those, the ones that SQS had delivered before (receive count above 1).",
    "claimed": "Claims won.",
    "taken_over": "Of those, the ones won after the lease of an earlier worker had expired.",
    "claimed_elsewhere": "Returned to the queue because another worker had claimed the key.",
    "duplicates_deleted": "Duplicates: done when they arrived, and deleted without being run.",
    "conflicts": "Rejected because their key was recorded with another payload.",
    "different_payloads": "Treated as the same message, although their key was recorded with another payload.",
    "completed": "Outcomes recorded: effects.",
    "fenced": "Outcomes refused because a newer claim exists; they had no effect on the ledger.",
    "retried": "Returned to the queue for another attempt after a failure.",
    "rejected": "Moved to the dead-letter queue.",
    "skipped": "Skipped by the handler or by policy, and deleted.",
    "released": "Returned to the queue untouched, at shutdown or when the ledger is unavailable.",
    "deleted": "Deletes that SQS confirmed.",
    "delete_failed": "Deletes that SQS refused or that got no answer.",
    "delete_late": "Deletes sent after the visibility had ended.",
    "heartbeat_ok": "Visibility extensions that SQS confirmed.",
    "heartbeat_failed": "Visibility extensions that failed and were tried again.",
    "heartbeat_lost": "Messages lost while in flight: the handle or the lease was gone.",
    "ledger_errors": "Calls to the ledger that failed.",
    "poll_errors": "Receives that failed.",
    "watchdog_restarts": "Receivers restarted because they had stopped polling.",
    "results_dropped": "Results that could not be stored (not JSON, or too large); the message is recorded without.",
    "outbox_sent": "Messages of committed transactions sent to SQS.",
    "outbox_refused": "Messages of committed transactions that SQS refused; each is sent again.",
    "attempts_dropped": "Events that the attempt log could not keep.",
}
SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)
MESSAGES: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
# name: (unit, upper bounds, help)
HISTOGRAMS: Final = {
    "receive_to_start": ("seconds", SECONDS, "From the receive to the start of the handler."),
    "handler": ("seconds", SECONDS, "Time in the handler, whatever its outcome."),
    "start_to_deleted": ("seconds", SECONDS, "From the start of the handler to the confirmed delete."),
    "claim": ("seconds", SECONDS, "One claim call to the ledger."),
    "record": ("seconds", SECONDS, "One record call (or commit) to the ledger."),
    "batch_fill": ("messages", MESSAGES, "Messages that one receive brought."),
}
# name: (how the values of several processes are merged, help)
GAUGES: Final[dict[str, tuple[Callable[[list[float]], float], str]]] = {
    "in_flight": (sum, "Messages received and not yet finished."),
    "free_slots": (sum, "Messages that could be received now."),
    "concurrency": (sum, "Messages, or batches, that may be in progress at a time."),
    "paused": (max, "1 while receiving is paused by an operator."),
    "bytes_in_flight": (sum, "Bytes of the messages in flight."),
    "oldest_in_flight_seconds": (max, "Seconds since the oldest message in flight was received."),
    "receivers": (sum, "Receivers that poll."),
    "outbox_waiting": (max, "Messages in the outbox."),
    "outbox_stuck": (max, "Of those, the ones that SQS has refused."),
    "circuit_open": (max, "1 while receiving is paused because the ledger does not answer."),
}


class Counter:
    """Only grows. `read`, if set, is another source whose value is added."""

    __slots__ = ("_lock", "count", "read")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.read: Callable[[], float] | None = None

    def add(self, count: int = 1) -> None:
        with self._lock:
            self.count += count

    @property
    def value(self) -> float:
        return self.count + (_read(self.read) or 0)


class Histogram:
    """Counts how many values were at most each bound."""

    __slots__ = ("_counts", "_lock", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        place = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Does `observe` for each of them, but takes the lock only once."""
        bounds = self.bounds
        places = [bisect_left(bounds, value) for value in values]
        total = sum(values)
        with self._lock:
            counts = self._counts
            for place in places:
                counts[place] += 1
            self._sum += total

    def read(self) -> tuple[list[int], float]:
        """(the number of values up to each bound, the last one being all of them; their sum)."""
        with self._lock:
            counts, total = self._counts.copy(), self._sum
        up_to = 0
        return [up_to := up_to + count for count in counts], total


class QueueMetrics:
    """The metrics of one queue."""

    received: Counter
    delivered_again: Counter
    claimed: Counter
    taken_over: Counter
    claimed_elsewhere: Counter
    duplicates_deleted: Counter
    conflicts: Counter
    different_payloads: Counter
    completed: Counter
    fenced: Counter
    retried: Counter
    rejected: Counter
    skipped: Counter
    released: Counter
    deleted: Counter
    delete_failed: Counter
    delete_late: Counter
    heartbeat_ok: Counter
    heartbeat_failed: Counter
    heartbeat_lost: Counter
    ledger_errors: Counter
    poll_errors: Counter
    watchdog_restarts: Counter
    results_dropped: Counter
    outbox_sent: Counter
    outbox_refused: Counter
    attempts_dropped: Counter
    receive_to_start: Histogram
    handler: Histogram
    start_to_deleted: Histogram
    claim: Histogram
    record: Histogram
    batch_fill: Histogram

    def __init__(self, queue: str) -> None:
        self.labels = {"queue": queue} if queue else {}
        self.gauges: dict[str, Callable[[], float]] = {}
        for name in COUNTERS:
            setattr(self, name, Counter())
        for name, (_, bounds, _) in HISTOGRAMS.items():
            setattr(self, name, Histogram(bounds))

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """`read` is called from another thread each time the metrics page is made."""
        if name not in GAUGES:
            raise SemelError(f"unknown gauge {name!r}; the gauges are {', '.join(GAUGES)}")
        self.gauges[name] = read

    def counter(self, name: str, read: Callable[[], float]) -> None:
        """A counter that is kept elsewhere, such as the drops of the attempt log."""
        if name not in COUNTERS:
            raise SemelError(f"unknown counter {name!r}; the counters are {', '.join(COUNTERS)}")
        self.counted(name).read = read

    def counted(self, name: str) -> Counter:
        counter: Counter = getattr(self, name)
        return counter

    def measured(self, name: str) -> Histogram:
        histogram: Histogram = getattr(self, name)
        return histogram


class Metrics:
    """The metrics of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, QueueMetrics] = {}

    def queue(self, name: str = "") -> QueueMetrics:
        """The metrics of a queue; without a name, those that belong to no queue."""
        with self._lock:
            return self._queues.setdefault(name, QueueMetrics(name))

    def text(self) -> str:
        """The page that Prometheus reads."""
        from semel.telemetry import exposition

        return exposition.text(self.families())

    def families(self) -> list[Metric]:
        """The page as values, which can be pickled and merged with those of other processes."""
        from semel.telemetry import exposition

        with self._lock:
            queues = [self._queues[name] for name in sorted(self._queues)]
        families = []
        for name, about in COUNTERS.items():
            counts = [(queue.labels, queue.counted(name).value) for queue in queues]
            families.append(
                exposition.counter(f"semel_{name}", about, [sample for sample in counts if sample[0] or sample[1]])
            )
        for name, (unit, _, about) in HISTOGRAMS.items():
            measured = [(queue.labels, queue.measured(name)) for queue in queues if queue.labels]
            families.append(exposition.histogram(f"semel_{name}_{unit}", about, measured))
        for name, (_, about) in GAUGES.items():
            values = [(queue.labels, _read(queue.gauges.get(name))) for queue in queues]
            known = [(labels, value) for labels, value in values if value is not None]
            families.append(exposition.gauge(f"semel_{name}", about, known))
        return families


def _read(read: Callable[[], float] | None) -> float | None:
    if read is None:
        return None
    try:
        return read()
    except Exception:  # one broken figure must not break the page
        log.debug("a metric cannot be read", exc_info=True)
        return None
