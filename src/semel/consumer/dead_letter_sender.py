"""Copies rejected messages to the dead-letter queue, with all that is known about the reason.

A message that cannot be copied stays in its queue, and waits for a long time before its next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import DLQ_FAILED_ATTEMPT, InFlight
from semel.consumer.lifecycle import Event
from semel.consumer.stage import Stage, Threads
from semel.messages import dead_letter_attributes
from semel.sqs import Attribute, Entry, Queue, Sent
from semel.sqs.errors import BadRequest, SqsError
from semel.telemetry.attempt_log import Step

CALL: Final = 10  # messages
NO_QUEUE: Final = "there is no dead-letter queue: set a RedrivePolicy, dead_letter=…, or run with --create-dlq"


class DeadLetterSender(Stage[Delivery]):
    role = "dead-letter"

    def __init__(self, in_flight: InFlight, threads: Threads) -> None:
        super().__init__(threads, at_once=CALL)
        self._setup = in_flight.setup
        self._in_flight = in_flight
        self._reporter = in_flight.reporter

    def process(self, items: Sequence[Delivery]) -> None:
        target = self._setup.dead_letters
        outcomes: Sequence[object]
        if target is None:
            outcomes = [NO_QUEUE] * len(items)
        else:
            outcomes = _send(target, [_entry(delivery, target) for delivery in items])
        self._setup.tools.crash("after_dead_letter")
        sent, failed = [], []
        for delivery, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, Sent):
                sent.append(delivery)
                self._report_sent(delivery)
            else:
                failed.append(delivery)
                self._report_failed(delivery, outcome)
        self._in_flight.apply(Event.DEAD_LETTERED, sent)
        self._in_flight.apply(Event.DLQ_FAILED, failed)

    def _report_sent(self, delivery: Delivery) -> None:
        self._setup.metrics.rejected.add(1)
        self._reporter.log(Step.REJECTED, (delivery,), error=delivery.error)
        logger.warning(
            "moved message %s of %s to the dead-letter queue: %s",
            delivery.received.message_id,
            self._setup.name,
            delivery.error,
        )

    def _report_failed(self, delivery: Delivery, outcome: object) -> None:
        delivery.retry_after = self._in_flight.retry_delay(DLQ_FAILED_ATTEMPT, 1.0)
        delivery.dlq_failed = True
        self._reporter.log(Step.RETRIED, (delivery,), error=f"{delivery.error}; not dead-lettered: {outcome}")
        logger.error(
            "could not move message %s of %s to the dead-letter queue (reason: %s): %s",
            delivery.received.message_id,
            self._setup.name,
            delivery.error,
            outcome,
        )


def _send(queue: Queue, entries: Sequence[Entry]) -> Sequence[object]:
    """The outcome of each send. A call that SQS refuses because of one entry is repeated for each entry alone."""
    try:
        return queue.send_many(entries)
    except BadRequest as error:
        if len(entries) == 1:
            return [error]
        return [outcome for entry in entries for outcome in _send(queue, [entry])]
    except SqsError as error:
        return [error] * len(entries)


def _entry(delivery: Delivery, target: Queue) -> Entry:
    received = delivery.received
    details = _details(delivery)
    return Entry(
        received.body,
        attributes=dead_letter_attributes.attributes(details, _attributes(delivery), len(received.body.encode())),
        group=(received.group or "dead-letters") if target.fifo else None,
        # SQS drops a second send of this copy. A message that is redriven and fails again has a new id.
        dedup=received.message_id if target.fifo else None,
        trace=received.trace,
    )


def _details(delivery: Delivery) -> dead_letter_attributes.DeadLetterDetails:
    reason, _, error = delivery.error.partition(": ")
    # A message that no handler has seen, and whose key is only its id, may get a key from a better rule when it comes
    # back.
    known_by_id = delivery.key_origin == "message-id" and bool(delivery.problem)
    return dead_letter_attributes.DeadLetterDetails(
        key="" if known_by_id else delivery.key,
        reason=reason or "rejected",
        error=error or delivery.error,
        attempts=delivery.attempt,
        message_id=delivery.received.message_id,
        queue=delivery.setup.name,
        redrives=dead_letter_attributes.redrives(_attributes(delivery)),
    )


def _attributes(delivery: Delivery) -> Mapping[str, Attribute]:
    """The attributes; empty if they cannot be read, which may be why the message is here."""
    try:
        return delivery.received.attributes
    except (LookupError, TypeError, ValueError, AttributeError):
        return {}
