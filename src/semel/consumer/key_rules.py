"""A ledger remembers by which rule each queue's messages got their keys, so that a change is noticed.

What was done under the old keys counts for nothing under the new ones: such a message that comes again runs again.
Of a function only its name is known: what it returns may have changed all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.ledger.contract import DAY, ClaimRequest, Completion, Ledger, Won

PREFIX: Final = "semel:key-rule/"  # no region is called so, so no message has such a key
_KEEP: Final = 3_650 * DAY
_LEASE: Final = 30.0


def replaced(rules: Mapping[str, str], ledger: Ledger, claimant: str) -> dict[str, str]:
    """The former rules of those queues that have another one now. `rules`, by queue (its scope), are remembered from
    now on."""
    keys = {queue: f"{PREFIX}{queue}" for queue in rules}
    entries = ledger.get(list(keys.values()))
    former = {queue: entry.result.decode() for queue, entry in zip(keys, entries, strict=True) if entry is not None}
    news = {queue: rule for queue, rule in rules.items() if former.get(queue) != rule}
    if news:
        ledger.forget([keys[queue] for queue in news])
        verdicts = ledger.claim([ClaimRequest(keys[queue]) for queue in news], claimant=claimant, lease=_LEASE)
        ledger.record(
            [
                Completion(verdict.claim, result=rule.encode(), keep=_KEEP)
                for rule, verdict in zip(news.values(), verdicts, strict=True)
                if isinstance(verdict, Won)  # if not, another worker is writing it down
            ]
        )
    return {queue: former[queue] for queue in news if former.get(queue)}
