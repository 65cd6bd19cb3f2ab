"""One message, in a queue or among the dead letters: what it is, where it stands, and every attempt at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from semel.dashboard.views.model import MessageDetails
from semel.dashboard.web import bodies
from semel.dashboard.web.context import Notice, RequestContext
from semel.dlq.messages import Resent
from semel.errors import SemelError


@dataclass(slots=True)
class Draft:
    body: str
    to: str = ""
    key: str = "keep"
    new_key: str = ""
    problem: str = ""


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/queues/{queue}/messages/{id}", response_class=HTMLResponse)
    def message(request: Request, queue: str, id: str, place: int | None = None, receive: bool = False) -> HTMLResponse:
        return _answer(
            context, request, context.inspector.message(queue, id, place=place, receive=receive), dead_letter=False
        )

    @router.get("/dead-letters/{queue}/messages/{id}", response_class=HTMLResponse)
    def dead_letter_message(
        request: Request, queue: str, id: str, place: int | None = None, receive: bool = False
    ) -> HTMLResponse:
        return _answer(
            context, request, context.inspector.message(queue, id, place=place, receive=receive), dead_letter=True
        )

    @router.get("/queues/{queue}/messages/{id}/body")
    @router.get("/dead-letters/{queue}/messages/{id}/body")
    def body(queue: str, id: str, place: int | None = None, receive: bool = False) -> Response:
        """The whole body, as it is, to be kept in a file: a browser must never show it as a page of ours."""
        found = context.inspector.message(queue, id, place=place, receive=receive).message
        safe = "".join(sign for sign in found.id if sign.isalnum() or sign in "-_")[:80]
        return Response(
            found.body.encode("utf-8", "surrogatepass"),
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{safe or "message"}.txt"'},
        )

    @router.post("/dead-letters/{queue}/messages/{id}/resend")
    def resend(
        request: Request,
        queue: str,
        id: str,
        body: Annotated[str, Form()] = "",
        to: Annotated[str, Form()] = "",
        key: Annotated[str, Form()] = "keep",
        new_key: Annotated[str, Form()] = "",
        any_queue: Annotated[bool, Form()] = False,
    ) -> Any:
        # A form sends every line's end as CR LF; bodies have them as they were, so a body left alone stays the same.
        found = context.inspector.message(queue, id, receive=True)
        whole = body.replace("\r\n", "\n") if "\r" not in found.message.body else body
        try:
            changed = None if whole == found.message.body else whole
            sent = context.resend(
                request,
                queue,
                id,
                body=changed,
                to=to,
                new_key=None if key != "new" else new_key,
                any_queue=any_queue,
            )
        except SemelError as error:
            draft = Draft(whole, to, key, new_key, str(error))
            return _answer(context, request, found, dead_letter=True, draft=draft)
        return RedirectResponse(f"/dead-letters/{queue}?notice={context.notices.add(_notice(sent))}", 303)

    return router


def _notice(sent: Resent) -> Notice:
    end = ", and deleted here." if sent.deleted else "."
    notes = "".join(f" {note[:1].upper()}{note[1:]}." for note in sent.notes)
    return Notice(f"Sent as {sent.message_id} to {sent.queue}{end}{notes}", "ok" if sent.deleted else "bad")


def _answer(
    context: RequestContext, request: Request, page: MessageDetails, *, dead_letter: bool, draft: Draft | None = None
) -> HTMLResponse:
    message = page.message
    here = f"/dead-letters/{message.queue}/messages" if dead_letter else f"/queues/{message.queue}/messages"
    draft = draft or Draft(message.body)
    return context.pages.answer(
        request, "message.html", nav="dead-letters" if dead_letter else "queues", status=400 if draft.problem else 200,
        page=page, message=message, dead_letter=dead_letter, here=f"{here}/{message.id}",
        shown=bodies.body(message.body, message.body_bytes), tone=_tone(page, dead_letter), draft=draft,
        problem=draft.problem, editable=len(message.body) <= bodies.EDITABLE,
        targets=context.queue_names() if dead_letter else (), ours=context.inspector.is_ours,
        sources=context.inspector.sources(message.queue), address=context.inspector.address(message.queue),
    )  # fmt: skip


def _tone(page: MessageDetails, dead_letter: bool) -> str:
    if dead_letter:
        return "bad"
    if page.retries_left == 0 or page.message.error:
        return "bad"
    if page.ledger is not None and page.ledger.status == "done":
        return "ok"
    failed = any(event.error for event in page.trail)
    return "warning" if failed or page.message.receives > 1 else "ok"
