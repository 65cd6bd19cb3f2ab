"""Keeps the leases of running calls: one thread for each ledger, one `extend` for all calls that are due.

It is tried for as long as the call runs: a lease that has run out can still be extended if nobody else has claimed the
key. Whether somebody has is for the record to say, by its fence. The thread ends with the last call, and with no error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from semel.ledger.contract import Claim, Ledger, LedgerUnavailable

log: Final = logging.getLogger("semel.ledger")

_SHARE: Final = 3  # a lease is extended when a third of it has passed
_RETRY_SHARE: Final = 12  # and after a failure sooner than that


@dataclass(eq=False)
class Beat:
    """One call's lease. `due` is a time of the monotonic clock, counted from before the store was asked."""

    claim: Claim
    lease: float
    due: float


class Beats:
    """The leases of all calls that run on one ledger."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beats: set[Beat] = set()
        self._running = False

    def start(self, ledger: Ledger, claim: Claim, lease: float, asked_at: float) -> Beat:
        beat = Beat(claim, lease, asked_at + lease / _SHARE)
        with self._changed:
            self._beats.add(beat)
            if self._running:
                self._changed.notify()
            else:
                self._running = True
                threading.Thread(target=self._main, args=(ledger,), name="semel-leases", daemon=True).start()
        return beat

    def stop(self, beat: Beat) -> None:
        with self._changed:
            self._beats.discard(beat)
            self._changed.notify()

    def _main(self, ledger: Ledger) -> None:
        while True:
            with self._changed:
                if not self._beats:
                    self._running = False
                    return
                now = time.monotonic()
                due = [beat for beat in self._beats if beat.due <= now]
                if not due:
                    self._changed.wait(min(beat.due for beat in self._beats) - now)
                    continue
            for lease in {beat.lease for beat in due}:
                self._extend(ledger, [beat for beat in due if beat.lease == lease], lease)

    def _extend(self, ledger: Ledger, beats: Sequence[Beat], lease: float) -> None:
        asked_at = time.monotonic()
        try:
            extended = list(zip(beats, ledger.extend([beat.claim for beat in beats], lease), strict=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other calls need this thread
            if len(beats) > 1 and not isinstance(error, LedgerUnavailable):
                for beat in beats:  # it may be about one of them
                    self._extend(ledger, [beat], lease)
                return
            for beat in beats:
                beat.due = time.monotonic() + lease / _RETRY_SHARE
            log.warning("the lease of %d running calls could not be extended: %s", len(beats), error)
            return
        for beat, ours in extended:
            if ours:
                beat.due = asked_at + lease / _SHARE
            else:
                self.stop(beat)


_ALL: Final[WeakKeyDictionary[Ledger, Beats]] = WeakKeyDictionary()
_ALL_GUARD: Final = threading.Lock()


def beats_of(ledger: Ledger) -> Beats:
    with _ALL_GUARD:
        return _ALL.setdefault(ledger, Beats())
