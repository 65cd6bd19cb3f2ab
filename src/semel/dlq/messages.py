"""The values of the dead-letter tools: a message in a dead-letter queue, the queue, an error group, and what the
service returns. Times are seconds since 1970, durations are seconds. `dataclasses.asdict` turns all of them into JSON,
except messages (`as_json`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

from semel.dlq import fingerprints
from semel.messages import dead_letter_attributes as own_attributes
from semel.messages.fingerprint import fingerprint as fingerprint_of
from semel.messages.fingerprint import shape as shape_of
from semel.sqs.client.messages import Attribute, Received
from semel.text import count

PREVIEW: Final = 200  # characters of a body
MAX_GROUPS: Final = 1_000
_MAX_SOURCES: Final = 20
_SAMPLE: Final = 500  # characters of an error


@dataclass(frozen=True)
class DeadLetterMessage:
    """One message in a dead-letter queue, and what it says about why it is there.

    `reason`, `error` and `attempts` are known only if Semel dead-lettered the message. If SQS itself moved it, only
    its `source` is known, and its `key` if it carries one. `receipt` is "" for a message that was peeked at.
    """

    id: str
    queue: str  # the queue that it is in
    body: str
    sent: float
    receives: int  # over its whole life
    attributes: Mapping[str, Attribute] = field(default_factory=dict)  # its own, without Semel's
    carried: Mapping[str, Attribute] = field(default_factory=dict)  # Semel's
    system: Mapping[str, str] = field(default_factory=dict)  # SQS's system attributes
    first_received: float | None = None
    source: str = ""  # the name of the queue that it came from, according to SQS, else to the message
    key: str = ""
    reason: str = ""
    error: str = ""
    attempts: int = 0
    original_id: str = ""  # its MessageId in the source queue
    group: str = ""
    dedup: str = ""
    sequence: str = ""
    trace: str = ""
    receipt: str = ""
    body_bytes: int = 0  # of the whole body, even if `body` was cut
    cut: bool = False  # whether `body` is only its beginning
    state: str = ""  # visible, in_flight or delayed, if known
    expires: float | None = None
    visible_at: float | None = None
    redrives: int = 0  # how often it was redriven before
    by_semel: bool = False  # whether Semel dead-lettered it
    place: int | None = None  # position in the queue; only on Semel's broker
    receives_here: int | None = None  # since it arrived in this queue; only on Semel's broker

    @classmethod
    def of(cls, received: Received, queue: str, **known: Any) -> DeadLetterMessage:
        attributes = received.attributes
        about, own = own_attributes.read(attributes)
        details = about or own_attributes.DeadLetterDetails("", "", "", 0, "", "", own_attributes.redrives(attributes))
        source = (received.source_queue or "").rpartition(":")[2]
        return cls(
            id=received.message_id,
            queue=queue,
            body=received.body,
            sent=received.sent_at or 0.0,
            receives=received.receive_count,
            attributes=own,
            carried={name: value for name, value in attributes.items() if name.startswith("semel-")},
            system=received.system,
            first_received=received.first_received_at,
            # Anybody can write anything into a message, so what SQS says takes precedence.
            source=source or details.queue or own_attributes.first_queue(attributes),
            key=details.key or own_attributes.carried_key(attributes),
            reason=details.reason,
            error=details.error,
            attempts=details.attempts,
            original_id=details.message_id or own_attributes.original_id(attributes, received.message_id),
            group=received.group or "",
            dedup=received.dedup or "",
            sequence=received.sequence or "",
            trace=received.trace or "",
            receipt=received.receipt,
            redrives=details.redrives,
            by_semel=about is not None,
            **{"body_bytes": len(received.body.encode("utf-8", "surrogatepass")), **known},
        )

    @classmethod
    def peeked(cls, shown: Mapping[str, Any], queue: str) -> DeadLetterMessage:
        """From a message as the admin interface of Semel's broker shows it."""
        known: dict[str, Any] = {
            "state": shown.get("State", ""),
            "expires": shown.get("ExpiresAt"),
            "visible_at": shown.get("VisibleAt"),
            "place": shown.get("Place"),
            "receives_here": shown.get("ReceivesInThisQueue"),
        }
        if "BodyBytes" in shown:
            known["body_bytes"] = shown["BodyBytes"]
            known["cut"] = shown["BodyBytes"] > len(shown["Body"].encode("utf-8", "surrogatepass"))
        return cls.of(Received.from_wire({**shown, "ReceiptHandle": ""}), queue, **known)

    @property
    def preview(self) -> str:
        return self.body[:PREVIEW]

    def shortened(self) -> DeadLetterMessage:
        """The message with only the preview of its body."""
        if self.cut or len(self.body) <= PREVIEW:
            return self
        return replace(self, body=self.preview, cut=True)

    @property
    def moved_from(self) -> str:
        """The ARN of the queue that SQS itself moved it from; "" if it was sent here."""
        return self.system.get("DeadLetterQueueSourceArn", "")

    @cached_property
    def why(self) -> str:
        """Reason and error in one line."""
        return fingerprints.error_of(self)


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A dead-letter queue. `first_expires`: when the first of its messages expires.

    `error`: why its attributes could not be read; then little more than its name and URL is known."""

    name: str
    url: str
    arn: str
    fifo: bool
    visible: int
    in_flight: int
    delayed: int
    retention: float
    sources: tuple[str, ...] = ()
    oldest_age: float | None = None
    first_expires: float | None = None
    estimated: bool = False  # whether the ages are an estimate from some of its messages
    max_receives: int | None = None  # of its own RedrivePolicy, if it has one
    error: str = ""

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class ReceiveCost:
    """What a scan cost: nothing on Semel's broker; on SQS receives, which raise the receive count of each message."""

    receives: int = 0  # calls of ReceiveMessage
    messages: int = 0  # whose receive count went up by one
    kept_back: int = 0  # that could not be released; they become visible when their timeout ends

    def __str__(self) -> str:
        if not self.receives:
            return ""
        text = f"{count(self.receives, 'receive')}; the receive count of {count(self.messages, 'message')} went up by 1"
        late = f"; {count(self.kept_back, 'message')} will be visible again within seconds"
        return text + late if self.kept_back else text


