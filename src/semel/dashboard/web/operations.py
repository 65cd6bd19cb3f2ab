"""Workers, doctor, audit and the API's own page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from semel import durations
from semel.dashboard.views.model import AuditPage, AuditRow, DoctorPage, Level, WorkersPage
from semel.dashboard.web.context import RequestContext
from semel.dashboard.web.text import ago
from semel.doctor.report.words import number
from semel.doctor.wording import count
from semel.errors import SemelError

LETTER_ACTIONS: Final = frozenset({"redrive", "redrive (dry run)", "resend", "delete", "restore", "export"})
AUDIT_SHOWN: Final = 200
_METHODS: Final = ("get", "put", "post", "delete", "patch")


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/workers", response_class=HTMLResponse)
    def workers(request: Request, did: str = "") -> HTMLResponse:
        return _workers(context, request, said=did)

    @router.post("/workers/{id}/control")
    def control(
        request: Request,
        id: str,
        action: Annotated[str, Form()],
        queue: Annotated[str, Form()] = "",
        value: Annotated[int | None, Form()] = None,
    ) -> Any:
        try:
            context.control_worker(request, id, action, queue or None, value)
        except SemelError as error:
            return _workers(context, request, problem=str(error))
        return RedirectResponse(f"/workers?did={action}", 303)

    @router.get("/doctor", response_class=HTMLResponse)
    def doctor(request: Request) -> HTMLResponse:
        page = context.inspector.doctor()
        return context.pages.answer(
            request, "doctor.html", nav="doctor", page=page, summary=_findings(page, context.pages.clock())
        )

    @router.post("/doctor")
    def examine(request: Request) -> RedirectResponse:
        context.examine(request)
        return RedirectResponse("/doctor", 303)

    @router.get("/audit", response_class=HTMLResponse)
    def audit(request: Request, where: str = "", all: bool = False) -> HTMLResponse:
        error = ""
        try:
            page = context.inspector.audit(where, limit=AUDIT_SHOWN)
        except SemelError as problem:
            page, error = AuditPage((), where), str(problem)
        rows = page.rows if all else ended(page.rows)
        return context.pages.answer(
            request, "audit.html", nav="audit", page=page, rows=rows, hidden=len(page.rows) - len(rows), all=all,
            where=where, error=error, letter_actions=LETTER_ACTIONS,
        )  # fmt: skip

    @router.get("/api", response_class=HTMLResponse)
    def api(request: Request) -> HTMLResponse:
        described = request.app.openapi()
        return context.pages.answer(
            request, "api.html", nav="api", groups=calls(described), version=described.get("openapi", ""),
            root=str(request.base_url).rstrip("/"),
        )  # fmt: skip

    return router


def ended(rows: Sequence[AuditRow]) -> list[AuditRow]:
    """The rows without the beginnings of what has its end among them; the newest comes first."""
    ends: Counter[tuple[str, str, str, str]] = Counter()
    kept = []
    for row in rows:
        which = (row.who, row.action, row.queue, row.where)
        if row.outcome not in ("begun", "asked"):
            ends[which] += 1
        elif ends[which]:
            ends[which] -= 1
            continue
        kept.append(row)
    return kept


_SAID: Final = {
    "pause": "Paused: what is in hand is finished, nothing new is taken.",
    "resume": "Resumed.",
    "concurrency": "The concurrency was changed.",
}


def _workers(context: RequestContext, request: Request, *, said: str = "", problem: str = "") -> HTMLResponse:
    page = context.inspector.workers()
    return context.pages.answer(
        request, "workers.html", nav="workers", status=400 if problem else 200, page=page, summary=_crew(page),
        said=_SAID.get(said, ""), problem=problem,
    )  # fmt: skip


def _crew(page: WorkersPage) -> str:
    if not page.workers:
        return "who works on what, and for how long"
    hands = sum(queue.in_flight or len(queue.in_progress) for worker in page.workers for queue in worker.queues)
    longest = max((one.since for w in page.workers for queue in w.queues for one in queue.in_progress), default=None)
    told = [count(len(page.workers), "worker"), f"{number(hands)} in hand"]
    if longest is not None:
        told.append(f"the longest for {durations.text(round(longest))}")
    return " · ".join(told)


def _findings(page: DoctorPage, now: float) -> str:
    if page.made_at is None:
        return "settings and logs, checked by rules; each finding with its remedy"
    told = []
    for level, word in ((Level.CRITICAL, "critical"), (Level.WARNING, "warning"), (Level.INFO, "note")):
        found = sum(one.level is level for one in page.findings)
        if found:
            told.append(f"{found} {word}" if word == "critical" else count(found, word))
    return " · ".join([*(told or ["nothing found"]), f"examined {ago(page.made_at, now)}"])


def calls(described: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The calls of an OpenAPI description by their first tag, in its order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in described.get("paths", {}).items():
        if not path.startswith("/api/"):
            continue
        for method in _METHODS:
            if (found := operations.get(method)) is None:
                continue
            takes = [one["name"] for one in found.get("parameters", ()) if one.get("in") == "query"]
            takes += ["a body"] if "requestBody" in found else []
            tag = (found.get("tags") or ["Others"])[0]
            groups.setdefault(tag, []).append(
                {"method": method.upper(), "path": path, "summary": found.get("summary", ""), "takes": takes}
            )
    return list(groups.items())
