"""The idempotency key of a message: where it is read from, how it is written, and the digest of what came with it.

Rules: a key that Semel itself sent with the message takes precedence over any rule. A rule that finds no key raises an
error and never guesses. Equal parts give equal keys and different parts give different keys, however long they are.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import orjson

from semel.errors import SemelError
from semel.messages.dead_letter_attributes import CARRIED_KEY, MESSAGE_ID
from semel.messages.json_path import MISSING, JsonPath
from semel.sqs.limits import FORBIDDEN_CHARACTER

PRODUCER_KEY: Final = "idempotency-key"  # the attribute in which any producer may name a key
LONGEST: Final = 900  # bytes of UTF-8; with the queue's region, account and name in front it still fits in every ledger
SHOWN: Final = 100  # bytes of a longer key that stay readable

MANY_DIGITS: Final = re.compile(r"\d{16}")  # orjson reads a number with too many digits as a float, which rounds it

KeyFunction = Callable[[Any], Any]
KeySpec = str | KeyFunction | Sequence[Any] | None


class Attribute(Protocol):
    @property
    def value(self) -> str | bytes: ...


class Received(Protocol):
    """What a key can be read from."""

    @property
    def message_id(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Attribute]: ...
    @property
    def dedup(self) -> str | None: ...


class NoKey(SemelError):
    """The key rule found no key in a message; `reason` says why, without the message's content. Set the key in the
    producer, or change `key` or `missing_key`."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the message has no key: {reason}")
        self.reason = reason


class Key(NamedTuple):
    """`origin` says where it was read from: "carried", "message-id", "$.order.id", "attribute:order" …"""

    text: str
    origin: str


NONE: Final = Key("", "none")  # of a message in which the rule found no key


class Source(Protocol):
    """One place that a key is read from. Raises NoKey."""

    @property
    def origin(self) -> str: ...

    def read(self, received: Received, value: Any, body: Body) -> str: ...


class Body:
    """The body as JSON, parsed once, on first use. `parsed`: the body, if it was parsed already."""

    __slots__ = ("_parsed", "text")

    def __init__(self, text: str, parsed: Any = MISSING) -> None:
        self.text = text
        self._parsed: Any = parsed

    def parsed(self) -> Any:
        if self._parsed is MISSING:
            try:
                self._parsed = orjson.loads(self.text)
            except orjson.JSONDecodeError:
                raise NoKey("its body is not JSON") from None
        return self._parsed


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How a handler's messages get their key; see `key_rule`."""

    source: Source

    @property
    def origin(self) -> str:
        return self.source.origin

    def __str__(self) -> str:
        """The whole rule, as it is shown at the start and stored in the ledger."""
        return f"{PRODUCER_KEY}, else {self.origin}" if isinstance(self.source, _Default) else self.origin

    def resolve(self, received: Received, value: Any, body: Body | None = None) -> Key:
        """The key of a message; `value` is its body as the handler gets it. Raises NoKey."""
        attributes = received.attributes
        if attributes:
            carried = _attribute(attributes, CARRIED_KEY)
            if carried:
                return Key(_fitting(carried), "carried")
            if isinstance(self.source, _Default):
                named = _attribute(attributes, PRODUCER_KEY)
                if named:
                    return Key(_fitting(named), PRODUCER_KEY)
        return Key(_fitting(self.source.read(received, value, body or Body(received.body))), self.source.origin)


def key_rule(spec: KeySpec) -> KeyRule:
    """The rule that `spec` stands for.

    - None: the attribute `idempotency-key` if the producer set one, else the MessageId. All deliveries of
      a message have the same MessageId, but if the producer sends the message a second time, it gets a new one.
    - "$.order.id": a field of the JSON body; dotted names, ['any name'], [0] and [-1].
    - "attribute:NAME": a message attribute.
    - "message-id", "dedup-id": SQS's own ids. For a message that was sent back from a dead-letter queue, it is the
      MessageId that it had before, which it carries as `semel-message-id`. The deduplication id of a FIFO queue is
      used only on request: after five minutes SQS accepts the same id for a new message, so a producer may use it
      again, and a ledger that keeps keys for weeks would drop those messages.
    - a function of the decoded body that returns a str, an int, a UUID or a tuple of these.
    - a list of such specs: the parts joined.

    The attribute `semel-key` takes precedence over all of them. Dead-letter messages, redriven messages and messages of
    the outbox carry their first key in it, because SQS gives a message that is sent again a new MessageId. Anyone who
    may send to the queue can set it.
    """
    return KeyRule(_Default() if spec is None else _source(spec))


