"""Queue metrics in Prometheus' text format, under the names that CloudWatch gives them.

Import this only where a page is made, so that a broker in a test starts without prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from semel.broker.engine import Engine
from semel.broker.engine.attributes import Arn
from semel.broker.faults import Faults

# (name, help, the engine's counter)
_COUNTERS: Final = (
    ("NumberOfMessagesSent", "Messages sent, the deduplicated ones included.", "sent"),
    ("NumberOfMessagesReceived", "Messages handed out.", "received"),
    ("NumberOfMessagesDeleted", "Successful deletes, repeated ones included.", "deleted"),
    ("NumberOfEmptyReceives", "Receives that returned no message.", "empty_receives"),
    ("NumberOfDeduplicatedSentMessages", "FIFO sends that were recognised as duplicates.", "deduplicated"),
    ("NumberOfMessagesDeadLettered", "Messages moved to the dead-letter queue.", "dead_lettered"),
)
_GAUGES: Final = (
    ("ApproximateNumberOfMessagesVisible", "Messages that can be received now.", "visible"),
    ("ApproximateNumberOfMessagesNotVisible", "Messages in flight.", "in_flight"),
    ("ApproximateNumberOfMessagesDelayed", "Messages whose delay has not ended.", "delayed"),
    ("ApproximateAgeOfOldestMessage", "Seconds; skips messages received three times or more.", "oldest_age"),
    ("ApproximateNumberOfGroupsWithInflightMessages", "Message groups with messages in flight.", "busy_groups"),
)


class _Page(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


def exposition(engine: Engine, faults: Faults, now: int) -> str:
    """All metrics of all queues. Counters start at 0 when the broker starts."""
    return generate_latest(_Page(_families(engine, faults, now))).decode()


def _families(engine: Engine, faults: Faults, now: int) -> Iterator[Metric]:
    totals = engine.store.totals
    measures = {name: engine.measure(name, now) for name in sorted(engine.store.queues)}
    for name, about, total in _COUNTERS:
        family = Metric(f"sqs_{name}", about, "counter")
        for queue in measures:
            family.add_sample(f"sqs_{name}_total", _labels(queue), totals[queue, total])
        yield family
    for name, about, field in _GAUGES:
        family = Metric(f"sqs_{name}", about, "gauge")
        for queue, measured in measures.items():
            family.add_sample(f"sqs_{name}", _labels(queue), getattr(measured, field))
        yield family
    sizes = Metric("sqs_SentMessageSize", "Bytes of the messages sent.", "summary")
    for queue in measures:
        sizes.add_sample("sqs_SentMessageSize_sum", _labels(queue), totals[queue, "sent_bytes"])
        sizes.add_sample("sqs_SentMessageSize_count", _labels(queue), totals[queue, "sent"])
    yield sizes
    injected = Metric("semel_faults_injected", "Faults that the broker injected on purpose.", "counter")
    for (kind, queue), count in sorted(faults.counts_by_queue().items()):
        injected.add_sample("semel_faults_injected_total", {**_labels(queue), "kind": kind}, count)
    yield injected


def _labels(key: str) -> dict[str, str]:
    """The queue's name, and its region and account if they are not the broker's own."""
    arn = Arn.parse(key)
    return (
        {"QueueName": key} if arn is None else {"QueueName": arn.name, "Region": arn.region, "AccountId": arn.account}
    )
