"""The dead-letter queues, and one of them: its letters by error, and what can be done with those that match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from semel.dashboard.views.model import QueueRow
from semel.dashboard.web.context import RequestContext
from semel.dashboard.web.templating import parts
from semel.doctor.report.words import number
from semel.doctor.wording import count

GROUPS: Final = 12


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/dead-letters", response_class=HTMLResponse)
    def queues(request: Request) -> HTMLResponse:
        rows = context.inspector.dead_letter_queues()
        return context.pages.answer(
            request, "dead_letters.html", nav="dead-letters", rows=rows, summary=_summary(rows), jobs=context.jobs()
        )

    @router.get("/dead-letters/{queue}", response_class=HTMLResponse)
    def messages(
        request: Request, queue: str, where: str = "", after: str = "", receive: bool = False, notice: str = ""
    ) -> HTMLResponse:
        wanted = parts(request)
        page = context.inspector.dead_letters(queue, where=where, after=after, receive=receive)
        return context.pages.answer(
            request, "dead_letter_queue.html", nav="dead-letters", page=page, queue=page.queue, where=where,
            after=after, receive="1" if receive else "", ours=context.inspector.is_ours,
            notice=context.notices.get(notice), most_groups=GROUPS,
            jobs=context.jobs(queue, 5) if not wanted or "jobs" in wanted else [],
        )  # fmt: skip

    @router.get("/dead-letters/{queue}/export")
    def export(request: Request, queue: str, where: str = "", all: bool = False, any_queue: bool = False) -> Response:
        """All that match, as JSON lines, as they are read."""
        return StreamingResponse(
            context.export(request, queue, where, all=all, any_queue=any_queue),
            media_type="application/x-ndjson",
            headers={"Content-Disposition": f'attachment; filename="{queue}.jsonl"'},
        )

    return router


def _summary(rows: Sequence[QueueRow]) -> str:
    total = sum(row.depth for row in rows)
    if not rows:
        return "what failed for good, kept to be looked at"
    return f"{number(total)} {'letter' if total == 1 else 'letters'} in {count(len(rows), 'queue')}"
