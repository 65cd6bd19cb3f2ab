"""Queues and messages as they are shown."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from semel.telemetry.annotation_log import Annotation


class Level(enum.StrEnum):
    """How an alarm or a finding stands. UNKNOWN: it cannot be told yet, for want of history."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks, and what for. The server puts it into `request.state.viewer`; `csrf` goes into every form."""

    name: str  # as the audit log has it: "operator 127.0.0.1"
    can_act: bool  # False: may look, and nothing else
    csrf: str = ""
    can_log_out: bool = False  # whether there is a session to end


# Queues.


@dataclass(frozen=True, slots=True)
class AlarmState:
    """One of the alarms that a queue should have (`semel alarms`), judged by what is known now."""

    name: str  # dead-letters, age, in-flight, not-deleted
    level: Level
    text: str  # one sentence with the figures
    threshold: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second, over the last minute or so."""

    sent: float | None = None
    received: float | None = None
    deleted: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The past of one queue: columns of the same length, oldest first. `at` is when each sample was taken.

    sent … dead_lettered are per second over the time before the sample; visible … oldest_age are as they were then.
    `source`: broker, sampled (by the dashboard itself) or cloudwatch."""

    at: tuple[float, ...] = ()
    sent: tuple[float | None, ...] = ()
    received: tuple[float | None, ...] = ()
    deleted: tuple[float | None, ...] = ()
    empty_receives: tuple[float | None, ...] = ()
    dead_lettered: tuple[float | None, ...] = ()
    visible: tuple[float | None, ...] = ()
    in_flight: tuple[float | None, ...] = ()
    delayed: tuple[float | None, ...] = ()
    oldest_age: tuple[float | None, ...] = ()
    source: str = "sampled"
    period: float = 10.0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue in the list of all."""

    name: str
    url: str
    fifo: bool
    visible: int
    in_flight: int
    delayed: int
    oldest_age: float | None = None
    rates: Rates = Rates()
    history: Series = Series()  # short, for a sparkline: at most 60 samples
    alarms: tuple[AlarmState, ...] = ()  # worst first
    dead_letter_queue: str | None = None
    dead_letters: int | None = None  # how many are in it
    max_receives: int | None = None
    sources: tuple[str, ...] = ()  # whose dead letters come here; not empty: it is a dead-letter queue
    workers: int = 0  # known workers that take from it
    error: str | None = None  # why it could not be looked at

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed

    @property
    def level(self) -> Level:
        """The worst of its alarms."""
        return self.alarms[0].level if self.alarms else Level.UNKNOWN


@dataclass(frozen=True, slots=True)
class QueuesPage:
    rows: tuple[QueueRow, ...]
    endpoint: str
    region: str
    is_ours: bool  # Semel's own broker: peeking costs nothing, faults can be set
    taken_at: float
    notes: tuple[str, ...] = ()  # what could not be looked at, and why


@dataclass(frozen=True, slots=True)
class QueueAttribute:
    """An attribute of a queue, for people: `value` as SQS has it, `shown` with its unit, `meaning` in a sentence."""

    name: str
    value: str
    shown: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A way in which the broker can be told to misbehave. `queue` None: all queues; `rate` 0: it does not."""

    kind: str
    meaning: str
    rate: float = 0.0
    queue: str | None = None
    milliseconds: int | None = None
    injected: int = 0


@dataclass(frozen=True, slots=True)
class QueuePage:
    row: QueueRow
    series: Series
    attributes: tuple[QueueAttribute, ...]
    annotations: tuple[Annotation, ...] = ()
    faults: tuple[Fault, ...] | None = None  # None: not our broker
    is_ours: bool = False
    since: float = 0.0


# Messages.


@dataclass(frozen=True, slots=True)
class MessageAttribute:
    """`value` is text; of a binary one, base64."""

    name: str
    type: str
    value: str
    binary: bool = False


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list; `preview` is the beginning of its body."""

    id: str
    preview: str
    body_bytes: int
    sent: float
    receives: int
    state: str = ""  # visible, in_flight, delayed; "" where that is not known
    visible_at: float | None = None
    expires: float | None = None
    group: str = ""
    key: str = ""
    error: str = ""
    place: int | None = None  # in the queue; `message(queue, id, place)` finds it at once by that


@dataclass(frozen=True, slots=True)
class MessagesPage:
    """Some messages of a queue. On AWS nothing is looked at unless somebody asks for it: `needs_look`."""

    queue: str
    rows: tuple[MessageRow, ...]
    where: str = ""
    looked_at: int = 0  # messages that were compared with the filter
    next: str | None = None  # what to pass as `after` for more
    needs_look: bool = False
    cost: str = ""  # what looking cost, in a sentence; "" for nothing
    error: str | None = None  # what is wrong with the filter


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message."""

    id: str
    queue: str
    body: str
    body_bytes: int
    sent: float
    receives: int
    attributes: tuple[MessageAttribute, ...] = ()  # its own
    carried: tuple[MessageAttribute, ...] = ()  # Semel's
    system: dict[str, str] = field(default_factory=dict)
    receives_here: int | None = None  # since it is in this queue; a dead letter brings its count with it
    first_received: float | None = None
    state: str = ""
    visible_at: float | None = None
    expires: float | None = None
    group: str = ""
    dedup: str = ""
    sequence: str = ""
    key: str = ""
    source: str = ""  # the queue that it came from, if it is a dead letter
    original_id: str = ""
    reason: str = ""
    error: str = ""
    attempts: int = 0
    redrives: int = 0
    is_dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the ledger knows of a key."""

    key: str
    status: str  # free, claimed, done, rejected
    attempt: int
    fence: int
    first_seen: float
    changed: float
    lease_ends: float | None
    expires: float | None
    claimant: str = ""
    source: str = ""
    steps: tuple[str, ...] = ()  # names of the steps that are finished
    result: str = ""  # its beginning, as text


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """One step in the life of a message, from the attempt log."""

    at: float
    step: str
    worker: str = ""
    attempt: int | None = None
    receive_count: int | None = None
    fence: int | None = None
    seconds: float | None = None
    error: str = ""
    handler: str = ""
    key: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class InProgress:
    """A message that a worker holds. `since`, `heartbeat_age`, `visible_for`, `lease_for` are seconds from now."""

    message_id: str
    queue: str
    worker: str
    key: str = ""
    handler: str = ""
    state: str = ""
    since: float = 0.0
    attempt: int | None = None
    fence: int | None = None
    heartbeat_age: float | None = None
    visible_for: float | None = None
    lease_for: float | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """Everything that is known of one message, and why it is where it is."""

    message: Message
    stuck: tuple[str, ...]  # sentences, the most telling one first: "why is it stuck?"
    max_receives: int | None = None
    retries_left: int | None = None  # before SQS moves it to the dead-letter queue; None: it never does
    dead_letter_queue: str | None = None
    next_visible_at: float | None = None  # None: it can be received now
    ledger: LedgerEntry | None = None
    ledger_note: str = ""  # why there is no entry: no ledger given, not reachable, key not known
    trail: tuple[AttemptEvent, ...] = ()  # oldest first
    trail_note: str = ""  # why it is empty, or not complete
    in_progress: InProgress | None = None
    cost: str = ""
