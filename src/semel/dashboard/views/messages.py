"""Messages as the broker shows them without handing them out, made into what pages show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from semel.dashboard.views.model import AttemptEvent, InProgress, LetterRow, Message, MessageAttribute, MessageRow
from semel.dlq import fingerprints
from semel.dlq.model import DeadLetter
from semel.messages.keys import PRODUCER_KEY, scoped
from semel.sqs.client.messages import Attribute

PREVIEW: Final = 200  # characters


def row_of(letter: DeadLetter, place: int | None) -> MessageRow:
    return MessageRow(
        id=letter.id,
        preview=letter.body[:PREVIEW],
        body_bytes=letter.body_bytes,
        sent=letter.sent,
        receives=letter.receives,
        state=letter.state,
        visible_at=letter.visible_at,
        expires=letter.expires,
        group=letter.group,
        key=letter.key,
        error=letter.error[:500],
        place=place,
    )


def letter_row(letter: DeadLetter, place: int | None) -> LetterRow:
    return LetterRow(
        id=letter.id,
        preview=letter.body[:PREVIEW],
        body_bytes=letter.body_bytes,
        sent=letter.sent,
        receives=letter.receives,
        why=letter.why[:1_000],
        error=letter.error[:1_000],
        fingerprint=fingerprints.of(letter),
        source=letter.source,
        key=letter.key,
        attempts=letter.attempts,
        group=letter.group,
        state=letter.state,
        expires=letter.expires,
        place=place,
    )


def whole(
    letter: DeadLetter,
    carried: Mapping[str, Attribute],
    *,
    receives_here: int | None = None,
    is_dead_letter: bool = False,
) -> Message:
    """All of a message; `carried` are the attributes as they travel, of which Semel's own are shown apart."""
    return Message(
        id=letter.id,
        queue=letter.queue,
        body=letter.body,
        body_bytes=letter.body_bytes,
        sent=letter.sent,
        receives=letter.receives,
        attributes=shown_attributes(letter.attributes.items()),
        carried=shown_attributes(pair for pair in carried.items() if pair[0].startswith("semel-")),
        system=dict(letter.system),
        receives_here=receives_here,
        first_received=letter.first_received,
        state=letter.state,
        visible_at=letter.visible_at,
        expires=letter.expires,
        group=letter.group,
        dedup=letter.dedup,
        sequence=letter.sequence,
        key=letter.key,
        source=letter.source,
        original_id=letter.original_id,
        reason=letter.reason,
        error=letter.error,
        attempts=letter.attempts,
        redrives=letter.redrives,
        is_dead_letter=is_dead_letter or letter.by_semel,
    )


def shown_attributes(pairs: Iterable[tuple[str, Attribute]]) -> tuple[MessageAttribute, ...]:
    return tuple(
        MessageAttribute(name, kind, b64encode(value).decode(), binary=True)
        if isinstance(value, bytes)
        else MessageAttribute(name, kind, value)
        for name, (kind, value) in sorted(pairs)
    )


def ledger_keys(message: Message, scope: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The names under which a ledger may know this message, the surest first. `scope`: of the queue that it is or was
    worked on from; `others`: keys that workers told."""
    named = (attribute.value for attribute in message.attributes if attribute.name == PRODUCER_KEY)
    keys = (message.key, *others, *named, message.original_id, message.id)
    return tuple(dict.fromkeys(scoped(scope, key) for key in keys if key))


def told_keys(held: InProgress | None, trail: Sequence[AttemptEvent]) -> list[str]:
    """The keys that workers know this message by, the newest first."""
    keys = ([held.key] if held else []) + [event.key for event in reversed(trail)]
    return list(dict.fromkeys(filter(None, keys)))[:5]
