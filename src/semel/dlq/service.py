"""Everything that can be done with dead-letter messages: for the command line, the JSON API and the pages alike.

The rules: reading changes nothing beyond the cost that it reports. Every action is in the audit log before it begins
and again when it has ended. An action that takes long is a job, which anybody with its id can watch, pause and cancel.

`receive` accepts a risk: on SQS, reading a message means receiving it, and a queue with a RedrivePolicy of its own
moves messages that were received too often. Without `receive`, such a queue is refused (PeekRisk).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from semel.dlq import edit as editing
from semel.dlq import queues as listing
from semel.dlq import snapshots
from semel.dlq.access import MAX_RECEIVE, MessageAccess, ScanPage, open_access, refuse_risk
from semel.dlq.audit import Audit
from semel.dlq.delete import Deleter
from semel.dlq.edit import EditError as EditError
from semel.dlq.edit import Key as Key
from semel.dlq.edit import NoSuchMessage as NoSuchMessage
from semel.dlq.filter import parser as filters
from semel.dlq.jobs import Job, JobCancelled, Jobs, JobStopped
from semel.dlq.messages import (
    DeadLetterMessage,
    DeadLetterQueue,
    ErrorGroups,
    Exported,
    Grouping,
    Impact,
    MessagePage,
    Resent,
    ShownMessages,
)
from semel.dlq.records import OperatorRecords
from semel.dlq.redrive.canary import CanaryFailed
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.redrive.runner import Redriver
from semel.dlq.restore import Restorer
from semel.dlq.selection import Selection
from semel.errors import SemelError
from semel.sqs.client import Client
from semel.sqs.errors import QueueNotFound

if TYPE_CHECKING:
    from semel.ledger.contract import Ledger

SHOWN: Final = 50  # messages of one page
SHOWN_IDS: Final = 1_000  # on Semel's broker, more messages than this are identified by their place in the queue


class DeadLetterService(OperatorRecords):
    """The dead-letter service for one user. `by` returns it for another user, with the same jobs and audit log.

    `ledger`: the workers' ledger, or a function that opens it when it is needed. `max_receive`: the maximum number of
    messages that one scan receives on SQS.

    >>> from semel import Client
    >>> from semel.dlq import DeadLetterService
    >>> client = Client()
    >>> dead = client.create_queue("orders-dlq")
    >>> policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5}
    >>> queue = client.create_queue("orders", {"RedrivePolicy": policy})
    >>> sent = dead.send('{"id": 7}')
    >>> service = DeadLetterService(client)
    >>> [(info.name, info.visible) for info in service.queues()]
    [('orders-dlq', 1)]
    """

    def __init__(
        self,
        client: Client,
        *,
        ledger: Ledger | Callable[[], Ledger | None] | None = None,
        audit: Audit | None = None,
        who: str = "",
        state: Path | None = None,
        jobs: Jobs | None = None,
        max_receive: int = MAX_RECEIVE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(audit=audit, who=who, state=state, jobs=jobs, clock=clock)
        self.client = client
        self._ledger = ledger
        self._max_receive = max_receive

    @property
    def ledger(self) -> Ledger | None:
        """The workers' ledger; None if there is none. Raises if it cannot be opened."""
        return self._ledger() if callable(self._ledger) else self._ledger

    @property
    def endpoint(self) -> str:
        """The address of SQS."""
        return self.client.endpoint

    def address(self, info: DeadLetterQueue) -> str:
        """Where a queue is: the endpoint, or the AWS region, and the account."""
        return listing.address(info.url, self.client.region, self.client.endpoint)

    # Reading.

    def queues(self) -> list[DeadLetterQueue]:
        """All dead-letter queues, by name. Queues whose attributes may not be read are included, with an `error`."""
        return listing.dead_letter_queues(self.client, clock=self._clock)

    def queue(self, name: str) -> DeadLetterQueue:
        """One queue, even if no queue uses it as its dead-letter queue. Raises NoSuchQueue."""
        return listing.dead_letter_queue(self.client, name, clock=self._clock)

    def messages(
        self,
        queue: str,
        where: str = "",
        limit: int = SHOWN,
        after: str | None = None,
        *,
        bodies: bool = False,
        receive: bool = False,
    ) -> MessagePage:
        """Messages that match the filter; on Semel's broker, in queue order. Without `bodies`, bodies are shortened."""
        messages: list[DeadLetterMessage] = []
        page, wanted, place = ScanPage([]), filters.parse(where), _place(after)
        for page in self._access(queue, receive).scan(wanted, limit=limit, after=place, bodies=bodies):
            messages += page.messages
        next = None if page.next is None else str(page.next)
        return MessagePage(tuple(messages), next, page.scanned, page.complete, page.cost, page.notes)

    def groups(self, queue: str, where: str = "", *, receive: bool = False) -> ErrorGroups:
        """All messages that match, grouped by their error."""
        grouping, page = Grouping(), ScanPage([])
        for page in self._access(queue, receive).scan(filters.parse(where), bodies=False):
            grouping.add(page.messages)
        return ErrorGroups(grouping.groups, grouping.matched, page.scanned, page.complete, page.cost, page.notes)

    def impact(
        self,
        queue: str,
        where: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        receive: bool = False,
    ) -> Impact:
        """What an action would touch: messages that match, those with these ids, or all."""
        chosen = Selection.of(where, ids, all)
        grouping, page = Grouping(), ScanPage([])
        shown: list[str] | None = []
        for page in self._access(queue, receive).scan(filters.parse(chosen.where), bodies=False, ids=chosen.ids):
            grouping.add(page.messages)
            if shown is not None:
                shown += [message.id for message in page.messages]
                if page.end is not None and len(shown) > SHOWN_IDS:
                    shown = None
        return Impact(
            grouping.matched,
            page.scanned,
            page.complete,
            grouping.oldest,
            grouping.newest,
            grouping.groups,
            page.cost,
            page.notes,
            ShownMessages(grouping.matched, None, page.end, page.at)
            if shown is None
            else ShownMessages(len(shown), tuple(shown)),
        )

    def message(self, queue: str, id: str, *, receive: bool = False) -> DeadLetterMessage:
        """The whole message, by its MessageId here or in the source queue. Raises NoSuchMessage."""
        return self.find(queue, id, receive=receive).messages[0]

    def find(self, queue: str, id: str, *, receive: bool = False) -> MessagePage:
        """The same message, with the cost of finding it."""
        lookup = self._access(queue, receive).get(id)
        if lookup.message is None:
            raise editing.no_such_message(queue, id)
        return MessagePage((lookup.message,), None, lookup.scanned, False, lookup.cost, lookup.notes)

    def export(
        self,
        queue: str,
        where: str | None = None,
        to: Path | IO[bytes] | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        any_queue: bool = False,
        receive: bool = False,
    ) -> Exported:
        """Writes whole messages as JSON lines, for `restore`. The messages stay in the queue."""
        chosen = self._chosen(queue, where, ids, all, any_queue, receive)
        page = ScanPage([])

        def messages() -> Generator[DeadLetterMessage, None, None]:
            nonlocal page
            with closing(self._access(queue, receive).scan(filters.parse(chosen.where), ids=chosen.ids)) as pages:
                for page in pages:
                    yield from page.messages

        path, at = str(to) if isinstance(to, Path) else "", self._clock()
        with self.audit.around(self.who, "export", queue=queue, where=chosen.where, file=path) as ending:
            with closing(messages()) as exported:
                ending.count = snapshots.write_lines((snapshots.line(message, at=at) for message in exported), to)
        notes = (*page.notes, ending.problem) if ending.problem else page.notes
        return Exported(ending.count, page.scanned, path, page.complete, page.cost, notes)

    def lines(
        self,
        queue: str,
        where: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        any_queue: bool = False,
        receive: bool = False,
    ) -> Iterator[bytes]:
        """The lines of an export one by one, to stream them."""
        chosen = self._chosen(queue, where, ids, all, any_queue, receive)
        count = 0
        self.audit.write(self.who, "export", queue=queue, where=chosen.where, outcome="begun")
        with closing(self._access(queue, receive).scan(filters.parse(chosen.where), ids=chosen.ids)) as pages:
            for page in pages:
                count += len(page.messages)
                yield from (snapshots.line(message, at=self._clock()) for message in page.messages)
        self.audit.add(self.who, "export", queue=queue, where=chosen.where, count=count, outcome="done")

    # Acting.

    def redrive(self, plan: RedrivePlan, *, receive: bool = False) -> Job:
        """Sends messages back to their source queue. A dry run is a job too."""
        self._check(plan.queue, plan.any_queue, receive)
        ledger = self.ledger if plan.canary_size and not plan.dry_run else None
        access = self._access(plan.queue, receive)
        redriver = Redriver(plan, self.client, ledger=ledger, access=access, clock=self._clock)
        action = "redrive (dry run)" if plan.dry_run else "redrive"
        return self._start(action, plan.queue, plan.where, redriver.run, plan.to_json())

    def resend(
        self,
        queue: str,
        id: str,
        *,
        body: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        group: str | None = None,
        key: str | Key = Key.KEEP,
        to: str = "",
        any_queue: bool = False,
        receive: bool = False,
    ) -> Resent:
        """Sends one message, changed or not, to its source queue or `to`, then deletes it here."""
        self._check(queue, any_queue, receive)
        wanted = editing.Wanted(body, attributes, group, key, to)
        with self.audit.around(self.who, "resend", queue=queue, id=id, to=to) as ending:
            ending.count = 0
            ledger = self.ledger if key is Key.KEEP else None
            resent = editing.resend(self._access(queue, receive), ledger, id, wanted)
            ending.count = 1
            ending.outcome = "done" if resent.deleted else "sent, but the original is still there"
            ending.details = {
                "to": resent.queue,
                "new_id": resent.message_id,
                "key": "kept" if key is Key.KEEP else resent.key,
                "changed": ", ".join(wanted.changed),
            }
        return replace(resent, notes=(*resent.notes, ending.problem)) if ending.problem else resent

    def delete(
        self,
        queue: str,
        where: str | None = None,
        snapshot: Path | None = None,
        *,
        ids: Sequence[str] | None = None,
        all: bool = False,
        shown: ShownMessages | None = None,
        any_queue: bool = False,
        receive: bool = False,
    ) -> Job:
        """Deletes messages, each only after it is in a snapshot on disk. With `shown`, from `impact`, only those.

        By default the snapshot is in the state folder; the job's result has its path as `snapshot`."""
        chosen = self._chosen(queue, where, ids, all, any_queue, receive)
        path = snapshot if snapshot is not None else snapshots.new_path(self.state, queue, self._clock())
        deleter = Deleter(
            self._access(queue, receive),
            filters.parse(chosen.where),
            path,
            ids=chosen.ids,
            shown=shown,
            clock=self._clock,
        )
        plan: dict[str, Any] = {"where": chosen.where, "ids": list(chosen.ids), "snapshot": str(path)}
        plan["expected"] = None if shown is None else shown.count
        return self._start("delete", queue, chosen.where, deleter.run, plan, {"snapshot": str(path)})

    def restore(self, source: Path | Iterable[bytes], queue: str = "") -> Job:
        """Sends the messages of a snapshot back to their dead-letter queue, or to `queue`, each once.

        A file next to the snapshot records what was sent: a second run sends only what is missing."""
        restorer = Restorer(self.client, source, queue, folder=self.state / "restores", clock=self._clock)
        plan = {"file": restorer.name, "queue": queue, "queues": list(restorer.queues)}
        details = {"file": restorer.name, "queues": ", ".join(restorer.queues)}
        return self._start("restore", restorer.queues[0], "", restorer.run, plan, details)

    # Checks and jobs.

    def _chosen(
        self, queue: str, where: str | None, ids: Sequence[str] | None, all: bool, any_queue: bool, receive: bool
    ) -> Selection:
        chosen = Selection.of(where, ids, all)
        filters.parse(chosen.where)
        self._check(queue, any_queue, receive)
        return chosen

    def _check(self, queue: str, any_queue: bool, receive: bool) -> None:
        """Raises NotDeadLetterQueue, NoSuchQueue or PeekRisk."""
        if not any_queue:
            listing.check_dead_letter_queue(self.client, queue)
        access = self._access(queue, receive)
        try:
            if access.receives and not receive:
                refuse_risk(access.queue)
        except QueueNotFound:
            raise listing.no_such_queue(access.queue) from None

    def _access(self, queue: str, receive: bool) -> MessageAccess:
        return open_access(self.client, queue, clock=self._clock, max_receive=self._max_receive, accept_risk=receive)

    def _start(
        self,
        action: str,
        queue: str,
        where: str,
        work: Callable[[Job], None],
        plan: Mapping[str, Any],
        details: Mapping[str, str] | None = None,
    ) -> Job:
        self.audit.write(self.who, action, queue=queue, where=where, outcome="begun", details=details)

        def ended(job: Job, outcome: str) -> None:
            counts = job.counts
            count = counts.matched if action.endswith("(dry run)") else max(counts.deleted, counts.sent)
            known: dict[str, Any] = {"queue": queue, "where": where, "job": job.id, "details": details}
            if problem := self.audit.add(self.who, action, count=count, outcome=outcome, **known):
                job.log(problem)

        def audited(job: Job) -> None:
            # The entry is written before the job ends: whoever waits for the end finds it.
            try:
                work(job)
            except JobCancelled:
                ended(job, "cancelled")
                raise
            except JobStopped as error:
                if isinstance(error, CanaryFailed):
                    job.result["stopped_by"] = "canary"
                ended(job, f"stopped: {error}")
                raise
            except BaseException as error:
                ended(job, f"failed: {error}")
                raise
            ended(job, "done")

        return self._jobs.start(action.partition(" ")[0], queue, audited, plan, who=self.who)


def _place(after: str | None) -> int | None:
    try:
        return int(after) if after else None
    except ValueError:
        raise SemelError(f"after={after!r} is not a place in a queue: pass the `next` of an earlier answer") from None
