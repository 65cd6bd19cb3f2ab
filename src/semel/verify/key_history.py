"""What a history says about one key, collected event by event in bounded space.

The rule: nothing is judged here. Positions are kept, and a few events as evidence. `check` compares them at the end, so
a producer's log may come after the workers' logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from semel.verify.history import EventKind, HistoryEvent

NEVER: Final = -1
MOST_EVIDENCE: Final = 9  # further effects, records and stale events of one key that are kept


class KeyHistory:
    """The history of one key in one queue. Attributes that end in `_at` are positions in the history, or NEVER."""

    __slots__ = (
        "claims",
        "dead_letters",
        "delete",
        "deletes",
        "deliveries",
        "early_delete",
        "early_delete_at",
        "effect",
        "effect_at",
        "effects",
        "excuse",
        "excused_at",
        "fence",
        "group",
        "holder",
        "key",
        "last_send",
        "last_send_at",
        "left_at",
        "message",
        "more_messages",
        "others",
        "present",
        "present_at",
        "presents",
        "queue",
        "record",
        "record_at",
        "recorded_again",
        "records",
        "refusals",
        "repeats",
        "send",
        "send_at",
        "sends",
        "sequence",
        "stale",
        "strict",
        "unnamed",
    )

    def __init__(self, key: str, queue: str, *, strict: bool) -> None:
        self.key, self.queue = key, queue
        self.strict = strict  # a delete needs a record; an effect is not enough
        self.unnamed = False  # an event of this key named no queue
        self.others: dict[str, KeyHistory] | None = None  # the same key in other queues; only set on the first history
        self.message = ""
        self.more_messages: set[str] | None = None
        self.sends = self.deliveries = self.claims = self.effects = self.records = 0
        self.deletes = self.dead_letters = self.refusals = self.presents = 0
        self.send: HistoryEvent | None = None  # the first one
        self.last_send: HistoryEvent | None = None
        self.effect: HistoryEvent | None = None  # the first one
        self.record: HistoryEvent | None = None  # the first one
        self.delete: HistoryEvent | None = None  # the last one, if there was no effect before it
        self.early_delete: HistoryEvent | None = None
        self.excuse: HistoryEvent | None = None  # the last dead letter or refusal
        self.present: HistoryEvent | None = None
        self.send_at = self.last_send_at = self.effect_at = self.record_at = self.early_delete_at = NEVER
        self.left_at = self.excused_at = self.present_at = NEVER  # the first and the last dead letter or refusal
        self.repeats: tuple[HistoryEvent, ...] = ()  # effects beyond the first
        self.recorded_again: tuple[HistoryEvent, ...] = ()  # records with another fence than the first
        self.fence: int | None = None  # the highest
        self.holder: HistoryEvent | None = None  # the event that showed it
        self.stale: tuple[
            tuple[HistoryEvent, HistoryEvent], ...
        ] = ()  # the holder, and what an older fence did after it
        self.group = ""
        self.sequence: int | None = None  # the lowest

    def add(self, event: HistoryEvent, at: int) -> None:
        _ADDERS[event.kind](self, event, at)
        if event.group and not self.group:
            self.group = event.group
        sequence = event.sequence
        if sequence is not None and (self.sequence is None or sequence < self.sequence):
            self.sequence = sequence
        if event.fence is not None:
            self._compare_fences(event, event.fence)

    def messages(self) -> Iterator[str]:
        if self.message:
            yield self.message
        yield from self.more_messages or ()

    def add_message(self, message: str) -> None:
        if not self.message:
            self.message = message
        elif self.more_messages is None:
            self.more_messages = {message}
        else:
            self.more_messages.add(message)

    def everywhere(self) -> list[KeyHistory]:
        """The histories of this key in all queues."""
        return [self, *self.others.values()] if self.others else [self]

    def _compare_fences(self, event: HistoryEvent, fence: int) -> None:
        if self.fence is None or self.holder is None or fence > self.fence:
            self.fence, self.holder = fence, event
            return
        if event.kind == EventKind.CLAIM:
            # A repeated call of the same worker may show the same fence again.
            both_claim = self.holder.kind == EventKind.CLAIM and self.holder.worker != event.worker
            stale = fence < self.fence or both_claim
        else:
            stale = fence < self.fence and event.kind in (EventKind.EFFECT, EventKind.RECORD)
        if stale and len(self.stale) < MOST_EVIDENCE:
            self.stale += ((self.holder, event),)

    def _send(self, event: HistoryEvent, at: int) -> None:
        self.sends += 1
        if self.send is None:
            self.send, self.send_at = event, at
        self.last_send, self.last_send_at = event, at

    def _deliver(self, _event: HistoryEvent, _at: int) -> None:
        self.deliveries += 1

    def _claim(self, _event: HistoryEvent, _at: int) -> None:
        self.claims += 1

    def _effect(self, event: HistoryEvent, at: int) -> None:
        self.effects += 1
        if self.effect is None:
            self.effect, self.effect_at = event, at
        elif len(self.repeats) < MOST_EVIDENCE:
            self.repeats += (event,)

    def _record(self, event: HistoryEvent, at: int) -> None:
        self.records += 1
        if self.record is None:
            self.record, self.record_at = event, at
        elif event.fence is not None and event.fence != self.record.fence:
            if self.record.fence is None:
                self.record = event  # the first was only found recorded: this is the record itself, logged elsewhere
            elif len(self.recorded_again) < MOST_EVIDENCE:
                self.recorded_again += (event,)

    def _delete(self, event: HistoryEvent, at: int) -> None:
        self.deletes += 1
        if self.effect is None:
            self.delete = event
        done = self.record_at >= 0 or self.left_at >= 0 or (self.effect_at >= 0 and not self.strict)
        if not done and self.early_delete is None:
            self.early_delete, self.early_delete_at = event, at

    def _dead_letter(self, event: HistoryEvent, at: int) -> None:
        self.dead_letters += 1
        self._leave(event, at)

    def _refuse(self, event: HistoryEvent, at: int) -> None:
        self.refusals += 1
        self._leave(event, at)

    def _leave(self, event: HistoryEvent, at: int) -> None:
        if self.left_at < 0:
            self.left_at = at
        self.excuse, self.excused_at = event, at

    def _present(self, event: HistoryEvent, at: int) -> None:
        self.presents += 1
        self.present, self.present_at = event, at

    def absorb(self, other: KeyHistory) -> None:
        """Merge another history into this one, when both turn out to be of one key."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for message in other.messages():
            if message != self.message:
                self.add_message(message)
        self._absorb_effects(other)
        self._absorb_records(other)
        if self.send is None or (other.send is not None and other.send_at < self.send_at):
            self.send, self.send_at = other.send, other.send_at
        if other.last_send_at > self.last_send_at:
            self.last_send, self.last_send_at = other.last_send, other.last_send_at
        if other.excused_at > self.excused_at:
            self.excuse, self.excused_at = other.excuse, other.excused_at
        if other.left_at >= 0:
            self.left_at = other.left_at if self.left_at < 0 else min(self.left_at, other.left_at)
        if other.early_delete is not None and not 0 <= self.early_delete_at < other.early_delete_at:
            self.early_delete, self.early_delete_at = other.early_delete, other.early_delete_at
        self.delete = self.delete or other.delete
        self.present = self.present or other.present
        self.present_at = max(self.present_at, other.present_at)
        self.stale += other.stale
        if other.fence is not None and (self.fence is None or other.fence > self.fence):
            self.fence, self.holder = other.fence, other.holder
        self.queue, self.group = self.queue or other.queue, self.group or other.group
        self.unnamed = self.unnamed or other.unnamed
        known = [sequence for sequence in (self.sequence, other.sequence) if sequence is not None]
        self.sequence = min(known, default=None)

    def _absorb_effects(self, other: KeyHistory) -> None:
        if other.effect is None:
            return
        if self.effect is None:
            self.effect, self.effect_at, self.repeats = other.effect, other.effect_at, other.repeats
            return
        if other.effect_at < self.effect_at:
            self.effect, self.effect_at, second = other.effect, other.effect_at, self.effect
        else:
            second = other.effect
        self.repeats = (second, *self.repeats, *other.repeats)[:MOST_EVIDENCE]

    def _absorb_records(self, other: KeyHistory) -> None:
        if other.record is None:
            return
        if self.record is None:
            self.record, self.record_at = other.record, other.record_at
            self.recorded_again = other.recorded_again
            return
        self.record_at = min(self.record_at, other.record_at)
        again = [event for event in (other.record, *other.recorded_again) if event.fence is not None]
        if self.record.fence is None and again:
            self.record = again.pop(0)
        self.recorded_again += tuple(event for event in again if event.fence != self.record.fence)


