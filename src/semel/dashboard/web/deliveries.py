"""The Once page: how many deliveries there were, how many effects, and what became of the difference."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from semel.dashboard.views.model import DeliveriesPage
from semel.dashboard.web import charts
from semel.dashboard.web.charts import Line, Stream
from semel.dashboard.web.context import RequestContext
from semel.doctor.report.words import number

COLUMNS: Final = (
    ("deliveries", "Deliveries", "messages that were received"),
    ("effects", "Effects", "keys whose outcome was recorded"),
    ("delivered_again", "Came again", "deliveries that SQS had made before"),
    ("duplicates_deleted", "Done before", "duplicates of what was done: deleted, not run"),
    ("claimed_elsewhere", "Claimed elsewhere", "claimed by another worker: returned to the queue, not run"),
    ("taken_over", "Taken over", "a worker's lease ran out, and another went on"),
    ("fenced", "Fenced", "late records of workers that had lost their lease: refused"),
    ("retried", "Retried", "failed, to be tried again"),
    ("rejected", "Rejected", "failed for good"),
)


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/deliveries", response_class=HTMLResponse)
    def once(request: Request) -> HTMLResponse:
        page = context.inspector.deliveries()
        parts = streams(page)
        series = page.series
        lines = [
            Line("deliveries", "soft", series.deliveries, area=True),
            Line("effects", "green", series.effects),
            Line("caught", "purple", series.caught, "dashed"),
        ]
        chart = charts.timeline("Per second", series.at, lines, annotations=page.annotations, write=charts.per_second)
        return context.pages.answer(
            request, "deliveries.html", nav="once", page=page, streams=parts,
            ribbons=charts.ribbons(parts), chart=chart,
            verdict=verdict(page), columns=COLUMNS,
        )  # fmt: skip

    return router


def streams(page: DeliveriesPage) -> list[Stream]:
    """What became of the deliveries; all that is left is still being worked on."""
    retried = sum(row.retried for row in page.queues)
    rejected = sum(row.rejected for row in page.queues)
    skipped = sum(row.skipped for row in page.queues)
    outcomes = [
        Stream("effects", "ran, and their outcome was recorded", "green", page.effects, main=True),
        Stream("done before", "duplicates of finished work: deleted, not run", "purple", page.duplicates_deleted),
        Stream("claimed elsewhere", "returned to the queue, not run", "blue", page.claimed_elsewhere),
        Stream("failed, to be retried", "released with a pause; no effect counted", "amber", retried),
        Stream("rejected", "failed for good: kept as dead letters", "red", rejected),
    ]
    rest = max(0, page.deliveries - sum(stream.count for stream in outcomes) - skipped)
    in_progress = min(rest, sum(row.in_flight for row in page.queues))
    why = "on purpose, or delivered again to the worker that has it"
    outcomes.append(Stream("skipped", why, "soft", skipped + rest - in_progress))
    outcomes.append(Stream("in progress", "being worked on now", "soft", in_progress))
    always = {"effects", "done before", "claimed elsewhere"}
    return [stream for stream in outcomes if stream.count or stream.name in always]


def verdict(page: DeliveriesPage) -> Markup:
    """What was counted, and no more: that a key is recorded once is the ledger's rule, and the doctor checks it."""
    caught = page.duplicates_deleted + page.claimed_elsewhere + page.fenced
    if not caught:
        return Markup("<strong>✓ No duplicate so far.</strong> <span>Nothing had to be caught.</span>")
    words = [f"{number(page.duplicates_deleted + page.claimed_elsewhere)} duplicate deliveries did not run"]
    if page.fenced:
        words.append(f"{number(page.fenced)} late {_records(page.fenced)} refused, as the lease was lost")
    if page.taken_over:
        words.append(f"{number(page.taken_over)} {_were(page.taken_over)} taken over from workers that fell silent")
    title = f"✓ {number(caught)} caught before {'it' if caught == 1 else 'they'} took effect."
    return Markup("<strong>{}</strong> <span>{}.</span>").format(title, "; ".join(words))


def _records(count: int) -> str:
    return "record was" if count == 1 else "records were"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
