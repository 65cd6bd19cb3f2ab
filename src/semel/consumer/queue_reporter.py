"""Reports on the messages of one queue: attempt log, error counters, and warnings with a limited rate.

Errors that concern the whole process are passed on: `on_ledger_result` feeds the circuit breaker, `on_fatal` stops the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from semel.consumer.context import logger
from semel.consumer.delivery import Delivery
from semel.consumer.queue_setup import QueueSetup
from semel.ledger.contract import LedgerError
from semel.sqs.errors import AccessDenied, CredentialsRefused, SqsError
from semel.telemetry.attempt_log import Attempt, Step
from semel.telemetry.logs import RateLimitedLog


class QueueReporter:
    def __init__(
        self,
        setup: QueueSetup,
        on_ledger_result: Callable[[bool], None] = lambda _answered: None,
        on_fatal: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self._setup = setup
        self._metrics = setup.metrics
        self.on_ledger_result = on_ledger_result
        self.on_fatal = on_fatal
        self.limited = RateLimitedLog(logger, setup.tools.monotonic)  # for messages that could repeat very often

    @property
    def logs_attempts(self) -> bool:
        return self._setup.tools.log is not None

    def log(self, step: Step, chunk: Iterable[Delivery], seconds: float = 0.0, error: str = "") -> None:
        """One event of the attempt log for each message."""
        setup = self._setup
        log = setup.tools.log
        if log is None:
            return
        at, name, lease, handler = setup.tools.now(), setup.name, setup.settings.lease, setup.handler.name
        log.add_all(
            [
                Attempt(
                    at=at,
                    step=step,
                    queue=name,
                    message_id=delivery.received.message_id,
                    key=delivery.key,
                    fence=delivery.fence,
                    attempt=delivery.attempt,
                    receive_count=delivery.received.receive_count,
                    sent_at=delivery.received.sent_at or 0.0,
                    group=delivery.group or "",
                    seconds=seconds,
                    visibility=lease,
                    error=error,
                    key_origin=delivery.key_origin,
                    handler=handler,
                )
                for delivery in chunk
            ]
        )

    def sqs_failed(self, error: SqsError, what: str, count: int) -> None:
        """A call about messages in flight failed. Without the permission to make it, the run stops."""
        self.limited.error(what, "%d messages of %s %s: %s", count, self._setup.name, what, error)
        # Credentials that have expired may be renewed; a missing permission stays missing.
        if isinstance(error, AccessDenied) and not isinstance(error, CredentialsRefused):
            self.on_fatal(error)

    def ledger_failed(self, call: str, error: LedgerError) -> None:
        self._metrics.ledger_errors.add(1)
        self.limited.error(call, "the ledger failed at %s for %s: %s", call, self._setup.name, error)
        self.on_ledger_result(False)

    def ledger_refused(self, call: str, error: LedgerError) -> None:
        """The ledger answers, but refuses what it was given for one message."""
        self._metrics.ledger_errors.add(1)
        self.limited.error(f"refused {call}", "the ledger refused a %s for %s: %s", call, self._setup.name, error)

    def different_payloads(self, chunk: Sequence[Delivery]) -> None:
        """Messages whose key was known with another payload, and for which the key decided."""
        self._metrics.different_payloads.add(len(chunk))
        for delivery in chunk:
            self.limited.warning(
                "different payload",
                "%s of %s came under the key %r, which was known with another payload: the key decides, so it is a "
                "duplicate of the first; to have such messages rejected, set payload= for the handler",
                delivery.received.message_id,
                self._setup.name,
                delivery.key,
            )
