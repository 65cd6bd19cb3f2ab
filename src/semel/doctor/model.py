"""What the doctor sees and what it says, as values: no Spark, no network, no clock.

`Behaviour` is what the logs show of one queue, `QueueState` what SQS says of it now, `Series` what its metrics were.
A `Case` holds all that is known of one queue; rules turn it into findings; a `Diagnosis` is the whole result.
Times are seconds since 1970 (UTC), durations are seconds, shares lie between 0 and 1; None is "not known".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


class Severity(enum.IntEnum):
    """How bad it is. CRITICAL: messages are lost or take effect twice, or will be; WARNING: it costs, or will."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Cause(enum.StrEnum):
    """Why a message, or its key, was delivered again although nobody had returned it to the queue."""

    VISIBILITY = "visibility"  # its visibility timeout ran out while it was worked on
    CRASH = "crash"  # its worker stopped without logging an outcome
    LOST_DELETE = "lost-delete"  # its outcome was recorded, and SQS delivered it again
    PRODUCER = "producer"  # the same key came as another message
    REDRIVE = "redrive"  # the same, after the earlier message had failed
    CONCURRENT = "concurrent"  # SQS handed it out twice while it was hidden
    UNKNOWN = "unknown"  # SQS counts an earlier delivery that these logs do not hold


# Each cause as it is called in a table, and in a sentence.
CAUSES: Final = {
    Cause.VISIBILITY: ("visibility timeout expired", "it was still being processed when its visibility timeout ended"),
    Cause.CRASH: ("worker stopped", "its worker stopped without recording an outcome"),
    Cause.LOST_DELETE: ("delete was lost", "its outcome was recorded, and SQS delivered it again"),
    Cause.PRODUCER: ("sent twice", "the producer sent the same key in another message"),
    Cause.REDRIVE: ("redriven", "the same key came in another message after the first had failed"),
    Cause.CONCURRENT: ("delivered twice by SQS", "SQS delivered it again while it was hidden"),
    Cause.UNKNOWN: ("not in these logs", "SQS counts an earlier delivery that these logs do not hold"),
}


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution of durations."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    most: float


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """One bar of a histogram: durations from `low` (included) to `high`."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """One event of a message that shows a cause."""

    at: float
    step: str
    message_id: str
    key: str | None = None
    receive_count: int | None = None
    worker: str | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """One duplicate delivery, with all events of its message around it, oldest first."""

    cause: Cause
    message_id: str
    at: float
    receive_count: int | None
    overrun: float | None  # how long the earlier delivery went on after its visibility timeout had ended
    events: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class CauseSummary:
    """All duplicates of one cause."""

    cause: Cause
    duplicates: int  # deliveries
    ran: int  # of those, the ones for which the handler ran again
    wasted: float  # seconds in the handler for these
    overrun: Times | None = None  # with VISIBILITY: how far past the timeout the work went
    examples: tuple[Duplicate, ...] = ()


@dataclass(frozen=True, slots=True)
class HandlerTimes:
    """Durations of one handler: `work` inside it, `wait` from the receive to its start."""

    handler: str
    work: Times
    wait: Times | None


@dataclass(frozen=True, slots=True)
class LoopingMessage:
    """A message that comes back again and again."""

    message_id: str
    key: str | None
    deliveries: int
    receive_count: int
    first_at: float
    last_at: float
    error: str | None


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Errors that differ only in numbers, ids and the like."""

    fingerprint: str
    sample: str
    count: int
    messages: int
    first_at: float
    last_at: float
    message_ids: tuple[str, ...]  # a few


@dataclass(frozen=True, slots=True)
class Window:
    """What happened from `start` on, for `Behaviour.window` seconds."""

    start: float
    sent: int
    received: int
    deleted: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class TimeoutReplay:
    """What another visibility timeout would have changed for the same work."""

    visibility: float
    duplicates: int  # of all causes, had it been in force

    def share(self, messages: int) -> float:
        return self.duplicates / messages if messages else 0.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the logs show of one queue."""

    queue: str
    first_at: float
    last_at: float
    events: int
    deliveries: int
    attempts: int  # runs of a handler
    messages: int  # distinct message ids
    effects: int  # recorded outcomes
    doubled: int  # keys (or messages, where no key is known) with more than one effect
    retries: int  # deliveries after the worker itself had returned the message
    causes: tuple[CauseSummary, ...] = ()  # worst first
    work: Times | None = None  # in the handler
    wait: Times | None = None  # from the receive to the start of the handler
    hold: Times | None = None  # from the receive to the delete, or else to the outcome
    handlers: tuple[HandlerTimes, ...] = ()
    histogram: tuple[HistogramBar, ...] = ()  # of `hold`
    visibility: float | None = None  # the timeout that was in force most recently
    heartbeats: int = 0
    heartbeat_every: float | None = None  # the mean time between two heartbeats of one delivery
    batch_fill: float | None = None  # messages per receive
    workers: int = 0
    groups: int = 0  # distinct message groups; 0 on a Standard queue
    looping: tuple[LoopingMessage, ...] = ()  # the worst
    loops: int = 0  # how many messages loop in all: received three times or more
    failures: int = 0  # attempts that ended in an error
    errors: tuple[ErrorGroup, ...] = ()  # the largest
    window: float = 60.0
    windows: tuple[Window, ...] = ()
    replays: tuple[TimeoutReplay, ...] = ()  # ascending by timeout
    skew: Mapping[str, float] = field(default_factory=dict)  # worker -> seconds its clock is behind SQS'

    @property
    def duplicates(self) -> int:
        return sum(caused.duplicates for caused in self.causes)

    @property
    def duplicate_share(self) -> float:
        """Duplicates for each message."""
        return self.duplicates / self.messages if self.messages else 0.0

    @property
    def wasted(self) -> float:
        return sum(caused.wasted for caused in self.causes)

    @property
    def has_heartbeat(self) -> bool:
        return self.heartbeats > 0

    def caused_by(self, cause: Cause) -> CauseSummary | None:
        return next((caused for caused in self.causes if caused.cause is cause), None)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead-letter queue of a queue, as far as it may be read."""

    arn: str
    exists: bool | None = None  # None: not looked at, or not allowed to
    url: str | None = None
    retention: float | None = None
    fifo: bool = False
    visible: int | None = None
    sources: tuple[str, ...] | None = None  # the queues whose dead-letter messages come here
    allow: str | None = None  # RedriveAllowPolicy's redrivePermission; None is SQS' default, allowAll


