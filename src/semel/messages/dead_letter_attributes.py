"""The details of a dead-letter message, as attributes that any SQS tool can show, and that Semel reads back.

A message can have ten attributes. Semel adds six plain ones if they fit beside the message's own. Otherwise it packs
them into one, and in the worst case also packs the message's own. `read` reverses both.

A message that is redriven carries its key. A message that SQS itself dead-lettered does not say its key, and must not
get one that its handler would not have chosen: it carries the MessageId that it had, for handlers whose key that is.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from semel.sqs.client.messages import Attribute, Received
from semel.sqs.limits import (
    ATTRIBUTE_NAME,
    ATTRIBUTE_TYPE,
    FORBIDDEN_CHARACTER,
    MAX_MESSAGE_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    is_number,
)

CARRIED_KEY: Final = (
    "semel-key"  # a message's first key: a message that is redriven or sent again gets a new MessageId, not a new key
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
class DeadLetterDetails:
    """Why a message was given up on, and what it was before."""

    key: str
    reason: str
    error: str
    attempts: int
    message_id: str
    queue: str
    redrives: int = 0


def attributes(details: DeadLetterDetails, own: Mapping[str, Attribute], body_bytes: int) -> dict[str, Attribute]:
    """The attributes for the copy of a message that had `own`: at most ten, and within the size limit of a message."""
    kept = _without_ours(own)
    for shorter in _ever_shorter(details):
        if len(kept) + len(PLAIN) + bool(shorter.redrives) <= MAX_MESSAGE_ATTRIBUTES:
            candidate = kept | _plain(shorter)
        elif len(kept) + 2 <= MAX_MESSAGE_ATTRIBUTES:
            candidate = kept | _packed(shorter)
        else:
            candidate = _packed(shorter) | as_one(kept)
        if _fits(candidate, body_bytes):
            return candidate
    return kept if len(kept) <= MAX_MESSAGE_ATTRIBUTES else {}


def read(attributes: Mapping[str, Attribute]) -> tuple[DeadLetterDetails | None, dict[str, Attribute]]:
    """The details, if Semel dead-lettered the message, and the message's own attributes.

    Anyone who may send to the queue can send attributes of these names with any content. What is not in the form that
    Semel writes is ignored, so no message can make this fail."""
    own = _without_ours(attributes) | _own_in(attributes)
    if PACKED in attributes:
        return _unpacked(attributes[PACKED].value), own
    if REASON not in attributes:
        return None, own
    key, reason, error, attempts, message_id, queue = (_value(attributes, name) for name in PLAIN)
    if attempts and not is_count(attempts):
        return None, own
    return DeadLetterDetails(key, reason, error, int(attempts or 0), message_id, queue, redrives(attributes)), own


def _unpacked(packed: str | bytes) -> DeadLetterDetails | None:
    fields = _json(packed)
    if not isinstance(fields, dict) or {"redrives", *fields} != set(DeadLetterDetails.__slots__):
        return None
    texts = [fields[name] for name in ("key", "reason", "error", "message_id", "queue")]
    counts = [fields["attempts"], fields.get("redrives", 0)]
    if not all(type(text) is str for text in texts) or not all(type(n) is int and 0 <= n < 10**9 for n in counts):
        return None
    key, reason, error, message_id, queue = texts
    return DeadLetterDetails(key, reason, error, counts[0], message_id, queue, counts[1])


def _own_in(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The attributes that were packed into one; none unless SQS would accept all of them."""
    written = _json(attributes[OWN].value) if OWN in attributes else None
    if not isinstance(written, dict):
        return {}
    own: dict[str, Attribute] = {}
    for name, parts in written.items():
        value = _unwritten(parts)
        if value is None or not ATTRIBUTE_NAME.match(name):
            return {}  # somebody else's attribute of that name
        own[name] = value
    return own


def _json(value: str | bytes) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None


def restored(received: Received) -> Received:
    """The message with its own attributes unpacked, if they were packed."""
    if not received.attributes or OWN not in received.attributes or not (own := _own_in(received.attributes)):
        return received
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
    """The attributes of a message that is sent back: its own, its key or else its first MessageId, and how often it was
    sent back. `queue` is the source of a message that stays a dead-letter message. None: it would be too large."""
    ours = {CARRIED_KEY: key} if key else {MESSAGE_ID: message_id}
    more = {QUEUE: queue, REDRIVES: str(times) if times else ""}
    kept = _without_ours(own)
    # The number of redrives is left out if the message does not fit otherwise.
    for texts in (ours | more, ours | {QUEUE: queue}):
        candidate = {name: _text(value) for name, value in texts.items() if value}
        candidate |= kept if len(kept) + len(candidate) <= MAX_MESSAGE_ATTRIBUTES else as_one(kept)
        if _fits(candidate, body_bytes):
            return candidate
    return None


