"""What the server's routes share: the house to look at, the desk to act at, and the gate."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.dashboard.data import House, Settings
from semel.dashboard.data.errors import HouseError
from semel.dashboard.data.model import Viewer
from semel.dashboard.gate import Gate
from semel.dlq.desk import Desk
from semel.dlq.jobs import Jobs
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
    house: House
    desk: Desk
    gate: Gate
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
        house = House(settings, client=client, ledger=ledger, clock=clock)
        try:
            _ = house.memory.ledger
        except SemelError as error:
            log.warning("the ledger does not answer; what needs it is refused until it does: %s", error)
        jobs = Jobs(house.state / "jobs", clock=clock)
        # What is done may take its time and its tries; who only looks is told soon that nothing answers.
        acting = client or Client(settings.endpoint_url, settings.region, settings.profile)
        desk = Desk(
            acting,
            ledger=house.memory.connected,
            state=house.state,
            jobs=jobs,
            accept_risk=True,
            who="dashboard",
            clock=clock,
        )
        return cls(settings, house, desk, Gate(settings, clock=clock), jobs)

    def close(self) -> None:
        self.jobs.close()
        if self.desk.client is not self.house.client:
            self.desk.client.close()
        self.house.close()

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
        target = self.house.client.queue(queue)
        if target.fifo and dedup is None:
            dedup = uuid.uuid4().hex
        try:
            sent = target.send(body, attributes=attributes or None, delay=delay, group=group, dedup=dedup)
        except BadRequest as error:
            self._wrote(viewer, "send", queue, f"failed: {error}", 0)
            raise HouseError(str(error), "see what SQS says about it", 400) from None
        self._wrote(viewer, "send", queue, "done", 1, id=sent.message_id)
        self.house.changed(queue)
        return sent.message_id

    def set_fault(
        self, viewer: Viewer, kind: str, rate: float, queue: str | None, milliseconds: float | None
    ) -> tuple[Any, ...]:
        found = self.house.set_fault(kind, rate, queue, milliseconds)
        self._wrote(viewer, "set fault", queue or "", "done", None, kind=kind, rate=f"{rate:g}")
        return found

    def clear_faults(self, viewer: Viewer, kind: str | None, queue: str | None) -> tuple[Any, ...]:
        found = self.house.clear_faults(kind, queue)
        self._wrote(viewer, "clear faults", queue or "", "done", None, kind=kind or "all")
        return found

    def control(self, viewer: Viewer, worker: str, action: str, queue: str | None, value: int | None) -> str:
        """Tells a worker what to do; what it answers is in the log, too."""
        told = {"worker": worker, "value": "" if value is None else str(value)}
        try:
            done = self.house.control(worker, action, queue, value)
        except HouseError as error:
            self._wrote(viewer, f"{action} worker", queue or "", f"failed: {error.error}", None, **told)
            raise
        self._wrote(viewer, f"{action} worker", queue or "", f"done: {done}", None, **told)
        return done

    def examine(self, viewer: Viewer) -> bool:
        started = self.house.examine()
        if started:
            self._wrote(viewer, "doctor", "", "begun", None)
        return started

    def _wrote(self, viewer: Viewer, action: str, queue: str, outcome: str, count: int | None, **details: str) -> None:
        self.desk.audit.write(viewer.name, action, queue=queue, outcome=outcome, count=count, details=details)
