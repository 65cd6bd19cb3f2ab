"""`dedup=ledger`: a task claims the keys of its messages before it seals them, and records them afterwards.

So a pipeline and handlers, or two pipelines, can share a queue: exactly one of them gets each key. After a crash
between the seal and the record, the claim lasts until its lease ends. The replay of the segment records the key. If
another worker has claimed the key since then, the ledger refuses the record: the row belongs to that worker, and every
replay leaves it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa

from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, Ledger, LedgerError, Status, Won
from semel.ledger.contract import Done as KnownDone
from semel.messages.keys import scoped
from semel.spark.source.columns import SourceMessage
from semel.sqs import Queue

AT_ONCE: Final = 1_000

_ledgers: dict[str, Ledger] = {}


class Claimed(NamedTuple):
    """`won`: messages to give out, in the order in which they came. `done`: messages that the ledger knows as done, to
    be deleted. `held`: messages whose key another worker has claimed, and for how many seconds to hide each of them."""

    won: list[SourceMessage]
    done: list[SourceMessage]
    held: list[tuple[SourceMessage, int]]


def claims_for(ledger: str | None, queue: Queue, lease: float) -> KeyClaims:
    """`lease`: how many seconds a claim is valid; best as long as the message is hidden. The claims of a task that died
    last until their lease ends; after that, another worker may claim the keys."""
    if ledger is None:
        return KeyClaims()
    if ledger not in _ledgers:
        _ledgers[ledger] = Ledger.connect(ledger)
    return LedgerClaims(_ledgers[ledger], queue, lease)


class KeyClaims:
    """Without a ledger: every message is ours. `by_key`: whether messages are recognised by their key, in a ledger."""

    by_key = False

    def claim(self, messages: list[SourceMessage]) -> Claimed:
        return Claimed(messages, [], [])

    def record(self, table: pa.Table) -> frozenset[str]:
        """Records the keys of a sealed segment as done. Returns the ids of messages whose keys another worker has
        claimed since; they are no longer ours. Repeated calls return the same ids."""
        del table
        return frozenset()

    def release(self, messages: Sequence[SourceMessage]) -> None:
        """Releases the claims: other workers may claim these keys at once."""


class LedgerClaims(KeyClaims):
    by_key = True

    def __init__(self, ledger: Ledger, queue: Queue, lease: float) -> None:
        self._ledger = ledger
        self._queue = queue
        self._lease = lease

    def claim(self, messages: list[SourceMessage]) -> Claimed:
        """Messages without a key are not claimed. If a message of a FIFO group has to wait for the claim of another
        worker, the messages behind it in its group wait, too."""
        claimed = Claimed([], [], [])
        ours: set[str | None] = set()
        waits: dict[str | None, int] = {}  # by group, in a FIFO queue
        released: list[Claim] = []
        verdicts = self._verdicts([message for message in messages if message.key is not None])
        for message in messages:
            verdict = None if message.key is None else next(verdicts)
            group = message.message.group if self._queue.fifo else None
            match verdict:
                case KnownDone():
                    claimed.done.append(message)
                case None | Won() if group in waits:
                    claimed.held.append((message, waits[group]))
                    if verdict is not None:
                        released.append(verdict.claim)
                case None:
                    claimed.won.append(message)
                case Won(claim=claim):
                    claimed.won.append(message._replace(fence=claim.fence))
                    ours.add(message.key)
                case _ if message.key in ours:  # two of these messages have this key
                    claimed.done.append(message)
                case _:
                    seconds = waits.get(group, math.ceil(getattr(verdict, "remaining", self._lease)))
                    claimed.held.append((message, seconds))
                    if group is not None:
                        waits[group] = seconds
        self._release(released)
        return claimed

    def _verdicts(self, messages: Sequence[SourceMessage]) -> Iterator[ClaimResult]:
        for start in range(0, len(messages), AT_ONCE):
            requests = [
                ClaimRequest(self._ledger_key(m), source=f"{self._queue.name}/{m.message.message_id}")
                for m in messages[start : start + AT_ONCE]
            ]
            yield from self._ledger.claim(requests, claimant=uuid4().hex, lease=self._lease)

    def record(self, table: pa.Table) -> frozenset[str]:
        rows = zip(*(table.column(name).to_pylist() for name in ("message_id", "key", "fence")), strict=True)
        claims = [(id_, Claim(self._sealed_key(id_, key), fence)) for id_, key, fence in rows if fence is not None]
        refused: set[str] = set()
        for start in range(0, len(claims), AT_ONCE):
            page = claims[start : start + AT_ONCE]
            recorded = self._ledger.record([Completion(claim, Status.DONE) for _, claim in page])
            refused.update(id_ for (id_, _), ours in zip(page, recorded, strict=True) if not ours)
        return frozenset(refused)

    def _sealed_key(self, message_id: str, key: str | None) -> str:
        if key is None:
            raise LedgerError(
                f"queue {self._queue.name}: message {message_id} was sealed with a claim in the ledger but without its "
                "key (an earlier version left it out if 'columns' did). Whether its row is still ours is not known. "
                "Run this query with dedup 'segments' until the batch is committed: then its rows are given out"
            )
        return scoped(self._queue.scope, key)

    def release(self, messages: Sequence[SourceMessage]) -> None:
        self._release([Claim(self._ledger_key(m), m.fence) for m in messages if m.fence is not None])

    def _release(self, claims: Sequence[Claim]) -> None:
        for start in range(0, len(claims), AT_ONCE):
            self._ledger.release(claims[start : start + AT_ONCE], tried=False)

    def _ledger_key(self, message: SourceMessage) -> str:
        assert message.key is not None
        return scoped(self._queue.scope, message.key)
