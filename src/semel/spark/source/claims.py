"""`dedup=ledger`: a task claims the keys of what it received before it seals them, and records them after.

So a pipeline and handlers, or two pipelines, can share a queue: of all that see a key, one gets it. A crash between
the seal and the record leaves the claim to its lease. The replay of the segment records it; or the ledger refuses that,
for another has taken the key over since: then the row is that one's, and is left out by every replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from uuid import uuid4

import pyarrow as pa

from semel.ledger.contract import Claim, ClaimRequest, Completion, Ledger, LedgerError, Status, Won
from semel.ledger.contract import Done as KnownDone
from semel.messages.keys import scoped
from semel.spark.source.columns import SourceMessage
from semel.sqs import Queue

AT_ONCE: Final = 1_000

Hide = Callable[[Sequence[tuple[SourceMessage, int]]], None]
_ledgers: dict[str, Ledger] = {}


class KeyClaims(Protocol):
    knows: bool  # whether it tells what was given out before by its key
    done: list[SourceMessage]  # what the ledger knows as done: to be deleted, not to be given out

    def claim(self, messages: list[SourceMessage], hide: Hide) -> list[SourceMessage]: ...

    def record(self, messages: Sequence[SourceMessage]) -> frozenset[str]:
        """The ids of the messages that are no longer ours: another has taken their keys over. The same at each call."""

    def record_again(self, table: pa.Table) -> frozenset[str]: ...

    def release(self, messages: Sequence[SourceMessage]) -> None: ...


def claims_for(ledger: str | None, queue: Queue, lease: float) -> KeyClaims:
    """`lease`: seconds from the claim to the record, best as long as the message is hidden. What a task that died has
    claimed waits for its end; after a longer pause, another may take it over."""
    if ledger is None:
        return _NoClaims()
    if ledger not in _ledgers:
        _ledgers[ledger] = Ledger.connect(ledger)
    return LedgerClaims(_ledgers[ledger], queue, lease)


class _NoClaims:
    knows = False

    def __init__(self) -> None:
        self.done: list[SourceMessage] = []

    def claim(self, messages: list[SourceMessage], hide: Hide) -> list[SourceMessage]:  # noqa: ARG002
        return messages

    def record(self, messages: Sequence[SourceMessage]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def record_again(self, table: pa.Table) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def release(self, messages: Sequence[SourceMessage]) -> None: ...


class LedgerClaims:
    knows = True

    def __init__(self, ledger: Ledger, queue: Queue, lease: float) -> None:
        self._ledger = ledger
        self._queue = queue.name
        self._scope = queue.scope
        self._lease = lease
        self.done: list[SourceMessage] = []

    def claim(self, messages: list[SourceMessage], hide: Hide) -> list[SourceMessage]:
        """What we may give out. What has no key is not guarded. What another holds goes back until its lease ends."""
        self.done = []
        won = [t for t in messages if t.key is None]
        keyed = [t for t in messages if t.key is not None]
        held: list[tuple[SourceMessage, int]] = []
        ours: set[str | None] = set()
        for start in range(0, len(keyed), AT_ONCE):
            page = keyed[start : start + AT_ONCE]
            asks = [ClaimRequest(self._scoped(t), source=f"{self._queue}/{t.message.message_id}") for t in page]
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

    def record(self, messages: Sequence[SourceMessage]) -> frozenset[str]:
        return self._record(
            [(t.message.message_id, Claim(self._scoped(t), t.fence)) for t in messages if t.fence is not None]
        )

    def record_again(self, table: pa.Table) -> frozenset[str]:
        rows = zip(*(table.column(name).to_pylist() for name in ("message_id", "key", "fence")), strict=True)
        return self._record([(id_, Claim(self._claimed(id_, key), f)) for id_, key, f in rows if f is not None])

    def _claimed(self, message_id: str, key: str | None) -> str:
        if key is None:
            raise LedgerError(
                f"queue {self._queue}: message {message_id} was sealed with a claim in the ledger but without its key "
                "(an earlier version left it out if 'columns' did). Whether its row is still ours cannot be told. Run "
                "this query with dedup 'segments' until the batch is committed: then its rows are given out"
            )
        return scoped(self._scope, key)

    def _record(self, claims: Sequence[tuple[str, Claim]]) -> frozenset[str]:
        refused: set[str] = set()
        for start in range(0, len(claims), AT_ONCE):
            page = claims[start : start + AT_ONCE]
            made = self._ledger.record([Completion(claim, Status.DONE) for _, claim in page])
            refused.update(id_ for (id_, _), ours in zip(page, made, strict=True) if not ours)
        return frozenset(refused)

    def release(self, messages: Sequence[SourceMessage]) -> None:
        claims = [Claim(self._scoped(t), t.fence) for t in messages if t.fence is not None]
        for start in range(0, len(claims), AT_ONCE):
            self._ledger.release(claims[start : start + AT_ONCE], tried=False)

    def _scoped(self, messages: SourceMessage) -> str:
        assert messages.key is not None
        return scoped(self._scope, messages.key)
