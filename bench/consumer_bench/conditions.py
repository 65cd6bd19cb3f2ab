"""The conditions of the measurements: how fast SQS answers, what the handler does, and which contestants run."""

from __future__ import annotations

from dataclasses import dataclass

from consumer_bench.contestants import CONTESTANTS

LATENCY = 8.0  # milliseconds that a call to SQS takes within a region
WITHOUT_WORK = tuple(name for name in CONTESTANTS if name != "processes")


@dataclass(frozen=True)
class Condition:
    """`handler` is a name in semel_worker.HANDLERS. `first` caps the expected messages per second of a contestant."""

    name: str
    title: str
    latency: float  # milliseconds, added to every call
    handler: str
    contestants: tuple[str, ...]
    first: int = 1_000_000


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("latency", "SQS answers after 8 ms, handler does nothing", LATENCY, "nothing", WITHOUT_WORK),
        Condition("no-latency", "SQS answers at once, handler does nothing", 0.0, "nothing", WITHOUT_WORK),
        Condition("sleep", "SQS answers after 8 ms, handler sleeps 50 ms", LATENCY, "sleep", ("sqlite",), 3_000),
        Condition(
            "compute",
            "SQS answers at once, handler computes for 2 ms",
            0.0,
            "compute",
            ("sqlite", "processes"),
            1_000,
        ),
    )
}
