"""Messages to send, messages received, and the results of sends and batches, as small values."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from semel.sqs.errors import BadRequest
from semel.sqs.limits import MAX_MESSAGE_BYTES

_NOT_THERE: Final[dict[str, Any]] = {}
_NUMBERS: Final = ("ApproximateReceiveCount", "SentTimestamp", "ApproximateFirstReceiveTimestamp")


class Attribute(NamedTuple):
    """A message attribute: `type` is String, Number or Binary, or one of these with a suffix, as in `Number.int`.

    >>> from semel import Client
    >>> from semel.sqs import Attribute
    >>> queue = Client().create_queue("orders")
    >>> sent = queue.send("hello", attributes={"price": Attribute("Number", "1.50"), "tenant": "a"})
    """

    type: str
    value: str | bytes


AttributeValue = Attribute | str | bytes | int | float


class Received:
    """One delivery of a message. Times are in seconds since 1970.

    >>> from semel import Client
    >>> queue = Client().create_queue("orders")
    >>> sent = queue.send("hello", attributes={"tenant": "a"})
    >>> [message] = queue.receive(wait=1)
    >>> message.body, message.attributes["tenant"].value, message.receive_count
    ('hello', 'a', 1)
    >>> message.message_id == sent.message_id
    True
    """

    __slots__ = ("_attributes", "_wire_attributes", "body", "message_id", "receipt", "system")

    def __init__(
        self,
        message_id: str,
        receipt: str,
        body: str,
        system: dict[str, str] | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        self.message_id = message_id
        self.receipt = receipt
        self.body = body
        self.system = {} if system is None else system
        self._wire_attributes = None if attributes is None else wire_attributes(attributes)
        self._attributes: dict[str, Attribute] | None = None

    @classmethod
    def from_wire(cls, message: dict[str, Any]) -> Received:
        """Internal. Raises KeyError, TypeError, ValueError or AttributeError for anything that is not a message, so
        that no later step needs to check it."""
        system, attributes = message.get("Attributes"), message.get("MessageAttributes")
        received = cls(message["MessageId"], message["ReceiptHandle"], message["Body"], system)
        check_texts((received.message_id, received.receipt, received.body, *received.system.values()))
        if not received.message_id:
            raise ValueError("no MessageId")  # all messages without one would share a key
        for name in _NUMBERS:
            if name in received.system and not received.system[name].isdecimal():
                raise ValueError(f"a number as {name}")
        if attributes:
            received._attributes = {name: _attribute(value) for name, value in attributes.items()}
            received._wire_attributes = attributes
        return received

    @property
    def attributes(self) -> dict[str, Attribute]:
        """The message attributes by name."""
        if self._attributes is None:
            wire = self._wire_attributes or _NOT_THERE
            self._attributes = {name: _attribute(value) for name, value in wire.items()}
        return self._attributes

    @property
    def receive_count(self) -> int:
        """How often it was received, including this time; 1 if the endpoint does not say."""
        return int(self.system.get("ApproximateReceiveCount", 1))

    @property
    def sent_at(self) -> float | None:
        """When it was sent; None if the endpoint does not say."""
        return self._seconds("SentTimestamp")

    @property
    def first_received_at(self) -> float | None:
        """When it was received for the first time; None if the endpoint does not say."""
        return self._seconds("ApproximateFirstReceiveTimestamp")

    @property
    def group(self) -> str | None:
        """The message group, or None."""
        return self.system.get("MessageGroupId")

    @property
    def dedup(self) -> str | None:
        """The deduplication id of a FIFO message, or None."""
        return self.system.get("MessageDeduplicationId")

    @property
    def sequence(self) -> str | None:
        """The sequence number of a FIFO message, or None."""
        return self.system.get("SequenceNumber")

    @property
    def source_queue(self) -> str | None:
        """In a dead-letter queue: the ARN of the queue that it came from."""
        return self.system.get("DeadLetterQueueSourceArn")

    @property
    def trace(self) -> str | None:
        """The AWS X-Ray trace header, or None."""
        return self.system.get("AWSTraceHeader")

    def _seconds(self, name: str) -> float | None:
        value = self.system.get(name)
        return None if value is None else int(value) / 1000

    def __repr__(self) -> str:
        return f"Received({self.message_id}, {len(self.body)} characters, receive_count={self.receive_count})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A message to send. `delay` is in seconds. `group` and `dedup` are for FIFO queues, `group` also for fair queues.

    >>> from semel import Client
    >>> from semel.sqs import Entry
    >>> queue = Client().create_queue("orders.fifo")
    >>> outcomes = queue.send_many([Entry(str(n), group="a", dedup=str(n)) for n in range(25)])
    >>> len(outcomes)
    25
    """

    body: str
    attributes: Mapping[str, AttributeValue] | None = None
    delay: int | None = None
    group: str | None = None
    dedup: str | None = None
    trace: str | None = None

    def wire(self) -> dict[str, Any]:
        """Internal. The message as parameters of SendMessage."""
        if not isinstance(self.body, str):
            raise BadRequest(
                f"the body of a message is a str, not {type(self.body).__name__}: encode it, as JSON perhaps"
            )
        fields: dict[str, Any] = {"MessageBody": self.body}
        if self.attributes:
            fields["MessageAttributes"] = wire_attributes(self.attributes)
        if self.delay is not None:
            fields["DelaySeconds"] = self.delay
        if self.group is not None:
            fields["MessageGroupId"] = self.group
        if self.dedup is not None:
            fields["MessageDeduplicationId"] = self.dedup
        if self.trace is not None:
            fields["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": self.trace}}
        return fields

    def unsendable(self) -> Failure | None:
        """Internal. Why SQS would refuse a whole batch because of this message; None if it would not."""
        if self.size > MAX_MESSAGE_BYTES:
            text = f"{self.size} bytes; a message has at most {MAX_MESSAGE_BYTES}, its attributes included"
            return Failure("InvalidParameterValue", text)
        try:
            self.body.encode()
        except UnicodeEncodeError:
            return Failure("InvalidMessageContents", "the body has a lone surrogate, which is not a character")
        return None

    @property
    def size(self) -> int:
        """Bytes as SQS counts them: the body, and names, types and values of the attributes."""
        total = _bytes(self.body)
        for name, value in (self.attributes or _NOT_THERE).items():
            kind, content = as_attribute(value)
            total += _bytes(name) + _bytes(kind) + (len(content) if isinstance(content, bytes) else _bytes(content))
        return total


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a send that SQS accepted; `sequence` is for FIFO queues only.

    >>> from semel import Client
    >>> sent = Client().create_queue("orders.fifo").send("hello", group="a", dedup="1")
    >>> len(sent.message_id), sent.sequence is not None
    (36, True)
    """

    message_id: str
    sequence: str | None = None


_GONE: Final = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidIdFormat"})
_GONE_TEXTS: Final = ("receipt handle has expired", "does not exist or is not available")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one entry of a batch failed, after all attempts.

    >>> from semel import Client
    >>> from semel.sqs import Entry
    >>> [failure] = Client().create_queue("orders").send_many([Entry("x" * 2_000_000)])
    >>> failure.code, failure.sender_fault
    ('InvalidParameterValue', True)
    """

    code: str
    message: str
    sender_fault: bool = True

    @property
    def gone(self) -> bool:
        """Whether the receipt no longer stands for a message in flight: expired, superseded, or never valid."""
        short = self.code.rpartition(".")[2]
        return short in _GONE or (
            short == "InvalidParameterValue" and any(text in self.message for text in _GONE_TEXTS)
        )


