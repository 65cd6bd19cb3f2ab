"""How a page is made: templates, what every page knows, and the parts of it that stay fresh.

The rules: everything that comes from elsewhere is escaped by the templates; a page asked for with `?part=a,b` is made
without its frame, for the script that puts those parts in place of the old ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from semel.dashboard.views.inspector import QueueInspector
from semel.dashboard.views.model import Viewer
from semel.dashboard.web.text import FILTERS
from semel.errors import SemelError

HERE: Final = Path(__file__).parent.parent
STATIC: Final = HERE / "static"


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the navigation; `key` follows `g`, `icon` is the path of a 16 by 16 drawing."""

    id: str
    name: str
    href: str
    key: str
    icon: str


NAVIGATION: Final = (
    Place("queues", "Queues", "/", "q", "M2 3.5h12M2 8h12M2 12.5h12"),
    Place("dead-letters", "Dead letters", "/dead-letters", "d", "M2 3.5h12v9H2zM2 4l6 5 6-5"),
    Place("once", "Once", "/deliveries", "o", "M13.5 5.5A6 6 0 1 0 14 8M8 8h.01"),
    Place("workers", "Workers", "/workers", "w", "M8 8a2.6 2.6 0 1 0 0-5.2A2.6 2.6 0 0 0 8 8zM3 13.5a5 5 0 0 1 10 0"),
    Place("doctor", "Doctor", "/doctor", "e", "M1.5 8.5h3l2-5 3 9 2-4h3"),
    Place("audit", "Audit", "/audit", "a", "M4 1.8h8v12.4H4zM6 5h4M6 8h4M6 11h2"),
    Place("api", "API", "/api", "i", "M5 4 1.5 8 5 12M11 4l3.5 4L11 12"),
)
# What a page is told once, and what does not belong to its address.
_ONCE: Final = frozenset({"part", "sent", "notice", "did"})
NOBODY: Final = Viewer(name="", can_act=False)


@cache
def static(name: str) -> str:
    """The address of a file, new whenever its content is: browsers keep it for long."""
    return f"/static/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= FILTERS
    made.globals |= {"static": static, "navigation": NAVIGATION}
    return made


class Pages:
    """Makes answers out of templates. `endpoint` is shown on every page; `clock` is the endpoint's time, which is what
    "in 30 s" on a page counts from."""

    def __init__(self, endpoint: str, clock: Callable[[], float]) -> None:
        self._templates = environment()
        self.endpoint = endpoint
        self._clock = clock

    @classmethod
    def of(cls, inspector: QueueInspector) -> Pages:
        return cls(inspector.client.endpoint, inspector.now)

    def clock(self) -> float:
        try:
            return self._clock()
        except SemelError:  # the endpoint does not answer, and a page must say so
            return time.time()

    def answer(
        self, request: Request, template: str, *, nav: str = "", status: int = 200, **content: Any
    ) -> HTMLResponse:
        return HTMLResponse(self.html(request, template, nav=nav, **content), status)

    def html(self, request: Request, template: str, *, nav: str = "", **content: Any) -> str:
        part = parts(request)
        return self._templates.get_template(template).render(
            nav=nav,
            part=part,
            base="fragment.html" if part else "layout.html",
            viewer=viewer(request),
            endpoint=self.endpoint,
            now=self.clock(),
            link=lambda **changes: link(request, **changes),
            **content,
        )

    def problem(
        self, request: Request, status: int, error: str, what_to_do: str = "", command: str = ""
    ) -> HTMLResponse:
        """A page that says what went wrong, and what to do."""
        title = _TITLES.get(status, "That did not work")
        return self.answer(
            request,
            "error.html",
            status=status,
            title=title,
            error=_sentence(error),
            what_to_do=_sentence(what_to_do),
            command=command,
        )

    def login(self, request: Request, *, next: str = "/", problem: str = "", status: int = 200) -> HTMLResponse:
        return self.answer(request, "login.html", status=status, next=next, problem=problem)


_TITLES: Final = {
    401: "Who are you?",
    403: "Refused",
    404: "Not there",
    409: "Not here",
    413: "Too much",
    503: "No answer",
}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if not text or text.endswith(('.', '!', '?')) else '.'}"


def parts(request: Request) -> frozenset[str]:
    """The parts that the script asks for; none: the whole page is wanted."""
    return frozenset(filter(None, request.query_params.get("part", "").split(",")))


def viewer(request: Request) -> Viewer:
    found = request.scope.get("state", {}).get("viewer")
    return found if isinstance(found, Viewer) else NOBODY


def link(request: Request, **changes: str) -> str:
    """The query of this page with changes, to be shared: an empty value leaves the name out."""
    left_out = _ONCE | changes.keys()
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in left_out]
    return urlencode([(name, value) for name, value in [*kept, *changes.items()] if value])
