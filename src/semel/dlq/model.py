"""What the dead-letter tools speak of, as small values. Times are seconds since 1970, durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from semel.messages import dead_letter_attributes as letters
from semel.sqs.client.messages import Attribute, Received


@dataclass(frozen=True)
class DeadLetter:
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
    def of(cls, received: Received, queue: str, **known: Any) -> DeadLetter:
        """From a message as it was received or peeked at."""
        found = received.attributes
        letter, own = letters.read(found)
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
            source=source or (letter.queue if letter else "") or letters.first_queue(found),
            key=(letter.key if letter else "") or letters.carried_key(found),
            reason=letter.reason if letter else "",
            error=letter.error if letter else "",
            attempts=letter.attempts if letter else 0,
            original_id=(letter.message_id if letter else "") or letters.original_id(found, received.message_id),
            group=received.group or "",
            dedup=received.dedup or "",
            sequence=received.sequence or "",
            trace=received.trace or "",
            receipt=received.receipt,
            redrives=letter.redrives if letter else letters.redrives(found),
            by_semel=letter is not None,
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
class QueueInfo:
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
