"""Rules on FIFO queues: groups, throughput, deduplication."""

from __future__ import annotations

from semel.doctor import remedies
from semel.doctor.model import Case, Cause, Remedy, Severity
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import count

_CALLS_PER_SECOND = 300
_NEAR = 0.8
_ENOUGH_MESSAGES = 20


def _is_fifo(case: Case) -> bool:
    return case.queue.endswith(".fifo") or (case.state is not None and case.state.fifo)


def _one_group(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not _is_fifo(case) or behaviour.groups != 1 or behaviour.messages < _ENOUGH_MESSAGES:
        return None
    workers = f", and {count(behaviour.workers, 'worker')} share it" if behaviour.workers > 1 else ""
    return Observation(
        observed=f"All {count(behaviour.messages, 'message')} are of one message group{workers}.",
        why="While one message of a group is in flight, no other one is handed out: there is no work in parallel.",
        remedy=Remedy(
            text=(
                "Let the MessageGroupId be what order matters for: the customer, the account, the order. If order does "
                "not matter at all, use a Standard queue."
            )
        ),
        figures={"groups": behaviour.groups, "messages": behaviour.messages, "workers": behaviour.workers},
    )


def _throughput(case: Case) -> Observation | None:
    state = case.state
    if state is None or not state.fifo or state.high_throughput:
        return None
    rate, what = _peak(case)
    fill = case.behaviour.batch_fill if case.behaviour is not None else None
    calls = rate / max(1.0, fill or 1.0)
    if calls < _NEAR * _CALLS_PER_SECOND:
        return None
    unsure = "" if fill is not None else ", if each is a call of its own"
    attributes = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    return Observation(
        observed=(
            f"At its peak {count(rate)} messages a second were {what}: {count(calls, 'call')} a second{unsure}, "
            f"and the queue takes {_CALLS_PER_SECOND}."
        ),
        why="SQS throttles what is above, and producers and consumers wait.",
        remedy=Remedy(
            text=(
                "Send, receive and delete in batches of ten, and switch high throughput on. The same "
                "deduplication id is "
                "then known in each group by itself; for a queue that was made without it, SQS may go on as "
                "before: make a new queue if ids are used across groups."
            ),
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        figures={"messages_per_second": round(rate, 1), "calls_per_second": round(calls, 1)},
    )


def _peak(case: Case) -> tuple[float, str]:
    """The highest rate of one kind of call, in messages a second."""
    rates: list[tuple[float, str]] = []
    if case.series is not None and case.series.period:
        for point in case.series.points:
            kinds = ((point.sent, "sent"), (point.received, "received"), (point.deleted, "deleted"))
            rates += [(value / case.series.period, what) for value, what in kinds if value is not None]
    if case.behaviour is not None and case.behaviour.window:
        for window in case.behaviour.windows:
            rates.append((window.received / case.behaviour.window, "received"))
    return max(rates, default=(0.0, "received"))


def _content_dedup(case: Case) -> Observation | None:
    state, behaviour = case.state, case.behaviour
    if state is None or not state.content_dedup:
        return None
    sent_again = behaviour.caused_by(Cause.PRODUCER) if behaviour is not None else None
    again = sent_again.duplicates if sent_again is not None else 0
    retried = behaviour.retries if behaviour is not None else 0
    facts = []
    if again:
        facts.append(f"{count(again, 'key')} came twice all the same")
    if retried:
        facts.append(f"{count(retried, 'attempt')} were put back to be tried again")
    attributes = {"ContentBasedDeduplication": False}
    return Observation(
        observed="SQS takes messages with the same body for duplicates"
        + (f"; {' and '.join(facts)}." if facts else "."),
        why=(
            "Within 5 minutes two orders with the same body are one, and a message that is sent again to be retried "
            "disappears; after 5 minutes, or with a time in the body, a repeated send is not recognised."
        ),
        remedy=Remedy(
            text=(
                "Send a MessageDeduplicationId that is the thing's own id; retry by putting the message back, not by "
                "sending it again. When all senders give an id, switch this off: sends without one are then refused."
            ),
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        severity=Severity.WARNING if facts else Severity.INFO,
        figures={"sent_again": again, "retries": retried},
    )


RULES = (
    Rule(
        "fifo-one-group",
        Severity.WARNING,
        "all messages of a FIFO queue are of one group",
        "logs",
        "a group for each thing that needs order",
        _one_group,
    ),
    Rule(
        "fifo-throughput",
        Severity.WARNING,
        "a FIFO queue without high throughput near 300 calls a second",
        "queue attributes and metrics or logs",
        "batches; high throughput",
        _throughput,
    ),
    Rule(
        "fifo-content-dedup",
        Severity.INFO,
        "deduplication by content where messages are tried again",
        "queue attributes, better with logs",
        "a MessageDeduplicationId of one's own",
        _content_dedup,
    ),
)
