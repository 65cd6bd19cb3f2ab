"""Jobs, workers, doctor, audit log, and the description of the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from semel import durations
from semel.dashboard import error_responses
from semel.dashboard.views.model import AuditPage, DoctorPage, WorkersPage
from semel.dashboard.web.pages import Notice, RequestContext, viewer
from semel.dashboard.web.template_filters import ago, messages
from semel.dlq.audit import AuditEntry
from semel.dlq.jobs import State
from semel.doctor.model import Severity
from semel.doctor.text_format import number
from semel.errors import SemelError
from semel.text import count

DEAD_LETTER_ACTIONS: Final = frozenset({"redrive", "redrive (dry run)", "resend", "delete", "restore", "export"})
AUDIT_SHOWN: Final = 200
_METHODS: Final = ("get", "put", "post", "delete", "patch")
_MATCHED, _FAILED, _RELEASED = ("matched", "Matched"), ("failed", "Failed"), ("released", "Released")
_DELETED: Final = ("deleted", "Deleted here")
COUNTS: Final = {
    "redrive": (_MATCHED, ("sent", "Sent"), _DELETED, ("returned", "Came back"), _FAILED, _RELEASED),
    "restore": (("matched", "In the file"), ("sent", "Sent"), ("skipped", "Sent before"), _FAILED),
}
_COUNTS: Final = (_MATCHED, _DELETED, _FAILED, _RELEASED)
_BARS: Final = {
    State.DONE: "done",
    State.PAUSED: "paused",
    State.STOPPED: "stopped",
    State.FAILED: "stopped",
    State.INTERRUPTED: "stopped",
}


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/jobs/{id}")
    def job(request: Request, id: str) -> HTMLResponse:
        return _job(context, request, id)

    @router.post("/jobs/{id}/{action}")
    def control_job(request: Request, id: str, action: str) -> Any:
        try:
            control = context.service(request).control(id, action)
        except SemelError as error:
            return _job(context, request, id, str(error), error_responses.of(error).status)
        context.inspector.changed(control.job.queue)
        if control.acknowledged:  # then the state of the job shows it
            return RedirectResponse(f"/jobs/{id}", 303)
        text = f"{str(control).capitalize()}. The log of the job will show it."
        return context.pages.redirect(f"/jobs/{id}", Notice(text, "warning"))

    @router.get("/workers")
    def workers(request: Request) -> HTMLResponse:
        return _workers(context, request)

    @router.post("/workers/{id}/control")
    def control(
        request: Request,
        id: str,
        action: Annotated[str, Form()],
        queue: Annotated[str, Form()] = "",
        value: Annotated[int | None, Form()] = None,
    ) -> Any:
        try:
            done = context.services.control(viewer(request), id, action, queue or None, value)
        except SemelError as error:
            return _workers(context, request, str(error))
        return context.pages.redirect("/workers", Notice(f"{done[:1].upper()}{done[1:]}."))

    @router.get("/doctor")
    def doctor(request: Request) -> HTMLResponse:
        page = context.inspector.doctor()
        return context.pages.answer(
            request, "doctor.html", nav="doctor", page=page, summary=_doctor_summary(page, context.pages.clock())
        )

    @router.post("/doctor")
    def examine(request: Request) -> RedirectResponse:
        context.services.examine(viewer(request))
        return RedirectResponse("/doctor", 303)

    @router.get("/audit")
    def audit(request: Request, where: str = "", all: bool = False) -> HTMLResponse:
        error = ""
        try:
            page = context.inspector.audit(where, limit=AUDIT_SHOWN)
        except SemelError as problem:
            page, error = AuditPage((), where), str(problem)
        rows = page.rows if all else ended(page.rows)
        return context.pages.answer(
            request, "audit.html", nav="audit", page=page, rows=rows, hidden=len(page.rows) - len(rows), all=all,
            where=where, error=error, dead_letter_actions=DEAD_LETTER_ACTIONS,
        )  # fmt: skip

    @router.get("/api")
    def api(request: Request) -> HTMLResponse:
        described = request.app.openapi()
        return context.pages.answer(
            request, "api.html", nav="api", groups=calls(described), version=described.get("openapi", ""),
            root=str(request.base_url).rstrip("/"),
        )  # fmt: skip

    return router


def ended(rows: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Without the "begun" entries of actions that have also ended; newest first."""
    ends: Counter[tuple[str, str, str, str]] = Counter()
    kept = []
    for row in rows:
        action = (row.who, row.action, row.queue, row.where)
        if row.outcome not in ("begun", "asked"):
            ends[action] += 1
        elif ends[action]:
            ends[action] -= 1
            continue
        kept.append(row)
    return kept


