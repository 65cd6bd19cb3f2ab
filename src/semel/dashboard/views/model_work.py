"""Dead letters, effects, workers, findings and the audit log as they are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from semel.dashboard.views.model_queues import AlarmState, InProgress, Level
from semel.dlq.messages import ShownMessages
from semel.telemetry.annotation_log import Annotation

_NOTHING: Final = ShownMessages(0, ())

# Dead letters.


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    id: str
    preview: str
    body_bytes: int
    sent: float
    receives: int
    why: str  # reason and error in one line
    error: str = ""
    fingerprint: str = ""
    source: str = ""
    key: str = ""
    attempts: int = 0
    group: str = ""
    state: str = ""
    expires: float | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorGroupRow:
    """Dead letters with the same error, but for numbers, ids and the like. `where` is the filter that selects them."""

    fingerprint: str
    shape: str  # the error, volatile parts replaced
    sample: str  # one error as it was
    sample_id: str
    count: int
    first: float
    last: float
    where: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLetterQueueRow:
    name: str
    url: str
    fifo: bool
    visible: int
    in_flight: int
    delayed: int
    sources: tuple[str, ...]
    retention: float
    oldest_age: float | None = None
    first_expires: float | None = None
    estimated: bool = False
    alarms: tuple[AlarmState, ...] = ()
    max_receives: int | None = None  # of its own RedrivePolicy, if it has one

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """The letters of one dead-letter queue that match. While `complete` is False, more are being looked at."""

    queue: DeadLetterQueueRow
    groups: tuple[ErrorGroupRow, ...]  # of those that match, largest first
    messages: tuple[DeadLetterRow, ...]
    matched: int
    looked_at: int
    total: int
    complete: bool
    where: str = ""
    next: str | None = None
    needs_look: bool = False
    cost: str = ""
    error: str | None = None  # what is wrong with the filter, or why the queue could not be read
    shown: ShownMessages = _NOTHING


# Once.


@dataclass(frozen=True, slots=True)
class Caught:
    """What Semel kept from taking effect, by the workers' counters."""

    cause: str  # the counter: duplicates_deleted, claimed_elsewhere, fenced or conflicts
    title: str
    text: str  # one sentence: what happened, and why it did no harm
    count: int


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Duplicates of one cause, as the doctor tells them."""

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
    workers: int  # that these figures are from
    causes: DuplicateCauses = DuplicateCauses()
    annotations: tuple[Annotation, ...] = ()
    notes: tuple[str, ...] = ()  # what to do if there is nothing to see

    @property
    def duplicates(self) -> int:
        """Deliveries that did not run: done before, or claimed by another worker."""
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
    """A worker that answers at a health endpoint. `error`: why it cannot be asked."""

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
class FindingRow:
    rule: str
    level: Level
    queue: str
    observed: str
    why: str
    remedy: str
    commands: tuple[str, ...] = ()
    terraform: str | None = None


@dataclass(frozen=True, slots=True)
class RecommendationRow:
    queue: str
    setting: str
    value: str
    now: str | None
    reasons: tuple[str, ...]
    changes: bool


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """The last examination; `made_at` None: there was none yet."""

    running: bool
    made_at: float | None = None
    took: float | None = None
    findings: tuple[FindingRow, ...] = ()  # worst first
    recommendations: tuple[RecommendationRow, ...] = ()
    notes: tuple[str, ...] = ()
    step: str = ""  # what it is doing, while it runs
    error: str | None = None  # why it failed, or why the attempt logs were not read
    with_logs: bool = False  # whether the dashboard was given attempt logs
    report: str | None = None  # where the whole report can be had, once there is one


@dataclass(frozen=True, slots=True)
class AuditRow:
    at: float
    who: str
    action: str
    queue: str = ""
    where: str = ""
    count: int | None = None
    outcome: str = ""
    job: str = ""
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditPage:
    rows: tuple[AuditRow, ...]  # newest first
    where: str = ""
    more: bool = False  # whether there are older ones than these
    path: str = ""
