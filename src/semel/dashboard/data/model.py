"""What the pages, the JSON API and the terminal show, as values: no network, no clock, no HTML.

The rules: times are seconds since 1970, durations are seconds, rates are per second; None is "not known", never zero.
Everything is frozen and made of what JSON knows, so that `dataclasses.asdict` is the API's answer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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
class Mark:
    """Something that happened at a time, such as a deploy: a line on every chart."""

    at: float
    text: str
    who: str = ""


@dataclass(frozen=True, slots=True)
class QueuePage:
    row: QueueRow
    series: Series
    attributes: tuple[QueueAttribute, ...]
    marks: tuple[Mark, ...] = ()
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
class InHand:
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
class MessagePage:
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
    in_hand: InHand | None = None
    cost: str = ""


# Dead letters.


@dataclass(frozen=True, slots=True)
class LetterRow:
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
class LetterGroup:
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

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class LettersPage:
    """The letters of one dead-letter queue that match. While `complete` is False, more are being looked at."""

    queue: DeadLetterQueueRow
    groups: tuple[LetterGroup, ...]  # of those that match, largest first
    letters: tuple[LetterRow, ...]
    matched: int
    looked_at: int
    total: int
    complete: bool
    where: str = ""
    next: str | None = None
    needs_look: bool = False
    cost: str = ""
    error: str | None = None  # what is wrong with the filter, or why the queue could not be read


# Once.


@dataclass(frozen=True, slots=True)
class Caught:
    """Duplicates of one cause that had no effect, or work that was saved."""

    cause: str  # healed, bounced, fenced, taken_over, …: or a cause of the doctor
    title: str
    text: str  # one sentence: what happened, and why it did no harm
    count: int


@dataclass(frozen=True, slots=True)
class OnceQueue:
    queue: str
    deliveries: int
    delivered_again: int
    effects: int
    healed: int
    bounced: int
    fenced: int
    taken_over: int
    conflicts: int
    retried: int
    rejected: int
    skipped: int
    in_flight: int
    lost: int  # heartbeats that came too late


@dataclass(frozen=True, slots=True)
class OnceSeries:
    """Per second, oldest first."""

    at: tuple[float, ...] = ()
    deliveries: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()
    caught: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class OncePage:
    """Deliveries against effects, since the workers started."""

    deliveries: int
    effects: int
    delivered_again: int
    caught: tuple[Caught, ...]  # largest first
    bounced: int
    healed: int
    fenced: int
    taken_over: int
    queues: tuple[OnceQueue, ...]
    series: OnceSeries
    workers: int  # that these figures are from
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()  # what to do if there is nothing to see

    @property
    def duplicates(self) -> int:
        """Deliveries that came for nothing: done before, or in other hands."""
        return self.healed + self.bounced


# Workers.


@dataclass(frozen=True, slots=True)
class WorkerQueue:
    name: str
    paused: bool
    concurrency: int | None
    in_hand: tuple[InHand, ...] = ()  # longest first
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
    seen: str
    why: str
    cure: str
    commands: tuple[str, ...] = ()
    terraform: str | None = None


@dataclass(frozen=True, slots=True)
class AdviceRow:
    queue: str
    setting: str
    value: str
    now: str | None
    reason: str
    changes: bool


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """The last examination; `made_at` None: there was none yet."""

    running: bool
    made_at: float | None = None
    took: float | None = None
    findings: tuple[FindingRow, ...] = ()  # worst first
    advice: tuple[AdviceRow, ...] = ()
    notes: tuple[str, ...] = ()
    step: str = ""  # what it is doing, while it runs
    error: str | None = None
    with_logs: bool = False
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
