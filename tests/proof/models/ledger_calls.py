"""The ledger of the model, which is a real one: each call on each entry is made once, and its result is cached.

An entry is reduced to what decides who may do what: its status, fence and claimant, and whether its lease is valid.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, Fenced, Status
from semel.ledger.sqlite.ledger import SqliteLedger

KEY: Final = "order-1"
NOW: Final = 1_000.0
LEASE: Final = 30.0
FOR_EVER: Final = 1e9
_PUT: Final = """
    INSERT INTO semel_ledger (key, status, fence, attempt, claimant, lease_ends, payload, source, result, first_seen,
                              changed, expires, purge_at)
    VALUES (?, ?, ?, 1, ?, ?, '', '', x'', ?, ?, ?, ?)
"""


class Entry(NamedTuple):
    status: Status
    fence: int
    claimant: str
    leased: bool  # whether its lease has not run out

    @property
    def recorded(self) -> bool:
        return self.status in (Status.DONE, Status.REJECTED)


class LedgerCalls:
    """`entry` is None while the key is unknown. Every call returns the entry after it, and the ledger's answer."""

    def __init__(self) -> None:
        self._ledger = SqliteLedger(":memory:", retention=FOR_EVER, clock=lambda: NOW)
        with self._ledger.transaction() as tx:
            tx.execute("CREATE TABLE effects (key TEXT)")
        self.claim = cache(self._claim)
        self.extend = cache(self._extend)
        self.record = cache(self._record)
        self.release = cache(self._release)
        self.commit = cache(self._commit)

    def close(self) -> None:
        self._ledger.close()

    def _claim(self, entry: Entry | None, claimant: str) -> tuple[Entry | None, ClaimResult]:
        self._put(entry)
        (answer,) = self._ledger.claim([ClaimRequest(KEY)], claimant=claimant, lease=LEASE)
        return self._entry(), answer

    def _extend(self, entry: Entry | None, fence: int) -> tuple[Entry | None, bool]:
        self._put(entry)
        (answer,) = self._ledger.extend([Claim(KEY, fence)], LEASE)
        return self._entry(), answer

    def _record(self, entry: Entry | None, fence: int) -> tuple[Entry | None, bool]:
        self._put(entry)
        (answer,) = self._ledger.record([Completion(Claim(KEY, fence))])
        return self._entry(), answer

    def _release(self, entry: Entry | None, fence: int) -> tuple[Entry | None, bool]:
        self._put(entry)
        (answer,) = self._ledger.release([Claim(KEY, fence)])
        return self._entry(), answer

    def _commit(self, entry: Entry | None, fence: int) -> tuple[Entry | None, int]:
        """The effect and the record in one transaction. The answer is the number of effects that it added."""
        self._put(entry)
        try:
            with self._ledger.transaction() as tx:
                tx.execute("INSERT INTO effects VALUES (?)", (KEY,))
                if not all(tx.record([Completion(Claim(KEY, fence))])):
                    raise Fenced("a newer claim exists")
        except Fenced:
            pass
        with self._ledger.transaction() as tx:
            (effects,) = tx.execute("SELECT count(*) FROM effects").fetchone()
        return self._entry(), effects

    def _put(self, entry: Entry | None) -> None:
        with self._ledger.transaction() as tx:
            tx.execute("DELETE FROM semel_ledger")
            tx.execute("DELETE FROM effects")
            if entry is not None:
                ends = NOW + LEASE if entry.leased else NOW - 1
                times = (ends, NOW, NOW, NOW + FOR_EVER, NOW + FOR_EVER)
                tx.execute(_PUT, (KEY, entry.status, entry.fence, entry.claimant, *times))

    def _entry(self) -> Entry | None:
        (entry,) = self._ledger.get([KEY])
        if entry is None:
            return None
        claimed = entry.status is Status.CLAIMED
        claimant = entry.claimant if claimed else ""
        return Entry(entry.status, entry.fence, claimant, leased=claimed and entry.lease_ends > NOW)
