"""What every page reaches for: the house to look at, the desk to act at in the viewer's name, and the templates.

The rule: whatever changes something is in the audit log in the name of whoever asked, and what the house kept is
forgotten, so that the next page shows it.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from fastapi import Request

from semel.dashboard.services import Services
from semel.dashboard.views.inspector import QueueInspector
from semel.dashboard.web.templating import Pages, viewer
from semel.dlq.jobs import Control, Job
from semel.dlq.messages import Resent, ShownMessages
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.service import DeadLetterService, Key
from semel.errors import SemelError
from semel.messages.keys import PRODUCER_KEY
from semel.sqs.client.messages import Attribute

_NOTICES: Final = 200


@dataclass(frozen=True, slots=True)
class Notice:
    """What came of something, for the page that is shown next."""

    text: str
    tone: str = "ok"


class Notices:
    """The last of them. The address of the next page has only a number that nobody can guess: no link can make a page
    say what did not happen."""

    def __init__(self) -> None:
        self._kept: dict[str, Notice] = {}

    def add(self, notice: Notice) -> str:
        number = secrets.token_urlsafe(12)
        self._kept[number] = notice
        for oldest in list(self._kept)[:-_NOTICES]:
            self._kept.pop(oldest, None)
        return number

    def get(self, number: str) -> Notice | None:
        return self._kept.get(number)


@dataclass(frozen=True, slots=True)
class RequestContext:
    services: Services
    pages: Pages
    notices: Notices = field(default_factory=Notices)

    # Looking.

    @property
    def inspector(self) -> QueueInspector:
        return self.services.inspector

    @property
    def service(self) -> DeadLetterService:
        return self.services.service

    def jobs(self, queue: str | None = None, most: int = 10) -> list[dict[str, Any]]:
        found = (job for job in self.service.jobs() if queue in (None, job.queue))
        return [job.to_json() for _, job in zip(range(most), found, strict=False)]

    def queue_names(self) -> list[str]:
        """Queues that letters may be sent to."""
        return [row.name for row in self.inspector.queues().rows if not row.sources]

    def export(self, request: Request, queue: str, where: str, *, all: bool, any_queue: bool) -> Iterator[bytes]:
        """The lines of an export; what is wrong with the request is raised now, and not in the middle of an answer."""
        self.service.queue(queue)
        lines = self._acting(request).lines(queue, where or None, all=all, any_queue=any_queue, receive=True)
        first = next(lines, None)
        return iter(()) if first is None else chain([first], lines)

    # Acting.

    def redrive(self, request: Request, plan: RedrivePlan) -> Job:
        return self._begun(self._acting(request).redrive(plan, receive=True))

    def delete(
        self, request: Request, queue: str, where: str, *, all: bool, shown: ShownMessages, any_queue: bool
    ) -> Job:
        service = self._acting(request)
        return self._begun(
            service.delete(queue, where or None, all=all, shown=shown, any_queue=any_queue, receive=True)
        )

    def restore(self, request: Request, lines: Iterable[bytes], queue: str) -> Job:
        return self._begun(self._acting(request).restore(lines, queue))

    def resend(
        self,
        request: Request,
        queue: str,
        id: str,
        *,
        body: str | None,
        to: str,
        new_key: str | None,
        any_queue: bool = False,
    ) -> Resent:
        """`body` None leaves it as it is; `new_key` None keeps the key, "" makes one up."""
        key = Key.KEEP if new_key is None else new_key.strip() or Key.NEW
        sent = self._acting(request).resend(
            queue, id, body=body, key=key, to=to.strip(), any_queue=any_queue, receive=True
        )
        self.inspector.changed(queue)
        return sent

    def control_job(self, request: Request, id: str, action: str) -> Control:
        control = self._acting(request).control(id, action)
        self.inspector.changed(control.job.queue)
        return control

    def send(self, request: Request, queue: str, body: str, *, group: str, dedup: str, delay: int, key: str) -> str:
        """A test message; returns its id."""
        fifo = self.inspector.client.queue(queue).fifo
        return self.services.send(
            viewer(request),
            queue,
            body,
            attributes={PRODUCER_KEY: Attribute("String", key.strip())} if key.strip() else None,
            delay=delay if delay and not fifo else None,
            group=(group.strip() or "test") if fifo else None,
            dedup=(dedup.strip() or uuid.uuid4().hex) if fifo else None,
        )

    def set_fault(self, request: Request, queue: str, kind: str, rate: float, milliseconds: float | None) -> None:
        self.services.set_fault(viewer(request), kind, rate, queue, milliseconds)

    def control_worker(self, request: Request, worker: str, action: str, queue: str | None, value: int | None) -> str:
        return self.services.control(viewer(request), worker, action, queue, value)

    def examine(self, request: Request) -> None:
        self.services.examine(viewer(request))

    def _acting(self, request: Request) -> DeadLetterService:
        return self.service.by(viewer(request).name)

    def _begun(self, job: Job) -> Job:
        """What the house knows of the queue is no longer true: now, and once more when the job has ended."""

        def ended() -> None:
            job.wait()
            with suppress(SemelError):  # the endpoint may be gone by then, and nobody is there to be told
                self.inspector.changed(job.queue)

        self.inspector.changed(job.queue)
        threading.Thread(target=ended, name=f"semel-after-{job.id}", daemon=True).start()
        return job
