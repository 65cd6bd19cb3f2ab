"""The ledger entry and the attempts of a message. What cannot be read is a sentence with the way out, not an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from semel.dashboard.views.model import LedgerEntry
from semel.errors import SemelError
from semel.ledger.contract import Ledger, LedgerUnavailable
from semel.telemetry.message_trail import Trail, TrailEvent

MAX_EVENTS: Final = 200
READ_SECONDS: Final = 0.5  # that a page waits for the attempt log
RESULT_BYTES: Final = 2_000
_RETRY_AFTER: Final = 10.0  # seconds before a ledger that could not be reached is tried again


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
        """The same for actions, which must not run without it: tried every time. Raises LedgerUnavailable."""
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
            steps=tuple(sorted(entry.notes)),
            result=entry.result[:RESULT_BYTES].decode("utf-8", "replace"),
        ), ""

    def trail(self, ids: Sequence[str], key: str) -> tuple[tuple[TrailEvent, ...], str]:
        """All attempts by message id and key, from the attempt log, and why there are none or not all."""
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
