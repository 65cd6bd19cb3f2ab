"""Which kinds of events a history has, by queue, and therefore which rules can be applied there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from semel.verify.history import EventKind
from semel.verify.key_history import KeyHistory
from semel.verify.verdict import FindingKind, Unchecked

_COUNTS: Final = {
    EventKind.SEND: "sends",
    EventKind.CLAIM: "claims",
    EventKind.EFFECT: "effects",
    EventKind.RECORD: "records",
    EventKind.DELETE: "deletes",
}
_OUTCOMES: Final = frozenset({EventKind.EFFECT, EventKind.RECORD})
_WORK: Final = _OUTCOMES | {EventKind.SEND, EventKind.CLAIM}  # a queue without these is a dead-letter queue, or a log
_NO_OUTCOME: Final = "no effect or record events"
_NO_SEND: Final = "no send events"


class Completeness:
    """`logged`: the kinds of events that the history is said to have; None: those that it does have."""

    def __init__(self, histories: Sequence[KeyHistory], logged: Iterable[EventKind] | None, delete_after: str) -> None:
        self._strict = delete_after == "record"
        self._queues: dict[str, set[EventKind]] = {}
        self._grouped = self._fenced = self._record_fenced = False
        for history in histories:
            kinds = self._queues.setdefault(history.queue, set())
            if logged is None:
                kinds.update(kind for kind, count in _COUNTS.items() if getattr(history, count))
            self._grouped = self._grouped or bool(history.group)
            self._fenced = self._fenced or history.fence is not None
            if history.record is not None and history.record.fence is not None:
                self._record_fenced = True
        if logged is not None:
            known = frozenset(logged)
            self._queues = {queue: set(known) for queue in self._queues}
        if "" in self._queues:  # an event that names no queue may belong to any queue
            nowhere, everywhere = self._queues[""], set[EventKind]().union(*self._queues.values())
            self._queues = {queue: kinds | nowhere if queue else everywhere for queue, kinds in self._queues.items()}
        self._reasons = {
            (kind, queue): self._reason(kind, kinds) for queue, kinds in self._queues.items() for kind in FindingKind
        }

    def has(self, queue: str, kind: EventKind) -> bool:
        return kind in self._queues[queue]

    def why_not(self, check: FindingKind, queue: str) -> str:
        """Why the rule cannot be applied to the queue; empty if it can."""
        return self._reasons[check, queue]

    def unchecked(self) -> Iterator[Unchecked]:
        working = [queue for queue, kinds in self._queues.items() if kinds & _WORK] or list(self._queues)
        for kind in FindingKind:
            reasons = {queue: reason for queue in working if (reason := self._reasons[kind, queue])}
            if len(set(reasons.values())) == 1 and len(reasons) == len(working):
                yield Unchecked(kind, next(iter(reasons.values())))
            else:
                yield from (Unchecked(kind, reason, queue) for queue, reason in reasons.items())

    def _reason(self, check: FindingKind, kinds: set[EventKind]) -> str:
        match check:
            case FindingKind.LOST | FindingKind.UNKNOWN:
                return _NO_SEND if EventKind.SEND not in kinds else "" if kinds & _OUTCOMES else _NO_OUTCOME
            case FindingKind.DOUBLED:
                if not kinds & _OUTCOMES:
                    return _NO_OUTCOME
                known = EventKind.EFFECT in kinds or self._record_fenced
                return "" if known else "no effect events, and records without a fence are not told apart"
            case FindingKind.DELETED_EARLY:
                if EventKind.DELETE not in kinds:
                    return "no delete events"
                if self._strict:
                    return "" if EventKind.RECORD in kinds else "no record events"
                return "" if kinds & _OUTCOMES else _NO_OUTCOME
            case FindingKind.STALE:
                return "" if self._fenced else "no event has a fence"
            case FindingKind.REORDERED:
                return "" if self._grouped else "no event has a group"
