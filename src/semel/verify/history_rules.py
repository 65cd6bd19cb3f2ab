"""The rules of `semel verify`: a history goes in, findings come out.

One pass collects what is known of each key; at the end the rules are applied, each in a function of its name. "Before"
and "after" refer to the order of the events. Only what the history can show is reported: if it lacks a kind of event
that a rule needs, the rule is not applied, and the verdict says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from semel.verify import order
from semel.verify.completeness import Completeness
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.key_history import KeyHistory, KeyIndex
from semel.verify.verdict import Counts, Finding, FindingKind, Unchecked, Verdict

Effects = Literal["exactly-once", "at-least-once"]
DeleteAfter = Literal["effect", "record"]


def check(
    events: Iterable[HistoryEvent],
    *,
    effects: Effects = "exactly-once",
    delete_after: DeleteAfter = "effect",
    logged: Iterable[EventKind] | None = None,
    grace: float = 0.0,
    limit: int = 1_000,
) -> Verdict:
    """Checks events, in the order in which they are given, and returns the verdict.

    effects: with "at-least-once", several effects of a key are `repeats` instead of findings.
    delete_after: with "record", an effect alone does not allow the delete.
    logged: the kinds of events that the system logs whenever they happen. None: the kinds that the history has, by
    queue. With `logged=EventKind`, missing effects are found even if the history has not a single effect.
    grace: messages sent less than this many seconds before the end may still be on their way, and are not lost.
    limit: how many findings of each kind are kept; all are counted.

    >>> from semel.verify import EventKind, HistoryEvent, check
    >>> kinds = (EventKind.SEND, EventKind.EFFECT, EventKind.EFFECT)
    >>> verdict = check([HistoryEvent(kind, key="order-7") for kind in kinds])
    >>> [finding.text for finding in verdict.findings]
    ['order-7 has 2 effects']
    """
    index = KeyIndex(strict=delete_after == "record")
    find = index.find
    at, end = -1, 0.0
    for at, event in enumerate(events):
        find(event).add(event, at)
        if event.time is not None and event.time > end:
            end = event.time
    return _Judge(index, effects, delete_after, logged, end - grace if grace else None, limit).judge(at + 1)


class _Judge:
    def __init__(
        self,
        index: KeyIndex,
        effects: Effects,
        delete_after: DeleteAfter,
        logged: Iterable[EventKind] | None,
        judged_until: float | None,
        limit: int,
    ) -> None:
        self._keys = index.histories()
        self._all = [history for first in self._keys for history in first.everywhere()]
        self._repeats_allowed = effects == "at-least-once"
        self._judged_until, self._limit = judged_until, limit
        self._logged = Completeness(self._all, logged, delete_after)
        self._by_kind: Counter[FindingKind] = Counter()
        self._findings: dict[FindingKind, list[Finding]] = {kind: [] for kind in FindingKind}
        self._repeated = 0
        self._repeats: list[Finding] = []
        self._pending = 0
        self._sent: set[str] | None = None

    def judge(self, events: int) -> Verdict:
        groups: dict[tuple[str, str], list[KeyHistory]] = {}
        for first in self._keys:
            for history in first.everywhere():
                if history.sends:
                    self._lost(history, first)
                if history.repeats or history.recorded_again:
                    self._doubled(history)
                if history.early_delete is not None:
                    self._deleted_early(history, first, history.early_delete)
                if history.stale:
                    self._stale(history)
                if not history.sends and (history.effects or history.records):
                    self._unknown(history)
                if history.group:
                    groups.setdefault((history.queue, history.group), []).append(history)
        unordered = [queue for (queue, _), keys in groups.items() if not self._reordered(keys)]
        return Verdict(
            findings=tuple(finding for findings in self._findings.values() for finding in findings),
            found={kind: self._by_kind[kind] for kind in FindingKind if self._by_kind[kind]},
            repeated=self._repeated,
            repeats=tuple(self._repeats),
            counts=self._counts(events),
            unchecked=self._unchecked(unordered),
            notes=self._notes(),
        )

    def _report(self, kind: FindingKind, history: KeyHistory, text: str, *evidence: HistoryEvent | None) -> None:
        self._by_kind[kind] += 1
        if len(self._findings[kind]) < self._limit:
            self._findings[kind].append(_finding(kind, history, text, *evidence))

    def _lost(self, history: KeyHistory, first: KeyHistory) -> None:
        """Messages that were sent, but are neither done nor in any queue."""
        queue = history.queue
        if self._logged.why_not(FindingKind.LOST, queue) or self._effect(history) is not None or history.present:
            return
        # If nothing was sent to the other queue (it is a dead-letter queue), the message came from this one.
        for place in (history, *(other for other in first.everywhere() if not other.sends)):
            if place.present or _is_excused(history, place):
                return
        send = history.last_send
        assert send is not None
        if self._judged_until is not None and not history.deletes and (send.time or 0) > self._judged_until:
            self._pending += 1
            return
        done = "effect" if self._logged.has(queue, EventKind.EFFECT) else "record"
        gone = f"{done} and was deleted" if history.deletes else f"{done}, dead letter or refusal, and is in no queue"
        self._report(FindingKind.LOST, history, f"{history.key} was sent but has no {gone}", send, history.delete)

    def _doubled(self, history: KeyHistory) -> None:
        if self._logged.has(history.queue, EventKind.EFFECT):
            what, count, evidence = "effects", history.effects, (history.effect, *history.repeats)
        else:
            evidence = (history.record, *history.recorded_again)
            what, count = "records by different fences", len(history.recorded_again) + 1
        if count < 2:
            return
        text = f"{history.key} has {count} {what}"
        if not self._repeats_allowed:
            self._report(FindingKind.DOUBLED, history, text, *evidence)
            return
        self._repeated += 1
        if len(self._repeats) < self._limit:
            self._repeats.append(_finding(FindingKind.DOUBLED, history, text, *evidence))

    def _deleted_early(self, history: KeyHistory, first: KeyHistory, delete: HistoryEvent) -> None:
        if self._logged.why_not(FindingKind.DELETED_EARLY, history.queue):
            return
        done = [history.record_at, *(other.left_at for other in first.everywhere())]
        if not history.strict:
            done.append(history.effect_at)
        if any(0 <= at < history.early_delete_at for at in done):
            return
        before = "record" if history.strict else "effect, record"
        text = f"{history.key} was deleted before any {before}, dead letter or refusal of it"
        self._report(FindingKind.DELETED_EARLY, history, text, delete, history.effect or history.record)

    def _stale(self, history: KeyHistory) -> None:
        for holder, event in history.stale:
            to = f" to {holder.worker}" if holder.worker else ""
            text = f"{history.key} has {_a(event)} with fence {event.fence} after fence {holder.fence} was given{to}"
            if event.fence == holder.fence:
                text = f"{history.key} was claimed twice with fence {event.fence}"
            self._report(FindingKind.STALE, history, text, holder, event)

    def _unknown(self, history: KeyHistory) -> None:
        if self._logged.why_not(FindingKind.UNKNOWN, history.queue):
            return
        if self._sent is None:
            self._sent = {message for other in self._all if other.sends for message in other.messages()}
        effect = self._effect(history)
        if effect is not None and self._sent.isdisjoint(history.messages()):
            self._report(FindingKind.UNKNOWN, history, f"{history.key} has {_a(effect)} but was never sent", effect)

    def _reordered(self, keys: list[KeyHistory]) -> bool:
        """False if the order of the group is not known."""
        if all(history.sequence is not None for history in keys):
            ranks = [history.sequence or 0 for history in keys]
        else:
            keys = [history for history in keys if history.sends]
            ranks = [history.send_at for history in keys]
        places = [
            self._place(number, history, rank) for number, (history, rank) in enumerate(zip(keys, ranks, strict=True))
        ]
        for overtaking in order.overtakings(places):
            early, late = keys[overtaking.overtaker], keys[overtaking.overtaken]
            more = f" and {overtaking.count - 1} more" if overtaking.count > 1 else ""
            text = f"{early.key} took effect before {late.key}{more}, ahead of it in group {early.group}"
            rest = self._effect(late) or late.excuse or late.present
            self._report(FindingKind.REORDERED, early, text, late.send, early.send, self._effect(early), rest)
        return bool(keys)

    def _place(self, number: int, history: KeyHistory, rank: int) -> order.Place:
        by_effect = self._logged.has(history.queue, EventKind.EFFECT)
        effect_at = history.effect_at if by_effect else history.record_at
        resolved = [at for at in (effect_at, history.left_at) if at >= 0]
        left_before = 0 <= history.left_at < effect_at
        return order.Place(
            number,
            rank,
            effect_at=None if effect_at < 0 or left_before else effect_at,
            resolved_at=min(resolved) if resolved else float("inf") if history.present else None,
        )

    def _effect(self, history: KeyHistory) -> HistoryEvent | None:
        """The effect of a key; where no effects are logged, its record."""
        return history.effect if self._logged.has(history.queue, EventKind.EFFECT) else history.record

    def _counts(self, events: int) -> Counts:
        keys = self._all
        return Counts(
            events=events,
            keys=len(keys),
            sends=sum(key.sends for key in keys),
            deliveries=sum(key.deliveries for key in keys),
            duplicate_deliveries=sum(key.deliveries - 1 for key in keys if key.deliveries),
            claims=sum(key.claims for key in keys),
            effects=sum(key.effects for key in keys),
            repeated_effects=sum(key.effects - 1 for key in keys if key.effects),
            records=sum(key.records for key in keys),
            deletes=sum(key.deletes for key in keys),
            dead_letters=sum(key.dead_letters for key in keys),
            refusals=sum(key.refusals for key in keys),
            present=sum(key.presents for key in keys),
            pending=self._pending,
        )

    def _unchecked(self, unordered: list[str]) -> tuple[Unchecked, ...]:
        unchecked = [*self._logged.unchecked()]
        reason = "its groups have neither sends nor sequence numbers"
        unchecked += [Unchecked(FindingKind.REORDERED, reason, queue) for queue in dict.fromkeys(unordered)]
        return tuple(unchecked)

    def _notes(self) -> tuple[str, ...]:
        if not self._by_kind[FindingKind.LOST] or any(key.presents for key in self._all):
            return ()
        return ("no event says what is in a queue at the end (present): all queues are taken to be empty then",)


def _is_excused(history: KeyHistory, place: KeyHistory) -> bool:
    """Whether a dead letter or a refusal came after the last send, or names its message: a redrive sends again."""
    if place.excuse is None or history.last_send is None:
        return False
    message = history.last_send.message
    return place.excused_at > history.last_send_at or (message != "" and place.excuse.message == message)


def _a(event: HistoryEvent) -> str:
    return f"an {event.kind}" if event.kind is EventKind.EFFECT else f"a {event.kind}"


def _finding(kind: FindingKind, history: KeyHistory, text: str, *evidence: HistoryEvent | None) -> Finding:
    events = tuple(event for event in evidence if event is not None)
    message = next((event.message for event in events if event.message), history.message)
    return Finding(kind, history.key, text, events, history.queue, message)