def as_attribute(value: AttributeValue) -> Attribute:
    """Converts plain Python values to an attribute of the matching type."""
    match value:
        case Attribute():
            return value
        case str():
            return Attribute("String", value)
        case bytes():
            return Attribute("Binary", value)
        case bool():
            raise BadRequest("a message attribute is a str, bytes, int, float or Attribute, not a bool")
        case int() | float():
            return Attribute("Number", repr(value))
        case _:
            raise BadRequest(f"a message attribute is a str, bytes, int, float or Attribute, not {value!r}")


def wire_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, str]]:
    wire = {}
    for name, value in attributes.items():
        kind, content = as_attribute(value)
        binary = isinstance(content, bytes)
        text = b64encode(content).decode() if isinstance(content, bytes) else content
        wire[name] = {"DataType": kind, "BinaryValue" if binary else "StringValue": text}
    return wire


def _attribute(wire: Mapping[str, str]) -> Attribute:
    check_texts(wire.values())
    if "BinaryValue" in wire:
        return Attribute(wire["DataType"], b64decode(wire["BinaryValue"]))
    return Attribute(wire["DataType"], wire.get("StringValue", ""))


def check_texts(values: Iterable[object]) -> None:
    for value in values:
        if type(value) is not str:
            raise TypeError(f"a text, and has a {type(value).__name__}")


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
