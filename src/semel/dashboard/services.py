"""What the server's routes share: the house to look at, the desk to act at, and the gate."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.dashboard.auth.policy import AccessPolicy
from semel.dashboard.views import QueueInspector, Settings
from semel.dashboard.views.errors import DashboardError
from semel.dashboard.views.model import Viewer
from semel.dlq.jobs import Jobs
from semel.dlq.service import DeadLetterService
from semel.errors import SemelError
from semel.sqs import Client
from semel.sqs.client.messages import Attribute
from semel.sqs.errors import BadRequest

if TYPE_CHECKING:
    from semel.ledger.contract import Ledger

log = logging.getLogger("semel.dashboard")


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    inspector: QueueInspector
    service: DeadLetterService
    policy: AccessPolicy
    jobs: Jobs

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        client: Client | None = None,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Services:
        inspector = QueueInspector(settings, client=client, ledger=ledger, clock=clock)
        try:
            _ = inspector.memory.ledger
        except SemelError as error:
            log.warning("the ledger does not answer; what needs it is refused until it does: %s", error)
        jobs = Jobs(inspector.state / "jobs", clock=clock)
        # What is done may take its time and its tries; who only looks is told soon that nothing answers.
        acting = client or Client(settings.endpoint_url, settings.region, settings.profile)
        service = DeadLetterService(
            acting,
            ledger=inspector.memory.connected,
            state=inspector.state,
            jobs=jobs,
            who="dashboard",
            clock=clock,
        )
        return cls(settings, inspector, service, AccessPolicy(settings, clock=clock), jobs)

    def close(self) -> None:
        self.jobs.close()
        if self.service.client is not self.inspector.client:
            self.service.client.close()
        self.inspector.close()

    # What the desk has no name for, and the audit log has.

    def send(
        self,
        viewer: Viewer,
        queue: str,
        body: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        delay: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
    ) -> str:
        """A test message; returns its id. A FIFO queue gets a deduplication id of its own: two of the same are two."""
        target = self.inspector.client.queue(queue)
        if target.fifo and dedup is None:
            dedup = uuid.uuid4().hex
        with self.service.audit.around(viewer.name, "send", queue=queue) as ending:
            try:
                sent = target.send(body, attributes=attributes or None, delay=delay, group=group, dedup=dedup)
            except BadRequest as error:
                raise DashboardError(str(error), "see what SQS says about it", 400) from None
            ending.count, ending.details["id"] = 1, sent.message_id
        self.inspector.changed(queue)
        return sent.message_id

    def set_fault(
        self, viewer: Viewer, kind: str, rate: float, queue: str | None, milliseconds: float | None
    ) -> tuple[Any, ...]:
        with self.service.audit.around(viewer.name, "set fault", queue=queue or "", kind=kind, rate=f"{rate:g}"):
            return self.inspector.set_fault(kind, rate, queue, milliseconds)

    def clear_faults(self, viewer: Viewer, kind: str | None, queue: str | None) -> tuple[Any, ...]:
        with self.service.audit.around(viewer.name, "clear faults", queue=queue or "", kind=kind or "all"):
            return self.inspector.clear_faults(kind, queue)

    def control(self, viewer: Viewer, worker: str, action: str, queue: str | None, value: int | None) -> str:
        """Tells a worker what to do; what it answers is in the log, too."""
        told = {"worker": worker, "value": "" if value is None else str(value)}
        with self.service.audit.around(viewer.name, f"{action} worker", queue=queue or "", **told) as ending:
            done = self.inspector.control(worker, action, queue, value)
            ending.outcome = f"done: {done}"
        return done

    def examine(self, viewer: Viewer) -> bool:
        started = self.inspector.examine()
        if started:
            self.service.audit.write(viewer.name, "doctor", outcome="begun")
        return started
