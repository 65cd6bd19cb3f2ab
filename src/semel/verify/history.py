"""One event of a history: what happened to one message of any system."""

from __future__ import annotations

import enum

import msgspec


class EventKind(enum.StrEnum):
    """What happened.

    >>> from semel.verify import EventKind
    >>> EventKind("dead_letter")
    <EventKind.DEAD_LETTER: 'dead_letter'>
    """

    SEND = "send"  # a queue accepted the message
    DELIVER = "deliver"  # a worker received it
    CLAIM = "claim"  # a worker got the right to work on its key; `fence` orders the claims
    EFFECT = "effect"  # what the message asks for was done: the charge, the row
    RECORD = "record"  # its outcome was recorded durably, or was found recorded
    DELETE = "delete"  # it was deleted from its queue
    DEAD_LETTER = "dead_letter"  # it was moved to a dead-letter queue; `queue` is the one that it left
    REFUSE = "refuse"  # it was refused, and somebody was notified
    PRESENT = "present"  # it is in a queue at the end of the history


class HistoryEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One event. It names a message, a key, or both; all else may be unknown ("" or None).

    The effect must happen once for each key. An event without a key belongs to the key that another event names
    together with its message; if none does, the message is its own key. The same key in two queues counts as two keys.
    An event without a queue belongs to the queue that the other events of its key name.

    >>> from semel.verify import EventKind, HistoryEvent
    >>> event = HistoryEvent(EventKind.EFFECT, key="order-7", worker="a", fence=3)
    >>> event.name, event.fence
    ('order-7', 3)
    """

    kind: EventKind
    message: str = ""
    key: str = ""
    time: float | None = None  # seconds
    queue: str = ""
    group: str = ""  # the FIFO group, within which effects happen in the order of the sends
    sequence: int | None = None  # its place in the order of the sends, if known
    worker: str = ""
    fence: int | None = None
    detail: str = ""
    file: str = ""  # where the event was read
    line: int = 0

    @property
    def name(self) -> str:
        """The name that findings use: the key, or else the message."""
        return self.key or self.message
