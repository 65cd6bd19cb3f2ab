"""Queue metrics in Prometheus' text format, under the names that CloudWatch gives them."""

from __future__ import annotations

from typing import Final

from semel.broker.engine import Engine
from semel.broker.faults import Faults

# (name, type, help, the engine's counter)
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


def exposition(engine: Engine, faults: Faults, now: int) -> str:
    """All metrics of all queues. Counters start at 0 when the broker starts."""
    totals = engine.store.totals
    names = sorted(engine.store.queues)
    measures = {name: engine.measure(name, now) for name in names}
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, samples: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(
            f"{name}{labels} {value:.3f}" if value % 1 else f"{name}{labels} {int(value)}" for labels, value in samples
        )

    for name, text, counter in _COUNTERS:
        metric(f"sqs_{name}_total", "counter", text, [(_labels(queue), totals[queue, counter]) for queue in names])
    for name, text, field in _GAUGES:
        metric(f"sqs_{name}", "gauge", text, [(_labels(queue), getattr(measures[queue], field)) for queue in names])
    lines += ["# HELP sqs_SentMessageSize Bytes of the messages sent.", "# TYPE sqs_SentMessageSize summary"]
    for queue in names:
        lines.append(f"sqs_SentMessageSize_sum{_labels(queue)} {totals[queue, 'sent_bytes']}")
        lines.append(f"sqs_SentMessageSize_count{_labels(queue)} {totals[queue, 'sent']}")
    injected = sorted(faults.counts_by_queue().items())
    metric(
        "semel_faults_injected_total",
        "counter",
        "Faults that the broker injected on purpose.",
        [(_labels(queue, kind), count) for (kind, queue), count in injected],
    )
    return "\n".join(lines) + "\n"


def _labels(queue: str, kind: str | None = None) -> str:
    # Queue names and kinds have no character that needs escaping; a name that a client made up may.
    safe = queue.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{QueueName="{safe}"}}' if kind is None else f'{{QueueName="{safe}",kind="{kind}"}}'
