"""What a dead letter says about itself, as message attributes that any SQS tool can show, and that Semel reads back.

A message has room for ten attributes. Ours are six plain ones where they fit beside the message's own; else they are
packed into one, and in the worst case the message's own are packed too. `read` undoes whichever was done.

A letter that is sent back to work carries its key. One that SQS moved by itself says nothing of its key, and must not
be given one that its handler would not have chosen: it carries the MessageId that it had, for handlers that go by that.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from semel.sqs.client.messages import Attribute, Received
from semel.sqs.limits import FORBIDDEN_CHARACTER, MAX_MESSAGE_ATTRIBUTES, MAX_MESSAGE_BYTES

CARRIED_KEY: Final = (
    "semel-key"  # a message's first key: redrives and second sendings get a new MessageId, not a new key
)
REASON: Final = "semel-reason"
ERROR: Final = "semel-error"
ATTEMPTS: Final = "semel-attempts"
MESSAGE_ID: Final = "semel-message-id"
QUEUE: Final = "semel-queue"
REDRIVES: Final = "semel-redrives"  # how often it was sent back
PACKED: Final = "semel-dead-letter"
OWN: Final = "semel-attributes"
PLAIN: Final = (CARRIED_KEY, REASON, ERROR, ATTEMPTS, MESSAGE_ID, QUEUE)
MAX_REASON: Final = 1_000  # characters
MAX_ERROR: Final = 4_000


@dataclass(frozen=True, slots=True)
class Letter:
    """Why a message was given up on, and what it was before."""

    key: str
    reason: str
    error: str
    attempts: int
    message_id: str
    queue: str
    redrives: int = 0


def attributes(letter: Letter, own: Mapping[str, Attribute], body_bytes: int) -> dict[str, Attribute]:
    """The attributes of the copy of a message that had `own`: at most ten, and within the size of a message."""
    kept = _without_ours(own)
    for shorter in _ever_shorter(letter):
        if len(kept) + len(PLAIN) + bool(shorter.redrives) <= MAX_MESSAGE_ATTRIBUTES:
            found = kept | _plain(shorter)
        elif len(kept) + 2 <= MAX_MESSAGE_ATTRIBUTES:
            found = kept | _packed(shorter)
        else:
            found = _packed(shorter) | _kept(kept)
        if _fits(found, body_bytes):
            return found
    return kept


def read(found: Mapping[str, Attribute]) -> tuple[Letter | None, dict[str, Attribute]]:
    """The letter, if the message is one, and the attributes that the message had of its own."""
    own = _without_ours(found)
    try:
        if OWN in found:
            own |= {name: _unwritten(value) for name, value in orjson.loads(found[OWN].value).items()}
        if PACKED in found:
            return Letter(**orjson.loads(found[PACKED].value)), own
        if REASON in found:
            texts = {name: str(found[name].value) if name in found else "" for name in PLAIN}
            attempts = int(texts[ATTEMPTS] or 0)
            return Letter(
                texts[CARRIED_KEY],
                texts[REASON],
                texts[ERROR],
                attempts,
                texts[MESSAGE_ID],
                texts[QUEUE],
                redrives(found),
            ), own
    except (ValueError, TypeError, AttributeError):
        pass  # somebody else's attribute of that name
    return None, own


def restored(received: Received) -> Received:
    """A message with its own attributes where it had them before they were packed."""
    if OWN not in received.attributes:
        return received
    _, own = read(received.attributes)
    attributes = {name: value for name, value in received.attributes.items() if name != OWN} | own
    return Received(received.message_id, received.receipt, received.body, received.system, attributes)


def sent_back(
    own: Mapping[str, Attribute],
    body_bytes: int,
    *,
    key: str = "",
    message_id: str = "",
    queue: str = "",
    times: int = 0,
) -> dict[str, Attribute] | None:
    """The attributes of a message that goes back to work: its own, its key or else its first MessageId, and how often
    it was sent back. `queue` is for one that stays a dead letter, to say where it came from. None: it is too large."""
    ours = {CARRIED_KEY: key} if key else {MESSAGE_ID: message_id}
    more = {QUEUE: queue, REDRIVES: str(times) if times else ""}
    kept = _without_ours(own)
    # How often is worth less than that the message fits.
    for texts in (ours | more, ours | {QUEUE: queue}):
        found = {name: _text(value) for name, value in texts.items() if value}
        found |= kept if len(kept) + len(found) <= MAX_MESSAGE_ATTRIBUTES else _kept(kept)
        if _fits(found, body_bytes):
            return found
    return None


def carried_key(found: Mapping[str, Attribute]) -> str:
    return _value(found, CARRIED_KEY)


def original_id(found: Mapping[str, Attribute], message_id: str) -> str:
    """The MessageId that a message had before it was sent back: the key of those who have none else."""
    return _value(found, MESSAGE_ID) or message_id


def first_queue(found: Mapping[str, Attribute]) -> str:
    return _value(found, QUEUE)


def redrives(found: Mapping[str, Attribute]) -> int:
    text = _value(found, REDRIVES)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _value(found: Mapping[str, Attribute], name: str) -> str:
    attribute = found.get(name)
    if attribute is None:
        return ""
    return attribute.value.hex() if isinstance(attribute.value, bytes) else attribute.value


def _without_ours(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if not name.startswith("semel-")}


def _plain(letter: Letter) -> dict[str, Attribute]:
    values = (letter.key, letter.reason, letter.error, str(letter.attempts), letter.message_id, letter.queue)
    found = {name: _text(value) for name, value in zip(PLAIN, values, strict=True) if value}
    return found | {REDRIVES: _text(str(letter.redrives))} if letter.redrives else found


def _packed(letter: Letter) -> dict[str, Attribute]:
    fields = {name: _sendable(getattr(letter, name)) for name in Letter.__slots__}
    found = {PACKED: _text(orjson.dumps(fields).decode())}
    known_by = {CARRIED_KEY: letter.key} if letter.key else {MESSAGE_ID: letter.message_id}
    return found | {name: _text(value) for name, value in known_by.items() if value}


def _kept(own: Mapping[str, Attribute]) -> dict[str, Attribute]:
    if not own:
        return {}
    return {OWN: _text(orjson.dumps({name: _written(value) for name, value in own.items()}).decode())}


def _ever_shorter(letter: Letter) -> list[Letter]:
    """The letter, and what of it is given up first where a message is almost full already."""
    reason = letter.reason[:MAX_REASON]
    return [
        replace(letter, reason=reason, error=_cut(letter.error, MAX_ERROR)),
        replace(letter, reason=reason, error=_cut(letter.error, MAX_ERROR // 10)),
        replace(letter, reason=reason[:50], error=""),
        Letter(letter.key, reason[:50], "", 0, "" if letter.key else letter.message_id, ""),
    ]


def _cut(text: str, most: int) -> str:
    """An error says most at its two ends."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[len(text) - most // 2 :]}"


def _fits(attributes: Mapping[str, Attribute], body_bytes: int) -> bool:
    return body_bytes + sum(map(_size, attributes.items())) <= MAX_MESSAGE_BYTES


def _sendable(value: Any) -> Any:
    return FORBIDDEN_CHARACTER.sub("�", value) if isinstance(value, str) else value


def _text(value: str) -> Attribute:
    return Attribute("String", _sendable(value))


def _size(item: tuple[str, Attribute]) -> int:
    name, (kind, value) = item
    return len(name) + len(kind) + len(value if isinstance(value, bytes) else value.encode())


def _written(value: Attribute) -> list[str]:
    if isinstance(value.value, bytes):
        return [value.type, "", base64.b64encode(value.value).decode()]
    return [value.type, value.value]


def _unwritten(parts: Any) -> Attribute:
    return Attribute(parts[0], base64.b64decode(parts[2]) if len(parts) == 3 else parts[1])