def carried_key(attributes: Mapping[str, Attribute]) -> str:
    return _value(attributes, CARRIED_KEY)


def original_id(attributes: Mapping[str, Attribute], message_id: str) -> str:
    """The MessageId that a message had before it was sent back: the key of a message that has no other."""
    return _value(attributes, MESSAGE_ID) or message_id


def first_queue(attributes: Mapping[str, Attribute]) -> str:
    return _value(attributes, QUEUE)


def redrives(attributes: Mapping[str, Attribute]) -> int:
    text = _value(attributes, REDRIVES)
    return int(text) if is_count(text) else 0


def is_count(text: str) -> bool:
    """Whether it is a plausible number of attempts or redrives: a number of at most nine digits."""
    return text.isdecimal() and len(text) < 10


def _value(attributes: Mapping[str, Attribute], name: str) -> str:
    attribute = attributes.get(name)
    if attribute is None:
        return ""
    return attribute.value.hex() if isinstance(attribute.value, bytes) else attribute.value


def _without_ours(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if not name.startswith("semel-")}


def _plain(details: DeadLetterDetails) -> dict[str, Attribute]:
    values = (details.key, details.reason, details.error, str(details.attempts), details.message_id, details.queue)
    attributes = {name: _text(value) for name, value in zip(PLAIN, values, strict=True) if value}
    return attributes | {REDRIVES: _text(str(details.redrives))} if details.redrives else attributes


def _packed(details: DeadLetterDetails) -> dict[str, Attribute]:
    fields = {name: _sendable(getattr(details, name)) for name in DeadLetterDetails.__slots__}
    attributes = {PACKED: _text(orjson.dumps(fields).decode())}
    known_by = {CARRIED_KEY: details.key} if details.key else {MESSAGE_ID: details.message_id}
    return attributes | {name: _text(value) for name, value in known_by.items() if value}


def as_one(own: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """All of them packed into one attribute; `restored` unpacks it."""
    if not own:
        return {}
    return {OWN: _text(orjson.dumps({name: _written(value) for name, value in own.items()}).decode())}


def _ever_shorter(details: DeadLetterDetails) -> list[DeadLetterDetails]:
    """The details, first complete and then ever shorter, for messages that are almost as large as allowed."""
    reason = details.reason[:MAX_REASON]
    return [
        replace(details, reason=reason, error=_cut(details.error, MAX_ERROR)),
        replace(details, reason=reason, error=_cut(details.error, MAX_ERROR // 10)),
        replace(details, reason=reason[:50], error=""),
        DeadLetterDetails(details.key, reason[:50], "", 0, "" if details.key else details.message_id, ""),
    ]


def _cut(text: str, most: int) -> str:
    """The text without its middle: an error says most at its two ends."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[len(text) - most // 2 :]}"


def _fits(attributes: Mapping[str, Attribute], body_bytes: int) -> bool:
    return body_bytes + sum(map(_size, attributes.items())) <= MAX_MESSAGE_BYTES


def _sendable(value: Any) -> Any:
    return FORBIDDEN_CHARACTER.sub("�", value) if isinstance(value, str) else value


def _text(value: str) -> Attribute:
    return Attribute("String", _sendable(value))


def _size(item: tuple[str, Attribute]) -> int:
    name, (kind, value) = item
    return len(name.encode()) + len(kind) + len(value if isinstance(value, bytes) else value.encode())


def _written(value: Attribute) -> list[str]:
    if isinstance(value.value, bytes):
        return [value.type, "", base64.b64encode(value.value).decode()]
    return [value.type, value.value]


def _unwritten(parts: Any) -> Attribute | None:
    """The attribute; None if SQS would not accept it."""
    if not isinstance(parts, list) or not all(type(part) is str for part in parts):
        return None
    if len(parts) not in (2, 3) or ATTRIBUTE_TYPE.match(parts[0]) is None:
        return None
    kind, binary = parts[0], parts[0].startswith("Binary")
    if binary != (len(parts) == 3):
        return None
    if binary:
        try:
            value = base64.b64decode(parts[2], validate=True)
        except ValueError:
            return None
        return Attribute(kind, value) if value else None
    text = parts[1]
    if not text or FORBIDDEN_CHARACTER.search(text) or (kind.startswith("Number") and not is_number(text)):
        return None
    return Attribute(kind, text)
