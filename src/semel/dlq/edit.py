"""Edits and resends one message: sends a changed copy that keeps the message's key, or has a new one if requested.

The rule: the copy is sent before the message is deleted. Under the old key, the ledger knows what was done before.
"""

from __future__ import annotations

import enum
import hashlib
import json
import uuid
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from semel.dlq.access import MessageAccess
from semel.dlq.filter import parser as filters
from semel.dlq.filter.lexer import quoted
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage, Resent, attributes_as_json
from semel.dlq.redrive.sender import Targets
from semel.errors import SemelError
from semel.ledger.contract import Ledger, LedgerError, LedgerUnavailable, Status
from semel.messages import dead_letter_attributes as own_attributes
from semel.messages.keys import key_rule, scoped
from semel.sqs.client import Queue
from semel.sqs.client.messages import Attribute, Entry, Received, as_attribute
from semel.sqs.errors import QueueNotFound


class NoSuchMessage(SemelError):
    """No message with this id is available in the queue. List the queue's messages: `semel dlq list QUEUE`."""


class EditError(SemelError):
    """A changed copy cannot be sent. Nothing was sent. Correct the copy as the text says, and send it again."""


class Key(enum.Enum):
    """The key of a changed copy."""

    KEEP = "keep"  # the old key: the ledger knows what was done under it
    NEW = "new"  # a random key: the copy is processed, whatever was done before


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to change; None leaves it as it is. `attributes` replaces all of the message's own attributes."""

    body: str | None = None
    attributes: Mapping[str, Any] | None = None
    group: str | None = None
    key: str | Key = Key.KEEP
    to: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(name for name in ("body", "attributes", "group") if getattr(self, name) is not None)


def no_such_message(queue: str, id: str) -> NoSuchMessage:
    return NoSuchMessage(
        f"message {id} is not available in {queue}: it was redriven, deleted or has expired, or it is in flight; "
        f"`semel dlq list {queue}` lists the messages"
    )


def resend(access: MessageAccess, ledger: Ledger | None, id: str, wanted: Wanted) -> Resent:
    """Claims the message, sends the copy, deletes the message. If it raises, either nothing was sent, or SQS did not
    answer."""
    source = access.queue
    # On the broker a message is claimed directly by its own id; an id of the source queue has to be searched for.
    own = not access.receives and access.get(id).message
    ids, where = ((own.id,), filters.EVERYTHING) if own else ((), filters.parse(f"id = {quoted(id)}"))
    try:
        with access.claims(Job("resend", source.name), where, ids=ids, include_new=True) as claims:
            messages = claims.claim(1)
            if not messages:
                raise no_such_message(source.name, id)
            message = messages[0]
            target = Targets(source.client, source, wanted.to).of(message)
            key, entry = copy_of(message, target, wanted)
            notes = _checked(ledger, message, target, wanted, entry)
            sent = target.send(
                entry.body, attributes=entry.attributes, group=entry.group, dedup=entry.dedup, trace=entry.trace
            )
            claims.mark_sent(messages, [sent.message_id])
            left = claims.delete(messages)
    except QueueNotFound as error:
        raise EditError(f"message {id} of {source.name}: {error}") from None
    if left:
        notes = (*notes, "the copy was sent, but the original could not be deleted and is still there: delete it")
    return Resent(sent.message_id, target.name, key, not left, notes)


def copy_of(message: DeadLetterMessage, target: Queue, wanted: Wanted) -> tuple[str, Entry]:
    """The key that the copy carries, and the copy."""
    body = message.body if wanted.body is None else wanted.body
    own = message.attributes if wanted.attributes is None else read_attributes(wanted.attributes)
    match wanted.key:
        case Key.KEEP:
            key = message.key
        case Key.NEW:
            key = uuid.uuid4().hex
        case str(text):
            key = text.strip()
            if not key:
                raise EditError("a new key needs at least one character; leave it out to keep the old one")
    size = len(body.encode("utf-8", "surrogatepass"))
    attributes = own_attributes.sent_back(
        own, size, key=key, message_id=message.original_id, times=message.redrives + 1
    )
    if attributes is None:
        raise EditError(
            f"message {message.id}: {size:,} bytes leave no room for the key that goes with it; shorten the body "
            "or its attributes"
        )
    group = wanted.group if wanted.group is not None else message.group
    if target.fifo and not group:
        raise EditError(
            f"queue {target.name} is FIFO, and message {message.id} has no group: name one with --group GROUP"
        )
    entry = Entry(
        body,
        attributes=attributes,
        group=group or None,
        dedup=_dedup(message, body, attributes, group) if target.fifo else None,
        trace=message.trace or None,
    )
    problem = entry.unsendable()
    if problem is not None:
        raise EditError(f"message {message.id} cannot be sent: {problem.message}")
    return key, entry


def _dedup(message: DeadLetterMessage, body: str, attributes: Mapping[str, Attribute], group: str) -> str:
    """The same id for the same edit, so that SQS drops a second send within five minutes; another for other edits."""
    content = repr((body, sorted(attributes.items()), group))  # the key is among the attributes
    return f"edit-{message.id}-{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def read_attributes(values: Mapping[str, Any]) -> dict[str, Attribute]:
    """Attributes from Python values, or from `{"type": …, "value": …}` and `{"type": …, "base64": …}` as in exports."""
    attributes = {}
    for name, value in values.items():
        try:
            if isinstance(value, Mapping):
                text = b64decode(value["base64"], validate=True) if "base64" in value else value["value"]
                attributes[name] = Attribute(
                    str(value.get("type") or ("Binary" if isinstance(text, bytes) else "String")), text
                )
                if not isinstance(text, str | bytes):
                    raise ValueError(f"its value is not a string but {text!r}")
            else:
                attributes[name] = as_attribute(value)
        except (KeyError, ValueError, SemelError) as error:
            raise EditError(
                f'attribute {name}: {error}; write it as {{"type": "String", "value": "…"}}, or with "base64" for bytes'
            ) from None
        if name.startswith("semel-"):
            raise EditError(f"attribute {name}: names that begin with semel- are Semel's own; leave it out")
    return attributes


