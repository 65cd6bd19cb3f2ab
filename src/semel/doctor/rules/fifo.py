"""Rules on FIFO queues: groups, throughput, deduplication."""

from __future__ import annotations

from semel.doctor import remedies
from semel.doctor.model import Case, Cause, Severity
from semel.doctor.rules.rule import Observation, rule
from semel.text import count

_CALLS_PER_SECOND = 300
_NEAR = 0.8
_ENOUGH_MESSAGES = 20


@rule(
    "fifo-one-group",
    Severity.WARNING,
    title="all messages of a FIFO queue are in one group",
    needs="logs",
    remedy="a group for each thing that needs order",
)
def one_group(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not case.is_fifo or behaviour.groups != 1 or behaviour.messages < _ENOUGH_MESSAGES:
        return None
    workers = f", and {count(behaviour.workers, 'worker')} share it" if behaviour.workers > 1 else ""
    return Observation(
        observed=f"All {count(behaviour.messages, 'message')} are in one message group{workers}.",
        why="While one message of a group is in flight, SQS delivers no other of that group: nothing runs in parallel.",
        remedy=(
            "Use as MessageGroupId whatever needs order: the customer, the account, the order. If order does not "
            "matter, use a Standard queue."
        ),
        figures={"groups": behaviour.groups, "messages": behaviour.messages, "workers": behaviour.workers},
    )


@rule(
    "fifo-throughput",
    Severity.WARNING,
    title="a FIFO queue without high throughput near 300 calls a second",
    needs="queue attributes and metrics or logs",
    remedy="batches; high throughput",
)
def throughput(case: Case) -> Observation | None:
    state = case.state
    if state is None or not state.fifo or state.high_throughput:
        return None
    rate, call = _peak(case)
    fill = case.behaviour.batch_fill if case.behaviour is not None else None
    calls = rate / max(1.0, fill or 1.0)
    if calls < _NEAR * _CALLS_PER_SECOND:
        return None
    unsure = "" if fill is not None else ", if each is a call of its own"
    return Observation(
        observed=(
            f"At its peak {count(rate)} messages a second were {call}: {count(calls, 'call')} a second{unsure}, "
            f"and the queue allows {_CALLS_PER_SECOND}."
        ),
        why="SQS throttles further calls, and producers and consumers wait.",
        remedy=remedies.change(
            case,
            "Send, receive and delete in batches of ten, and enable high throughput. SQS then deduplicates within each "
            "group: use a new queue if the same deduplication id is sent to several groups.",
            {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"},
        ),
        figures={"messages_per_second": round(rate, 1), "calls_per_second": round(calls, 1)},
    )


@rule(
    "fifo-content-dedup",
    Severity.INFO,
    title="deduplication by content where messages are retried",
    needs="queue attributes, better with logs",
    remedy="a MessageDeduplicationId of one's own",
)
def content_dedup(case: Case) -> Observation | None:
    state, behaviour = case.state, case.behaviour
    if state is None or not state.content_dedup:
        return None
    sent_again = behaviour.caused_by(Cause.PRODUCER) if behaviour is not None else None
    again = sent_again.duplicates if sent_again is not None else 0
    retried = behaviour.retries if behaviour is not None else 0
    facts = []
    if again:
        facts.append(f"{count(again, 'key')} came twice nevertheless")
    if retried:
        facts.append(f"{count(retried, 'attempt')} were returned to the queue to be retried")
    return Observation(
        observed=f"SQS treats messages with the same body as duplicates{'; ' if facts else ''}{' and '.join(facts)}.",
        why=(
            "Within 5 minutes two orders with the same body become one, and a message that is sent again to be retried "
            "disappears. After 5 minutes, or with a time in the body, a repeated send is not recognised."
        ),
        remedy=remedies.change(
            case,
            "Send the thing's own id as MessageDeduplicationId. Retry by returning the message to the queue, not by "
            "sending it again. When all producers send an id, disable this: SQS then refuses sends without one.",
            {"ContentBasedDeduplication": False},
        ),
        severity=Severity.WARNING if facts else None,
        figures={"sent_again": again, "retries": retried},
    )


def _peak(case: Case) -> tuple[float, str]:
    """The highest rate of one kind of call, in messages a second."""
    rates: list[tuple[float, str]] = []
    if case.series is not None and case.series.period:
        for point in case.series.points:
            kinds = ((point.sent, "sent"), (point.received, "received"), (point.deleted, "deleted"))
            rates += [(value / case.series.period, call) for value, call in kinds if value is not None]
    if case.behaviour is not None and case.behaviour.window:
        for window in case.behaviour.windows:
            rates.append((window.received / case.behaviour.window, "received"))
    return max(rates, default=(0.0, "received"))
