"""Deletes and changes of visibility on their way to SQS, ten a call.

A delete that fails is no harm: the next delivery finds its key done, and deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.lane import Lane
from semel.consumer.life import Event
from semel.sqs import Failure
from semel.sqs.errors import SqsError
from semel.telemetry.attempt_log.log import Step


def delete(lane: Lane, deliveries: Sequence[Delivery]) -> None:
    lane.tools.crash("before_delete")
    try:
        failures = lane.queue.delete([delivery.receipt for delivery in deliveries])
    except SqsError as error:
        lane.sqs_failed(error, "are done but could not be deleted", len(deliveries))
        failures = [Failure(error.code, str(error))] * len(deliveries)
    lane.tools.crash("after_delete")
    now = lane.tools.monotonic()
    gone, late, spans = [], 0, []
    for delivery, failure in zip(deliveries, failures, strict=True):
        lane.advance(delivery, Event.DELETED)
        if failure is None:
            gone.append(delivery)
            late += now > delivery.visible_at
            if delivery.started_at:
                spans.append(now - delivery.started_at)
        else:
            lane.metrics.delete_failed.add(1)
            lane.log(Step.DELETE_FAILED, (delivery,), error=f"{failure.code}: {failure.message}")
    lane.metrics.deleted.add(len(gone))
    if late:
        lane.metrics.delete_late.add(late)
    if spans:
        lane.metrics.start_to_deleted.observe_all(spans)
    lane.log(Step.DELETED, gone)


def hide(lane: Lane, pairs: Sequence[tuple[Delivery, int]]) -> None:
    """Set how long messages stay hidden. If that fails they come back when their visibility ends: later, not never."""
    try:
        failures = lane.queue.change_visibility([(delivery.receipt, seconds) for delivery, seconds in pairs])
    except SqsError as error:
        lane.sqs_failed(error, "could not be put back", len(pairs))
        for delivery, _ in pairs:
            lane.put_back(delivery, lane.settings.lease)
        return
    for (delivery, _), failure in zip(pairs, failures, strict=True):
        if failure is not None and not failure.gone:
            logger.warning(
                "%s of %s could not be put back: %s", delivery.received.message_id, lane.name, failure.message
            )
            lane.put_back(delivery, lane.settings.lease)
