"""Keeps the leases of running calls: one thread for each ledger, one `extend` for all calls that are due.

A lease that cannot be extended in time is lost, and its call is told so; the thread ends with the last call.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from semel.ledger.contract import Claim, Ledger, LedgerError

_SHARE: Final = 3  # a lease is extended when a third of it has passed
_RETRY_SHARE: Final = 12  # and after a failure sooner than that


@dataclass(eq=False)
class Beat:
    """One call's lease. `ends` and `due` are times of the monotonic clock, taken before the store was asked."""

    claim: Claim
    lease: float
    ends: float
    due: float
    lost: threading.Event = field(default_factory=threading.Event)


class Beats:
    """The leases of all calls that run on one ledger."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beats: set[Beat] = set()
        self._running = False

    def start(self, ledger: Ledger, claim: Claim, lease: float, asked_at: float) -> Beat:
        beat = Beat(claim, lease, asked_at + lease, asked_at + lease / _SHARE)
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

    def _extend(self, ledger: Ledger, beats: list[Beat], lease: float) -> None:
        asked_at = time.monotonic()
        try:
            extended = ledger.extend([beat.claim for beat in beats], lease)
        except LedgerError:
            for beat in beats:
                beat.due = time.monotonic() + lease / _RETRY_SHARE
                if beat.due >= beat.ends:
                    self._lose(beat)
            return
        for beat, ours in zip(beats, extended, strict=True):
            if ours:
                beat.ends, beat.due = asked_at + lease, asked_at + lease / _SHARE
            else:
                self._lose(beat)

    def _lose(self, beat: Beat) -> None:
        beat.lost.set()
        self.stop(beat)


_ALL: Final[WeakKeyDictionary[Ledger, Beats]] = WeakKeyDictionary()
_ALL_GUARD: Final = threading.Lock()


def beats_of(ledger: Ledger) -> Beats:
    with _ALL_GUARD:
        return _ALL.setdefault(ledger, Beats())
