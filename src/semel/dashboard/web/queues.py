"""The list of queues, and one queue: charts, messages, a test message, attributes, alarms and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from semel.dashboard.views.model import (
    RAISED,
    WORST_FIRST,
    Fault,
    QueuePage,
    QueueRow,
    QueuesPage,
    ReceiveRequired,
    Series,
)
from semel.dashboard.web import charts
from semel.dashboard.web.charts import Line
from semel.dashboard.web.pages import FormFields, Notice, RequestContext, parts, viewer
from semel.dashboard.web.template_filters import field_text
from semel.dashboard.web.template_filters import messages as counted
from semel.dlq.filter.parser import FilterError
from semel.dlq.messages import MessagePage
from semel.doctor.text_format import duration, number
from semel.errors import SemelError
from semel.messages.keys import PRODUCER_KEY
from semel.sqs.client.messages import Attribute
from semel.text import count

COLUMNS: Final = (
    ("name", "Queue", "wide"),
    ("visible", "Visible", "n"),
    ("in_flight", "In flight", "n"),
    ("delayed", "Delayed", "n"),
    ("oldest", "Oldest", "n"),
    ("sent", "Sent/s", "n"),
    ("received", "Received/s", "n"),
    ("deleted", "Deleted/s", "n"),
    ("", "Depth", "spare"),
    ("level", "State", ""),
)
SHOWS: Final = (("", "All"), ("attention", "Needs attention"), ("busy", "Not empty"))
RANGES: Final = (("15m", "15 min"), ("1h", "1 h"), ("6h", "6 h"))
_SECONDS: Final = {"15m": 900.0, "1h": 3_600.0, "6h": 21_600.0}
TABS: Final = (
    ("messages", "Messages"),
    ("send", "Send"),
    ("settings", "Attributes"),
    ("alarms", "Alarms"),
    ("faults", "Faults"),
)
ALARM_FORMATS: Final = (("cloudformation", "CloudFormation"), ("terraform", "Terraform"), ("prometheus", "Prometheus"))
_EXAMPLE: Final = '{"hello": "world"}'


class SendForm(FormFields):
    body: str
    group: str = ""
    dedup: str = ""
    delay: int = 0
    key: str = ""


def routes(context: RequestContext) -> APIRouter:
    router = APIRouter()

    @router.get("/")
    def queues(request: Request, q: str = "", sort: str = "", show: str = "") -> HTMLResponse:
        page = context.inspector.queues()
        rows = ordered(_shown(page.rows, q, show), sort)
        return context.pages.answer(
            request, "queues.html", nav="queues", page=page, rows=rows, name=q, sort=sort, show=show,
            summary=_summary(page), columns=COLUMNS, shows=SHOWS,
        )  # fmt: skip

    @router.get("/queues.json")
    def names() -> list[dict[str, str]]:
        """The queues, for the dialog that jumps to a page or a queue."""
        return [
            {
                "name": row.name,
                "href": f"/{'dead-letters' if row.sources else 'queues'}/{row.name}",
                "kind": "dead-letter queue" if row.sources else "queue",
            }
            for row in context.inspector.queues().rows
        ]

    @router.get("/queues/{name}")
    def queue(
        request: Request, name: str, tab: str = "messages", range: str = "1h", where: str = "", after: str = "",
        receive: bool = False,
    ) -> HTMLResponse:  # fmt: skip
        return _queue(context, request, name, tab, range, where=where, after=after, receive=receive)

    @router.post("/queues/{name}/messages")
    def send(request: Request, name: str, form: Annotated[SendForm, Form()]) -> Any:
        form.body, key = field_text(form.body), form.key.strip()
        fifo = name.endswith(".fifo")
        try:
            id = context.services.send(
                viewer(request),
                name,
                form.body,
                attributes={PRODUCER_KEY: Attribute("String", key)} if key else None,
                delay=form.delay if form.delay and not fifo else None,
                group=(form.group.strip() or "test") if fifo else None,
                dedup=(form.dedup.strip() or None) if fifo else None,
            )
        except SemelError as error:
            return context.unsent(
                request, error, "send_form.html", nav="queues", home="/queues", queue=name, id="", form=form, fifo=fifo
            )
        notice = Notice("Sent as", href=f"/queues/{name}/messages/{id}", link=id)
        return context.pages.redirect(f"/queues/{name}?tab=send", notice)

    @router.post("/queues/{name}/faults")
    def fault(
        request: Request,
        name: str,
        kind: Annotated[str, Form()],
        rate: Annotated[float, Form()],
        milliseconds: Annotated[int | None, Form()] = None,
    ) -> Any:
        try:
            context.services.set_fault(viewer(request), kind, rate, name, milliseconds)
        except SemelError as error:
            return _queue(context, request, name, "faults", "1h", problem=str(error))
        text = f"Fault {kind} of {name} is on, at a rate of {rate:g}." if rate else f"Fault {kind} of {name} is off."
        return context.pages.redirect(f"/queues/{name}?tab=faults", Notice(text))

    return router


def _queue(
    context: RequestContext,
    request: Request,
    name: str,
    tab: str,
    range: str,
    *,
    where: str = "",
    after: str = "",
    receive: bool = False,
    problem: str = "",
) -> HTMLResponse:
    span = _SECONDS.get(range, _SECONDS["1h"])
    now = context.pages.clock()
    page = context.inspector.queue(name, since=now - span)
    messages, needs_receive, filter_error = MessagePage(()), False, ""
    wanted = parts(request)
    if tab == "messages" and (not wanted or "messages" in wanted):
        try:
            messages = context.inspector.messages(name, where, after=after, receive=receive)
        except ReceiveRequired:
            needs_receive = True
        except FilterError as error:
            filter_error = str(error)
    return context.pages.answer(
        request, "queue.html", nav="queues", status=400 if problem else 200, page=page, row=page.row,
        charts=_charts(page, now - span, now) if tab == "messages" else [], tab=tab, tabs=TABS, range=range,
        ranges=RANGES, where=where, after=after, messages=messages, needs_receive=needs_receive,
        filter_error=filter_error, faults=in_force(page.faults or (), name),
        queue=name, form=SendForm(body=_EXAMPLE), fifo=page.row.fifo, problem=problem, alarm_formats=ALARM_FORMATS,
    )  # fmt: skip


def _shown(rows: Sequence[QueueRow], query: str, show: str) -> list[QueueRow]:
    words = query.lower().split()
    named = [row for row in rows if all(word in row.name.lower() for word in words)]
    if show == "attention":
        return [row for row in named if row.level in RAISED or row.error]
    return [row for row in named if row.depth] if show == "busy" else named


def ordered(rows: Sequence[QueueRow], sort: str) -> list[QueueRow]:
    """Sorted by a column; by default by name, each dead-letter queue below its first source queue."""
    keys: dict[str, Callable[[QueueRow], Any]] = {
        "visible": lambda row: -row.visible,
        "in_flight": lambda row: -row.in_flight,
        "delayed": lambda row: -row.delayed,
        "oldest": lambda row: -(row.oldest_age or 0),
        "sent": lambda row: -(row.rates.sent or 0),
        "received": lambda row: -(row.rates.received or 0),
        "deleted": lambda row: -(row.rates.deleted or 0),
        "level": lambda row: WORST_FIRST.index(row.level),
    }
    if sort in keys:
        return sorted(rows, key=lambda row: (keys[sort](row), row.name))
    return sorted(rows, key=lambda row: (min(row.sources, default=row.name), bool(row.sources), row.name))


def in_force(faults: Sequence[Fault], queue: str) -> list[Fault]:
    """One fault of each kind: the queue's own setting, or else the one for all queues."""
    kinds = [fault.kind for fault in faults]
    by_kind = {fault.kind: fault for fault in sorted(faults, key=lambda fault: fault.queue == queue)}
    return sorted(by_kind.values(), key=lambda fault: kinds.index(fault.kind))


