"""How a page is rendered, and what every page needs: the inspector to read with, the service to act with.

The rules: templates escape all foreign text; a page requested with `?part=a,b` is rendered without its
frame, for the script that replaces those parts; a page reports only what happened. An action is in the audit log under
the name of the caller, and cached data of its queue is dropped, so that the next page shows the change.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, model_validator

from semel.dashboard import error_responses
from semel.dashboard.services import Services
from semel.dashboard.views.inspector import QueueInspector
from semel.dashboard.views.model import Viewer
from semel.dashboard.web.template_filters import FILTERS
from semel.dlq.jobs import Job
from semel.dlq.service import DeadLetterService
from semel.errors import SemelError

HERE: Final = Path(__file__).parent.parent
STATIC: Final = HERE / "static"


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """`key` is pressed after `g`; `icon` is the SVG path of a drawing of 16 by 16."""

    id: str
    name: str
    href: str
    key: str
    icon: str


NAVIGATION: Final = (
    NavigationItem("queues", "Queues", "/", "q", "M2 3.5h12M2 8h12M2 12.5h12"),
    NavigationItem("dead-letters", "Dead-letter queues", "/dead-letters", "d", "M2 3.5h12v9H2zM2 4l6 5 6-5"),
    NavigationItem("deliveries", "Deliveries", "/deliveries", "v", "M13.5 5.5A6 6 0 1 0 14 8M8 8h.01"),
    NavigationItem(
        "workers", "Workers", "/workers", "w", "M8 8a2.6 2.6 0 1 0 0-5.2A2.6 2.6 0 0 0 8 8zM3 13.5a5 5 0 0 1 10 0"
    ),
    NavigationItem("doctor", "Doctor", "/doctor", "e", "M1.5 8.5h3l2-5 3 9 2-4h3"),
    NavigationItem("audit", "Audit", "/audit", "a", "M4 1.8h8v12.4H4zM6 5h4M6 8h4M6 11h2"),
    NavigationItem("api", "API", "/api", "i", "M5 4 1.5 8 5 12M11 4l3.5 4L11 12"),
)
_NOT_SHARED: Final = frozenset({"part", "notice"})  # parameters that a link to the page leaves out
_MAX_NOTICES: Final = 200
NOBODY: Final = Viewer(name="", can_act=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """The outcome of an action, for the page that is shown next. `link` is the text of a link to `href` after it."""

    text: str
    tone: str = "ok"
    href: str = ""
    link: str = ""


@cache
def static(name: str) -> str:
    """The address of a static file. It changes with the content, as browsers cache the file for a long time."""
    return f"/static/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


class Pages:
    """Renders templates. Texts such as "in 30 s" count from the endpoint's time."""

    def __init__(self, inspector: QueueInspector) -> None:
        self._inspector = inspector
        self._notices: dict[str, Notice] = {}
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= FILTERS
        self._templates.globals |= {
            "static": static,
            "navigation": NAVIGATION,
            "endpoint": inspector.client.endpoint,
        }

    def clock(self) -> float:
        try:
            return self._inspector.now()
        except SemelError:  # the endpoint does not answer; the page says so
            return time.time()

    def answer(
        self, request: Request, template: str, *, nav: str = "", status: int = 200, **content: Any
    ) -> HTMLResponse:
        part = parts(request)
        html = self._templates.get_template(template).render(
            nav=nav,
            part=part,
            base="fragment.html" if part else "layout.html",
            viewer=viewer(request),
            now=self.clock(),
            link=lambda **changes: link(request, **changes),
            query=_shared(request),
            **{"problem": "", "notice": self._notices.get(request.query_params.get("notice", ""))} | content,
        )
        return HTMLResponse(html, status)

    def redirect(self, path: str, notice: Notice) -> RedirectResponse:
        """Redirects to a page that shows the notice. The address contains only a number that nobody can guess, so that
        nobody can make a link to a page that reports what did not happen."""
        number = secrets.token_urlsafe(12)
        self._notices[number] = notice
        for oldest in list(self._notices)[:-_MAX_NOTICES]:
            self._notices.pop(oldest, None)
        return RedirectResponse(f"{path}{'&' if '?' in path else '?'}notice={number}", 303)

    def problem(
        self, request: Request, status: int, error: str, what_to_do: str = "", command: str = ""
    ) -> HTMLResponse:
        """A page that says what went wrong and what to do."""
        title = _TITLES.get(status, "Something went wrong")
        return self.answer(
            request,
            "error.html",
            status=status,
            title=title,
            error=sentence(error),
            what_to_do=sentence(what_to_do),
            command=command,
        )

    def login(self, request: Request, next: str, problem: str = "", status: int = 200) -> HTMLResponse:
        return self.answer(request, "login.html", status=status, next=next, problem=problem)


