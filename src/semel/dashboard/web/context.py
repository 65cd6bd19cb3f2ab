"""What every page needs: the inspector to read, the service to act in the viewer's name, and the templates.

The rule: an action is in the audit log under the name of whoever asked for it, and cached data of its queue is dropped,
so that the next page shows the change.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse

from semel.dashboard import errors as problems
from semel.dashboard.services import Services
from semel.dashboard.views.inspector import QueueInspector
from semel.dashboard.web.templating import Pages, viewer
from semel.dlq.jobs import Job
from semel.dlq.service import DeadLetterService
from semel.errors import SemelError


@dataclass(frozen=True, slots=True)
class RequestContext:
    services: Services
    pages: Pages

    @property
    def inspector(self) -> QueueInspector:
        return self.services.inspector

    def service(self, request: Request) -> DeadLetterService:
        """In the name of whoever asks."""
        return self.services.service.by(viewer(request).name)

    def jobs(self, queue: str | None = None, limit: int = 10) -> list[dict[str, Any]]:
        jobs = [job for job in self.services.service.jobs() if queue in (None, job.queue)]
        return [job.to_json() for job in jobs[:limit]]

    def queue_names(self) -> list[str]:
        """Queues that a message may be sent to."""
        return [row.name for row in self.inspector.queues().rows if not row.sources]

    def targets(self, queue: str) -> dict[str, Any]:
        """What a form that sends a message out of `queue` shows, also while the endpoint does not answer."""
        try:
            sources, address = self.inspector.sources(queue), self.inspector.address(queue)
            limit = None if self.inspector.is_ours else self.inspector.queue(queue).row.max_receives
            return {"sources": sources, "address": address, "targets": self.queue_names(), "limit": limit}
        except SemelError:
            return {"sources": (queue,), "address": self.inspector.client.endpoint, "targets": (), "limit": None}

    def unsent(self, request: Request, error: SemelError, template: str, **content: Any) -> HTMLResponse:
        """The form again, with what was typed and why it was not sent; nothing is read for it that may fail."""
        problem = problems.of(error)
        return self.pages.answer(
            request, "unsent.html", status=problem.status, form_template=template, problem=problem.error,
            what_to_do=problem.what_to_do, **content,
        )  # fmt: skip

    def to_job(self, job: Job) -> RedirectResponse:
        """To the page of a job that has just been started. It changes its queue now and until it ends."""

        def ended() -> None:
            job.wait()
            with suppress(SemelError):  # the endpoint may be gone by then
                self.inspector.changed(job.queue)

        self.inspector.changed(job.queue)
        threading.Thread(target=ended, name=f"semel-after-{job.id}", daemon=True).start()
        return RedirectResponse(f"/jobs/{job.id}", 303)
