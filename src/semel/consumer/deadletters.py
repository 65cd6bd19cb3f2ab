"""The copy of a message that goes to the dead-letter queue, with all that is known about why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.lane import UNBURIABLE_ATTEMPT, Lane
from semel.consumer.life import Event
from semel.messages import dead_letter_attributes as letters
from semel.sqs import Attribute, Entry, Queue, Sent
from semel.sqs.errors import BadRequest, SqsError
from semel.telemetry.attempt_log.log import Step


def bury(lane: Lane, deliveries: Sequence[Delivery]) -> None:
    """Copy rejected messages to the dead-letter queue; what cannot be copied stays in its own queue, and waits long."""
    if lane.dead_letters is None:
        problem = "there is no dead-letter queue: set a RedrivePolicy, dead_letter=…, or run with --create-dlq"
        outcomes: Sequence[object] = [problem] * len(deliveries)
    else:
        outcomes = _sent(lane.dead_letters, [entry_for(delivery) for delivery in deliveries])
    lane.tools.crash("after_bury")
    steps = []
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        buried = isinstance(outcome, Sent)
        if buried:
            lane.metrics.rejected.add(1)
            lane.log(Step.REJECTED, (delivery,), error=delivery.error)
            logger.warning("dead letter %s of %s: %s", delivery.received.message_id, lane.name, delivery.error)
        else:
            delivery.retry_after = lane.delay(UNBURIABLE_ATTEMPT, 1.0)
            lane.log(Step.RETRIED, (delivery,), error=f"{delivery.error}; not buried: {outcome}")
            delivery.dlq_failed = True
            logger.error(
                "%s of %s was to become a dead letter (%s) and cannot: %s",
                delivery.received.message_id,
                lane.name,
                delivery.error,
                outcome,
            )
        steps.append((delivery, lane.advance(delivery, Event.BURIED if buried else Event.UNBURIABLE)))
    lane.carry_out(steps)


def _sent(queue: Queue, entries: Sequence[Entry]) -> Sequence[object]:
    """What SQS says of each. A call that it refuses because of one of them is made again for each alone."""
    try:
        return queue.send_many(entries)
    except BadRequest as error:
        if len(entries) == 1:
            return [error]
        return [outcome for entry in entries for outcome in _sent(queue, [entry])]
    except SqsError as error:
        return [error] * len(entries)


def entry_for(delivery: Delivery) -> Entry:
    received = delivery.received
    letter = _letter(delivery)
    return Entry(
        received.body,
        attributes=letters.attributes(letter, _attributes(delivery), len(received.body.encode())),
        group=_group(delivery),
        # A second sending of this copy is the same copy; the message that comes back and fails again has a new id.
        dedup=received.message_id if _fifo(delivery) else None,
        trace=received.trace,
    )


def _letter(delivery: Delivery) -> letters.Letter:
    reason, _, error = delivery.error.partition(": ")
    # What no handler has seen and is known by its id alone may get its key from a better rule when it comes back.
    known_by_id = delivery.key_origin == "message-id" and bool(delivery.problem)
    return letters.Letter(
        key="" if known_by_id else delivery.key,
        reason=reason or "rejected",
        error=error or delivery.error,
        attempts=delivery.attempt,
        message_id=delivery.received.message_id,
        queue=delivery.lane.name,
        redrives=letters.redrives(_attributes(delivery)),
    )


def _attributes(delivery: Delivery) -> Mapping[str, Attribute]:
    """None where they cannot be read: that may be why it is here."""
    try:
        return delivery.received.attributes
    except (LookupError, TypeError, ValueError, AttributeError):
        return {}


def _fifo(delivery: Delivery) -> bool:
    target = delivery.lane.dead_letters
    return target is not None and target.fifo


def _group(delivery: Delivery) -> str | None:
    return (delivery.received.group or "dead-letters") if _fifo(delivery) else None
