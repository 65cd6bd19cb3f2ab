"""What the dead-letter tools speak of: a message in a dead-letter queue, the queue, an error group, and what the
service answers. Times are seconds since 1970, durations are seconds. `dataclasses.asdict` turns all of them into JSON,
messages apart (`as_json`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from semel.dlq import fingerprints
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs.client.messages import Attribute, Received


@dataclass(frozen=True)
class DeadLetterMessage:
    """One message in a dead-letter queue, and what it says about why it is there.

    `key`, `reason`, `error`, `attempts` and `message_id` before it became a letter are known only if Semel buried it;
    a message that SQS itself moved has a `source` and nothing else. `receipt` is "" where it was only looked at.
    """

    id: str
    queue: str  # the dead-letter queue that it is in
    body: str
    sent: float
    receives: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)  # its own, without Semel's
    system: Mapping[str, str] = field(default_factory=dict)  # as SQS gives them
    first_received: float | None = None
    source: str = ""  # the queue that it came from, by name: as SQS says, or else as the message says
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
    body_bytes: int = 0  # of the whole body, where `body` was cut
    cut: bool = False  # whether `body` is only its beginning
    state: str = ""  # visible, in_flight or delayed, where that is known
    expires: float | None = None
    visible_at: float | None = None
    redrives: int = 0  # how often it was sent back before
    by_semel: bool = False  # whether Semel buried it

    @classmethod
    def of(cls, received: Received, queue: str, **known: Any) -> DeadLetterMessage:
        """From a message as it was received or peeked at."""
        found = received.attributes
        message, own = own_attributes.read(found)
        source = (received.source_queue or "").rpartition(":")[2]
        return cls(
            id=received.message_id,
            queue=queue,
            body=received.body,
            sent=received.sent_at or 0.0,
            receives=received.receive_count,
            attributes=own,
            system=received.system,
            first_received=received.first_received_at,
            # A message may say what it likes; what SQS says of it comes first.
            source=source or (message.queue if message else "") or own_attributes.first_queue(found),
            key=(message.key if message else "") or own_attributes.carried_key(found),
            reason=message.reason if message else "",
            error=message.error if message else "",
            attempts=message.attempts if message else 0,
            original_id=(message.message_id if message else "")
            or own_attributes.original_id(found, received.message_id),
            group=received.group or "",
            dedup=received.dedup or "",
            sequence=received.sequence or "",
            trace=received.trace or "",
            receipt=received.receipt,
            redrives=message.redrives if message else own_attributes.redrives(found),
            by_semel=message is not None,
            **{"body_bytes": len(received.body.encode("utf-8", "surrogatepass")), **known},
        )

    @property
    def moved_from(self) -> str:
        """The ARN of the queue that SQS itself moved it from; "" if it was sent here."""
        return self.system.get("DeadLetterQueueSourceArn", "")

    @cached_property
    def why(self) -> str:
        """Reason and error in one line; what SQS moved itself says only that."""
        return in_one_line(self.reason, self.error)


def in_one_line(reason: str, error: str) -> str:
    if reason or error:
        return f"{reason}: {error}" if reason and error and reason != error else reason or error
    return "moved by SQS: received too often"


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A dead-letter queue. `first_expires`: when the first of its messages will be lost to its retention."""

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

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class ReceiveCost:
    """What looking cost: nothing where the broker lets us peek, else receives, which count against every message."""

    receives: int = 0  # calls of ReceiveMessage
    messages: int = 0  # whose receive count went up by one
    kept_back: int = 0  # that could not be given back at once, and come back by themselves

    def __str__(self) -> str:
        if not self.receives:
            return ""
        text = f"{_many(self.receives, 'receive')}; the receive count of {_many(self.messages, 'message')} went up by 1"
        late = f"; {_many(self.kept_back, 'message')} will be visible again within seconds"
        return text + late if self.kept_back else text


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Letters that match. `next`: what to pass as `after` for more; None where there are none, or nobody can say."""

    messages: tuple[DeadLetterMessage, ...]
    next: str | None = None
    looked_at: int = 0
    complete: bool = True  # whether all of the queue was looked at
    cost: ReceiveCost = ReceiveCost()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Letters with the same error but for numbers, ids and quoted text. `where` is the filter that selects them."""

    fingerprint: str
    shape: str
    sample: str  # the newest error, as it was
    sample_id: str
    count: int
    first: float
    last: float
    where: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    groups: tuple[ErrorGroup, ...]  # the largest first
    matched: int
    looked_at: int
    complete: bool = True
    cost: ReceiveCost = ReceiveCost()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownMessages:
    """Exactly what was shown to somebody who is asked: an action on it touches none but these, and no more than these.

    By their `ids`. Where there are none, because they are too many, by `place` and `at`: up to this place in the queue,
    and those that matched at that time."""

    count: int
    ids: tuple[str, ...] | None = None
    place: int | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Impact:
    """What a drop or a redrive of these would touch. Not `complete`: there are more that nobody has looked at.

    `shown` is for the drop that follows, if somebody says yes to this."""

    count: int
    looked_at: int
    complete: bool = True
    oldest: float | None = None  # when it was sent
    newest: float | None = None
    groups: tuple[ErrorGroup, ...] = ()
    cost: ReceiveCost = ReceiveCost()
    notes: tuple[str, ...] = ()
    shown: ShownMessages = ShownMessages(0, ())


@dataclass(frozen=True, slots=True)
class Exported:
    count: int
    looked_at: int
    path: str = ""
    complete: bool = True
    cost: ReceiveCost = ReceiveCost()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resent:
    """A copy that was sent. Not `deleted`: the original could not be removed; its key keeps it from running twice."""

    message_id: str
    queue: str
    key: str
    deleted: bool
    notes: tuple[str, ...] = ()


def as_json(message: DeadLetterMessage, *, now: float | None = None) -> dict[str, Any]:
    """A letter as JSON knows it: for `--json` and the API. Binary attributes are base64."""
    found: dict[str, Any] = {
        name: getattr(message, name)
        for name in (
            *(
                "id",
                "queue",
                "body",
                "body_bytes",
                "cut",
                "sent",
                "receives",
                "first_received",
                "expires",
                "visible_at",
            ),
            *("source", "key", "reason", "error", "why", "attempts", "redrives", "original_id", "group", "dedup"),
            *("sequence", "trace", "state", "by_semel"),
        )
    }
    found["fingerprint"] = fingerprints.of(message)
    found["attributes"] = {
        name: {"type": one.type, "base64": b64encode(one.value).decode()}
        if isinstance(one.value, bytes)
        else {"type": one.type, "value": one.value}
        for name, one in message.attributes.items()
    }
    found["system"] = dict(message.system)
    if now is not None and message.sent:
        found["age"] = max(0.0, now - message.sent)
    return found


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
