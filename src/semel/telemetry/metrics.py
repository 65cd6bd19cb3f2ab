"""What the consumer counts, by queue, in Prometheus' text format.

The rules: counters only grow, and say what happened, once for each time that it happened; adding is cheap enough for
every message. docs/metrics.md tells what each name means and which questions they answer together.
"""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from semel.errors import SemelError

log = logging.getLogger("semel.telemetry")

COUNTERS: Final = {
    "received": "Messages received.",
    "delivered_again": "Of those, the ones that SQS had handed out before (receive count above 1).",
    "claimed": "Claims won.",
    "taken_over": "Of those, the ones won after an earlier holder let its lease run out.",
    "bounced": "Put back because another holder had the key.",
    "healed": "Done when they arrived, and deleted: duplicates that had no effect.",
    "conflicts": "Rejected because their key was known with another payload.",
    "different_payloads": "Their key was known with another payload, and the key decided.",
    "completed": "Outcomes recorded as done: effects.",
    "fenced": "Outcomes refused because a newer claim exists: zombies that did no harm.",
    "retried": "Put back for another attempt after a failure.",
    "rejected": "Given up on and put aside as dead letters.",
    "skipped": "Left out on request of the handler or by policy, and deleted.",
    "released": "Put back untouched, at shutdown or when the ledger is away.",
    "deleted": "Deletes that SQS confirmed.",
    "delete_failed": "Deletes that SQS refused or that got no answer.",
    "delete_late": "Deletes sent after the visibility had ended.",
    "heartbeat_ok": "Visibility extensions that SQS confirmed.",
    "heartbeat_failed": "Visibility extensions that failed and were tried again.",
    "heartbeat_lost": "Messages lost while in flight: the handle or the lease was gone.",
    "ledger_errors": "Calls to the ledger that failed.",
    "poll_errors": "Receives that failed.",
    "watchdog_restarts": "Receivers restarted because they had stopped polling.",
    "results_dropped": "Results that could not be stored (no JSON, or too large); their messages are done without.",
    "outbox_sent": "Messages of committed transactions handed to SQS.",
    "outbox_refused": "Messages of committed transactions that SQS refused; each is tried again.",
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
# name: (how those of several processes become one, help)
GAUGES: Final[dict[str, tuple[Callable[[list[float]], float], str]]] = {
    "in_flight": (sum, "Messages received and not yet settled."),
    "permits_free": (sum, "Messages that could be taken in now."),
    "concurrency": (sum, "Messages, or batches, that may be worked on at a time."),
    "paused": (max, "1 while receiving is paused by an operator."),
    "bytes_in_flight": (sum, "Bytes of the messages in flight."),
    "oldest_in_flight_seconds": (max, "Age of the message that has been in flight for longest."),
    "receivers": (sum, "Receivers that poll."),
    "outbox_waiting": (max, "Messages in the outbox."),
    "outbox_stuck": (max, "Of those, the ones that SQS has refused."),
    "circuit_open": (max, "1 while polling pauses because the ledger does not answer."),
}


class Counter:
    """Only grows. `read`, if set, is another source that is added to what was counted here."""

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
        return self.count + (_asked(self.read) or 0 if self.read else 0)


class Histogram:
    """How often values fell under each bound."""

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
        bounds = self.bounds
        places = [bisect_left(bounds, value) for value in values]
        total = sum(values)
        with self._lock:
            counts = self._counts
            for place in places:
                counts[place] += 1
            self._sum += total

    def read(self) -> tuple[list[int], float]:
        """(how many up to each bound, the last one being all, their sum)."""
        with self._lock:
            counts, total = self._counts.copy(), self._sum
        up_to = 0
        return [up_to := up_to + count for count in counts], total


class Lane:
    """The metrics of one queue."""

    received: Counter
    delivered_again: Counter
    claimed: Counter
    taken_over: Counter
    bounced: Counter
    healed: Counter
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
        self.queue = queue
        self.gauges: dict[str, Callable[[], float]] = {}
        for name in COUNTERS:
            setattr(self, name, Counter())
        for name, (_, bounds, _) in HISTOGRAMS.items():
            setattr(self, name, Histogram(bounds))

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """`read` is called, from another thread, each time that somebody looks."""
        if name not in GAUGES:
            raise SemelError(f"there is no gauge {name!r}; there are: {', '.join(GAUGES)}")
        self.gauges[name] = read

    def counter(self, name: str, read: Callable[[], float]) -> None:
        """A counter that is kept elsewhere, such as the drops of the attempt log."""
        if name not in COUNTERS:
            raise SemelError(f"there is no counter {name!r}; there are: {', '.join(COUNTERS)}")
        self.counted(name).read = read

    def counted(self, name: str) -> Counter:
        counter: Counter = getattr(self, name)
        return counter

    def measured(self, name: str) -> Histogram:
        histogram: Histogram = getattr(self, name)
        return histogram


class Metrics:
    """Those of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}

    def lane(self, queue: str = "") -> Lane:
        """The metrics of a queue; without one, those that belong to no queue."""
        with self._lock:
            return self._lanes.setdefault(queue, Lane(queue))

    def text(self) -> str:
        """Prometheus' exposition format, version 0.0.4."""
        lanes = self._sorted()
        lines: list[str] = []
        for name, text in COUNTERS.items():
            values = [(lane.queue, lane.counted(name).value) for lane in lanes]
            samples = [f"semel_{name}_total{_labels(queue)} {_number(v)}" for queue, v in values if queue or v]
            lines += _family(f"semel_{name}_total", "counter", text, samples)
        for name, (unit, _, text) in HISTOGRAMS.items():
            full = f"semel_{name}_{unit}"
            samples = [line for lane in lanes if lane.queue for line in _histogram(full, lane, name)]
            lines += _family(full, "histogram", text, samples)
        for name, (_, text) in GAUGES.items():
            read = [(lane.queue, _asked(lane.gauges.get(name))) for lane in lanes]
            samples = [f"semel_{name}{_labels(queue)} {_number(v)}" for queue, v in read if v is not None]
            lines += _family(f"semel_{name}", "gauge", text, samples)
        return "\n".join(lines) + "\n"

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """{queue: {counter: n, histogram: {"count": n, "sum": s, "buckets": {"0.1": n, …}}, gauge: x}}"""
        return {lane.queue: _snapshot(lane) for lane in self._sorted()}

    def _sorted(self) -> list[Lane]:
        with self._lock:
            return [self._lanes[queue] for queue in sorted(self._lanes)]


def _snapshot(lane: Lane) -> dict[str, Any]:
    found: dict[str, Any] = {name: lane.counted(name).value for name in COUNTERS}
    for name in HISTOGRAMS:
        histogram = lane.measured(name)
        up_to, total = histogram.read()
        bounds = [*map(_number, histogram.bounds), "+Inf"]
        found[name] = {"count": up_to[-1], "sum": total, "buckets": dict(zip(bounds, up_to, strict=True))}
    for name in GAUGES:
        if (value := _asked(lane.gauges.get(name))) is not None:
            found[name] = value
    return found


def _asked(read: Callable[[], float] | None) -> float | None:
    if read is None:
        return None
    try:
        return read()
    except Exception:  # one broken figure must not take the page away
        log.debug("a metric cannot be read", exc_info=True)
        return None


def _family(name: str, kind: str, text: str, samples: list[str]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples] if samples else []


def _histogram(full: str, lane: Lane, name: str) -> list[str]:
    histogram = lane.measured(name)
    up_to, total = histogram.read()
    bounds = [*map(_number, histogram.bounds), "+Inf"]
    lines = [f"{full}_bucket{_labels(lane.queue, bound)} {count}" for bound, count in zip(bounds, up_to, strict=True)]
    labels = _labels(lane.queue)
    return [*lines, f"{full}_sum{labels} {_number(total)}", f"{full}_count{labels} {up_to[-1]}"]


def _labels(queue: str, bound: str = "") -> str:
    if not queue:
        return ""
    safe = queue.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{queue="{safe}",le="{bound}"}}' if bound else f'{{queue="{safe}"}}'


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


