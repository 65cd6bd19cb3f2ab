"""The end of the line: deletes messages whose outcome is recorded, and returns others to the queue, ten per call.

A delete that fails does no harm: the next delivery finds its key done, and is deleted as a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import InFlight
from semel.consumer.lifecycle import Event
from semel.consumer.stage import Stage, Threads
from semel.sqs import Failure
from semel.sqs.errors import SqsError
from semel.telemetry.attempt_log import Step

CALL: Final = 10  # messages
MOST_THREADS: Final = 16
DELETE_LINGER: Final = 0.2  # seconds
FIFO_DELETE_LINGER: Final = 0.005  # until its message is deleted, a group is locked
RETURN_LINGER: Final = 0.05


class Acknowledger(Stage[Delivery]):
    role = "delete"

    def __init__(self, in_flight: InFlight, threads: Threads) -> None:
        setup = in_flight.setup
        linger = setup.delete_linger
        if linger is None:
            linger = FIFO_DELETE_LINGER if setup.fifo else DELETE_LINGER
        super().__init__(threads, at_once=CALL, linger=linger, most_threads=MOST_THREADS)
        self._setup = setup
        self._reporter = in_flight.reporter
        self._in_flight = in_flight

    def process(self, items: Sequence[Delivery]) -> None:
        setup, metrics = self._setup, self._setup.metrics
        setup.tools.crash("before_delete")
        try:
            failures = setup.queue.delete([delivery.receipt for delivery in items])
        except SqsError as error:
            self._reporter.sqs_failed(error, "are done but could not be deleted", len(items))
            failures = [Failure(error.code, str(error))] * len(items)
        setup.tools.crash("after_delete")
        now = setup.tools.monotonic()
        self._in_flight.apply(Event.DELETED, items)
        self._in_flight.admission.give(0, sum([delivery.size for delivery in items]))
        deleted = [delivery for delivery, failure in zip(items, failures, strict=True) if failure is None]
        metrics.deleted.add(len(deleted))
        metrics.start_to_deleted.observe_all([now - d.started_at for d in deleted if d.started_at])
        if late := sum(now > delivery.visible_at for delivery in deleted):
            metrics.delete_late.add(late)
        self._reporter.log(Step.DELETED, deleted)
        if len(deleted) < len(items):
            self._report_failures(items, failures)

    def _report_failures(self, items: Sequence[Delivery], failures: Sequence[Failure | None]) -> None:
        for delivery, failure in zip(items, failures, strict=True):
            if failure is not None:
                self._setup.metrics.delete_failed.add(1)
                self._reporter.log(Step.DELETE_FAILED, (delivery,), error=f"{failure.code}: {failure.message}")


class Returner(Stage[tuple[Delivery, int]]):
    """Sets how long messages stay hidden: until their next attempt, or not at all. If that fails, they still come back
    when their visibility timeout ends."""

    role = "return"

    def __init__(self, in_flight: InFlight, threads: Threads) -> None:
        setup = in_flight.setup
        linger = RETURN_LINGER if setup.delete_linger is None else setup.delete_linger
        super().__init__(threads, at_once=CALL, linger=linger, most_threads=MOST_THREADS)
        self._setup = setup
        self._reporter = in_flight.reporter
        self._on_returned = in_flight.returned

    def process(self, items: Sequence[tuple[Delivery, int]]) -> None:
        setup = self._setup
        try:
            failures = setup.queue.change_visibility([(delivery.receipt, seconds) for delivery, seconds in items])
        except SqsError as error:
            self._reporter.sqs_failed(error, "could not be returned to the queue", len(items))
            for delivery, _ in items:
                self._on_returned(delivery, setup.settings.lease)
            return
        for (delivery, _), failure in zip(items, failures, strict=True):
            if failure is not None and not failure.gone:
                logger.warning(
                    "could not return message %s to the queue %s: %s",
                    delivery.received.message_id,
                    setup.name,
                    failure.message,
                )
                self._on_returned(delivery, setup.settings.lease)
