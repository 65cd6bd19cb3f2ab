"""The ledger keeps the key rule of each queue, so that a change is noticed at the next start.

Work that was completed under the old keys is unknown under the new ones: if such a message is delivered again, it runs
again. For a function, only the name is compared: a change of what it returns is not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.ledger.contract import DAY, ClaimRequest, Completion, Ledger, Won

PREFIX: Final = "semel:key-rule/"  # a message's key begins with a region, and no region has this name
_RETENTION: Final = 3_650 * DAY
_LEASE: Final = 30.0


def update(rules: Mapping[str, str], ledger: Ledger, claimant: str) -> dict[str, str]:
    """Record the key rules, by scope of the queue. Returns the former rules of those queues whose rule has changed."""
    keys = {scope: f"{PREFIX}{scope}" for scope in rules}
    entries = ledger.get(list(keys.values()))
    former = {scope: entry.result.decode() for scope, entry in zip(keys, entries, strict=True) if entry is not None}
    changed = {scope: rule for scope, rule in rules.items() if former.get(scope) != rule}
    if changed:
        ledger.forget([keys[scope] for scope in changed])
        results = ledger.claim([ClaimRequest(keys[scope]) for scope in changed], claimant=claimant, lease=_LEASE)
        ledger.record(
            [
                Completion(result.claim, result=rule.encode(), retention=_RETENTION)
                for rule, result in zip(changed.values(), results, strict=True)
                if isinstance(result, Won)  # if not, another worker is recording it
            ]
        )
    return {scope: former[scope] for scope in changed if former.get(scope)}
