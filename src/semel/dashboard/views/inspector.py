"""Everything that can be shown, for pages, JSON API and terminal: from the broker or SQS, the ledger and the workers.

Without requests, nothing is read except samples: of the workers' counters, and on SQS of the queues' attributes.
Results are cached for a moment, so that ten tabs cost as much as one. No method waits for long work. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from semel.dashboard.settings import Settings
from semel.dashboard.sources.broker import BrokerSource
from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.sources.facts import QueueFacts, Source, later, thinned
from semel.dashboard.sources.sqs import SqsSource
from semel.dashboard.views import alarms, attributes, explanation, queues
from semel.dashboard.views.deliveries import DeliveryCounts
from semel.dashboard.views.doctor import DoctorJob
from semel.dashboard.views.messages import (
    API_SECONDS,
    MAX_PAGE,
    MAX_RECEIVE,
    PAGE,
    PAGE_SECONDS,
    MessageHistory,
    gone,
    ledger_keys,
    place_of,
    read_page,
    worker_keys,
)
from semel.dashboard.views.model import (
    AuditPage,
    DashboardError,
    DeadLetterPage,
    DeliveriesPage,
    DoctorPage,
    MessageDetails,
    NotThere,
    QueuePage,
    QueueRow,
    QueuesPage,
    ReceiveRequired,
    Series,
    WorkersPage,
)
from semel.dashboard.views.search import Searches, SearchResult
from semel.dashboard.views.workers import WorkerDirectory
from semel.dlq.access import RECEIVE_TOO, Lookup, MessageAccess, PeekRisk, ScanPage, open_access, refuse_risk
from semel.dlq.audit import Audit
from semel.dlq.filter import parser as filters
from semel.dlq.filter.parser import Filter, FilterError
from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue, ErrorGroups, MessagePage
from semel.dlq.queues import address, dead_letter_queue, dead_letter_queues, is_called_so
from semel.ledger.contract import Ledger
from semel.sqs import Client
from semel.sqs.client.admin import Admin
from semel.sqs.errors import SqsError
from semel.state_folder import state_folder
from semel.telemetry import annotation_log
from semel.telemetry.annotation_log import Annotation

HOUR: Final = 3600.0
RECEIVED_SECONDS: Final = 60.0  # for which received messages are shown without receiving them again
_AGES_SECONDS: Final = 30.0  # for which the ages in all dead-letter queues are cached: they take a peek at each
_AGE_SECONDS: Final = 10.0  # the same for one queue


class QueueInspector:
    """The caller closes a `client` and a `ledger` that it passes in."""

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
        self.history = MessageHistory(settings.ledger, ledger, settings.attempt_logs)
        self.directory = WorkerDirectory(settings.workers, token=settings.control_token, folder=self.state)
        self.doctor_job = DoctorJob(settings, self._names, self._broker_history, clock=clock)
        self._deliveries = DeliveryCounts(self.directory, logs=settings.attempt_logs, clock=clock)
        self._searches = Searches(self._scan, now=self.now)
        self._all_ages: TtlCache[list[DeadLetterQueue]] = TtlCache(_AGES_SECONDS)
        self._ages: TtlCache[DeadLetterQueue] = TtlCache(_AGE_SECONDS)
        self._received_pages: TtlCache[MessagePage] = TtlCache(RECEIVED_SECONDS, size=16)
        self._received_messages: TtlCache[Lookup] = TtlCache(RECEIVED_SECONDS, size=16)
        self._lock = threading.Lock()
        self._source: Source | None = None

    def begin(self) -> None:
        """Starts the history of the workers' counters."""
        self._deliveries.begin()

    def close(self) -> None:
        for part in (self._deliveries, self._searches, self.directory, self.history):
            part.close()
        self.doctor_job.wait(3)  # its files are removed at its end
        if self._source is not None:
            self._source.close()
        if self._own_client:
            self.client.close()

    def changed(self, queue: str | None = None) -> None:
        """Drops cached data, because something was sent, redriven, deleted …"""
        self.source.forget()
        for cache in (self._all_ages, self._ages, self._received_pages, self._received_messages):
            cache.forget()
        if queue is not None:
            self._searches.forget(queue)

    @property
    def source(self) -> Source:
        """Raises SqsError while the endpoint does not answer."""
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
        """Whether the endpoint is Semel's broker."""
        return self.source.is_ours

    @property
    def broker(self) -> BrokerSource:
        """Semel's broker, for its faults. Raises DashboardError if the endpoint is not Semel's broker."""
        source = self.source
        if not isinstance(source, BrokerSource):
            raise DashboardError(
                f"{self.client.endpoint} is not Semel's broker, so faults cannot be set",
                "try them on a local one: semel broker",
                409,
            )
        return source

    def now(self) -> float:
        return self.source.now()

    # Queues.

    def queues(self) -> QueuesPage:
        source = self.source
        now = source.now()
        return QueuesPage(
            rows=queues.rows(
                source.facts(), source.series((), now - queues.SHORT), self.directory.count_by_queue(), now
            ),
            endpoint=self.client.endpoint,
            region=self.client.region,
            is_ours=source.is_ours,
            taken_at=now,
            notes=tuple(source.notes()),
        )

    def queue(self, name: str, since: float | None = None) -> QueuePage:
        """`since` in seconds since 1970; by default the last hour."""
        source = self.source
        now = source.now()
        facts = self._facts(name)
        start = now - HOUR if since is None else since
        series = source.series((name,), min(start, now - queues.SHORT))
        (row,) = queues.rows(source.facts(), series, self.directory.count_by_queue(), now, only=name)
        return QueuePage(
            row=row,
            series=thinned(later(series[name], start), queues.CHART) if name in series else Series(),
            attributes=attributes.explained(facts.attributes),
            annotations=self.annotations(start),
            faults=source.faults(name) if isinstance(source, BrokerSource) else None,
            is_ours=source.is_ours,
            since=start,
        )

    def sources(self, queue: str) -> tuple[str, ...]:
        """The queues that have this one as their dead-letter queue."""
        return queues.sources_by_queue(self.source.facts()).get(queue, ())

    def address(self, queue: str) -> str:
        """Endpoint or AWS region, and account."""
        return address(self._facts(queue).url, self.client.region, self.client.endpoint)

    def alarms(self, name: str, form: str, sns: str | None = None) -> str:
        """The alarms that a queue needs, in the format of a tool: see `semel alarms`."""
        from semel.doctor.alarms.formats import FORMATS, render

        if form not in FORMATS:
            raise DashboardError(f"there is no format {form!r}", f"choose from {', '.join(FORMATS)}")
        return render(alarms.alarms_of(self._facts(name), self.sources(name)), form, sns=sns)

    # Messages.

    def messages(
        self,
        queue: str,
        where: str = "",
        *,
        limit: int = PAGE,
        after: str | None = None,
        receive: bool = False,
        seconds: float = PAGE_SECONDS,
        bodies: bool = False,
        fresh: bool = False,
    ) -> MessagePage:
        """Matching messages after a place, in the order of the queue. Raises ReceiveRequired and FilterError.

        Received messages are cached for a minute, so that reloading a page does not receive them again. `fresh` does
        not use the cache."""
        facts = self._facts(queue)
        wanted = filters.parse(where)
        limit = max(1, min(limit, MAX_PAGE))
        is_dead = self._is_dead_letter_queue(facts)
        access = self._access(queue, receive, max_receive=max(limit, MAX_RECEIVE) if not is_dead else MAX_PAGE)

        def read() -> MessagePage:
            return read_page(access, wanted, limit=limit, after=after, seconds=seconds, bodies=bodies)

        if fresh or not access.receives:
            return read()
        return self._received_pages.get((queue, where, limit, after, bodies), read)

    def message(self, queue: str, id: str, *, place: int | None = None, receive: bool = False) -> MessageDetails:
        """Everything about one message. Raises ReceiveRequired."""
        facts = self._facts(queue)
        access = self._access(queue, receive, max_receive=MAX_RECEIVE)
        if access.receives:
            lookup = self._received_messages.get((queue, id), lambda: access.get(id))
        else:
            lookup = access.get(id, place)
        message = lookup.message
        if message is None:
            raise gone(queue, id)
        is_dead_letter = self._is_dead_letter_queue(facts) or message.by_semel
        in_progress = self.directory.in_progress(message.id)
        # A redriven message has a new id; its key also finds the attempts before the redrive.
        ids = list(dict.fromkeys(filter(None, (message.id, message.original_id))))
        trail, trail_note = self.history.trail(ids, message.key)
        ledger, ledger_note = self.history.entry(self._ledger_keys(message, worker_keys(in_progress, trail)))
        return MessageDetails(
            message=message,
            stuck=explanation.reasons(
                message,
                facts,
                now=self.now(),
                is_dead_letter=is_dead_letter,
                ledger=ledger,
                in_progress=in_progress,
                trail=trail,
                workers=self.directory.count_by_queue().get(queue, 0),
                blocked_by=self._blocked_by(message),
            ),
            is_dead_letter=is_dead_letter,
            max_receives=facts.max_receives,
            retries_left=explanation.retries_left(message, facts),
            dead_letter_queue=facts.dead_letter_queue,
            next_visible_at=message.visible_at if message.state in ("in_flight", "delayed") else None,
            ledger=ledger,
            ledger_note=ledger_note,
            trail=trail,
            trail_note=trail_note,
            in_progress=in_progress,
            cost="; ".join(filter(None, [str(lookup.cost), *lookup.notes])),
        )

    def _access(self, queue: str, receive: bool, max_receive: int = MAX_PAGE) -> MessageAccess:
        """On SQS, reading messages means receiving them, which is done only if the operator asked for it."""
        self.check_receive(queue, receive)
        return open_access(self.client, queue, clock=self.now, max_receive=max_receive, accept_risk=receive)

    def check_receive(self, queue: str, receive: bool) -> None:
        """Raises ReceiveRequired with the same warning as the command line's."""
        if receive or self.is_ours:
            return
        try:
            refuse_risk(self.client.queue(self._facts(queue).name))
            warning = (
                f"{self.client.endpoint} shows the messages of {queue} only to those who receive them: the receive "
                "count of each goes up by one"
            )
        except PeekRisk as risk:
            warning = str(risk)
        raise ReceiveRequired(warning, RECEIVE_TOO)

    def _ledger_keys(self, message: DeadLetterMessage, keys: list[str]) -> tuple[str, ...]:
        try:
            return ledger_keys(message, self.client.queue(message.source or message.queue).scope, keys)
        except SqsError:  # the source queue is gone, or may not be read
            return ()

    def _blocked_by(self, message: DeadLetterMessage) -> str | None:
        """An earlier message of the same FIFO group that is in flight."""
        source = self.source
        if not (message.sequence and message.group and message.state == "visible" and isinstance(source, BrokerSource)):
            return None
        page = source.admin.peek(message.queue, limit=1, bodies=False, group=message.group, state="in_flight")
        return next((str(shown["MessageId"]) for shown in page.messages), None)

    # Dead letters.

    def dead_letter_queues(self) -> tuple[QueueRow, ...]:
        source = self.source
        facts = source.facts()
        now = source.now()
        rows = queues.rows(facts, source.series((), now - queues.SHORT), {}, now)
        dead = [row for row in rows if row.sources or is_called_so(row.name)]
        if not source.is_ours:
            return tuple(dead)
        ages = {
            queue.name: queue
            for queue in self._all_ages.get("", lambda: dead_letter_queues(self.client, clock=self.now))
        }
        return tuple(queues.dated(row, ages[row.name]) if row.name in ages else row for row in dead)

    def dead_letters(
        self,
        queue: str,
        where: str = "",
        *,
        limit: int = PAGE,
        after: str | None = None,
        receive: bool = False,
        wait: float = 0.2,
    ) -> DeadLetterPage:
        """The messages of a dead-letter queue that match, and their groups, as far as they were found within `wait`
        seconds. `after`: a place in the queue; on SQS, which has no places, how many messages to skip."""
        row = self._dead_letter_queue(queue)
        try:
            wanted = filters.parse(where)
        except FilterError as error:
            return DeadLetterPage(row, where=where, total=row.depth, error=str(error))
        ours = self.is_ours
        if ours or receive:
            valid = None if ours else RECEIVED_SECONDS
            result = self._searches.get(queue, wanted, total=row.depth, wait=wait, valid=valid)
        else:
            cached = self._searches.cached(queue, wanted)
            if cached is None:
                return DeadLetterPage(row, where=where, total=row.depth, complete=False, needs_receive=True)
            result = cached
        if not ours:
            row = queues.estimated(row, result.messages, self.now())
        limit = max(1, min(limit, MAX_PAGE))
        messages, next_ = self._slice(queue, wanted, result, limit, after)
        return DeadLetterPage(
            queue=row,
            groups=result.groups,
            messages=messages,
            matched=result.matched,
            scanned=result.scanned,
            total=row.depth if result.finished else max(row.depth, result.scanned),
            complete=result.finished,
            where=where,
            next=next_,
            cost="; ".join(filter(None, [str(result.cost), *result.notes])),
            error=result.error,
            shown=result.shown,
        )

    def groups(self, queue: str, where: str = "", *, receive: bool = False, wait: float = API_SECONDS) -> ErrorGroups:
        """The errors of all matching messages, from a new search. Not complete if `wait` was too short: ask again."""
        self.check_receive(queue, receive)
        total = self._facts(queue).depth
        result = self._searches.get(queue, filters.parse(where), total=total, wait=wait, fresh=True)
        if result.error is not None:
            raise DashboardError(result.error, "see whether the endpoint answers", 502)
        return ErrorGroups(result.groups, result.matched, result.scanned, result.complete, result.cost, result.notes)

    def _slice(
        self, queue: str, where: Filter, result: SearchResult, limit: int, after: str | None
    ) -> tuple[tuple[DeadLetterMessage, ...], str | None]:
        """The messages after a place, and the place after which the next page starts."""
        kept = result.messages
        begin = place_of(after) or 0
        start = bisect_right(kept, begin, key=lambda message: message.place or 0) if self.is_ours else begin
        messages = kept[start : start + limit]
        if start + len(messages) < len(kept):
            return messages, str(messages[-1].place if self.is_ours else start + len(messages))
        if len(kept) == result.matched or not self.is_ours:
            return messages, None
        # The search keeps only the first messages; those after them are read now.
        last = str(max(begin, kept[-1].place or 0))
        page = (
            self.messages(queue, str(where), limit=limit - len(messages), after=last) if len(messages) < limit else None
        )
        return (*messages, *(page.messages if page else ())), page.next if page else last

    def _scan(self, queue: str, where: Filter, after: int | None, at: float) -> Generator[ScanPage, None, None]:
        return open_access(self.client, queue, clock=self.now, accept_risk=True).scan(
            where, after=after, bodies=False, at=at
        )

    def _dead_letter_queue(self, name: str) -> QueueRow:
        facts = self._facts(name)
        (row,) = queues.rows(self.source.facts(), {}, {}, self.now(), only=facts.name)
        if not self.is_ours:
            return row
        return queues.dated(row, self._ages.get(name, lambda: dead_letter_queue(self.client, name, clock=self.now)))

    # Deliveries, workers, doctor.

    def deliveries(self) -> DeliveriesPage:
        return self._deliveries.page(self.annotations(self._clock() - 6 * HOUR))

    def workers(self) -> WorkersPage:
        return self.directory.page()

    def doctor(self) -> DoctorPage:
        return self.doctor_job.page()

    # Audit log, annotations.

    def audit(self, where: str = "", limit: int = 200) -> AuditPage:
        log = Audit.at(self.state)
        entries = tuple(log.entries(where, limit + 1))
        return AuditPage(entries[:limit], where, more=len(entries) > limit, path=str(log.path))

    def annotations(self, since: float = 0.0) -> tuple[Annotation, ...]:
        return tuple(annotation_log.since(self.state, since))

    def _facts(self, name: str) -> QueueFacts:
        for _ in range(2):
            for facts in self.source.facts():
                if facts.name == name:
                    return facts
            self.source.forget()
        raise NotThere(f"there is no queue {name} at {self.client.endpoint}", "see the list of queues for its name")

    def _is_dead_letter_queue(self, facts: QueueFacts) -> bool:
        return bool(self.sources(facts.name)) or is_called_so(facts.name)

    def _names(self) -> list[str]:
        return [facts.name for facts in self.source.facts()]

    def _broker_history(self) -> Mapping[str, Any] | None:
        source = self.source
        return source.admin.history() if isinstance(source, BrokerSource) else None

    def _cloudwatch(self) -> Any:
        if not self.settings.cloudwatch:
            return None
        from semel.dashboard.sources.cloudwatch import CloudWatch

        return CloudWatch(self.client.region, self.settings.profile, clock=self._clock)
