"""Finds what is wrong with the evidence of a run: with `semel.verify`, and with checks of the leases and the ledger."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from process_crashes.evidence import Evidence, Turn
from process_crashes.settings import ledger_key
from semel import Ledger
from semel.ledger.contract import Entry, Status
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import check
from semel.verify.verdict import Verdict

_ROUNDING: Final = 0.002  # seconds; Redis counts milliseconds
_PER_CALL: Final = 500


def verdicts(evidence: Evidence) -> list[Verdict]:
    """Effects must happen exactly once in the queues whose handlers take `tx`, and at least once in the others."""
    return [_verdict(evidence.of_mode(exactly_once=how), exactly_once=how) for how in (True, False)]


def _verdict(events: list[HistoryEvent], *, exactly_once: bool) -> Verdict:
    return check(
        events,
        effects="exactly-once" if exactly_once else "at-least-once",
        delete_after="record",
        logged=frozenset(EventKind),
        limit=20,
    )


def complaints(evidence: Evidence, ledger: Ledger) -> list[str]:
    """Everything that is wrong, one line each."""
    findings = [
        f"{finding.kind}: {finding.queue}: {finding.text}"
        for verdict in verdicts(evidence)
        for finding in verdict.findings
    ]
    return [*findings, *two_holders(evidence.turns), *_of_ledger(evidence, ledger)]


def two_holders(turns: list[Turn]) -> Iterator[str]:
    """A key has one holder at a time, in the order of their fences: a holder begins only after the one before it has
    ended, or after the end of that one's lease, as that one itself knew it."""
    of_key: defaultdict[tuple[str, str], list[Turn]] = defaultdict(list)
    for turn in turns:
        of_key[turn.queue, turn.id].append(turn)
    for (queue, id_), holders in of_key.items():
        holders.sort(key=lambda turn: turn.fence)
        for holder, successor in itertools.pairwise(holders):
            if holder.fence == successor.fence:
                yield f"two holders: {queue}: {id_} was begun twice with fence {holder.fence}: {holder}, {successor}"
                continue
            over = (holder.ended or holder.began).lease_ends
            if holder.ended is not None:
                over = min(over, holder.ended.clock)
            if successor.began.clock < over and successor.began.within_lease:
                yield (
                    f"two holders: {queue}: {id_} was begun while the holder before it had its lease: "
                    f"{holder}, {successor}"
                )


def _of_ledger(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    """Every key must be recorded as done, by the holder of the newest fence, and after its handler had ended."""
    names = sorted(evidence.accepted)
    entries: dict[tuple[str, str], Entry | None] = {}
    for start in range(0, len(names), _PER_CALL):
        batch = names[start : start + _PER_CALL]
        entries |= zip(batch, ledger.get([ledger_key(*name) for name in batch]), strict=True)
    newest: dict[tuple[str, str], Turn] = {}
    for turn in evidence.turns:
        known = newest.get((turn.queue, turn.id))
        if known is None or turn.fence > known.fence:
            newest[turn.queue, turn.id] = turn
    for name, entry in entries.items():
        if entry is None or entry.status is not Status.DONE:
            yield f"not recorded: {name}: {entry}"
        elif name in newest:
            yield from _record_of(newest[name], entry)
    for row in evidence.rows:
        entry = entries.get((row.queue, row.id))
        if entry is not None and entry.fence != row.fence:
            yield f"recorded by another than who had the effect: {row}, {entry}"


def _record_of(turn: Turn, entry: Entry) -> Iterator[str]:
    name = f"{turn.queue}: {turn.id}"
    if turn.fence != entry.fence:
        yield f"recorded by another than the newest holder: {name}: {turn}, {entry}"
    elif turn.ended is None or turn.failed:
        yield f"recorded though its newest holder had not ended: {name}: {turn}, {entry}"
    elif entry.changed < turn.ended.at - _ROUNDING:
        yield f"recorded before its newest holder had ended: {name}: {turn}, {entry}"