def _workers(context: RequestContext, request: Request, problem: str = "") -> HTMLResponse:
    page = context.inspector.workers()
    return context.pages.answer(
        request, "workers.html", nav="workers", status=400 if problem else 200, page=page,
        summary=_workers_summary(page), problem=problem,
    )  # fmt: skip


def _workers_summary(page: WorkersPage) -> str:
    if not page.workers:
        return "what each worker processes, and for how long"
    queues = [queue for worker in page.workers for queue in worker.queues]
    busy = sum(queue.in_flight or len(queue.in_progress) for queue in queues)
    longest = max((message.since for queue in queues for message in queue.in_progress), default=None)
    summary = [count(len(page.workers), "worker"), f"{messages(busy)} in progress"]
    if longest is not None:
        summary.append(f"longest {durations.text(round(longest))}")
    return " · ".join(summary)


def _doctor_summary(page: DoctorPage, now: float) -> str:
    if page.made_at is None:
        return "checks settings, metrics and logs"
    summary = []
    for level, word in ((Severity.CRITICAL, "critical"), (Severity.WARNING, "warning"), (Severity.INFO, "note")):
        findings = sum(finding.severity is level for finding in page.findings)
        if findings:
            summary.append(f"{findings} {word}" if word == "critical" else count(findings, word))
    return " · ".join([*(summary or ["no findings"]), f"checked {ago(page.made_at, now)}"])


def calls(described: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The operations of an OpenAPI description by their first tag, in order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in described.get("paths", {}).items():
        if not path.startswith("/api/"):
            continue
        for method in _METHODS:
            if (call := operations.get(method)) is None:
                continue
            parameters = [entry["name"] for entry in call.get("parameters", ()) if entry.get("in") == "query"]
            parameters += ["JSON body"] if "requestBody" in call else []
            tag = (call.get("tags") or ["Other"])[0]
            groups.setdefault(tag, []).append(
                {"method": method.upper(), "path": path, "summary": call.get("summary", ""), "parameters": parameters}
            )
    return list(groups.items())


# Jobs.


def _job(context: RequestContext, request: Request, id: str, problem: str = "", status: int = 200) -> HTMLResponse:
    job = context.services.service.job(id).to_json()
    state, done = State(job["state"]), _done(job)
    started, ended = job["started"], job["ended"]
    return context.pages.answer(
        request, "job.html", nav="dead-letters", status=status, job=job, problem=problem,
        final=state.ended, headline=headline(job), counts=COUNTS.get(job["kind"], _COUNTS), done=done,
        total=_total(job, state, done), bar=_BARS.get(state, ""), took=ended - started if started and ended else None,
    )  # fmt: skip


def _total(job: Mapping[str, Any], state: State, done: int) -> int:
    """How many there are in all; 0 while that is unknown."""
    # The plan and the result may differ: messages come and go while a job runs.
    if state is State.DONE or (state.ended and not job["total"]):
        return max(done, 1)
    known = job["total"] or job["counts"]["matched"]
    return max(known, done) if known > done or job["total"] else 0


def _done(job: Mapping[str, Any]) -> int:
    counts = job["counts"]
    if job["plan"].get("dry_run"):
        return int(counts["scanned"] or counts["matched"])
    finished = counts["deleted"] if job["kind"] != "restore" else counts["sent"] + counts["skipped"]
    return int(finished + counts["failed"])


def headline(job: Mapping[str, Any]) -> str:
    """The state of a job in a sentence."""
    counts = job["counts"]
    total = job["total"] or counts["matched"]
    done = counts["sent"] if job["kind"] in ("redrive", "restore") else counts["deleted"]
    verb = {"redrive": "redriven", "restore": "restored"}.get(job["kind"], "deleted")
    of = f" of {number(total)}" if total else ""
    match State(job["state"]):
        case State.DONE if job["plan"].get("dry_run"):
            return f"Dry run finished: {number(counts['matched'])} would be redriven; nothing was changed"
        case State.DONE:
            return f"Finished: {number(done)} {verb}"
        case State.PLANNED:
            return "Starting"
        case State.CANARY:
            return f"{number(done)} canary {'message' if done == 1 else 'messages'} sent; waiting for the outcome"
        case State.RUNNING:
            return f"{number(done)}{of} {verb}"
        case State.PAUSED:
            return f"Paused: {number(done)}{of} {verb}"
        case other:
            return f"{str(other).capitalize()}: {job['reason'] or 'no reason given'}"[:300]
