"""Messages of a queue, read through one access layer: peeked at on Semel's broker, received on SQS."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final

from semel.dashboard.views.errors import DashboardError, NotThere
from semel.dashboard.views.model import InProgress
from semel.dlq.access import MessageAccess, ScanPage
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import DeadLetterMessage, MessagePage, ReceiveCost
from semel.messages.keys import PRODUCER_KEY, scoped
from semel.telemetry.message_trail import TrailEvent

PAGE: Final = 50  # messages, on pages and in the API
MAX_PAGE: Final = 1_000
PAGE_SECONDS: Final = 0.25  # that a page waits for a scan; it then shows the messages so far
API_SECONDS: Final = 20.0  # that the API waits
MAX_RECEIVE: Final = 200  # messages of a queue that is not a dead-letter queue


def read_page(
    access: MessageAccess, where: Filter, *, limit: int, after: str | None, seconds: float, bodies: bool
) -> MessagePage:
    """The first `limit` messages after a place that match; fewer, with `next`, if time is up before."""
    messages: list[DeadLetterMessage] = []
    page = ScanPage([], 0, None, None, True, ReceiveCost(), ())
    ends = time.monotonic() + seconds
    with closing(access.scan(where, after=place_of(after), limit=limit, bodies=bodies)) as pages:
        for page in pages:
            messages += page.messages
            if time.monotonic() > ends and not access.receives:
                break
    shown = messages if bodies else [message.shortened() for message in messages]
    next_ = None if page.next is None else str(page.next)
    return MessagePage(tuple(shown), next_, page.scanned, page.complete, page.cost, page.notes)


def place_of(text: str | None) -> int | None:
    """`after` as the place in a queue that it is."""
    if not text:
        return None
    if not text.isdigit() or len(text) > 15:
        raise DashboardError(f"after={text[:40]!r} is not a place in a queue", "pass the `next` of an earlier answer")
    return int(text)


def gone(queue: str, id: str) -> NotThere:
    return NotThere(
        f"message {id} is not in {queue}",
        "it was deleted or moved, or its retention has ended; the audit log may say who did it",
    )


def ledger_keys(message: DeadLetterMessage, scope: str, keys: Iterable[str]) -> tuple[str, ...]:
    """The keys by which a ledger may know this message, the most likely first. `keys`: those that workers used."""
    produced = message.attributes.get(PRODUCER_KEY)
    named = (produced.value,) if produced is not None and isinstance(produced.value, str) else ()
    candidates = (message.key, *keys, *named, message.original_id, message.id)
    return tuple(dict.fromkeys(scoped(scope, key) for key in candidates if key))


def worker_keys(in_progress: InProgress | None, trail: Sequence[TrailEvent]) -> list[str]:
    """The newest first."""
    keys = ([in_progress.key] if in_progress else []) + [event.key for event in reversed(trail)]
    return list(dict.fromkeys(filter(None, keys)))[:5]
