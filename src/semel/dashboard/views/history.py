"""What was written down about a message: by the ledger, and by the workers in their attempt log.

The rule: what is not there, or cannot be read, is a sentence that says so and what to do; never an error of the page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.dashboard.views.model import Annotation, AttemptEvent, LedgerEntry, Message
from semel.errors import SemelError
from semel.ledger.contract import Entry, Ledger, LedgerUnavailable
from semel.telemetry import annotation_log

MOST_EVENTS: Final = 200
PATIENCE: Final = 0.5  # seconds that a page waits for the attempt log
SHOWN: Final = 2_000  # bytes of a stored result
_PAUSE: Final = 10.0  # seconds before a ledger that could not be reached is tried again
_NO_LEDGER: Final = "No ledger was given: start the dashboard with --ledger URL."
_NO_LOG: Final = "No attempt log was given: start the dashboard with --attempt-log PATH."


class MessageHistory:
    """`ledger` may be given open, and is then the caller's to close. Thread-safe."""

    def __init__(self, url: str | None, ledger: Ledger | None, logs: Sequence[str]) -> None:
        self._url, self._ledger, self._logs = url, ledger, tuple(logs)
        self._own = ledger is None
        self._lock = threading.Lock()
        self._failed: tuple[float, str] | None = None

    @property
    def ledger(self) -> Ledger | None:
        """The ledger, opened when it is first asked for; None if there is none. Raises SemelError."""
        with self._lock:
            if self._ledger is None and self._url is not None:
                if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE:
                    raise SemelError(self._failed[1])
                try:
                    self._ledger = Ledger.connect(self._url)
                except SemelError as error:
                    self._failed = (time.monotonic(), str(error))
                    raise
            return self._ledger

    def connected(self) -> Ledger | None:
        """The same for whoever acts, and does so only if the ledger answers: tried each time. Raises
        LedgerUnavailable."""
        self._failed = None
        try:
            return self.ledger
        except SemelError as error:
            raise LedgerUnavailable(f"nothing was done, as the ledger does not answer: {error}") from None

    def entry(self, keys: Sequence[str]) -> tuple[LedgerEntry | None, str]:
        """What the ledger knows under the first of these keys that it knows, or why that is nothing."""
        if not keys:
            return None, "It has no key to look up."
        try:
            ledger = self.ledger
            if ledger is None:
                return None, _NO_LEDGER
            found = next((entry for entry in ledger.get(list(keys)) if entry is not None), None)
        except SemelError as error:
            return None, f"The ledger cannot be asked: {error}"
        if found is None:
            return None, f"The ledger does not know {keys[0]}: nobody has begun with it, or it was forgotten."
        return _entry(found), ""

    def trail(self, message: Message) -> tuple[tuple[AttemptEvent, ...], str]:
        """Every attempt of a message, from the attempt log, or why there is none."""
        if not self._logs:
            return (), _NO_LOG
        from semel.telemetry.message_trail import Trail

        # A redriven message has a new id; its key tells of its earlier lives too.
        ids = list(dict.fromkeys(filter(None, (message.id, message.original_id))))
        try:
            result = Trail.of(self._logs).events(
                message_id=ids, key=message.key or None, limit=MOST_EVENTS, most_seconds=PATIENCE
            )
        except SemelError as error:
            return (), f"The attempt log cannot be read: {error}"
        events = tuple(_event(event) for event in result.events)
        if not result.complete:
            return events, f"There may be more: {'; '.join(result.reasons)}."
        return events, "" if events else "The attempt log does not mention it."

    def annotations(self, folder: Path, since: float) -> tuple[Annotation, ...]:
        return tuple(one for one in annotation_log.since(folder, since))

    def close(self) -> None:
        if self._own and self._ledger is not None:
            self._ledger.close()


def _entry(found: Entry) -> LedgerEntry:
    return LedgerEntry(
        key=found.key,
        status=found.status.value,
        attempt=found.attempt,
        fence=found.fence,
        first_seen=found.first_seen,
        changed=found.changed,
        lease_ends=found.lease_ends or None,
        expires=found.expires or None,
        claimant=found.claimant,
        source=found.source,
        steps=tuple(sorted(found.notes)),
        result=found.result[:SHOWN].decode("utf-8", "replace"),
    )


def _event(told: object) -> AttemptEvent:
    def of(name: str) -> object:
        return getattr(told, name, None)

    def text(name: str) -> str:
        return str(of(name) or "")

    def number(name: str) -> int | None:
        found = of(name)
        return int(found) if isinstance(found, int | float) and found else None

    at, seconds = of("at"), of("seconds")
    return AttemptEvent(
        at=float(at) if isinstance(at, int | float) else 0.0,
        step=text("step"),
        worker=text("worker"),
        attempt=number("attempt"),
        receive_count=number("receive_count"),
        fence=number("fence"),
        seconds=float(seconds) if isinstance(seconds, int | float) and seconds else None,
        error=text("error"),
        handler=text("handler"),
        key=text("key"),
        message_id=text("message_id"),
    )
