"""Messages of a queue, read through one access layer: peeked at on Semel's broker, received on SQS.

For one message, also the ledger entry and the attempts. If these cannot be read, a sentence says why and what to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final

from semel.dashboard.views.model import DashboardError, InProgress, LedgerEntry, NotThere
from semel.dlq.access import MessageAccess, ScanPage
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import DeadLetterMessage, MessagePage, ReceiveCost
from semel.errors import SemelError
from semel.ledger.contract import Ledger, LedgerUnavailable
from semel.messages.keys import PRODUCER_KEY, scoped
from semel.telemetry.message_trail import Trail, TrailEvent

PAGE: Final = 50  # messages, on pages and in the API
MAX_PAGE: Final = 1_000
PAGE_SECONDS: Final = 0.25  # how long a page waits for a scan; it then shows the messages so far
API_SECONDS: Final = 20.0  # how long the API waits for a scan
MAX_RECEIVE: Final = 200  # messages of a queue that is not a dead-letter queue
MAX_EVENTS: Final = 200
READ_SECONDS: Final = 0.5  # how long a page waits for the attempt log
RESULT_BYTES: Final = 2_000
_RETRY_AFTER: Final = 10.0  # seconds before a ledger that could not be reached is tried again


def read_page(
    access: MessageAccess, where: Filter, *, limit: int, after: str | None, seconds: float, bodies: bool
) -> MessagePage:
    """The first `limit` matching messages after a place. If time is up before that, fewer, and `next`."""
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
    """Parses `after`, a place in a queue."""
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
    """The keys that workers used, newest first."""
    keys = ([in_progress.key] if in_progress else []) + [event.key for event in reversed(trail)]
    return list(dict.fromkeys(filter(None, keys)))[:5]


class MessageHistory:
    """The caller closes a `ledger` that it passes in. Thread-safe."""

    def __init__(self, url: str | None, ledger: Ledger | None, logs: Sequence[str]) -> None:
        self._url, self._ledger, self._logs = url, ledger, tuple(logs)
        self._own = ledger is None
        self._lock = threading.Lock()
        self._failed: tuple[float, str] | None = None

    @property
    def ledger(self) -> Ledger | None:
        """The ledger, connected at the first use; None if the settings name none. Raises SemelError."""
        with self._lock:
            if self._ledger is None and self._url is not None:
                if self._failed is not None and time.monotonic() - self._failed[0] < _RETRY_AFTER:
                    raise SemelError(self._failed[1])
                try:
                    self._ledger = Ledger.connect(self._url)
                except SemelError as error:
                    self._failed = (time.monotonic(), str(error))
                    raise
            return self._ledger

    def connected(self) -> Ledger | None:
        """The ledger for actions, which must not run without it; each call connects again. Raises LedgerUnavailable."""
        self._failed = None
        try:
            return self.ledger
        except SemelError as error:
            raise LedgerUnavailable(f"nothing was done, as the ledger does not answer: {error}") from None

    def entry(self, keys: Sequence[str]) -> tuple[LedgerEntry | None, str]:
        """The entry of the first of these keys that has one, or the reason why there is none."""
        if not keys:
            return None, "The message has no key."
        try:
            ledger = self.ledger
            if ledger is None:
                return None, "There is no ledger: start the dashboard with --ledger URL."
            entry = next((entry for entry in ledger.get(list(keys)) if entry is not None), None)
        except SemelError as error:
            return None, f"The ledger does not answer: {error}"
        if entry is None:
            return None, f"The ledger has no entry for {keys[0]}: it was never claimed, or its retention has ended."
        return LedgerEntry(
            key=entry.key,
            status=entry.status.value,
            attempt=entry.attempt,
            fence=entry.fence,
            first_seen=entry.first_seen,
            changed=entry.changed,
            lease_ends=entry.lease_ends or None,
            expires=entry.expires or None,
            claimant=entry.claimant,
            source=entry.source,
            steps=tuple(sorted(entry.steps)),
            result=entry.result[:RESULT_BYTES].decode("utf-8", "replace"),
        ), ""

    def trail(self, ids: Sequence[str], key: str) -> tuple[tuple[TrailEvent, ...], str]:
        """All attempts by message id and key, from the attempt log, and why there are none or only some."""
        if not self._logs:
            return (), "There is no attempt log: start the dashboard with --attempt-log PATH."
        try:
            result = Trail.of(self._logs).events(
                message_id=list(ids), key=key or None, limit=MAX_EVENTS, most_seconds=READ_SECONDS
            )
        except SemelError as error:
            return (), f"The attempt log cannot be read: {error}"
        if not result.complete:
            return result.events, f"There may be more: {'; '.join(result.reasons)}."
        return result.events, "" if result.events else "The attempt log does not mention this message."

    def close(self) -> None:
        if self._own and self._ledger is not None:
            self._ledger.close()
