"""Looking at messages: as they lie in our broker, for nothing; on SQS only if somebody asks, for what it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from semel.dashboard.sources.broker import BrokerSource
from semel.dashboard.views.errors import DashboardError, NotThere
from semel.dashboard.views.messages import row_of
from semel.dashboard.views.model import DeadLetterPage, DeadLetterQueueRow, MessageRow, MessagesPage
from semel.dashboard.views.search import Found, Page
from semel.dlq.access import open_access
from semel.dlq.filter import parser as filters
from semel.dlq.filter.parser import Filter, FilterError
from semel.dlq.messages import DeadLetterMessage
from semel.sqs import Client
from semel.sqs.client.admin import MOST, Admin
from semel.sqs.client.messages import Attribute, Received

SCANNED: Final = 20_000  # messages that one request compares with its filter
PATIENCE: Final = 0.25  # seconds after which it shows what it has, and where to go on
BY_RECEIVING: Final = 200  # messages that one look receives
MOST_ROWS: Final = 500
GOOD_FOR: Final = 60.0  # seconds for which what was received is shown without receiving it again


def read_filter(where: str) -> tuple[Filter, str | None]:
    """The filter, or nothing and what is wrong with it."""
    try:
        return filters.parse(where), None
    except FilterError as error:
        return filters.EVERYTHING, str(error)


def broker_messages(source: BrokerSource, queue: str, where: str, *, limit: int, after: str | None) -> MessagesPage:
    wanted, error = read_filter(where)
    if error is not None:
        return MessagesPage(queue, (), where, error=error)
    place: int | None = _place(after)
    found: list[MessageRow] = []
    looked_at, now, ends = 0, source.now(), time.monotonic() + PATIENCE
    while place is not None and len(found) < limit and looked_at < SCANNED and time.monotonic() < ends:
        size = limit - len(found) if wanted.everything else MOST
        page = source.admin.peek(queue, after=place, limit=size, bodies=wanted.needs_body)
        place = page.next
        for number, message in enumerate(page.messages, 1):
            dead_letter = DeadLetterMessage.peeked(message, queue)
            looked_at += 1
            if wanted.matches(dead_letter, now):
                found.append(row_of(dead_letter, message.get("Place")))
                if len(found) == limit and number < len(page.messages):
                    place = int(message["Place"])
                    break
    return MessagesPage(queue, tuple(found), where, looked_at, None if place is None else str(place))


def received_messages(client: Client, queue: str, where: str, *, limit: int, accept_risk: bool) -> MessagesPage:
    wanted, error = read_filter(where)
    if error is not None:
        return MessagesPage(queue, (), where, error=error)
    pages = list(
        open_access(client, queue, max_receive=BY_RECEIVING, accept_risk=accept_risk).scan(wanted, limit=limit)
    )
    rows = [row_of(message, None) for page in pages for message in page.messages]
    last = pages[-1]
    return MessagesPage(
        queue, tuple(rows), where, last.scanned, cost="; ".join(filter(None, [str(last.cost), *last.notes]))
    )


def broker_message(admin: Admin, queue: str, id: str, place: int | None) -> tuple[DeadLetterMessage, dict[str, Any]]:
    """One message and how the broker shows it; `place` is where it was, so that it is found at once."""
    for start in (*((max(0, place - 1),) if place is not None else ()), 0):
        after: int | None = start
        while after is not None:
            page = admin.peek(queue, ids=[id], after=after)
            for message in page.messages:
                return DeadLetterMessage.peeked(message, queue), message
            after = page.next
    raise gone(queue, id)


def gone(queue: str, id: str) -> NotThere:
    return NotThere(
        f"message {id} is not in {queue} any more",
        "it was deleted, moved to another queue, or its retention ended; the audit log may say who did it",
    )


def travelling(shown: Mapping[str, Any]) -> Mapping[str, Attribute]:
    """A peeked message's attributes as they travel, Semel's own among them."""
    return Received.from_wire({"ReceiptHandle": "", **shown}).attributes if shown else {}


def messages(admin: Admin, queue: str, where: Filter, after: int) -> Iterator[Page]:
    """All letters of a queue, page by page, with their places: for a search."""
    place: int | None = after
    while place is not None:
        page = admin.peek(queue, after=place, limit=MOST, bodies=where.needs_body)
        yield Page([(message.get("Place"), DeadLetterMessage.peeked(message, queue)) for message in page.messages])
        place = page.next


def dead_letters_by_receiving(client: Client, queue: str) -> Iterator[Page]:
    """The same where each one must be received to be seen: a thousand at most, and all are given back."""
    for page in open_access(client, queue, accept_risk=True).scan():
        if page.messages:
            yield Page([(None, message) for message in page.messages])
        else:
            yield Page([], "; ".join(filter(None, [str(page.cost), *page.notes])))


def dead_letter_page(
    row: DeadLetterQueueRow, found: Found, where: str, limit: int, after: str | None
) -> DeadLetterPage:
    start = int(after) if after and after.isdigit() and len(after) < 10 else 0
    limit = max(1, min(limit, MOST_ROWS))
    rows = found.rows[start : start + limit]
    more = start + len(rows) < len(found.rows)
    return DeadLetterPage(
        queue=row,
        groups=found.shown_groups(),
        messages=tuple(rows),
        matched=found.matched,
        looked_at=found.looked_at,
        total=max(row.depth, found.looked_at) if not found.complete else row.depth,
        complete=found.complete,
        where=where,
        next=str(start + len(rows)) if more and rows else None,
        cost=found.cost,
        error=found.error,
        shown=found.shown(),
    )


def _place(after: str | None) -> int:
    if after is None or after == "":
        return 0
    if not after.isdigit() or len(after) > 15:
        raise DashboardError(f"after={after[:40]!r} is no place in a queue", "pass the `next` of an earlier answer")
    return int(after)
