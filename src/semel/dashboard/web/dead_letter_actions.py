"""What is done with dead letters, as forms: redrive, drop, restore. Each says first what it would touch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse

from semel.dashboard.views.model import DeadLetterPage
from semel.dashboard.web.context import RequestContext
from semel.dlq.messages import ShownMessages
from semel.dlq.redrive.plan import CANARY_DEFAULT, RedrivePlan
from semel.doctor.report.words import number
from semel.errors import SemelError


class FormError(SemelError):
    """Something in the form is not what it should be."""


@dataclass(slots=True)
class Draft:
    """A plan as it stands in the form: texts, empty where nothing was given."""

    to: str = ""
    canary: str = str(CANARY_DEFAULT)
    canary_wait: str = ""
    rate: str = ""
    limit: str = ""
    stop_after_failures: str = ""
    problem: str = ""

    def plan(
        self, queue: str, where: str, ids: Sequence[str], *, all: bool, any_queue: bool, dry_run: bool
    ) -> RedrivePlan:
        return RedrivePlan(
            queue=queue,
            where=where,
            ids=tuple(ids),
            all=all,
            any_queue=any_queue,
            to=self.to.strip(),
            canary=_whole(self.canary, "Send first") or 0,
            canary_wait=_figure(self.canary_wait, "Wait for their fate"),
            rate=_figure(self.rate, "At most, a second"),
            limit=_whole(self.limit, "At most, in all"),
            stop_after_failures=_whole(self.stop_after_failures, "Stop after failures"),
            dry_run=dry_run,
        )


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/dead-letters/{queue}/redrive", response_class=HTMLResponse)
    def plan(request: Request, queue: str, where: str = "", id: Annotated[list[str], Query()] = []) -> HTMLResponse:  # noqa: B006
        return _redrive(context, request, queue, where, id, Draft(canary="0" if len(id) == 1 else str(CANARY_DEFAULT)))

    @router.post("/dead-letters/{queue}/redrive")
    def redrive(
        request: Request,
        queue: str,
        do: Annotated[str, Form()] = "redrive",
        where: Annotated[str, Form()] = "",
        id: Annotated[list[str], Form()] = [],  # noqa: B006
        all: Annotated[bool, Form()] = False,
        any_queue: Annotated[bool, Form()] = False,
        to: Annotated[str, Form()] = "",
        canary: Annotated[str, Form()] = "",
        canary_wait: Annotated[str, Form()] = "",
        rate: Annotated[str, Form()] = "",
        limit: Annotated[str, Form()] = "",
        stop_after_failures: Annotated[str, Form()] = "",
    ) -> Any:
        draft = Draft(to, canary, canary_wait, rate, limit, stop_after_failures)
        try:
            wanted = draft.plan(queue, where, id, all=all, any_queue=any_queue, dry_run=do == "dry")
            job = context.redrive(request, wanted)
        except SemelError as error:
            draft.problem = str(error)
            return _redrive(context, request, queue, where, id, draft)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    @router.get("/dead-letters/{queue}/delete", response_class=HTMLResponse)
    def ask(request: Request, queue: str, where: str = "") -> HTMLResponse:
        return _drop(context, request, queue, where)

    @router.post("/dead-letters/{queue}/delete")
    def drop(
        request: Request,
        queue: str,
        confirm: Annotated[str, Form()] = "",
        shown: Annotated[str, Form()] = "",
        where: Annotated[str, Form()] = "",
        all: Annotated[bool, Form()] = False,
        any_queue: Annotated[bool, Form()] = False,
    ) -> Any:
        try:
            if confirm.strip() != queue:
                raise FormError(f"nothing was dropped: to confirm, type the queue's name, {queue}")
            job = context.delete(request, queue, where, all=all, shown=_shown(shown), any_queue=any_queue)
        except SemelError as error:
            return _drop(context, request, queue, where, str(error))
        return RedirectResponse(f"/jobs/{job.id}", 303)

    @router.get("/dead-letters/{queue}/restore", response_class=HTMLResponse)
    def choose(request: Request, queue: str) -> HTMLResponse:
        return _restore(context, request, queue)

    @router.post("/dead-letters/{queue}/restore")
    def restore(request: Request, queue: str, file: Annotated[UploadFile, File()]) -> Any:
        try:
            job = context.restore(request, file.file, queue)
        except SemelError as error:
            return _restore(context, request, queue, str(error))
        return RedirectResponse(f"/jobs/{job.id}", 303)

    return router


def _redrive(
    context: RequestContext, request: Request, queue: str, where: str, ids: Sequence[str], draft: Draft
) -> HTMLResponse:
    seen = context.inspector.dead_letters(queue, where=where, limit=1)
    words = "all that match" if seen.needs_receive and not ids else _words(len(ids) or seen.matched)
    return context.pages.answer(
        request, "redrive.html", nav="dead-letters", status=400 if draft.problem else 200, queue=queue, where=where,
        ids=ids, draft=draft, problem=draft.problem or seen.error or "", sources=seen.queue.sources,
        targets=context.queue_names(), count_words=words, complete=seen.complete or bool(ids),
        groups=() if ids else seen.groups, what=_what(seen, where, ids), address=context.inspector.address(queue),
    )  # fmt: skip


def _drop(context: RequestContext, request: Request, queue: str, where: str, problem: str = "") -> HTMLResponse:
    seen = context.inspector.dead_letters(queue, where=where, limit=1)
    return context.pages.answer(
        request, "delete.html", nav="dead-letters", status=400 if problem else 200, queue=queue, where=where,
        problem=problem or seen.error or "", needs_receive=seen.needs_receive, count=seen.shown.count,
        count_words=_words(seen.shown.count), complete=seen.complete, groups=seen.groups, what=_what(seen, where, ()),
        shown=json.dumps(asdict(seen.shown)), sources=seen.queue.sources, address=context.inspector.address(queue),
    )  # fmt: skip


def _shown(text: str) -> ShownMessages:
    """What the form showed, as it was sent with it."""
    try:
        given = json.loads(text)
        ids = given["ids"]
        return ShownMessages(
            int(given["count"]), None if ids is None else tuple(map(str, ids)), given["place"], given["at"]
        )
    except (ValueError, TypeError, KeyError):
        raise FormError("nothing was dropped: the form does not say what it showed; load it again") from None


def _restore(context: RequestContext, request: Request, queue: str, problem: str = "") -> HTMLResponse:
    return context.pages.answer(
        request, "restore.html", nav="dead-letters", status=400 if problem else 200, queue=queue, problem=problem,
        address=context.inspector.address(queue),
    )  # fmt: skip


def _words(count: int) -> str:
    return f"{number(count)} {'letter' if count == 1 else 'letters'}"


def _what(seen: DeadLetterPage, where: str, ids: Sequence[str]) -> str:
    if ids:
        return "This letter goes" if len(ids) == 1 else f"These {number(len(ids))} letters go"
    if seen.needs_receive:
        return "All letters that match go" if where else f"All {number(seen.total)} letters go"
    if where:
        return f"{number(seen.matched)} of {number(seen.total)} letters"
    return f"All {number(seen.total)} letters"


def _figure(text: str, label: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise FormError(f"{label}: {text[:40]!r} is no number") from None


def _whole(text: str, label: str) -> int | None:
    try:
        return int(text) if text.strip() else None
    except ValueError:
        raise FormError(f"{label}: {text[:40]!r} is no whole number") from None
