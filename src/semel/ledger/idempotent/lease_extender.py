"""Extends the leases of running calls: one thread for each ledger, one `extend` for all calls that are due.

It keeps trying for as long as the call runs, because a lease that has run out can still be extended if nobody else has
claimed the key. If somebody has, the record is refused because of its fence. The thread ends with the last call. Errors
do not end it; if it has ended all the same, the next call starts another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from semel.ledger.contract import Claim, Ledger, LedgerUnavailable

log: Final = logging.getLogger("semel.ledger")

_SHARE: Final = 3  # a lease is extended when a third of it has passed
_RETRY_SHARE: Final = 12  # after a failure, it is tried again after a twelfth


@dataclass(eq=False)
class ExtendedLease:
    """One call's lease. `due`: when to extend it, by the monotonic clock, counted from before the call to the store."""

    claim: Claim
    seconds: float
    due: float


class LeaseExtender:
    """The leases of all calls that run on one ledger."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._leases: set[ExtendedLease] = set()
        self._running = False

    def start(self, ledger: Ledger, claim: Claim, seconds: float, asked_at: float) -> ExtendedLease:
        lease = ExtendedLease(claim, seconds, asked_at + seconds / _SHARE)
        with self._changed:
            if not self._running:
                threading.Thread(target=self._main, args=(ledger,), name="semel-leases", daemon=True).start()
                self._running = True
            self._leases.add(lease)
            self._changed.notify()
        return lease

    def stop(self, lease: ExtendedLease) -> None:
        with self._changed:
            self._leases.discard(lease)
            self._changed.notify()

    def _main(self, ledger: Ledger) -> None:
        try:
            while due := self._due():
                for seconds in {lease.seconds for lease in due}:
                    self._extend(ledger, [lease for lease in due if lease.seconds == seconds], seconds)
        except BaseException:
            with self._changed:
                self._running = False
            raise

    def _due(self) -> list[ExtendedLease]:
        """Wait until leases must be extended, and return them; an empty list if no call runs any more."""
        with self._changed:
            while self._leases:
                now = time.monotonic()
                if due := [lease for lease in self._leases if lease.due <= now]:
                    return due
                self._changed.wait(min(lease.due for lease in self._leases) - now)
            self._running = False
            return []

    def _extend(self, ledger: Ledger, leases: Sequence[ExtendedLease], seconds: float) -> None:
        asked_at = time.monotonic()
        try:
            extended = list(zip(leases, ledger.extend([lease.claim for lease in leases], seconds), strict=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other calls need this thread
            if len(leases) > 1 and not isinstance(error, LedgerUnavailable):
                for lease in leases:  # the error may be about one of them only
                    self._extend(ledger, [lease], seconds)
                return
            for lease in leases:
                lease.due = time.monotonic() + seconds / _RETRY_SHARE
            log.warning("the lease of %d running calls could not be extended: %s", len(leases), error)
            return
        for lease, ours in extended:
            if ours:
                lease.due = asked_at + seconds / _SHARE
            else:
                self.stop(lease)


_EXTENDERS: Final[WeakKeyDictionary[Ledger, LeaseExtender]] = WeakKeyDictionary()
_lock = threading.Lock()


def extender_of(ledger: Ledger) -> LeaseExtender:
    with _lock:
        return _EXTENDERS.setdefault(ledger, LeaseExtender())


def _after_fork() -> None:
    """The parent's threads do not run in this process, and one of them may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _EXTENDERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
