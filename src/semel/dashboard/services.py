"""What routes and terminal share: the inspector reads, the dead-letter service acts; all other actions are here.

Every action is written to the audit log before it begins, and again when it has ended, however it ended.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.dashboard.views import QueueInspector, Settings
from semel.dashboard.views.model import DashboardError, Fault, Viewer
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
            _ = inspector.history.ledger
        except SemelError as error:
            log.warning("the ledger does not answer; actions that need it are refused until it does: %s", error)
        jobs = Jobs(inspector.state / "jobs", clock=clock)
        # Actions may take time and retries. Pages use the inspector's client, which soon reports that nothing answers.
        acting = client or Client(settings.endpoint_url, settings.region, settings.profile)
        service = DeadLetterService(
            acting, ledger=inspector.history.connected, state=inspector.state, jobs=jobs, who="dashboard", clock=clock
        )
        return cls(settings, inspector, service, jobs)

    def close(self) -> None:
        self.jobs.close()
        if self.service.client is not self.inspector.client:
            self.service.client.close()
        self.inspector.close()

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
        """Sends a test message; returns its id. On a FIFO queue, a message without `dedup` gets a random one, so SQS
        does not drop it as a duplicate."""
        target = self.inspector.client.queue(queue)
        if target.fifo and dedup is None:
            dedup = uuid.uuid4().hex
        with self.service.audit.around(viewer.name, "send", queue=queue) as ending:
            try:
                sent = target.send(body, attributes=attributes or None, delay=delay, group=group, dedup=dedup)
            except BadRequest as error:
                raise DashboardError(str(error), "correct the message", 400) from None
            ending.count, ending.details["id"] = 1, sent.message_id
        self.inspector.changed(queue)
        return sent.message_id

    def set_fault(
        self, viewer: Viewer, kind: str, rate: float, queue: str | None, milliseconds: float | None
    ) -> tuple[Fault, ...]:
        with self.service.audit.around(viewer.name, "set fault", queue=queue or "", kind=kind, rate=f"{rate:g}"):
            return self.inspector.broker.set_fault(kind, rate, queue, milliseconds)

    def clear_faults(self, viewer: Viewer, kind: str | None, queue: str | None) -> tuple[Fault, ...]:
        with self.service.audit.around(viewer.name, "clear faults", queue=queue or "", kind=kind or "all"):
            return self.inspector.broker.clear_faults(kind, queue)

    def control(self, viewer: Viewer, worker: str, action: str, queue: str | None, value: int | None) -> str:
        """Returns what the worker did, in a sentence."""
        details = {"worker": worker, "value": "" if value is None else str(value)}
        with self.service.audit.around(viewer.name, f"{action} worker", queue=queue or "", **details) as ending:
            done = self.inspector.directory.control(worker, action, queue, value)
            ending.outcome = f"done: {done}"
        return done

    def examine(self, viewer: Viewer) -> bool:
        """Starts the doctor; False if it is already running."""
        with self.service.audit.around(viewer.name, "doctor") as ending:
            started = self.inspector.doctor_job.start()
            ending.outcome = "started" if started else "not started: already running"
        return started
