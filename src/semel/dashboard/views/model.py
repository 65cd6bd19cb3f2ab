"""What the pages, the JSON API and the terminal show, as values: no network, no clock, no HTML.

Times are seconds since 1970, durations are seconds, rates are per second; None means "not known", never zero. Messages,
error groups, audit entries, attempt events and findings are those of `dlq`, `telemetry` and `doctor`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from semel.dlq.audit import AuditEntry
from semel.dlq.messages import DeadLetterMessage, ErrorGroup, ShownMessages
from semel.doctor.model import Finding, Recommendation
from semel.errors import SemelError
from semel.telemetry.annotation_log import Annotation
from semel.telemetry.message_trail import TrailEvent

_NONE_SHOWN: Final = ShownMessages(0, ())


class Level(enum.StrEnum):
    """The state of an alarm. UNKNOWN: there is not enough history to judge it."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


RAISED: Final = (Level.WARNING, Level.CRITICAL)
WORST_FIRST: Final = (Level.CRITICAL, Level.WARNING, Level.INFO, Level.UNKNOWN, Level.OK)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who sent the request. The server puts it into `request.state.viewer`."""

    name: str  # as the audit log has it: "operator 127.0.0.1"
    can_act: bool  # False: read only
    can_log_out: bool = False  # whether there is a session to end


# Queues.


@dataclass(frozen=True, slots=True)
class AlarmState:
    """One of the alarms that a queue should have (`semel alarms`), judged now."""

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
    """The history of one queue: columns of the same length, oldest first; `at` is the time of each sample.

    sent … dead_lettered are per second over the period before the sample; visible … oldest_age are values at that time.
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
    """A queue. It may be a dead-letter queue; only those have `first_expires` and `estimated`."""

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
    dead_letters: int | None = None  # messages in its dead-letter queue
    max_receives: int | None = None  # of its own RedrivePolicy
    sources: tuple[str, ...] = ()  # the queues that have it as their dead-letter queue
    workers: int = 0  # known workers that receive from it
    retention: float = 345_600.0
    first_expires: float | None = None  # when the first of its messages is lost to the retention
    estimated: bool = False  # whether the age and the first expiry come from some of its messages only
    error: str | None = None  # why it could not be read

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
    is_ours: bool  # Semel's own broker: messages can be peeked at, faults can be set
    taken_at: float
    notes: tuple[str, ...] = ()  # what could not be read, and why


@dataclass(frozen=True, slots=True)
class QueueAttribute:
    """An attribute of a queue: `value` as SQS has it, `shown` with its unit, `meaning` in a sentence."""

    name: str
    value: str
    shown: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that the broker can inject. `queue` None: all queues; `rate` 0: off."""

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
class LedgerEntry:
    """The ledger's entry of a key."""

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
    steps: tuple[str, ...] = ()  # names of the finished steps
    result: str = ""  # the beginning of it, as text


@dataclass(frozen=True, slots=True)
class InProgress:
    """A message that a worker is processing. `since`, `heartbeat_age`, `visible_for`, `lease_for` are durations."""

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
    """Everything that is known about one message."""

    message: DeadLetterMessage
    stuck: tuple[str, ...]  # why it is where it is, in sentences, the most important first
    is_dead_letter: bool = False
    max_receives: int | None = None
    retries_left: int | None = None  # before SQS moves it to the dead-letter queue; None: no limit
    dead_letter_queue: str | None = None
    next_visible_at: float | None = None  # None: now
    ledger: LedgerEntry | None = None
    ledger_note: str = ""  # why there is no entry
    trail: tuple[TrailEvent, ...] = ()  # oldest first
    trail_note: str = ""  # why it is empty, or not complete
    in_progress: InProgress | None = None
    cost: str = ""


# Dead letters.


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """The messages of one dead-letter queue that match. While `complete` is False, the search goes on."""

    queue: QueueRow
    groups: tuple[ErrorGroup, ...] = ()  # of those that match, largest first
    messages: tuple[DeadLetterMessage, ...] = ()
    matched: int = 0
    scanned: int = 0
    total: int = 0
    complete: bool = True
    where: str = ""
    next: str | None = None  # what to pass as `after` for more
    needs_receive: bool = False  # on SQS: nothing was received, because the request did not ask for it
    cost: str = ""  # what the receives cost, in a sentence; "" for nothing
    error: str | None = None  # what is wrong with the filter, or why the queue could not be read
    shown: ShownMessages = _NONE_SHOWN


