"""The verdict on a history: findings with their evidence, counts, and which checks could not be made."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from semel.verify.history import HistoryEvent


class FindingKind(enum.StrEnum):
    """What is wrong. The order is that of reports: the worst first.

    >>> from semel.verify import FindingKind
    >>> [str(kind) for kind in FindingKind]
    ['lost', 'doubled', 'deleted-early', 'stale', 'reordered', 'unknown']
    """

    LOST = "lost"  # sent, but without an effect, dead letter or refusal, and in no queue
    DOUBLED = "doubled"  # more than one effect
    DELETED_EARLY = "deleted-early"  # deleted before its effect, record or dead letter
    STALE = "stale"  # an effect, record or claim with an older fence than an event before it: two holders
    REORDERED = "reordered"  # its effect came before that of a message ahead of it in its group
    UNKNOWN = "unknown"  # an effect without a send


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one key: `text` is a sentence, `evidence` the events that show it.

    >>> from semel.verify import EventKind, HistoryEvent, check
    >>> [finding] = check([HistoryEvent(EventKind.SEND, key="order-7")], logged=EventKind).findings
    >>> str(finding.kind), finding.key, len(finding.evidence)
    ('lost', 'order-7', 1)
    """

    kind: FindingKind
    key: str
    text: str  # one sentence
    evidence: tuple[HistoryEvent, ...]  # in the order of the history
    queue: str = ""
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as a dictionary that can be written as JSON."""
        fields = {"kind": self.kind.value, "key": self.key, "queue": self.queue, "message": self.message}
        return {
            **{name: value for name, value in fields.items() if value},
            "text": self.text,
            "evidence": [msgspec.to_builtins(event) for event in self.evidence],
        }


@dataclass(frozen=True, slots=True)
class Counts:
    """How many events of each kind a history has.

    >>> from semel.verify import EventKind, HistoryEvent, check
    >>> history = [HistoryEvent(EventKind.SEND, key="7"), HistoryEvent(EventKind.EFFECT, key="7")]
    >>> counts = check(history).counts
    >>> counts.keys, counts.sends, counts.effects, counts.repeated_effects
    (1, 1, 1, 0)
    """

    events: int = 0
    keys: int = 0
    sends: int = 0
    deliveries: int = 0
    duplicate_deliveries: int = 0  # beyond the first of each key
    claims: int = 0
    effects: int = 0
    repeated_effects: int = 0  # beyond the first of each key
    records: int = 0
    deletes: int = 0
    dead_letters: int = 0
    refusals: int = 0
    present: int = 0
    pending: int = 0  # keys that were sent too close to the end to be judged


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A check that could not be made, in one queue, or in all if `queue` is "".

    >>> from semel.verify import EventKind, HistoryEvent, check
    >>> history = [HistoryEvent(EventKind.SEND, key="7"), HistoryEvent(EventKind.EFFECT, key="7")]
    >>> [str(unchecked.check) for unchecked in check(history).unchecked]
    ['deleted-early', 'stale', 'reordered']
    """

    check: FindingKind
    reason: str
    queue: str = ""

    def to_json(self) -> dict[str, str]:
        """The check as a dictionary that can be written as JSON."""
        return {name: str(value) for name, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `check`. `found` counts all findings by kind; `findings` has at most `limit` of each kind. Likewise
    for `repeated` and `repeats`: keys with several effects, if at-least-once allows them.

    >>> from semel.verify import EventKind, HistoryEvent, check
    >>> history = [HistoryEvent(EventKind.SEND, key="7"), HistoryEvent(EventKind.EFFECT, key="7")]
    >>> verdict = check(history)
    >>> verdict.ok, dict(verdict.found)
    (True, {})
    """

    findings: tuple[Finding, ...] = ()
    found: Mapping[FindingKind, int] = field(default_factory=dict)
    repeated: int = 0
    repeats: tuple[Finding, ...] = ()
    counts: Counts = field(default_factory=Counts)
    unchecked: tuple[Unchecked, ...] = ()
    notes: tuple[str, ...] = ()  # what was assumed

    @property
    def ok(self) -> bool:
        """Whether nothing was found. `unchecked` says what was not looked for."""
        return not self.found

    def to_json(self) -> dict[str, Any]:
        """The verdict as a dictionary that can be written as JSON."""
        return {
            "ok": self.ok,
            "found": {kind.value: count for kind, count in self.found.items()},
            "counts": asdict(self.counts),
            "findings": [finding.to_json() for finding in self.findings],
            "repeated": self.repeated,
            "repeats": [finding.to_json() for finding in self.repeats],
            "unchecked": [unchecked.to_json() for unchecked in self.unchecked],
            "notes": list(self.notes),
        }
