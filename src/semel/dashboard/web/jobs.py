"""A job as it runs: how far it is, what it says, and its brakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from semel.dashboard import errors as problems
from semel.dashboard.web.context import Notice, RequestContext
from semel.dlq.jobs import State
from semel.doctor.report.words import number
from semel.errors import SemelError

COUNTS: Final = {
    "redrive": (
        ("matched", "Matched"),
        ("sent", "Sent"),
        ("deleted", "Deleted here"),
        ("returned", "Came back"),
        ("failed", "Failed"),
        ("given_back", "Given back"),
    ),
    "delete": (("matched", "Matched"), ("deleted", "Deleted"), ("failed", "Failed"), ("given_back", "Given back")),
    "restore": (("matched", "In the file"), ("sent", "Sent"), ("skipped", "Sent before"), ("failed", "Failed")),
}
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
    def job(request: Request, id: str, notice: str = "") -> HTMLResponse:
        return _answer(context, request, context.service.job(id).to_json(), notice=context.notices.get(notice))

    @router.post("/jobs/{id}/{action}")
    def control(request: Request, id: str, action: str) -> Any:
        try:
            control = context.control_job(request, id, action)
        except SemelError as error:
            return _answer(context, request, context.service.job(id).to_json(), str(error), problems.of(error).status)
        if control.acknowledged:
            return RedirectResponse(f"/jobs/{id}", 303)
        number = context.notices.add(Notice(f"{str(control).capitalize()}. Its log says when it does.", "warning"))
        return RedirectResponse(f"/jobs/{id}?notice={number}", 303)

    return router


def _answer(
    context: RequestContext,
    request: Request,
    job: Mapping[str, Any],
    problem: str = "",
    status: int = 200,
    notice: Notice | None = None,
) -> HTMLResponse:
    state, done = State(job["state"]), _done(job)
    most = _most(job, state, done)
    began, ended = job["started"], job["ended"]
    return context.pages.answer(
        request, "job.html", nav="dead-letters", status=status, job=job, problem=problem, notice=notice,
        final=state.ended, headline=headline(job), counts=COUNTS.get(job["kind"], COUNTS["redrive"]), done=done,
        most=most, bar=_BARS.get(state, ""), took=ended - began if began and ended else None,
    )  # fmt: skip


def _most(job: Mapping[str, Any], state: State, done: int) -> int:
    """How much there is to do in all; 0: nobody knows yet."""
    # What was to be done and what was done may differ in the end: letters come and go while a job runs.
    if state is State.DONE or (state.ended and not job["total"]):
        return max(done, 1)
    known = job["total"] or job["counts"]["matched"]
    return max(known, done) if known > done or job["total"] else 0


def _done(job: Mapping[str, Any]) -> int:
    counts = job["counts"]
    if job["plan"].get("dry_run"):
        return int(counts["looked_at"] or counts["matched"])
    settled = counts["deleted"] if job["kind"] != "restore" else counts["sent"] + counts["skipped"]
    return int(settled + counts["failed"])


def headline(job: Mapping[str, Any]) -> str:
    """What there is to say of it, in a sentence."""
    counts = job["counts"]
    total = job["total"] or counts["matched"]
    done = counts["sent"] if job["kind"] in ("redrive", "restore") else counts["deleted"]
    verb = {"redrive": "sent back", "restore": "restored"}.get(job["kind"], "dropped")
    of = f" of {number(total)}" if total else ""
    match State(job["state"]):
        case State.DONE if job["plan"].get("dry_run"):
            return f"{number(counts['matched'])} would be sent back; nothing was touched"
        case State.DONE:
            return f"Finished: {number(done)} {verb}"
        case State.PLANNED:
            return "About to begin"
        case State.CANARY:
            return f"{number(done)} sent back as a canary; waiting for their fate"
        case State.RUNNING:
            return f"{number(done)}{of} {verb}"
        case State.PAUSED:
            return f"Paused: {number(done)}{of} {verb}"
        case other:
            return f"{str(other).capitalize()}: {job['reason'] or 'no reason given'}"[:300]