FREE: Final = ReceiveCost()


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages that match. `next`: what to pass as `after` for more; None if there are no more, and always on SQS."""

    messages: tuple[DeadLetterMessage, ...]
    next: str | None = None
    scanned: int = 0
    complete: bool = True  # whether all of the queue was scanned
    cost: ReceiveCost = FREE
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Messages whose errors differ only in numbers, ids and quoted text. `where` is the filter that selects exactly
    these messages. It is None for the group "other errors", in which errors beyond the first thousand kinds are
    counted."""

    fingerprint: str
    shape: str
    sample: str  # the newest error, with its ids and numbers
    sample_id: str
    count: int
    first: float
    last: float
    where: str | None
    sources: tuple[str, ...] = ()


@dataclass(slots=True)
class _Count:
    shape: str
    sample: str
    sample_id: str
    first: float
    last: float
    count: int = 0
    sources: set[str] = field(default_factory=set)

    def group(self, fingerprint: str) -> ErrorGroup:
        where = f"fingerprint = {fingerprint}" if fingerprint else None
        known = {known.name: getattr(self, known.name) for known in fields(self)}
        return ErrorGroup(fingerprint, where=where, **known | {"sources": tuple(sorted(self.sources))})


class Grouping:
    """Counts messages by their error in one pass: `add` them as they come, read `groups` at any time.

    Memory is bounded: errors beyond the first thousand kinds are counted together, in a group that comes last."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self.matched = 0
        self.oldest: float | None = None
        self.newest: float | None = None

    def add(self, messages: Iterable[DeadLetterMessage]) -> None:
        for message in messages:
            self._add(message)

    def _add(self, message: DeadLetterMessage) -> None:
        self.matched += 1
        sent = message.sent
        self.oldest = sent if self.oldest is None else min(self.oldest, sent)
        self.newest = sent if self.newest is None else max(self.newest, sent)
        error = fingerprints.error_of(message)
        fingerprint = fingerprint_of(error)
        if fingerprint not in self._counts and len(self._counts) >= MAX_GROUPS:
            fingerprint = ""
        count = self._counts.get(fingerprint)
        if count is None:
            shape = shape_of(error) if fingerprint else "other errors"
            count = self._counts[fingerprint] = _Count(shape, error[:_SAMPLE], message.id, sent, sent)
        count.count += 1
        count.first = min(count.first, sent)
        if sent > count.last:
            count.last, count.sample, count.sample_id = sent, error[:_SAMPLE], message.id
        if message.source and len(count.sources) < _MAX_SOURCES:
            count.sources.add(message.source)

    @property
    def groups(self) -> tuple[ErrorGroup, ...]:
        """The largest first."""
        return tuple(
            sorted(
                (count.group(fingerprint) for fingerprint, count in self._counts.items()),
                key=lambda group: (not group.fingerprint, -group.count, group.fingerprint),
            )
        )


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    groups: tuple[ErrorGroup, ...]  # the largest first
    matched: int
    scanned: int
    complete: bool = True
    cost: ReceiveCost = FREE
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownMessages:
    """The messages that a person was shown before they confirmed an action: the action touches only these.

    They are identified by `ids` or, if there are too many, by `place` and `at`: messages up to this position in the
    queue that matched at that time."""

    count: int
    ids: tuple[str, ...] | None = None
    place: int | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Impact:
    """What a delete or a redrive would touch. If not `complete`, there are more messages, which were not scanned.

    Pass `shown` to the delete that a person then confirms."""

    count: int
    scanned: int
    complete: bool = True
    oldest: float | None = None  # when it was sent
    newest: float | None = None
    groups: tuple[ErrorGroup, ...] = ()
    cost: ReceiveCost = FREE
    notes: tuple[str, ...] = ()
    shown: ShownMessages = ShownMessages(0, ())


@dataclass(frozen=True, slots=True)
class Exported:
    count: int
    scanned: int
    path: str = ""
    complete: bool = True
    cost: ReceiveCost = FREE
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resent:
    """A copy that was sent. If not `deleted`, the original is still in the queue; unless the copy has a new key, the
    ledger keeps the message from running twice."""

    message_id: str
    queue: str
    key: str
    deleted: bool
    notes: tuple[str, ...] = ()


_JSON: Final = (
    *("id", "queue", "body", "body_bytes", "cut", "sent", "receives", "first_received", "expires", "visible_at"),
    *("source", "key", "reason", "error", "why", "attempts", "redrives", "original_id", "group", "dedup"),
    *("sequence", "trace", "state", "by_semel", "place", "receives_here"),
)


def as_json(message: DeadLetterMessage, *, now: float | None = None) -> dict[str, Any]:
    """A message for `--json` and the API. Binary attributes are base64."""
    content: dict[str, Any] = {name: getattr(message, name) for name in _JSON}
    if not (message.reason or message.error or message.source):
        content["why"] = ""  # nothing says that it was dead-lettered
    content["fingerprint"] = fingerprints.of(message)
    content["attributes"] = attributes_as_json(message.attributes)
    content["carried"] = attributes_as_json(message.carried)
    content["system"] = dict(message.system)
    if now is not None and message.sent:
        content["age"] = max(0.0, now - message.sent)
    return content


def attributes_as_json(attributes: Mapping[str, Attribute]) -> dict[str, dict[str, str]]:
    return {
        name: {"type": attribute.type, "base64": b64encode(attribute.value).decode()}
        if isinstance(attribute.value, bytes)
        else {"type": attribute.type, "value": attribute.value}
        for name, attribute in attributes.items()
    }
