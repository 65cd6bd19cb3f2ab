"""Rules on how messages are sent and received: polls, batches, delays."""

from __future__ import annotations

from semel.doctor import remedies
from semel.doctor.model import Case, Remedy, Severity
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import count, seconds
from semel.sqs import limits

_MANY_EMPTY = 0.5  # a second: a long poll makes 0.05
_SINGLE = 1.5
_BUSY = 5.0  # messages a second
_BACKLOG = 100
_PRICE = 0.40  # dollars for a million calls


def _short_polls(case: Case) -> Observation | None:
    state, series = case.state, case.series
    if state is None or state.wait > 0 or state.sources:
        return None
    empties = [point.empty_receives for point in series.points if point.empty_receives is not None] if series else []
    rate = sum(empties) / (len(empties) * series.period) if empties and series else 0.0
    much = rate >= _MANY_EMPTY
    cost = rate * 86_400 * 30 * _PRICE / 1e6
    found = f", {count(rate * 3600, 'empty receive')} an hour (about ${cost:,.2f} a month)" if much else ""
    attributes = {"ReceiveMessageWaitTimeSeconds": limits.MAX_WAIT}
    return Observation(
        observed=f"ReceiveMessageWaitTimeSeconds is 0: whoever does not ask for a long poll polls short{found}.",
        why=(
            "A short poll asks only some of SQS' servers: it misses messages that are there, and each empty "
            "answer costs."
        ),
        remedy=Remedy(
            text="Let receives wait for 20 s, for the whole queue or in each call (WaitTimeSeconds).",
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        severity=Severity.WARNING if much else Severity.INFO,
        figures={"wait": state.wait, "empty_receives_per_second": round(rate, 3) if empties else None},
    )


def _single_receives(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or behaviour.batch_fill is None or behaviour.batch_fill >= _SINGLE:
        return None
    rate = behaviour.deliveries / max(1.0, behaviour.last_at - behaviour.first_at)
    waiting = case.state.visible if case.state is not None else 0
    if rate < _BUSY and waiting < _BACKLOG:
        return None  # with so few messages there is seldom a second one to be had
    full = rate / limits.MAX_RECEIVE
    backlog = f", and {count(waiting, 'message')} wait" if waiting >= _BACKLOG else ""
    return Observation(
        observed=f"A receive brings {behaviour.batch_fill:.1f} messages, at {rate:,.1f} messages a second{backlog}.",
        why="A call costs and takes the same time for one message as for ten.",
        remedy=Remedy(
            text=(
                "Receive with MaxNumberOfMessages=10 and delete with DeleteMessageBatch: "
                f"{full:,.1f} calls of each a second instead of {rate:,.1f}. Heartbeats must then cover all ten."
            )
        ),
        figures={"batch_fill": behaviour.batch_fill, "messages_per_second": round(rate, 3)},
    )


def _delay(case: Case) -> Observation | None:
    return _delay_beyond_retention(case) or _delay_refused(case) or _delay_of_all(case)


def _delay_beyond_retention(case: Case) -> Observation | None:
    state = case.state
    if state is None or not state.delay or state.delay < state.retention:
        return None
    attributes = {"DelaySeconds": 0, "MessageRetentionPeriod": 345_600}
    return Observation(
        observed=f"Messages are delayed by {seconds(state.delay)} and kept for {seconds(state.retention)}.",
        why="They are deleted before anybody could receive them.",
        remedy=Remedy(
            text="Keep messages for 4 days, and delay none, or those only that need it.",
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        severity=Severity.CRITICAL,
        figures={"delay": state.delay, "retention": state.retention},
    )


def _delay_refused(case: Case) -> Observation | None:
    """A FIFO queue takes no delay for a single message."""
    errors = case.behaviour.errors if case.behaviour is not None else ()
    refused = [
        group for group in errors if "DelaySeconds" in group.sample and "not valid for this queue" in group.sample
    ]
    if not refused:
        return None
    return Observation(
        observed=(
            f"SQS refused {count(sum(group.count for group in refused), 'send')}: a FIFO queue takes no delay for "
            "one message."
        ),
        why="These messages were never sent.",
        remedy=Remedy(
            text=(
                "Send without DelaySeconds. Hide the message when it is received (ChangeMessageVisibility, `raise "
                "Retry(after=…)`), or delay the whole queue; on a FIFO queue both hold up the messages behind it."
            )
        ),
        figures={"refused": sum(group.count for group in refused)},
    )


def _delay_of_all(case: Case) -> Observation | None:
    state = case.state
    if state is None or not state.delay:
        return None
    attributes = {"DelaySeconds": 0}
    longer = state.delay >= state.visibility
    kind = "also those that are already in it" if state.fifo else "but for those sent with a delay of their own"
    return Observation(
        observed=f"Every message waits for {seconds(state.delay)} before it can be received, {kind}.",
        why=(
            f"A delay is no time to work in, that is the visibility timeout ({seconds(state.visibility)}), and it does "
            "not hold between two attempts either."
            if longer
            else "A delay adds to the time that each message takes, and does not hold between two attempts."
        ),
        remedy=Remedy(
            text=(
                "Set it to 0 unless each message must wait; delay single messages with DelaySeconds on a "
                "Standard queue."
            ),
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        severity=Severity.WARNING if longer else Severity.INFO,
        figures={"delay": state.delay, "visibility": state.visibility},
    )


RULES = (
    Rule(
        "short-polling",
        Severity.INFO,
        "receives do not wait unless they ask for it",
        "queue attributes, better with metrics",
        "ReceiveMessageWaitTimeSeconds 20",
        _short_polls,
    ),
    Rule(
        "single-receives",
        Severity.INFO,
        "messages are received one by one though there are many",
        "logs",
        "MaxNumberOfMessages 10",
        _single_receives,
    ),
    Rule(
        "delay-misused",
        Severity.WARNING,
        "delays that lose messages, are refused, or stand where a timeout was meant",
        "queue attributes, or logs of the sender",
        "DelaySeconds 0; hide instead of delay",
        _delay,
    ),
)
