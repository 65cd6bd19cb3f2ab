"""The page Deliveries: how many there were, how many had an effect, and the outcome of the others."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from semel.dashboard.views.model import DeliveriesPage
from semel.dashboard.web import charts
from semel.dashboard.web.charts import Line, Stream
from semel.dashboard.web.pages import RequestContext
from semel.doctor.text_format import number

COLUMNS: Final = (
    ("deliveries", "Deliveries", "messages received"),
    ("effects", "Effects", "keys whose outcome was recorded"),
    ("delivered_again", "Redelivered", "deliveries of a message that SQS had delivered before"),
    ("duplicates_deleted", "Duplicates", "duplicates of finished work: deleted, not run"),
    ("claimed_elsewhere", "Claimed by another", "claimed by another worker: returned to the queue, not run"),
    ("taken_over", "Taken over", "a worker's lease expired, and another worker continued"),
    ("fenced", "Fenced", "late records of workers that had lost their lease: refused"),
    ("retried", "Retried", "failed, will be retried"),
    ("rejected", "Rejected", "failed permanently"),
)
DUPLICATES: Final = "duplicates of finished work"
CLAIMED: Final = "claimed by another worker"


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/deliveries")
    def deliveries(request: Request) -> HTMLResponse:
        page = context.inspector.deliveries()
        outcomes = streams(page)
        series = page.series
        lines = [
            Line("deliveries", "soft", series.deliveries, area=True),
            Line("effects", "green", series.effects),
            Line("duplicates", "purple", series.caught, "dashed"),
        ]
        chart = charts.timeline("Per second", series.at, lines, annotations=page.annotations, write=charts.per_second)
        return context.pages.answer(
            request, "deliveries.html", nav="deliveries", page=page, streams=outcomes,
            ribbons=charts.ribbons(outcomes), chart=chart, summary=summary(page), columns=COLUMNS,
        )  # fmt: skip

    return router


def streams(page: DeliveriesPage) -> list[Stream]:
    """The outcome of every delivery; those without one are still in progress."""
    retried = sum(row.retried for row in page.queues)
    rejected = sum(row.rejected for row in page.queues)
    skipped = sum(row.skipped for row in page.queues)
    outcomes = [
        Stream("effects", "run, and their outcome recorded", "green", page.effects, main=True),
        Stream(DUPLICATES, "deleted, not run", "purple", page.duplicates_deleted),
        Stream(CLAIMED, "returned to the queue, not run", "blue", page.claimed_elsewhere),
        Stream("failed, will be retried", "returned to the queue with a delay", "amber", retried),
        Stream("rejected", "failed permanently: moved to the dead-letter queue", "red", rejected),
    ]
    rest = max(0, page.deliveries - sum(stream.count for stream in outcomes) - skipped)
    in_progress = min(rest, sum(row.in_flight for row in page.queues))
    why = "by the handler, or redelivered to the worker that has it"
    outcomes.append(Stream("skipped", why, "soft", skipped + rest - in_progress))
    outcomes.append(Stream("in progress", "being processed now", "soft", in_progress))
    always = {"effects", DUPLICATES, CLAIMED}
    return [stream for stream in outcomes if stream.count or stream.name in always]


def summary(page: DeliveriesPage) -> Markup:
    """Claims only what was counted: that a key is recorded once is ensured by the ledger and checked by the doctor."""
    not_run = page.duplicates_deleted + page.claimed_elsewhere
    stopped = not_run + page.fenced
    if not stopped:
        return Markup("<strong>✓ No duplicates so far.</strong>")
    details = [f"{number(not_run)} duplicate {_deliveries(not_run)} did not run"]
    if page.fenced:
        records = (
            "record was refused because its lease" if page.fenced == 1 else "records were refused because their lease"
        )
        details.append(f"{number(page.fenced)} late {records} had expired")
    if page.taken_over:
        messages = "message was" if page.taken_over == 1 else "messages were"
        details.append(f"{number(page.taken_over)} {messages} taken over from workers that had stopped")
    title = f"✓ {number(stopped)} {'duplicate' if stopped == 1 else 'duplicates'} stopped before taking effect."
    return Markup("<strong>{}</strong> <span>{}.</span>").format(title, "; ".join(details))


def _deliveries(count: int) -> str:
    return "delivery" if count == 1 else "deliveries"