@dataclass(frozen=True, slots=True)
class QueueState:
    """What SQS says of a queue now."""

    queue: str
    url: str
    arn: str = ""
    fifo: bool = False
    visibility: float = 30.0
    retention: float = 345_600.0
    delay: float = 0.0
    wait: float = 0.0  # ReceiveMessageWaitTimeSeconds
    content_dedup: bool = False
    high_throughput: bool = False  # DeduplicationScope and FifoThroughputLimit per message group
    max_receives: int | None = None  # of the redrive policy
    dead_letters: DeadLetters | None = None
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    kms_key: str | None = None
    sse_sqs: bool = False
    sources: tuple[str, ...] = ()  # queues whose dead-letter messages come here: it is a dead-letter queue itself
    refused: Mapping[str, str] = field(default_factory=dict)  # permission -> SQS' answer; filled by --probe
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """The metrics of one queue over one period, under CloudWatch's meanings. None: not measured."""

    at: float  # the start of the period
    sent: float | None = None
    received: float | None = None
    deleted: float | None = None
    empty_receives: float | None = None
    visible: float | None = None
    in_flight: float | None = None
    delayed: float | None = None
    oldest: float | None = None  # ApproximateAgeOfOldestMessage


@dataclass(frozen=True, slots=True)
class Series:
    """The metrics of one queue, ascending in time."""

    queue: str
    period: float
    points: tuple[Point, ...]
    source: str  # where it came from, for people


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What is known of the ledger that the consumers of a queue use."""

    where: str
    retention: float | None = None  # seconds for which it keeps keys
    eviction: str | None = None  # Redis' maxmemory-policy
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known of one queue."""

    queue: str
    behaviour: Behaviour | None = None
    state: QueueState | None = None
    series: Series | None = None
    ledger: LedgerState | None = None
    alarmed: frozenset[str] | None = None  # metrics of this queue that have an alarm; None: not known
    dlq_alarmed: bool | None = None
    read_timeout: float = 60.0  # of the consumers' SDK
    lambda_timeout: float | None = None  # of the Lambda function that processes the queue
    now: float = 0.0

    @property
    def is_fifo(self) -> bool:
        return self.queue.endswith(".fifo") or (self.state is not None and self.state.fifo)

    @property
    def visibility(self) -> float | None:
        """The timeout in force: that of the consumers if the log shows it, else that of the queue."""
        if self.behaviour is not None and self.behaviour.visibility is not None:
            return self.behaviour.visibility
        return self.state.visibility if self.state is not None else None


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do: in words, as commands for a shell, as Terraform."""

    text: str
    cli: tuple[str, ...] = ()
    terraform: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one queue."""

    rule: str
    severity: Severity
    queue: str
    observed: str  # one sentence with the figures
    why: str  # one sentence: why it matters
    remedy: Remedy
    examples: tuple[Duplicate, ...] = ()
    figures: Mapping[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One setting as it should be. `now` is None where it is not known; each reason is one sentence."""

    queue: str
    setting: str  # "visibility timeout", "heartbeat interval", …
    value: str  # for people: "62 s"
    now: str | None
    reasons: tuple[str, ...]  # the deciding one comes first
    changes: bool  # whether it differs from the present value
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """How far the logs can be trusted. None of this is fatal."""

    files: int = 0
    unreadable: tuple[str, ...] = ()  # files that are damaged or half written: path and reason
    lines: int = 0
    events: int = 0
    malformed: int = 0  # lines that are not JSON, or not an object
    incomplete: int = 0  # no message id or no time
    out_of_order: int = 0  # deliveries whose end is before their beginning
    dropped: int = 0  # events that a worker says it could not write
    samples: tuple[str, ...] = ()  # the first malformed lines, shortened, each with its file and line
    unknown_events: int = 0  # mapped logs: lines whose word for what happened is not known
    unknown_words: tuple[str, ...] = ()  # a few of these words
    out_of_range: int = 0  # events before --since or after --until


@dataclass(frozen=True, slots=True)
class Diagnosis:
    made_at: float
    cases: tuple[Case, ...]
    findings: tuple[Finding, ...]  # worst first
    recommendations: tuple[Recommendation, ...]
    quality: Quality | None = None
    since: float | None = None  # the time window that was asked for
    until: float | None = None
    notes: tuple[str, ...] = ()  # what could not be looked at, and why
    log_fields: tuple[str, ...] = ()  # how the fields of the log were interpreted, and which are missing
    engine: str = ""  # which engine read the logs, and why

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), default=None)