def _checked(
    ledger: Ledger | None, message: DeadLetterMessage, target: Queue, wanted: Wanted, copy: Entry
) -> tuple[str, ...]:
    """Notes on how the ledger will treat the copy. Raises if the ledger does not answer or the copy would not run."""
    if wanted.key is not Key.KEEP:
        return ()
    unsure = (
        () if message.key else ("the message carries no key: its handler makes one from the copy, as from any message",)
    )
    if ledger is None:
        return unsure
    keys = _keys(message, copy)
    try:
        entries = ledger.get([scoped(target.scope, key) for key in keys])
    except LedgerError as error:
        raise LedgerUnavailable(
            f"message {message.id}: nothing was sent: the ledger cannot say whether it was done before: {error}. Try "
            "again when it answers, or give the copy a new key (--new-key)"
        ) from None
    known = {key: entry for key, entry in zip(keys, entries, strict=True) if entry is not None}
    changed = (copy.body, copy.group or "", wanted.attributes and read_attributes(wanted.attributes)) != (
        *(message.body, message.group),
        wanted.attributes and message.attributes,
    )
    done = next((key for key, entry in known.items() if entry.status is Status.DONE), None)
    if done is not None and changed:
        raise EditError(
            f"message {message.id}: the ledger has {done} as done, so a changed copy under it would not run. "
            "Give it a new key (--new-key auto, or --new-key KEY) if it is to run, or delete the message"
        )
    if done is not None:
        return (f"the ledger has {done} as done: the copy will be deleted as a duplicate and not run",)
    for key, entry in known.items():
        if changed and entry.payload and entry.status in (Status.FREE, Status.CLAIMED):
            return (
                f"the ledger has {key} with the old payload: if its handler sets payload= and the change is part of "
                "that payload, the copy will be rejected as a conflict and needs a new key",
            )
    return unsure


def _keys(message: DeadLetterMessage, copy: Entry) -> list[str]:
    """The keys that a handler may find in the copy without reading its body: the key that it carries; else the
    producer's key, or the first MessageId."""
    received = Received(message.original_id, "", copy.body, None, copy.attributes)
    return list(dict.fromkeys(key_rule(rule).resolve(received, None).text for rule in (None, "message-id")))


# A message as a document for an editor.

_HELP: Final = (
    "Change body, attributes, group or to; save and close to send. An unchanged file, or an empty one, sends nothing. "
    "The key stays the same: the ledger identifies this message by it. For a new key: semel dlq edit --new-key."
)


def document(message: DeadLetterMessage, to: str = "") -> str:
    """The message as JSON. A body that is JSON is written as such if that loses nothing."""
    content: dict[str, Any] = {
        "_": [_HELP, f"message {message.id} of {message.queue}, {message.why}"],
        "to": to or message.source,
        "key": message.key,
    }
    if message.group:
        content["group"] = message.group
    content["attributes"] = attributes_as_json(message.attributes)
    content["body"] = json.loads(message.body) if _unfolds(message.body) else message.body
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_document(text: str, message: DeadLetterMessage, key: str | Key = Key.KEEP, to: str = "") -> Wanted | None:
    """The changes in a document; None if there are none. Raises EditError."""
    if not text.strip():
        return None
    before: dict[str, Any] = json.loads(document(message, to))
    try:
        after = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EditError(f"the saved document is not JSON: {error}") from None
    if not isinstance(after, dict) or "body" not in after:
        raise EditError('the saved document has no "body"')
    unknown = after.keys() - before.keys() - {"group"}
    if unknown:
        raise EditError(f"{min(unknown)!r} cannot be changed; body, attributes, group and to can")
    if after.get("key", message.key) != message.key:
        raise EditError("the key cannot be changed here: leave it as it is, and use --new-key KEY for a new one")
    if not isinstance(after.get("attributes", {}), dict) or not isinstance(after.get("group", ""), str):
        raise EditError("attributes must be an object, and group a string")
    same = json.dumps(after, sort_keys=True) == json.dumps(before, sort_keys=True)
    if same and key is Key.KEEP:
        return None
    body = None
    if json.dumps(after["body"]) != json.dumps(before["body"]):
        folded = isinstance(after["body"], str) and not _unfolds(message.body)
        body = after["body"] if folded else json.dumps(after["body"], ensure_ascii=False, separators=(",", ":"))
    attributes = after.get("attributes", {})
    return Wanted(
        body,
        attributes if attributes != before["attributes"] else None,
        group if (group := after.get("group", "")) != message.group else None,
        key,
        named if (named := str(after.get("to") or "")) != before["to"] else "",
    )


def _unfolds(body: str) -> bool:
    """Whether a body is a JSON object or list that can be parsed and written again without changing its content."""

    def exactly(text: str) -> Any:
        return json.loads(text, parse_float=str, object_pairs_hook=list)

    try:
        parsed = json.loads(body)
        # allow_nan: NaN and infinity are not JSON.
        return isinstance(parsed, dict | list) and exactly(json.dumps(parsed, allow_nan=False)) == exactly(body)
    except (ValueError, RecursionError):
        return False
