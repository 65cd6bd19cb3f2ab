"""Rules on how messages are sent and received: polls, batches, delays."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Case, Severity
from semel.doctor.rules.rule import Observation, rule
from semel.durations import text as duration
from semel.sqs import limits
from semel.text import count

_MANY_EMPTY = 0.5  # a second: long polls of one consumer make 0.05
_SINGLE = 1.5
_BUSY = 5.0  # messages a second
_BACKLOG = 100
_PRICE = 0.40  # dollars for a million calls


@rule(
    "short-polling",
    Severity.INFO,
    title="receives do not wait unless they ask for it",
    needs="queue attributes, better with metrics",
    remedy="ReceiveMessageWaitTimeSeconds 20",
)
def short_polling(case: Case) -> Observation | None:
    state, series = case.state, case.series
    if state is None or state.wait > 0 or state.sources:
        return None
    empties = [point.empty_receives for point in series.points if point.empty_receives is not None] if series else []
    rate = sum(empties) / (len(empties) * series.period) if empties and series else 0.0
    is_costly = rate >= _MANY_EMPTY
    cost = rate * 86_400 * 30 * _PRICE / 1e6
    wasted = f", {count(rate * 3600, 'empty receive')} an hour (about ${cost:,.2f} a month)" if is_costly else ""
    return Observation(
        observed=f"ReceiveMessageWaitTimeSeconds is 0: receives without WaitTimeSeconds are short polls{wasted}.",
        why=(
            "A short poll asks only some of the servers of SQS: it misses messages that are there, and each empty "
            "answer costs."
        ),
        remedy=remedies.change(
            case,
            "Let receives wait for 20 s, for the whole queue or in each call (WaitTimeSeconds).",
            {"ReceiveMessageWaitTimeSeconds": limits.MAX_WAIT},
        ),
        severity=Severity.WARNING if is_costly else None,
        figures={"wait": state.wait, "empty_receives_per_second": round(rate, 3) if empties else None},
    )


@rule(
    "single-receives",
    Severity.INFO,
    title="messages are received one by one though there are many",
    needs="logs",
    remedy="MaxNumberOfMessages 10",
)
def single_receives(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or behaviour.batch_fill is None or behaviour.batch_fill >= _SINGLE:
        return None
    rate = behaviour.deliveries / max(1.0, behaviour.last_at - behaviour.first_at)
    waiting = case.state.visible if case.state is not None else 0
    if rate < _BUSY and waiting < _BACKLOG:
        return None  # with so few messages there is rarely a second one to receive
    full = rate / limits.MAX_RECEIVE
    backlog = f", and {count(waiting, 'message')} wait" if waiting >= _BACKLOG else ""
    return Observation(
        observed=f"A receive returns {behaviour.batch_fill:.1f} messages, at {rate:,.1f} messages a second{backlog}.",
        why="A call costs and takes the same time for one message as for ten.",
        remedy=(
            f"Receive with MaxNumberOfMessages=10 and delete with DeleteMessageBatch: {full:,.1f} calls of each a "
            f"second instead of {rate:,.1f}. Heartbeats must then cover all ten."
        ),
        figures={"batch_fill": behaviour.batch_fill, "messages_per_second": round(rate, 3)},
    )


@rule(
    "delay-misused",
    Severity.WARNING,
    title="delays that lose messages, are refused, or are used as a timeout",
    needs="queue attributes, or logs of the sender",
    remedy="DelaySeconds 0; hide instead of delay",
)
def delay(case: Case) -> Observation | None:
    return _delay_beyond_retention(case) or _delay_refused(case) or _delay_of_all(case)


def _delay_beyond_retention(case: Case) -> Observation | None:
    state = case.state
    if state is None or not state.delay or state.delay < state.retention:
        return None
    keeps = recommendations.retention(case, state)[0]
    return Observation(
        observed=f"Messages are delayed by {duration(state.delay)} and kept for {duration(state.retention)}.",
        why="SQS deletes them before anybody can receive them.",
        remedy=remedies.change(
            case,
            f"Set the retention of {case.queue} to {duration(keeps)} and the delay to 0; delay only the messages that "
            "need it.",
            {"DelaySeconds": 0, "MessageRetentionPeriod": round(keeps)},
        ),
        severity=Severity.CRITICAL,
        figures={"delay": state.delay, "retention": state.retention},
    )


def _delay_refused(case: Case) -> Observation | None:
    """A FIFO queue does not allow a delay for a single message."""
    errors = case.behaviour.errors if case.behaviour is not None else ()
    refused = [
        group for group in errors if "DelaySeconds" in group.sample and "not valid for this queue" in group.sample
    ]
    if not refused:
        return None
    return Observation(
        observed=(
            f"SQS refused {count(sum(group.count for group in refused), 'send')}: a FIFO queue does not allow a delay "
            "for a single message."
        ),
        why="These messages were never sent.",
        remedy=(
            "Send without DelaySeconds. Hide the message when it is received (ChangeMessageVisibility, `raise "
            "Retry(after=…)`), or delay the whole queue; on a FIFO queue both hold up the messages behind it."
        ),
        figures={"refused": sum(group.count for group in refused)},
    )


def _delay_of_all(case: Case) -> Observation | None:
    state = case.state
    if state is None or not state.delay:
        return None
    is_long = state.delay >= state.visibility
    kind = "including those already in the queue" if state.fifo else "except those sent with a delay of their own"
    return Observation(
        observed=f"Every message waits for {duration(state.delay)} before it can be received, {kind}.",
        why=(
            f"A delay gives no time for the work: that is the visibility timeout ({duration(state.visibility)}). "
            "Nor does it apply between two attempts."
            if is_long
            else "A delay adds to the time that each message takes, and does not apply between two attempts."
        ),
        remedy=remedies.change(
            case,
            "Set the delay to 0 unless each message must wait; on a Standard queue delay single messages with "
            "DelaySeconds.",
            {"DelaySeconds": 0},
        ),
        severity=None if is_long else Severity.INFO,
        figures={"delay": state.delay, "visibility": state.visibility},
    )