_COUNTS: Final = (
    "sends",
    "deliveries",
    "claims",
    "effects",
    "records",
    "deletes",
    "dead_letters",
    "refusals",
    "presents",
)
_ADDERS: Final[dict[EventKind, Callable[[KeyHistory, HistoryEvent, int], None]]] = {
    EventKind.SEND: KeyHistory._send,
    EventKind.DELIVER: KeyHistory._deliver,
    EventKind.CLAIM: KeyHistory._claim,
    EventKind.EFFECT: KeyHistory._effect,
    EventKind.RECORD: KeyHistory._record,
    EventKind.DELETE: KeyHistory._delete,
    EventKind.DEAD_LETTER: KeyHistory._dead_letter,
    EventKind.REFUSE: KeyHistory._refuse,
    EventKind.PRESENT: KeyHistory._present,
}


class KeyIndex:
    """The history of each key. Finds it by key and queue, or by a message that another event named with its key."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._by_key: dict[str, KeyHistory] = {}  # the first queue of each key
        self._key_of: dict[str, str] | None = None  # by message; made when an event without a key is seen

    def find(self, event: HistoryEvent) -> KeyHistory:
        key, message = event.key, event.message
        if not key:
            key = self._find_key(message)
        elif message and self._key_of is not None:
            self._bind(message, key)
        history = self._by_key.get(key)
        if history is None:
            history = self._by_key[key] = KeyHistory(key, event.queue, strict=self._strict)
            history.unnamed = not event.queue
        elif event.queue != history.queue:
            history = self._in_queue(history, event.queue)
        if message and message != history.message:
            history.add_message(message)
        return history

    def histories(self) -> list[KeyHistory]:
        """The first history of each key; its `others` are those in other queues. If some events of a key name several
        queues and others name none, they cannot be assigned to queues: all of them become one history."""
        for history in self._by_key.values():
            if history.others and history.unnamed:
                for other in history.others.values():
                    history.absorb(other)
                history.others = None
        return list(self._by_key.values())

    def _in_queue(self, first: KeyHistory, queue: str) -> KeyHistory:
        if not queue:
            first.unnamed = True
            return first
        if not first.queue:
            first.queue = queue
            return first
        if first.others is None:
            first.others = {}
        other = first.others.get(queue)
        if other is None:
            other = first.others[queue] = KeyHistory(first.key, queue, strict=self._strict)
        return other

    def _find_key(self, message: str) -> str:
        if not message:
            raise ValueError("an event of a history names a message, a key, or both; this one names neither")
        if self._key_of is None:
            known = [history for first in self._by_key.values() for history in first.everywhere()]
            self._key_of = {message: history.key for history in known for message in history.messages()}
        return self._key_of.get(message, message)

    def _bind(self, message: str, key: str) -> None:
        """From here on, the message belongs to this key, and so do earlier events that named only the message."""
        assert self._key_of is not None
        if self._key_of.setdefault(message, key) != key or message == key or message not in self._by_key:
            return
        before = self._by_key.pop(message)
        known = self._by_key.get(key)
        if known is None:
            before.key = key
            self._by_key[key] = before
            return
        for history in before.everywhere():
            self._in_queue(known, history.queue).absorb(history)