_TITLES: Final = {
    400: "Invalid request",
    401: "Log in",
    403: "Not allowed",
    404: "Not found",
    405: "Not found",
    409: "Not supported here",
    413: "Request too large",
    502: "The endpoint reported an error",
    503: "No answer from the endpoint",
}


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if not text or text.endswith(('.', '!', '?')) else '.'}"


def parts(request: Request) -> frozenset[str]:
    """The parts that the script asks for; empty for a whole page."""
    return frozenset(filter(None, request.query_params.get("part", "").split(",")))


def viewer(request: Request) -> Viewer:
    known = request.scope.get("state", {}).get("viewer")
    return known if isinstance(known, Viewer) else NOBODY


def link(request: Request, **changes: str) -> str:
    """The query of this page with changes; an empty value removes the parameter."""
    kept = [(name, value) for name, value in _shared(request) if name not in changes]
    return urlencode([(name, value) for name, value in [*kept, *changes.items()] if value])


def _shared(request: Request) -> list[tuple[str, str]]:
    return [(name, value) for name, value in request.query_params.multi_items() if name not in _NOT_SHARED]


class FormFields(BaseModel):
    """The fields of a form. An empty field counts as missing."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value != ""}


@dataclass(frozen=True, slots=True)
class RequestContext:
    services: Services
    pages: Pages

    @property
    def inspector(self) -> QueueInspector:
        return self.services.inspector

    def service(self, request: Request) -> DeadLetterService:
        """The service, acting in the name of the caller."""
        return self.services.service.by(viewer(request).name)

    def jobs(self, queue: str | None = None, limit: int = 10) -> list[dict[str, Any]]:
        jobs = [job for job in self.services.service.jobs() if queue in (None, job.queue)]
        return [job.to_json() for job in jobs[:limit]]

    def queue_names(self) -> list[str]:
        """Queues that a message may be sent to."""
        return [row.name for row in self.inspector.queues().rows if not row.sources]

    def targets(self, queue: str) -> dict[str, Any]:
        """What a form shows that sends a message from `queue` elsewhere, even while the endpoint does not answer."""
        try:
            sources, address = self.inspector.sources(queue), self.inspector.address(queue)
            limit = None if self.inspector.is_ours else self.inspector.queue(queue).row.max_receives
            return {"sources": sources, "address": address, "targets": self.queue_names(), "limit": limit}
        except SemelError:
            return {"sources": (queue,), "address": self.inspector.client.endpoint, "targets": (), "limit": None}

    def unsent(self, request: Request, error: SemelError, template: str, **content: Any) -> HTMLResponse:
        """The form again, with the user's input and the reason why it was not sent. It reads nothing that may fail."""
        problem = error_responses.of(error)
        return self.pages.answer(
            request, "unsent.html", status=problem.status, form_template=template, problem=problem.error,
            what_to_do=problem.what_to_do, **content,
        )  # fmt: skip

    def to_job(self, job: Job) -> RedirectResponse:
        """Redirects to the page of a job that has just been started. Cached data of its queue is dropped now and when
        the job ends."""

        def ended() -> None:
            job.wait()
            with suppress(SemelError):  # the endpoint may be gone by then
                self.inspector.changed(job.queue)

        self.inspector.changed(job.queue)
        threading.Thread(target=ended, name=f"semel-after-{job.id}", daemon=True).start()
        return RedirectResponse(f"/jobs/{job.id}", 303)