def _summary(page: QueuesPage) -> str:
    total = sum(row.depth for row in page.rows)
    bad = sum(row.level in RAISED for row in page.rows)
    attention = f"{number(bad)} {'needs' if bad == 1 else 'need'} attention" if bad else "none needs attention"
    return " · ".join([count(len(page.rows), "queue"), counted(total), attention])


def _charts(page: QueuePage, since: float, until: float) -> list[Markup]:
    series: Series = page.series
    since = max(since, series.at[0]) if series.at else since
    until = max(until, series.at[-1]) if series.at else until

    def drawn(title: str, lines: list[Line], write: Callable[[float], str], *, times: bool = False) -> Markup:
        return charts.timeline(
            title, series.at, lines, annotations=page.annotations, write=write, since=since, until=until, times=times
        )

    depth = [Line("visible", "blue", series.visible, area=True), Line("in flight", "amber", series.in_flight, "dashed")]
    if any(series.delayed):
        depth.append(Line("delayed", "purple", series.delayed, "dotted"))
    flow = [
        Line("sent", "blue", series.sent),
        Line("received", "red", series.received),
        Line("deleted", "green", series.deleted, "dashed"),
    ]
    if any(series.dead_lettered):
        flow.append(Line("dead-lettered", "purple", series.dead_lettered, "dotted"))
    age = [Line("oldest", "purple", series.oldest_age, area=True)]
    drawings = [
        drawn("Messages", depth, charts.short),
        drawn("Per second", flow, charts.per_second),
        drawn("Age of the oldest message", age, duration, times=True),
    ]
    return [drawing for drawing in drawings if drawing]
