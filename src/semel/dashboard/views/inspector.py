"""The house: one object that pages, JSON API and terminal ask; it asks the broker or SQS, the ledger and the workers.

The rules: nothing is fetched that nobody looks at, but for a sample of the workers' counters; what is fetched is kept
for a moment, so that ten tabs cost what one does; no method waits for a long piece of work. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from semel.dashboard.settings import Settings
from semel.dashboard.sources import series as past
from semel.dashboard.sources.broker import BrokerSource
from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.sources.facts import QueueFacts, Source
from semel.dashboard.sources.sqs import SqsSource
from semel.dashboard.views import attributes, queues
from semel.dashboard.views import explanation as stuck
from semel.dashboard.views import peek as looking
from semel.dashboard.views.deliveries import DeliveryCounts
from semel.dashboard.views.doctor import DoctorJob
from semel.dashboard.views.errors import DashboardError, NotThere
from semel.dashboard.views.history import MessageHistory
from semel.dashboard.views.messages import ledger_keys, told_keys, whole
from semel.dashboard.views.model import (
    Annotation,
    AuditPage,
    AuditRow,
    DeadLetterPage,
    DeadLetterQueueRow,
    DeliveriesPage,
    DoctorPage,
    Fault,
    Message,
    MessageDetails,
    MessagesPage,
    QueuePage,
    QueuesPage,
    Series,
    WorkersPage,
)
from semel.dashboard.views.search import Page, Searches
from semel.dashboard.views.workers import WorkerDirectory
from semel.dlq.access import open_access
from semel.dlq.audit import Audit
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue
from semel.dlq.queues import address, dead_letter_queue, dead_letter_queues, is_called_so
from semel.ledger.contract import Ledger
from semel.sqs import Client
from semel.sqs.client.admin import Admin
from semel.sqs.errors import SqsError
from semel.state_folder import state_folder

HOUR: Final = 3600.0
_LISTED: Final = 30.0  # seconds for which the ages in all dead-letter queues are good: they take a look to know
_LISTED_ALONE: Final = 10.0  # the same of one


class QueueInspector:
    """Everything that can be looked at. `client` and `ledger` may be given, and are then the caller's to close."""

    def __init__(
        self,
        settings: Settings,
        *,
        client: Client | None = None,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self._clock = settings, clock
        self.state = settings.state or state_folder()
        self._own_client = client is None
        self.client = client or Client(
            settings.endpoint_url, settings.region, settings.profile, connect_timeout=3, read_timeout=10, max_attempts=2
        )
        self.memory = MessageHistory(settings.ledger, ledger, settings.attempt_logs)
        self.directory = WorkerDirectory(settings.workers, token=settings.control_token, folder=self.state)
        self._once = DeliveryCounts(self.directory, logs=settings.attempt_logs, clock=clock)
        self.doctor_job = DoctorJob(settings, self._names, self._history, clock=clock)
        self._searches = Searches(self._read_letters, now=self.now)
        self._listed: TtlCache[list[DeadLetterQueue]] = TtlCache(_LISTED)
        self._listed_alone: TtlCache[list[DeadLetterQueue]] = TtlCache(_LISTED_ALONE)
        # A page that refreshes itself must not receive again each time.
        self._looks: TtlCache[MessagesPage] = TtlCache(looking.GOOD_FOR, most=16)
        self._single_looks: TtlCache[tuple[DeadLetterMessage, str]] = TtlCache(looking.GOOD_FOR, most=16)
        self._lock = threading.Lock()
        self._source: Source | None = None

    def begin(self) -> None:
        """Keep a past of what the workers count from now on."""
        self._once.begin()

    def close(self) -> None:
        for part in (self._once, self._searches, self.directory, self.memory):
            part.close()
        self.doctor_job.wait(3)  # its files are removed at its end
        if self._source is not None:
            self._source.close()
        if self._own_client:
            self.client.close()

    # Queues.

    @property
    def source(self) -> Source:
        """Where facts come from. Raises SqsError while nothing answers."""
        with self._lock:
            if self._source is None:
                admin = Admin.of(self.client)
                if admin is not None:
                    self._source = BrokerSource(admin, self.client, clock=self._clock)
                else:
                    self._source = SqsSource(self.client, clock=self._clock, metrics=self._cloudwatch())
            return self._source

    @property
    def is_ours(self) -> bool:
        return self.source.is_ours

    def now(self) -> float:
        return self.source.now()

    def queues(self) -> QueuesPage:
        source = self.source
        now, facts = source.now(), source.facts()
        series = source.series((), now - queues.SHORT)
        return QueuesPage(
            rows=queues.rows(facts, series, self.directory.takers(), now),
            endpoint=self.client.endpoint,
            region=self.client.region,
            is_ours=source.is_ours,
            taken_at=now,
            notes=tuple(source.notes()),
        )

    def queue(self, name: str, since: float | None = None) -> QueuePage:
        """`since` in seconds since 1970; the last hour if it is not given."""
        source = self.source
        now = source.now()
        facts = self._facts(name)
        start = now - HOUR if since is None else since
        series = source.series((name,), min(start, now - queues.SHORT)).get(name, Series())
        every = source.facts()
        depths = {one.name: one.visible + one.in_flight + one.delayed for one in every}
        return QueuePage(
            row=queues.row(
                facts,
                series,
                queues.sources_by_queue(every).get(name, ()),
                depths.get(facts.dead_letter_queue or ""),
                self.directory.takers().get(name, 0),
                now,
            ),
            series=past.thinned(past.later(series, start), queues.CHART),
            attributes=attributes.explained(facts.attributes),
            annotations=self.annotations(start),
            faults=source.faults(name) if isinstance(source, BrokerSource) else None,
            is_ours=source.is_ours,
            since=start,
        )

    def alarms(self, name: str, form: str, sns: str | None = None) -> str:
        """The alarms that a queue needs, written down for one tool or another: see `semel alarms`."""
        from semel.dashboard.views.alarms import alarms_of
        from semel.doctor.alarms.formats import FORMATS, render

        if form not in FORMATS:
            raise DashboardError(f"there is no format {form!r}", f"choose from {', '.join(FORMATS)}")
        facts = self._facts(name)
        sources = queues.sources_by_queue(self.source.facts()).get(name, ())
        return render(alarms_of(facts, sources), form, sns=sns)

    # Messages.

    def messages(
        self, queue: str, where: str = "", *, limit: int = 50, after: str | None = None, look: bool = False
    ) -> MessagesPage:
        """Messages in their order. Where that costs receives, nothing is shown unless `look` says so."""
        source, limit = self.source, max(1, min(limit, looking.MOST_ROWS))
        self._facts(queue)
        if isinstance(source, BrokerSource):
            return looking.broker_messages(source, queue, where, limit=limit, after=after)
        if not look:
            return MessagesPage(queue, (), where, needs_look=True, error=looking.read_filter(where)[1])
        return self._looks.get(
            (queue, where, limit),
            lambda: looking.received_messages(self.client, queue, where, limit=limit, accept_risk=True),
        )

    def message(self, queue: str, id: str, *, place: int | None = None, look: bool = False) -> MessageDetails:
        """Everything about one message. `place` helps to find it; `look` as with `messages`."""
        source = self.source
        facts = self._facts(queue)
        shown: Mapping[str, Any] = {}
        cost = ""
        if isinstance(source, BrokerSource):
            dead_letter, shown = looking.broker_message(source.admin, queue, id, place)
        else:
            dead_letter, cost = self._received(queue, id, look)
        here = shown.get("ReceivesInThisQueue")
        is_dead = bool(queues.sources_by_queue(source.facts()).get(queue)) or is_called_so(queue)
        message = whole(
            dead_letter,
            looking.travelling(shown),
            receives_here=None if here is None else int(here),
            is_dead_letter=is_dead,
        )
        held = self.directory.holding(id)
        trail, trail_note = self.memory.trail(message)
        entry, ledger_note = self.memory.entry(self._ledger_keys(message, told_keys(held, trail)))
        now = source.now()
        return MessageDetails(
            message=message,
            stuck=stuck.reasons(
                message,
                facts,
                now=now,
                ledger=entry,
                in_progress=held,
                trail=trail,
                workers=self.directory.takers().get(queue, 0),
                blocked_by=self._blocked_by(dead_letter),
            ),
            max_receives=facts.max_receives,
            retries_left=stuck.retries_left(message, facts),
            dead_letter_queue=facts.dead_letter_queue,
            next_visible_at=dead_letter.visible_at if dead_letter.state in ("in_flight", "delayed") else None,
            ledger=entry,
            ledger_note=ledger_note,
            trail=trail,
            trail_note=trail_note,
            in_progress=held,
            cost=cost,
        )

    def _ledger_keys(self, message: Message, others: Sequence[str]) -> tuple[str, ...]:
        """None if the queue that it came from is gone, or not ours to ask: then nothing can be looked up."""
        try:
            return ledger_keys(message, self.client.queue(message.source or message.queue).scope, others)
        except SqsError:
            return ()

    # Dead letters.

    def sources(self, queue: str) -> tuple[str, ...]:
        """The queues that have this one as their dead-letter queue."""
        return queues.sources_by_queue(self.source.facts()).get(queue, ())

    def address(self, queue: str) -> str:
        """Where a queue is, in words: endpoint or AWS region, and account."""
        return address(self._facts(queue).url, self.client.region, self.client.endpoint)

    def dead_letter_queues(self) -> tuple[DeadLetterQueueRow, ...]:
        source = self.source
        now = source.now()
        facts = {one.name: one for one in source.facts()}
        series = source.series((), now - queues.SHORT)
        return tuple(
            queues.dead_letter_row(info, facts.get(info.name), series.get(info.name, Series()), now)
            for info in self._infos()
            if info.name in facts
        )

    def dead_letters(
        self, queue: str, where: str = "", *, limit: int = 100, after: str | None = None, look: bool = False
    ) -> DeadLetterPage:
        """The letters that match, and their groups; `after` is a number of letters to leave out."""
        source = self.source
        facts = self._facts(queue)
        row = self._letter_queue(facts)
        wanted, error = looking.read_filter(where)
        if error is not None:
            return DeadLetterPage(row, (), (), 0, 0, row.depth, complete=True, where=where, error=error)
        if source.is_ours or look:
            rest = None if source.is_ours else looking.GOOD_FOR
            found = self._searches.look(queue, wanted, total=row.depth, rest=rest)
        else:
            known = self._searches.peeked(queue, wanted)
            if known is None:
                return DeadLetterPage(row, (), (), 0, 0, row.depth, complete=False, where=where, needs_look=True)
            found = known
        if not source.is_ours:
            row = queues.estimated(row, found.rows, source.now())
        return looking.dead_letter_page(row, found, where, limit, after)

    def changed(self, queue: str | None = None) -> None:
        """Somebody acted: what was kept is no longer true."""
        self.source.forget()
        for kept in (self._listed, self._listed_alone, self._looks, self._single_looks):
            kept.forget()
        if queue is not None:
            self._searches.forget(queue)

    # Once, workers, doctor.

    def once(self) -> DeliveriesPage:
        return self._once.page(self.annotations(self._clock() - 6 * HOUR))

    def workers(self) -> WorkersPage:
        return self.directory.page()

    def control(self, worker: str, action: str, queue: str | None = None, value: int | None = None) -> str:
        return self.directory.control(worker, action, queue, value)

    def doctor(self) -> DoctorPage:
        return self.doctor_job.page()

    def examine(self) -> bool:
        """Start an examination; False if one is running."""
        return self.doctor_job.start()

    # Faults.

    def faults(self, queue: str | None = None) -> tuple[Fault, ...]:
        return self._broker().faults(queue)

    def set_fault(self, kind: str, rate: float, queue: str | None, milliseconds: float | None) -> tuple[Fault, ...]:
        self._broker().admin.set_fault(kind, rate, queue=queue, milliseconds=milliseconds)
        return self.faults(queue)

    def clear_faults(self, kind: str | None, queue: str | None = None) -> tuple[Fault, ...]:
        """Those of one queue if it is named, else all."""
        source = self._broker()
        if queue is None:
            source.admin.clear_faults(kind)
        else:
            for fault in source.faults(queue):
                if fault.queue == queue and kind in (None, fault.kind):
                    source.admin.set_fault(fault.kind, 0, queue=queue)
        return self.faults(queue)

    # What was done.

    def audit(self, where: str = "", limit: int = 200) -> AuditPage:
        log = Audit.at(self.state)
        found = list(log.entries(where, limit + 1))
        rows = tuple(
            AuditRow(
                at=entry.at,
                who=entry.who,
                action=entry.action,
                queue=entry.queue,
                where=entry.where,
                count=entry.count,
                outcome=entry.outcome,
                job=entry.job,
                details=dict(entry.details) | ({"job": entry.job} if entry.job else {}),
            )
            for entry in found[:limit]
        )
        return AuditPage(rows, where, more=len(found) > limit, path=str(log.path))

    def annotations(self, since: float = 0.0) -> tuple[Annotation, ...]:
        return self.memory.annotations(self.state, since)

    # Inside.

    def _broker(self) -> BrokerSource:
        source = self.source
        if not isinstance(source, BrokerSource):
            raise DashboardError(
                f"{self.client.endpoint} is not Semel's broker, so it has no faults to set",
                "try them on a local one: semel serve",
                409,
            )
        return source

    def _facts(self, name: str) -> QueueFacts:
        found = next((facts for facts in self.source.facts() if facts.name == name), None)
        if found is None:
            self.source.forget()
            found = next((facts for facts in self.source.facts() if facts.name == name), None)
        if found is None:
            raise NotThere(f"there is no queue {name} at {self.client.endpoint}", "see the list of queues for its name")
        return found

    def _names(self) -> Sequence[str]:
        return [facts.name for facts in self.source.facts()]

    def _history(self) -> Mapping[str, Any] | None:
        source = self.source
        return source.admin.history() if isinstance(source, BrokerSource) else None

    def _infos(self) -> Sequence[DeadLetterQueue]:
        """All dead-letter queues. Our broker tells their ages, for a look at each; others do not."""
        if self.is_ours:
            return self._listed.get("", lambda: dead_letter_queues(self.client, clock=self.now))
        return queues.letter_infos(self.source.facts())

    def _letter_queue(self, facts: QueueFacts) -> DeadLetterQueueRow:
        if self.is_ours:
            (info,) = self._listed_alone.get(
                facts.name, lambda: [dead_letter_queue(self.client, facts.name, clock=self.now)]
            )
        else:
            info = queues.letter_info(facts, queues.sources_by_queue(self.source.facts()).get(facts.name, ()))
        return queues.dead_letter_row(info, facts, Series(), self.now())

    def _read_letters(self, queue: str, where: Filter, after: int) -> Iterator[Page]:
        source = self.source
        if isinstance(source, BrokerSource):
            return looking.messages(source.admin, queue, where, after)
        return looking.dead_letters_by_receiving(self.client, queue)

    def _received(self, queue: str, id: str, look: bool) -> tuple[DeadLetterMessage, str]:
        if not look:
            raise DashboardError(
                f"{self.client.endpoint} shows a message only to those who receive it, which counts against it",
                "ask for it with look=1",
                409,
            )

        def receive() -> tuple[DeadLetterMessage, str]:
            found = open_access(self.client, queue, max_receive=looking.BY_RECEIVING, accept_risk=True).get(id)
            if found.message is None:
                raise looking.gone(queue, id)
            return found.message, str(found.cost)

        return self._single_looks.get((queue, id), receive)

    def _blocked_by(self, dead_letter: DeadLetterMessage) -> str | None:
        """An earlier message of the same FIFO group that is in flight."""
        source = self.source
        if not (
            dead_letter.sequence
            and dead_letter.group
            and dead_letter.state == "visible"
            and isinstance(source, BrokerSource)
        ):
            return None
        page = source.admin.peek(dead_letter.queue, limit=1, bodies=False, group=dead_letter.group, state="in_flight")
        return next((str(message["MessageId"]) for message in page.messages), None)

    def _cloudwatch(self) -> Any:
        if not self.settings.cloudwatch:
            return None
        from semel.dashboard.sources.cloudwatch import CloudWatch

        return CloudWatch(self.client.region, self.settings.profile, clock=self._clock)