# Several processes as one page. Counters and histograms add up, and never go down: a process that ended takes its
# gauges with it, but what it counted stays. Keep `without_gauges` of its last page and merge that in, too; else
# Prometheus would take the fall for a restart, and count everything once more.


@dataclass(slots=True)
class _Family:
    comments: list[str]
    kind: str
    samples: dict[str, list[float]] = field(default_factory=dict)


def merge_texts(texts: Iterable[str]) -> str:
    """One page from the pages (`Metrics.text`) of several processes."""
    families: dict[str, _Family] = {}
    for text in texts:
        _read(text, families)
    lines: list[str] = []
    for name, family in families.items():
        merge = _merging(name.removeprefix("semel_")) if family.kind == "gauge" else sum
        lines += family.comments
        lines += [f"{sample} {_number(merge(values))}" for sample, values in family.samples.items()]
    return "\n".join(lines) + "\n"


def without_gauges(text: str) -> str:
    """What stays true of a process after its end."""
    families: dict[str, _Family] = {}
    _read(text, families)
    lines: list[str] = []
    for family in families.values():
        if family.kind != "gauge":
            lines += family.comments
            lines += [f"{sample} {_number(values[0])}" for sample, values in family.samples.items()]
    return "\n".join(lines) + "\n"


def merge_snapshots(snapshots: Iterable[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """One snapshot from those (`Metrics.snapshot`) of several processes."""
    found: dict[str, dict[str, list[Any]]] = {}
    for snapshot in snapshots:
        for queue, values in snapshot.items():
            for name, value in values.items():
                found.setdefault(queue, {}).setdefault(name, []).append(value)
    return {
        queue: {name: _merged(name, all_) for name, all_ in names.items()} for queue, names in sorted(found.items())
    }


def _merged(name: str, values: list[Any]) -> Any:
    if not isinstance(values[0], dict):
        return _merging(name)(values)
    bounds = values[0]["buckets"]
    return {
        "count": sum(one["count"] for one in values),
        "sum": sum(one["sum"] for one in values),
        "buckets": {bound: sum(one["buckets"].get(bound, 0) for one in values) for bound in bounds},
    }


def _merging(name: str) -> Callable[[list[float]], float]:
    return GAUGES[name][0] if name in GAUGES else sum


def _read(text: str, families: dict[str, _Family]) -> None:
    """Add the samples of a page that `Metrics.text` wrote: each family begins with its HELP and TYPE."""
    help_line, family = "", _Family([], "")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_line = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = families.setdefault(name, _Family([help_line, line], kind))
        elif line and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            family.samples.setdefault(sample, []).append(float(value))