def scoped(queue_scope: str, key: str) -> str:
    """The key as the ledger stores it. Two queues may use the same key, even if they have the same name in two regions
    or accounts. `queue_scope` is a queue's `scope`, which contains no slash."""
    return f"{queue_scope}/{key}"


def own_id(received: Received) -> str:
    """The MessageId that a message had when it was first sent, if it carries it; otherwise the one that it has."""
    return _fitting(_attribute(received.attributes, MESSAGE_ID) or received.message_id)


def _source(spec: Any) -> Source:
    match spec:
        case "message-id":
            return _MessageId()
        case "dedup-id":
            return _DedupId()
        case str() if spec.startswith("$"):
            return _Field(JsonPath.parse(spec))
        case str() if spec.startswith("attribute:") and spec != "attribute:":
            return _FromAttribute(spec.removeprefix("attribute:"))
        case tuple() | list() if spec:
            return _Joined(tuple(_source(part) for part in spec))
        case _ if callable(spec) and not isinstance(spec, type) and not inspect.iscoroutinefunction(spec):
            return _Function(spec)
    raise SemelError(
        f"{spec!r} is not a rule for a key; use '$.order.id' (a field of the JSON body), 'attribute:NAME', "
        "'message-id', 'dedup-id', a plain function of the decoded message, or a list of these"
    )


@dataclass(frozen=True, slots=True)
class _MessageId:
    origin: str = "message-id"

    def read(self, received: Received, value: Any, body: Body) -> str:  # noqa: ARG002
        return own_id(received)


@dataclass(frozen=True, slots=True)
class _Default(_MessageId):
    """No rule was declared. `KeyRule.resolve` reads the producer's attribute, as it does the carried key."""


@dataclass(frozen=True, slots=True)
class _DedupId:
    origin: str = "dedup-id"

    def read(self, received: Received, value: Any, body: Body) -> str:  # noqa: ARG002
        if _attribute(received.attributes, MESSAGE_ID):
            raise NoKey("SQS replaced its deduplication id when it moved it to the dead-letter queue it came back from")
        if not received.dedup:
            raise NoKey("it has no deduplication id; only messages of FIFO queues have one")
        return received.dedup


@dataclass(frozen=True, slots=True)
class _FromAttribute:
    name: str

    @property
    def origin(self) -> str:
        return f"attribute:{self.name}"

    def read(self, received: Received, value: Any, body: Body) -> str:  # noqa: ARG002
        text = _attribute(received.attributes, self.name)
        if not text:
            raise NoKey(f"it has no attribute {self.name!r}")
        return text


@dataclass(frozen=True, slots=True)
class _Field:
    path: JsonPath

    @property
    def origin(self) -> str:
        return self.path.text

    def read(self, received: Received, value: Any, body: Body) -> str:  # noqa: ARG002
        return _written(self.path.find(body.parsed()), self.path.text)


@dataclass(frozen=True, slots=True)
class _Function:
    function: KeyFunction

    @property
    def origin(self) -> str:
        return f"function {getattr(self.function, '__qualname__', type(self.function).__qualname__)}"

    def read(self, received: Received, value: Any, body: Body) -> str:  # noqa: ARG002
        try:
            result = self.function(value)
        except Exception as error:
            # The name of what is missing stands in the user's code and may be shown. Other texts can quote messages.
            about = f": {error}" if isinstance(error, (KeyError, AttributeError)) else ""
            raise NoKey(f"the {self.origin} raised {type(error).__name__}{about}"[:200]) from error
        return _written(result, f"the result of the {self.origin}")


@dataclass(frozen=True, slots=True)
class _Joined:
    parts: tuple[Source, ...]

    @property
    def origin(self) -> str:
        return f"({', '.join(part.origin for part in self.parts)})"

    def read(self, received: Received, value: Any, body: Body) -> str:
        return _join([part.read(received, value, body) for part in self.parts])


