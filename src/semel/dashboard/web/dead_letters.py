"""The list of dead-letter queues, one queue with its messages by error, and the forms that act on matching messages.

The rule: each form first says which messages it affects, and where.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, Response
from pydantic import Field

from semel.dashboard.api.schemas import json_lines
from semel.dashboard.views.model import DeadLetterPage, QueueRow
from semel.dashboard.web.pages import FormFields, RequestContext, parts
from semel.dashboard.web.template_filters import messages as counted
from semel.dlq.messages import ShownMessages
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.redrive.runner import FAILED_SHARE, FEWEST_FAILURES
from semel.doctor.text_format import number
from semel.errors import SemelError
from semel.text import count

GROUPS: Final = 12
DEFAULTS: Final = RedrivePlan(queue="-", all=True)
STOP_DEFAULT: Final = f"{FEWEST_FAILURES}, or {FAILED_SHARE:.0%}".replace("%", " %")


class FormError(SemelError):
    """A field of the form has a wrong value."""


class RedriveForm(FormFields):
    """The selection of messages, and the fields of a redrive plan as text, empty where the plan has no value. The names
    are those of the plan."""

    where: str = ""
    ids: list[str] = Field(default_factory=list)
    all: bool = False
    any_queue: bool = False
    dry_run: bool = False
    receive: bool = False
    to: str = DEFAULTS.to
    canary: str = str(DEFAULTS.canary)
    canary_wait: str = ""
    rate: str = ""
    limit: str = ""
    stop_after_failures: str = ""

    def plan(self, queue: str) -> RedrivePlan:
        canary = _integer(self.canary, "Canary messages")
        return RedrivePlan(
            queue=queue,
            where=self.where,
            ids=tuple(self.ids),
            all=self.all,
            any_queue=self.any_queue,
            dry_run=self.dry_run,
            to=self.to.strip(),
            canary=DEFAULTS.canary if canary is None else canary,
            canary_wait=_number(self.canary_wait, "Wait for them"),
            rate=_number(self.rate, "Rate"),
            limit=_integer(self.limit, "Limit"),
            stop_after_failures=_integer(self.stop_after_failures, "Stop after failures"),
        )


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()
    pages, inspector = context.pages, context.inspector

    @router.get("/dead-letters")
    def queues(request: Request) -> HTMLResponse:
        rows = inspector.dead_letter_queues()
        return pages.answer(
            request, "dead_letters.html", nav="dead-letters", rows=rows, summary=_summary(rows), jobs=context.jobs()
        )

    @router.get("/dead-letters/{queue}")
    def messages(request: Request, queue: str, where: str = "", after: str = "", receive: bool = False) -> HTMLResponse:
        wanted = parts(request)
        page = inspector.dead_letters(queue, where=where, after=after, receive=receive)
        return pages.answer(
            request, "dead_letter_queue.html", nav="dead-letters", page=page, queue=page.queue, where=where,
            after=after, receive="1" if receive else "", ours=inspector.is_ours, most_groups=GROUPS,
            jobs=context.jobs(queue, 5) if not wanted or "jobs" in wanted else [],
        )  # fmt: skip

    @router.get("/dead-letters/{queue}/export")
    def export(
        request: Request, queue: str, where: str = "", all: bool = False, any_queue: bool = False, receive: bool = False
    ) -> Response:
        """Streams all matching messages as JSON lines. An invalid request is refused before the response begins."""
        service = context.service(request)
        service.queue(queue)
        lines = service.lines(queue, where or None, all=all, any_queue=any_queue, receive=receive)
        return json_lines(queue, lines)

    @router.get("/dead-letters/{queue}/redrive")
    def redrive_form(
        request: Request,
        queue: str,
        where: str = "",
        ids: Annotated[list[str], Query()] = [],  # noqa: B006
    ) -> HTMLResponse:
        return _redrive(context, request, queue, RedriveForm(where=where, ids=ids))

    @router.post("/dead-letters/{queue}/redrive")
    def redrive(request: Request, queue: str, form: Annotated[RedriveForm, Form()]) -> Any:
        try:
            job = context.service(request).redrive(form.plan(queue), receive=form.receive)
        except SemelError as error:
            return _redrive(context, request, queue, form, str(error))
        return context.to_job(job)

    @router.get("/dead-letters/{queue}/delete")
    def delete_form(request: Request, queue: str, where: str = "") -> HTMLResponse:
        return _delete(context, request, queue, where)

    @router.post("/dead-letters/{queue}/delete")
    def delete(
        request: Request,
        queue: str,
        confirm: Annotated[str, Form()] = "",
        shown: Annotated[str, Form()] = "",
        where: Annotated[str, Form()] = "",
        all: Annotated[bool, Form()] = False,
        any_queue: Annotated[bool, Form()] = False,
        receive: Annotated[bool, Form()] = False,
    ) -> Any:
        try:
            if confirm.strip() != queue:
                raise FormError(f"nothing was deleted: to confirm, type the queue's name, {queue}")
            job = context.service(request).delete(
                queue, where or None, all=all, shown=_shown(shown), any_queue=any_queue, receive=receive
            )
        except SemelError as error:
            return _delete(context, request, queue, where, str(error))
        return context.to_job(job)

    @router.get("/dead-letters/{queue}/restore")
    def restore_form(request: Request, queue: str) -> HTMLResponse:
        return _restore(context, request, queue)

    @router.post("/dead-letters/{queue}/restore")
    def restore(request: Request, queue: str, file: Annotated[UploadFile, File()]) -> Any:
        try:
            job = context.service(request).restore(file.file, queue)
        except SemelError as error:
            return _restore(context, request, queue, str(error))
        return context.to_job(job)

    return router


def _redrive(
    context: RequestContext, request: Request, queue: str, form: RedriveForm, problem: str = ""
) -> HTMLResponse:
    where, ids = form.where, form.ids
    page = context.inspector.dead_letters(queue, where=where, limit=1)
    return context.pages.answer(
        request, "redrive.html", nav="dead-letters", status=400 if problem else 200, queue=queue, where=where,
        ids=ids, form=form, problem=problem or page.error or "", sources=page.queue.sources,
        targets=context.queue_names(), complete=page.complete or bool(ids), groups=() if ids else page.groups,
        selection=_selection(page, where, ids), stop_default=STOP_DEFAULT, limit=_limit(context, page),
        counted="matching messages" if page.needs_receive and not ids else counted(len(ids) or page.matched),
        address=context.inspector.address(queue),
    )  # fmt: skip


def _delete(context: RequestContext, request: Request, queue: str, where: str, problem: str = "") -> HTMLResponse:
    page = context.inspector.dead_letters(queue, where=where, limit=1)
    return context.pages.answer(
        request, "delete.html", nav="dead-letters", status=400 if problem else 200, queue=queue, where=where,
        problem=problem or page.error or "", needs_receive=page.needs_receive, limit=_limit(context, page),
        count=page.shown.count, counted=counted(page.shown.count), complete=page.complete, groups=page.groups,
        selection=_selection(page, where, ()), shown=json.dumps(asdict(page.shown)), sources=page.queue.sources,
        address=context.inspector.address(queue),
    )  # fmt: skip


def _restore(context: RequestContext, request: Request, queue: str, problem: str = "") -> HTMLResponse:
    return context.pages.answer(
        request, "restore.html", nav="dead-letters", status=400 if problem else 200, queue=queue, problem=problem,
        address=context.inspector.address(queue),
    )  # fmt: skip


def _limit(context: RequestContext, page: DeadLetterPage) -> int | None:
    """The receives after which SQS moves a message on, if an action of a form may cause that."""
    return None if context.inspector.is_ours else page.queue.max_receives


def _shown(text: str) -> ShownMessages:
    """What the form showed, which it sends back."""
    try:
        content = json.loads(text)
        ids = content["ids"]
        return ShownMessages(
            int(content["count"]), None if ids is None else tuple(map(str, ids)), content["place"], content["at"]
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise FormError("nothing was deleted: the form does not contain what it showed; reload the page") from None


def _summary(rows: Sequence[QueueRow]) -> str:
    if not rows:
        return "messages that failed too often are moved here"
    return f"{counted(sum(row.depth for row in rows))} in {count(len(rows), 'queue')}"


def _selection(page: DeadLetterPage, where: str, ids: Sequence[str]) -> str:
    """The subject of a sentence: which messages a form is about."""
    if ids:
        return "This message" if len(ids) == 1 else f"These {counted(len(ids))}"
    if where:
        return "All matching messages" if page.needs_receive else f"{number(page.matched)} of {counted(page.total)}"
    return "The only message" if page.total == 1 else f"All {counted(page.total)}"


def _number(text: str, label: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise FormError(f"{label}: {text[:40]!r} is not a number") from None


def _integer(text: str, label: str) -> int | None:
    try:
        return int(text) if text.strip() else None
    except ValueError:
        raise FormError(f"{label}: {text[:40]!r} is not a whole number") from None
