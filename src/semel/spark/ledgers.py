"""`dedup=ledger`: a task claims the keys of what it received before it seals them, and records them after.

So a pipeline and handlers, or two pipelines, can share a queue: of all that see a key, one gets it. Between the seal
and the record a crash leaves the claim to its lease; the replay of the segment records it then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import uuid4

import pyarrow as pa

from semel.consumer.keys import scoped
from semel.ledger.contract import Ask, Claim, Finish, Ledger, Status, Won
from semel.ledger.contract import Done as KnownDone
from semel.spark.building import Taken

AT_ONCE: Final = 1_000

_ledgers: dict[str, Ledger] = {}


class Guard(Protocol):
    done: list[Taken]  # what the ledger knows as done: to be deleted, not to be given out

    def claim(self, taken: list[Taken], hide: Callable[[Sequence[tuple[Taken, int]]], None]) -> list[Taken]: ...

    def record(self, taken: Sequence[Taken]) -> None: ...

    def record_again(self, table: pa.Table) -> None: ...

    def release(self, taken: Sequence[Taken]) -> None: ...


def guard_for(ledger: str | None, queue: str, lease: float) -> Guard:
    """`lease`: seconds from the claim to the record, best as long as the message is hidden. What a task that died has
    claimed waits for its end; a replay after a longer pause may find a key taken."""
    if ledger is None:
        return _NoGuard()
    if ledger not in _ledgers:
        _ledgers[ledger] = Ledger.connect(ledger)
    return LedgerGuard(_ledgers[ledger], queue, lease)


class _NoGuard:
    def __init__(self) -> None:
        self.done: list[Taken] = []

    def claim(self, taken: list[Taken], hide: Callable[[Sequence[tuple[Taken, int]]], None]) -> list[Taken]:  # noqa: ARG002
        return taken

    def record(self, taken: Sequence[Taken]) -> None: ...

    def record_again(self, table: pa.Table) -> None: ...

    def release(self, taken: Sequence[Taken]) -> None: ...


class LedgerGuard:
    def __init__(self, ledger: Ledger, queue: str, lease: float) -> None:
        self._ledger = ledger
        self._queue = queue
        self._lease = lease
        self.done: list[Taken] = []

    def claim(self, taken: list[Taken], hide: Callable[[Sequence[tuple[Taken, int]]], None]) -> list[Taken]:
        """What we may give out. What has no key is not guarded. What another holds goes back until its lease ends."""
        self.done = []
        won = [t for t in taken if t.key is None]
        keyed = [t for t in taken if t.key is not None]
        held: list[tuple[Taken, int]] = []
        ours: set[str | None] = set()
        for start in range(0, len(keyed), AT_ONCE):
            page = keyed[start : start + AT_ONCE]
            asks = [Ask(self._scoped(t), source=f"{self._queue}/{t.message.message_id}") for t in page]
            for t, verdict in zip(page, self._ledger.claim(asks, claimant=uuid4().hex, lease=self._lease), strict=True):
                match verdict:
                    case Won(claim=claim):
                        won.append(t._replace(fence=claim.fence))
                        ours.add(t.key)
                    case KnownDone():
                        self.done.append(t)
                    case _ if t.key in ours:  # two messages with one key in one hand
                        self.done.append(t)
                    case _:
                        held.append((t, math.ceil(getattr(verdict, "remaining", self._lease))))
        if held:
            hide(held)
        return won

    def record(self, taken: Sequence[Taken]) -> None:
        self._record([Claim(self._scoped(t), t.fence) for t in taken if t.fence is not None])

    def record_again(self, table: pa.Table) -> None:
        pairs = zip(table.column("key").to_pylist(), table.column("fence").to_pylist(), strict=True)
        self._record([Claim(scoped(self._queue, key), fence) for key, fence in pairs if fence is not None])

    def _record(self, claims: Sequence[Claim]) -> None:
        for start in range(0, len(claims), AT_ONCE):
            # A refusal: somebody took the key over, after a pause of more than the lease. It is done all the same.
            self._ledger.record([Finish(claim, Status.DONE) for claim in claims[start : start + AT_ONCE]])

    def release(self, taken: Sequence[Taken]) -> None:
        claims = [Claim(self._scoped(t), t.fence) for t in taken if t.fence is not None]
        for start in range(0, len(claims), AT_ONCE):
            self._ledger.release(claims[start : start + AT_ONCE], tried=False)

    def _scoped(self, taken: Taken) -> str:
        assert taken.key is not None
        return scoped(self._queue, taken.key)
