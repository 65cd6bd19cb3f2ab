"""Messages as the broker shows them without handing them out, made into what pages show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from semel.dashboard.views.model import AttemptEvent, DeadLetterRow, InProgress, Message, MessageAttribute, MessageRow
from semel.dlq import fingerprints
from semel.dlq.messages import DeadLetterMessage
from semel.messages.keys import PRODUCER_KEY, scoped
from semel.sqs.client.messages import Attribute

PREVIEW: Final = 200  # characters


def row_of(message: DeadLetterMessage, place: int | None) -> MessageRow:
    return MessageRow(
        id=message.id,
        preview=message.body[:PREVIEW],
        body_bytes=message.body_bytes,
        sent=message.sent,
        receives=message.receives,
        state=message.state,
        visible_at=message.visible_at,
        expires=message.expires,
        group=message.group,
        key=message.key,
        error=message.error[:500],
        place=place,
    )


def dead_letter_row_of(message: DeadLetterMessage, place: int | None) -> DeadLetterRow:
    return DeadLetterRow(
        id=message.id,
        preview=message.body[:PREVIEW],
        body_bytes=message.body_bytes,
        sent=message.sent,
        receives=message.receives,
        why=message.why[:1_000],
        error=message.error[:1_000],
        fingerprint=fingerprints.of(message),
        source=message.source,
        key=message.key,
        attempts=message.attempts,
        group=message.group,
        state=message.state,
        expires=message.expires,
        place=place,
    )


def whole(
    message: DeadLetterMessage,
    carried: Mapping[str, Attribute],
    *,
    receives_here: int | None = None,
    is_dead_letter: bool = False,
) -> Message:
    """All of a message; `carried` are the attributes as they travel, of which Semel's own are shown apart."""
    return Message(
        id=message.id,
        queue=message.queue,
        body=message.body,
        body_bytes=message.body_bytes,
        sent=message.sent,
        receives=message.receives,
        attributes=shown_attributes(message.attributes.items()),
        carried=shown_attributes(pair for pair in carried.items() if pair[0].startswith("semel-")),
        system=dict(message.system),
        receives_here=receives_here,
        first_received=message.first_received,
        state=message.state,
        visible_at=message.visible_at,
        expires=message.expires,
        group=message.group,
        dedup=message.dedup,
        sequence=message.sequence,
        key=message.key,
        source=message.source,
        original_id=message.original_id,
        reason=message.reason,
        error=message.error,
        attempts=message.attempts,
        redrives=message.redrives,
        is_dead_letter=is_dead_letter or message.by_semel,
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
