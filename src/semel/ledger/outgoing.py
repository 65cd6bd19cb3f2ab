"""Checks what is passed to `tx.send`: a message that SQS would refuse must not become part of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from semel.ledger.contract import LedgerError, Outgoing
from semel.messages.dead_letter_attributes import CARRIED_KEY
from semel.sqs.client.messages import Entry
from semel.sqs.client.queue import Reference
from semel.sqs.errors import SqsError
from semel.sqs.limits import ATTRIBUTE_NAME, FORBIDDEN_CHARACTER, MAX_DELAY, MAX_MESSAGE_ATTRIBUTES, TOKEN

DEFAULT_GROUP: Final = "outbox"  # of messages to a FIFO queue that were sent without a group
_ID_BYTES: Final = 100  # the maximum length of a key that the outbox makes from a message's id


def checked(
    queue: str, body: Any, key: str, delay: int | None, group: str | None, attributes: Mapping[str, str] | None
) -> Outgoing:
    """The message as the outbox keeps it. Raises LedgerError, which names the queue and what SQS would refuse."""
    try:
        name = Reference.parse(queue, "", "").name
    except SqsError as error:
        raise LedgerError(f"tx.send: {error}") from None
    fifo = name.endswith(".fifo")
    own = dict(attributes or {})
    text = body if isinstance(body, str) else _json(queue, body)
    problem = (
        _problem_with_body(text)
        or _problem_with_attributes(own)
        or _problem_with_delay(delay, fifo=fifo)
        or _problem_with_key(key)
    )
    if not problem and group is not None and not TOKEN.match(group):
        problem = f"the group {group!r} is not 1 to 128 letters, digits and punctuation"
    if not problem and (too_large := Entry(text, own | {CARRIED_KEY: key or "x" * _ID_BYTES}).unsendable()) is not None:
        problem = f"the message has {too_large.message}; send the address of what is large instead"
    if problem:
        raise LedgerError(f"tx.send to {queue}: {problem}. SQS would refuse it after the commit, so it is refused now")
    return Outgoing(queue, text, key, None if fifo else delay, (group or DEFAULT_GROUP) if fifo else group, own)


def _json(queue: str, body: Any) -> str:
    try:
        return orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError as error:
        raise LedgerError(f"tx.send to {queue}: the body is no text and cannot be written as JSON: {error}") from None


def _problem_with_body(text: str) -> str:
    if not text:
        return "the body is empty; a message has at least one character"
    match = FORBIDDEN_CHARACTER.search(text)
    return f"the body has the character {match[0]!r} at {match.start()}, which SQS does not carry" if match else ""


def _problem_with_attributes(own: Mapping[str, Any]) -> str:
    if len(own) >= MAX_MESSAGE_ATTRIBUTES:
        most = MAX_MESSAGE_ATTRIBUTES
        return f"{len(own)} attributes are too many: a message has up to {most}, and {CARRIED_KEY} is one of them"
    for name, value in own.items():
        if name.lower().startswith("semel-"):
            return f"the attribute {name!r}: names that begin with semel- are Semel's own"
        if not ATTRIBUTE_NAME.match(name):
            return f"the attribute name {name!r} has a character or a beginning that SQS does not allow"
        if not isinstance(value, str) or not value or FORBIDDEN_CHARACTER.search(value):
            return (
                f"the attribute {name!r}: its value must be a text that is not empty and has only characters that SQS "
                "carries"
            )
    return ""


def _problem_with_delay(delay: int | None, *, fifo: bool) -> str:
    if delay is None:
        return ""
    if isinstance(delay, bool) or not isinstance(delay, int) or not 0 <= delay <= MAX_DELAY:
        return f"a delay of {delay!r} is not 0 to {MAX_DELAY} whole seconds"
    if delay and fifo:
        return "a message of a FIFO queue has no delay of its own; set the queue's DelaySeconds"
    return ""


def _problem_with_key(key: str) -> str:
    match = FORBIDDEN_CHARACTER.search(key)
    return f"the key has the character {match[0]!r}, which no message attribute carries" if match else ""
