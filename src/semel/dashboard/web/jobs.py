"""A job: its progress, its log, and the buttons to pause, resume and cancel it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from semel.dashboard import errors as problems
from semel.dashboard.web.context import RequestContext
from semel.dashboard.web.templating import Notice
from semel.dlq.jobs import State
from semel.doctor.report.words import number
from semel.errors import SemelError

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

    @router.get("/jobs/{id}", response_class=HTMLResponse)
    def job(request: Request, id: str) -> HTMLResponse:
        return _answer(context, request, id)

    @router.post("/jobs/{id}/{action}")
    def control(request: Request, id: str, action: str) -> Any:
        try:
            control = context.service(request).control(id, action)
        except SemelError as error:
            return _answer(context, request, id, str(error), problems.of(error).status)
        context.inspector.changed(control.job.queue)
        if control.acknowledged:  # then the state of the job shows it
            return RedirectResponse(f"/jobs/{id}", 303)
        text = f"{str(control).capitalize()}. The log of the job will show it."
        return context.pages.redirect(f"/jobs/{id}", Notice(text, "warning"))

    return router


def _answer(context: RequestContext, request: Request, id: str, problem: str = "", status: int = 200) -> HTMLResponse:
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
