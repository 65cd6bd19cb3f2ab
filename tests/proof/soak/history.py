"""Checks with `semel.verify` that nothing was lost or doubled, from the sends and effects that a run wrote.

All events of a key are checked together, so blocks of keys can be checked one after another. An hour has millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import check
from soak.app import QUEUE
from soak.effects import RECORD, Records

BLOCK: Final = 50_000  # keys
_LOGGED: Final = (EventKind.SEND, EventKind.EFFECT, EventKind.PRESENT)
_SHOWN: Final = 3  # findings of a kind


def read_sends(files: Sequence[Path]) -> Records:
    return np.concatenate([np.fromfile(file, RECORD) for file in files]) if files else np.empty(0, RECORD)


def findings(sends: Records, effects: Records, present: Sequence[int] = ()) -> list[str]:
    """What is wrong with a run that has ended. `present`: the numbers of messages that are still in a queue."""
    numbers = np.concatenate([sends["n"], effects["n"]])
    last = int(numbers.max()) if len(numbers) else -1
    sends, effects = (records[np.argsort(records["n"], kind="stable")] for records in (sends, effects))
    left = np.sort(np.array(present, dtype="<i8"))
    counts: Counter[str] = Counter()
    texts: list[str] = []
    for start in range(0, last + 1, BLOCK):
        verdict = check(
            (
                *_events(EventKind.SEND, _block(sends, start)),
                *_events(EventKind.EFFECT, _block(effects, start)),
                *(_event(EventKind.PRESENT, n, None) for n in left[slice(*np.searchsorted(left, _ends(start)))]),
            ),
            logged=_LOGGED,
            limit=_SHOWN,
        )
        counts.update({kind.value: count for kind, count in verdict.found.items()})
        if len(texts) < _SHOWN:
            texts += [finding.text for finding in verdict.findings]
    examples = "; ".join(texts[:_SHOWN])
    return [f"{count:,} messages are {kind}: {examples}" for kind, count in counts.items()]


def _ends(start: int) -> tuple[int, int]:
    return start, start + BLOCK


def _block(records: Records, start: int) -> Records:
    return records[slice(*np.searchsorted(records["n"], _ends(start)))]


def _events(kind: EventKind, records: Records) -> Iterator[HistoryEvent]:
    for number, at in records.tolist():
        yield _event(kind, number, at)


def _event(kind: EventKind, number: int, at: float | None) -> HistoryEvent:
    return HistoryEvent(kind, key=str(number), time=at, queue=QUEUE)