def _written(value: Any, what: str) -> str:
    """A part of a key as text. 7 and "7" are the same key: producers differ in how they write an id."""
    match value:
        case str() if value:
            return str(value)
        case int() if not isinstance(value, bool):
            return str(int(value))
        case UUID():
            return str(value)
        case tuple() if value:
            return _join([_written(part, what) for part in value])
        case float():
            raise NoKey(f"{what} is not a whole number, or has more than 64 bits; a key is a string or a whole number")
    if value is MISSING or value is None or value == "":
        raise NoKey(f"{what} is {'missing' if value is MISSING else 'empty'}")
    raise NoKey(f"{what} is a {type(value).__name__}; a key is a string, a whole number, a UUID or a tuple of these")


def _join(parts: Sequence[str]) -> str:
    """Joins parts with colons and escapes their own colons: ("a:b", "c") and ("a", "b:c") stay two keys."""
    return ":".join([part.replace("\\", "\\\\").replace(":", "\\:") for part in parts])


def _attribute(attributes: Mapping[str, Attribute], name: str) -> str:
    attribute = attributes.get(name)
    if attribute is None:
        return ""
    return attribute.value.hex() if isinstance(attribute.value, bytes) else attribute.value


def _fitting(text: str) -> str:
    """The key itself or, if it could not be sent in an attribute, its beginning and a digest of all of it."""
    if text.isascii() and text.isprintable() and len(text) <= LONGEST:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= LONGEST and not FORBIDDEN_CHARACTER.search(text):
        return text
    shown = FORBIDDEN_CHARACTER.sub("?", data[:SHOWN].decode("utf-8", "ignore"))
    return f"{shown}~{hashlib.sha256(data).hexdigest()}"


PayloadSpec = bool | str | Sequence[str] | Callable[[Any], Any]
PayloadDigest = Callable[[Body, Any], str]  # takes the body, and what the handler gets


def payload_rule(spec: PayloadSpec) -> PayloadDigest:
    """The digest that is compared when keys are the same; "" means that nothing is compared.

    True: the whole body; spacing and the order of names in a JSON object make no difference. False: nothing.
    A JSON path or several: those fields. A function of the decoded message: what it returns.
    """
    match spec:
        case True:
            return lambda body, _value: _digest(_canonical(body))
        case False:
            return lambda _body, _value: ""
        case str():
            return _of_fields([spec])
        case tuple() | list() if spec and all(isinstance(path, str) for path in spec):
            return _of_fields(spec)
        case _ if callable(spec) and not isinstance(spec, type) and not inspect.iscoroutinefunction(spec):
            return _of_function(spec)
    raise SemelError(
        f"{spec!r} is not a rule for a payload; use True (the whole body), False (nothing is compared), "
        "'$.total' or a list of such paths, or a plain function of the decoded message"
    )


def _of_fields(texts: Sequence[str]) -> PayloadDigest:
    paths = [JsonPath.parse(text) for text in texts]

    def digest(body: Body, _value: Any) -> str:
        try:
            parsed = body.parsed()
        except NoKey:
            return _digest(body.text.encode("utf-8", "surrogatepass"))
        values = [path.find(parsed) for path in paths]
        return _digest(
            orjson.dumps([[] if value is MISSING else [value] for value in values], option=orjson.OPT_SORT_KEYS)
        )

    return digest


def _of_function(function: Callable[[Any], Any]) -> PayloadDigest:
    def digest(_body: Body, value: Any) -> str:
        payload = function(value)
        match payload:
            case None:
                return ""
            case bytes():
                return _digest(payload)
            case _:
                try:
                    return _digest(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))
                except TypeError as error:
                    raise SemelError(f"the payload function returned neither bytes nor JSON: {error}") from None

    return digest


def _canonical(body: Body) -> bytes:
    """The body's bytes, in a canonical form if it is JSON. A body with numbers that would be rounded stays as it is."""
    if not MANY_DIGITS.search(body.text):
        try:
            return orjson.dumps(body.parsed(), option=orjson.OPT_SORT_KEYS)
        except (NoKey, orjson.JSONEncodeError):
            pass
    return body.text.encode("utf-8", "surrogatepass")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