# Deliveries.


@dataclass(frozen=True, slots=True)
class Caught:
    """Deliveries that Semel kept from taking effect twice, by the workers' counters."""

    cause: str  # the counter: duplicates_deleted, claimed_elsewhere, fenced or conflicts
    title: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Duplicates of one cause, as the doctor counts them."""

    cause: str  # visibility, crash, lost-delete, producer, redrive, concurrent or unknown
    title: str
    text: str
    duplicates: int  # deliveries
    ran: int  # of those, the ones for which the handler ran again


@dataclass(frozen=True, slots=True)
class DuplicateCauses:
    """The duplicates in the attempt log of the last 24 hours, by cause."""

    rows: tuple[CauseRow, ...] = ()  # the most frequent first
    note: str = ""  # why there are none; empty without an attempt log


@dataclass(frozen=True, slots=True)
class QueueDeliveries:
    queue: str
    deliveries: int
    delivered_again: int
    effects: int
    duplicates_deleted: int
    claimed_elsewhere: int
    fenced: int
    taken_over: int
    conflicts: int
    retried: int
    rejected: int
    skipped: int
    in_flight: int
    lost: int  # heartbeats that came too late


@dataclass(frozen=True, slots=True)
class DeliverySeries:
    """Per second, oldest first."""

    at: tuple[float, ...] = ()
    deliveries: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()
    caught: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DeliveriesPage:
    """Deliveries against effects, since the workers started."""

    deliveries: int
    effects: int
    delivered_again: int
    caught: tuple[Caught, ...]  # largest first
    claimed_elsewhere: int
    duplicates_deleted: int
    fenced: int
    taken_over: int
    queues: tuple[QueueDeliveries, ...]
    series: DeliverySeries
    workers: int  # that answered
    causes: DuplicateCauses = DuplicateCauses()
    annotations: tuple[Annotation, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def duplicates(self) -> int:
        """Deliveries that were not run: of finished work, or claimed by another worker."""
        return self.duplicates_deleted + self.claimed_elsewhere


# Workers.


@dataclass(frozen=True, slots=True)
class WorkerQueue:
    name: str
    paused: bool
    concurrency: int | None
    in_progress: tuple[InProgress, ...] = ()  # longest first
    in_flight: int = 0
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker with a health endpoint. `error`: why it does not answer."""

    id: str
    url: str
    host: str = ""
    pid: int | None = None
    started: float | None = None
    version: str = ""
    app: str = ""
    live: bool = False
    ready: bool = False
    paused: bool = False
    controllable: bool = False
    processes: int = 1
    queues: tuple[WorkerQueue, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WorkersPage:
    workers: tuple[WorkerRow, ...]
    notes: tuple[str, ...] = ()


# Doctor, audit.


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """The last diagnosis; `made_at` None: there is none yet."""

    running: bool
    made_at: float | None = None
    took: float | None = None
    findings: tuple[Finding, ...] = ()  # worst first
    recommendations: tuple[Recommendation, ...] = ()
    notes: tuple[str, ...] = ()
    step: str = ""  # the current step, while it runs
    error: str | None = None  # why it failed, or why the attempt logs were not read
    with_logs: bool = False  # whether the dashboard knows attempt logs
    report: str | None = None  # the address of the whole report, once there is one


@dataclass(frozen=True, slots=True)
class AuditPage:
    rows: tuple[AuditEntry, ...]  # newest first
    where: str = ""
    more: bool = False  # whether there are older ones than these
    path: str = ""


# What cannot be shown or done.


class DashboardError(SemelError):
    """`status` is the HTTP status; `what_to_do` says how to solve the problem."""

    status = 400

    def __init__(self, error: str, what_to_do: str = "", status: int | None = None) -> None:
        super().__init__(f"{error}; {what_to_do}" if what_to_do else error)
        self.error, self.what_to_do, self.status = error, what_to_do, status or self.status


class NotThere(DashboardError):
    status = 404


class ReceiveRequired(DashboardError):
    """On SQS, a message must be received to be shown, and the request did not ask for that."""

    status = 409
