"""One message: its body, its state, every attempt, and, in a dead-letter queue, the form to edit and resend it.

The rules: a body that was not edited is sent unchanged, byte for byte; text that could not be sent stays in the form.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, Response

from semel.dashboard.views.model import MessageDetails
from semel.dashboard.web import template_filters
from semel.dashboard.web.pages import FormFields, Notice, RequestContext
from semel.dlq.messages import Resent
from semel.dlq.service import Key
from semel.errors import SemelError

_LINE_ENDS: Final = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}


class EditForm(FormFields):
    """`original` is the digest of the body that the form was made with, `line_end` the most frequent line end in it: a
    form field does not keep line ends, and sends each one as CR LF."""

    body: str = ""
    original: str = ""
    line_end: str = "lf"
    to: str = ""
    key: str = "keep"
    new_key: str = ""
    any_queue: bool = False
    receive: bool = False

    @classmethod
    def of(cls, body: str) -> Self:
        shown = template_filters.field_text(body)
        crlf = body.count("\r\n")
        counts = {"lf": body.count("\n") - crlf, "crlf": crlf, "cr": body.count("\r") - crlf}
        line_end = max(counts, key=lambda name: counts[name])
        # Not validated, because a lone surrogate must be shown, too.
        return cls.model_construct(body=shown, original=_digest(shown), line_end=line_end)

    @property
    def edited_body(self) -> str | None:
        """The edited body; None if it is the one that the form was made with."""
        shown = template_filters.field_text(self.body)
        if _digest(shown) == self.original:
            return None
        return shown.replace("\n", _LINE_ENDS.get(self.line_end, "\n"))

    @property
    def wanted_key(self) -> str | Key:
        return Key.KEEP if self.key != "new" else self.new_key.strip() or Key.NEW


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()
    inspector = context.inspector

    @router.get("/queues/{queue}/messages/{id}")
    def message(request: Request, queue: str, id: str, place: int | None = None, receive: bool = False) -> HTMLResponse:
        return _answer(context, request, queue, id, place, receive=receive, dead_letter=False)

    @router.get("/dead-letters/{queue}/messages/{id}")
    def dead_letter_message(
        request: Request, queue: str, id: str, place: int | None = None, receive: bool = False
    ) -> HTMLResponse:
        return _answer(context, request, queue, id, place, receive=receive, dead_letter=True)

    @router.get("/queues/{queue}/messages/{id}/body")
    @router.get("/dead-letters/{queue}/messages/{id}/body")
    def body(queue: str, id: str, place: int | None = None, receive: bool = False) -> Response:
        """The whole body as a download, because a browser must never show it as one of our pages."""
        message = inspector.message(queue, id, place=place, receive=receive).message
        name = "".join(char for char in message.id if char.isalnum() or char in "-_")[:80]
        return Response(
            message.body.encode("utf-8", "surrogatepass"),
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{name or "message"}.txt"'},
        )

    @router.post("/dead-letters/{queue}/messages/{id}/resend")
    def resend(request: Request, queue: str, id: str, form: Annotated[EditForm, Form()]) -> Any:
        try:
            resent = context.service(request).resend(
                queue,
                id,
                body=form.edited_body,
                key=form.wanted_key,
                to=form.to.strip(),
                any_queue=form.any_queue,
                receive=form.receive,
            )
        except SemelError as error:
            form.body = template_filters.field_text(form.body)
            return context.unsent(
                request, error, "edit_form.html", nav="dead-letters", home="/dead-letters", queue=queue, id=id,
                form=form, key="", **context.targets(queue),
            )  # fmt: skip
        inspector.changed(queue)
        return context.pages.redirect(f"/dead-letters/{queue}", _notice(resent))

    return router


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _notice(resent: Resent) -> Notice:
    end = ", and deleted here." if resent.deleted else "."
    notes = "".join(f" {note[:1].upper()}{note[1:]}." for note in resent.notes)
    return Notice(f"Sent as {resent.message_id} to {resent.queue}{end}{notes}", "ok" if resent.deleted else "bad")


def _answer(
    context: RequestContext,
    request: Request,
    queue: str,
    id: str,
    place: int | None,
    *,
    receive: bool,
    dead_letter: bool,
) -> HTMLResponse:
    inspector = context.inspector
    home, nav = ("/dead-letters", "dead-letters") if dead_letter else ("/queues", "queues")
    if not (inspector.is_ours or receive):
        row = inspector.queue(queue).row
        return context.pages.answer(request, "receive.html", nav=nav, home=home, queue=row, id=id)
    page = inspector.message(queue, id, place=place, receive=receive)
    message = page.message
    return context.pages.answer(
        request, "message.html", nav=nav, page=page, message=message, dead_letter=dead_letter,
        here=f"{home}/{message.queue}/messages/{message.id}", tone=_tone(page, dead_letter), ours=inspector.is_ours,
        shown=template_filters.body(message.body, message.body_bytes),
        editable=len(message.body) <= template_filters.MAX_EDITABLE,
        queue=message.queue, id=message.id, key=message.key, form=EditForm.of(message.body),
        **context.targets(queue) if dead_letter else {},
    )  # fmt: skip


def _tone(page: MessageDetails, dead_letter: bool) -> str:
    if dead_letter or page.retries_left == 0 or page.message.error:
        return "bad"
    if page.ledger is not None and page.ledger.status == "done":
        return "ok"
    failed = any(event.error for event in page.trail)
    return "warning" if failed or page.message.receives > 1 else "ok"
