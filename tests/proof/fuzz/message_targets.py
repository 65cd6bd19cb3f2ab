"""Targets for what Semel reads from a message (attributes, key and body), and for durations, as people write them."""

from __future__ import annotations

import dataclasses
import enum
from contextlib import suppress
from typing import Any, Final, TypedDict

import msgspec
import orjson
import pydantic

from semel import durations
from semel.errors import SemelError
from semel.messages import dead_letter_attributes as dead_letters
from semel.messages.dead_letter_attributes import DeadLetterDetails
from semel.messages.decoder import LONGEST_REASON, Undecodable, decoder_for
from semel.messages.json_path import MISSING, JsonPath
from semel.messages.keys import LONGEST, SHOWN, Body, Key, NoKey, key_rule, payload_rule
from semel.sqs.client.messages import Attribute, Entry, Received
from semel.sqs.limits import (
    ATTRIBUTE_NAME,
    ATTRIBUTE_TYPE,
    FORBIDDEN_CHARACTER,
    MAX_MESSAGE_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    is_number,
)

_RULES: Final = [
    key_rule(spec)
    for spec in (
        None,
        "message-id",
        "dedup-id",
        "$.order.id",
        "$.lines[-1]['s ku']",
        "attribute:tenant",
        ["$.order.id", "attribute:tenant"],
        lambda body: body["order"]["id"],
    )
]
_PAYLOADS: Final = [payload_rule(spec) for spec in (True, False, "$.order", ["$.order.id", "$.lines[0]"])]


def received(data: bytes) -> Received | None:
    """A message from `{"Body": …, "Attributes": …, "MessageAttributes": …}`, with those attributes that SQS would
    accept. None if the bytes are something else."""
    try:
        wire = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(wire, dict) or not isinstance(wire.get("Body"), str):
        return None
    attributes: dict[str, Attribute] = {}
    for name, parts in _dict(wire.get("MessageAttributes")).items():
        value = dead_letters._unwritten(parts)
        if value is not None and ATTRIBUTE_NAME.match(name):
            attributes[name] = value
    system = {name: value for name, value in _dict(wire.get("Attributes")).items() if isinstance(value, str)}
    message_id = wire.get("MessageId")
    if not message_id or not isinstance(message_id, str):  # the client refuses such messages
        message_id = "m-1"
    return Received(message_id, "r", wire["Body"], system, attributes)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def fuzz_dead_letter_attributes(data: bytes) -> None:
    """Attributes that anybody may have sent: reading them never fails, what was read can be sent again, and what Semel
    itself writes for such a message is read back unchanged."""
    message = received(data)
    if message is None:
        return
    details, own = dead_letters.read(message.attributes)
    for name, value in dead_letters.restored(message).attributes.items():
        _check_sendable(name, value)
    assert not any(name.startswith("semel-") for name in own) or dead_letters.OWN in message.attributes
    written = DeadLetterDetails("k", "reason", message.body[:200], 3, "m-1", "orders") if details is None else details
    copy = dead_letters.attributes(written, own, len(message.body.encode("utf-8", "surrogatepass")))
    _check_copy(copy, own, written)
    back = dead_letters.sent_back(own, 10, key=dead_letters.carried_key(message.attributes), message_id="m-1")
    assert back is not None
    assert len(back) <= MAX_MESSAGE_ATTRIBUTES


def _check_copy(copy: dict[str, Attribute], own: dict[str, Attribute], written: DeadLetterDetails) -> None:
    assert len(copy) <= MAX_MESSAGE_ATTRIBUTES
    for name, value in copy.items():
        _check_sendable(name, value)
    again, kept = dead_letters.read(copy)
    ours = {name: value for name, value in own.items() if not name.startswith("semel-")}
    assert kept == ours, f"{kept} is not {ours}"
    if again is not None and written.key:
        assert again.key == FORBIDDEN_CHARACTER.sub("�", written.key)


def _check_sendable(name: str, value: Attribute) -> None:
    assert ATTRIBUTE_NAME.match(name), name
    assert ATTRIBUTE_TYPE.match(value.type), value
    assert value.value, name
    if isinstance(value.value, str):
        assert not FORBIDDEN_CHARACTER.search(value.value)
        assert not value.type.startswith("Number") or is_number(value.value)
    assert Entry("", {name: value}).size <= MAX_MESSAGE_BYTES


def fuzz_key(data: bytes) -> None:
    """Every key rule finds a key in a message, or says why there is none. A key is never empty, can be sent as an
    attribute, has a bounded length, and is the same when it is read from that attribute."""
    message = received(data)
    if message is None:
        return
    body = Body(message.body)
    for rule in _RULES:
        with suppress(NoKey):
            value = None
            with suppress(Undecodable):
                value = decoder_for(dict)(message.body)
            key = rule.resolve(message, value, body)
            _check_key(key)
            again = Received("another", "r", message.body, {}, {dead_letters.CARRIED_KEY: key.text})
            assert rule.resolve(again, value).text == key.text
    for payload in _PAYLOADS:
        assert payload(body, None) == payload(Body(message.body), None)


def _check_key(key: Key) -> None:
    assert key.text
    assert not FORBIDDEN_CHARACTER.search(key.text), ascii(key.text)
    assert len(key.text.encode()) <= max(LONGEST, SHOWN + 65)


def fuzz_json_path(data: bytes) -> None:
    """`path`, a line feed, and a JSON document: the path names one value, or there is an error that quotes it. Looking
    it up in any document gives a value or MISSING."""
    text, _, document = data.partition(b"\n")
    try:
        path = JsonPath.parse(text.decode("utf-8", "replace"))
    except SemelError as error:
        assert "is not a path" in str(error)
        return
    assert path.steps
    assert JsonPath.parse(path.text) == path
    with suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(document)
        part = path.find(parsed)
        for step in path.steps if part is not MISSING else ():
            parsed = parsed[step]
        assert part is MISSING or part is parsed


class Colour(enum.Enum):
    RED = "red"


class Line(TypedDict, total=False):
    sku: str
    count: int


@dataclasses.dataclass
class Order:
    id: int
    colour: Colour
    lines: list[Line]
    total: float | None = None


class StructOrder(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    note: str = ""


class ModelOrder(pydantic.BaseModel):
    id: int
    when: pydantic.AwareDatetime | None = None
    child: ModelOrder | None = None


_DECODERS: Final = [
    decoder_for(annotation)
    for annotation in (dict, list, str, bytes, Any, Order, StructOrder, ModelOrder, StructOrder | list[Order])
]


def fuzz_body(data: bytes) -> None:
    """A message's body: every decoder returns the type that its handler asked for, or raises Undecodable with a short
    reason."""
    text = data.decode("utf-8", "surrogateescape")
    for decode in _DECODERS:
        try:
            decode(text)
        except Undecodable as error:
            assert 0 < len(error.reason) <= LONGEST_REASON


def fuzz_duration(data: bytes) -> None:
    """A duration as somebody writes it: it gives a finite number of seconds, 0 or more, which can be shown as a text;
    or an error that quotes it."""
    text = data.decode("utf-8", "replace")
    try:
        seconds = durations.seconds(text)
    except SemelError as error:
        assert "duration" in str(error)
        return
    assert 0 <= seconds < float("inf")
    assert durations.text(seconds)
