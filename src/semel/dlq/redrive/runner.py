"""Redrive: dead-letter messages go back to their source queue, each once, and none is lost.

It works in rounds of claim, send, delete (see `access` and `sender`), after a canary if there is one. Between two
rounds nothing is half done: there the job is paused, cancelled, or stopped because too many messages come back. After a
crash at any point, each message is in its queue or its copy is in the other; at worst both, and then the ledger lets
only one of them take effect.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from semel.dlq.access import MessageAccess, MessageClaims, open_access
from semel.dlq.filter import parser as filters
from semel.dlq.jobs import Job, JobStopped, State
from semel.dlq.redrive import canary, move_task
from semel.dlq.redrive.outcomes import Outcomes, Returns
from semel.dlq.redrive.plan import Engine, RedrivePlan
from semel.dlq.redrive.sender import Crash, NoTarget, Sender, Targets
from semel.ledger.contract import Ledger
from semel.sqs.client import Client
from semel.sqs.client.admin import Admin

FEWEST_FAILURES: Final = 10
FAILED_SHARE: Final = 0.05
_CHECK_EVERY: Final = 1.0  # seconds between two checks of what came back
_REASONS_SHOWN: Final = 5


class TooManyFailures(JobStopped):
    """Messages that were sent come back, or cannot be sent. The rest stays in the queue. Fix what makes them fail, then
    redrive the rest."""


def _live(_point: str) -> None:
    pass


class Redriver:
    """Carries out one plan: `job.run(redriver.run)`, or on a thread, `jobs.start("redrive", queue, redriver.run)`.

    `ledger` is that of the workers; with it, the outcome of the canary is known on AWS too. `rest` waits a number of
    seconds, or until the job is paused or cancelled. `crash` is called at each point where a process may die."""

    def __init__(
        self,
        plan: RedrivePlan,
        client: Client,
        *,
        ledger: Ledger | None = None,
        access: MessageAccess | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        rest: Callable[[Job, float], None] = Job.rest,
        crash: Crash = _live,
    ) -> None:
        self.plan, self._client, self._ledger = plan, client, ledger
        self._where = filters.parse(plan.where)
        self._access = access if access is not None else open_access(client, plan.queue, clock=clock)
        self._queue = self._access.queue
        self._clock, self._monotonic, self._rest, self._crash = clock, monotonic, rest, crash
        self._next_at = 0.0
        self._checked_at = 0.0
        self._sent = 0

    def run(self, job: Job) -> None:
        """Raises JobStopped, JobCancelled or another SemelError unless all goes well."""
        plan = self.plan
        _ = self._queue.url
        targets = Targets(self._client, self._queue, plan.to)
        if plan.dry_run:
            return self._count(job, targets)
        if plan.engine is Engine.SQS_MOVE:
            return self._move(job, targets)
        admin = Admin.of(self._client)
        returns = None if admin is None else Returns(admin, self._client, self._queue.name)
        with self._claims(job) as claims:
            sender = Sender(claims, targets, job, threads=plan.threads, crash=self._crash, returns=returns)
            try:
                if plan.canary_size:
                    self._canary(job, claims, sender, targets, returns)
                self._stream(job, claims, sender, returns)
                self._log_missing(claims)
            finally:
                sender.close()
                self._crash("before_release")
                self._report(job, sender)
        if not job.counts.sent and job.counts.skipped and sender.reasons:
            raise NoTarget(sender.reasons.most_common(1)[0][0])
        return None

    def _claims(self, job: Job) -> MessageClaims:
        return self._access.claims(job, self._where, ids=self.plan.ids)

    def _count(self, job: Job, targets: Targets) -> None:
        by_target: Counter[str] = Counter()
        unknown = ""
        with self._claims(job) as claims:
            for message in claims.preview(self.plan.limit):
                job.checkpoint()
                try:
                    by_target[targets.of(message).name] += 1
                except NoTarget as error:
                    unknown = str(error)
                    by_target[""] += 1
            job.counts.matched = job.total = by_target.total()
            self._log_missing(claims)
        job.result["targets"] = dict(by_target)
        job.log(f"dry run: {by_target.total()} messages match, nothing was sent")
        if unknown:
            job.log(f"{by_target['']} of them cannot be sent: {unknown}")

    def _log_missing(self, claims: MessageClaims) -> None:
        if self.plan.ids and self.plan.limit is None:  # up to a limit, not all messages are looked for
            claims.log_missing()

    def _move(self, job: Job, targets: Targets) -> None:
        target = move_task.survey(self._access, targets, job)
        if target is not None:
            move_task.MoveTask(self._client, self._queue, target, self.plan.rate, self._rest).run(job)

    # Sending.

    def _canary(
        self, job: Job, claims: MessageClaims, sender: Sender, targets: Targets, returns: Returns | None
    ) -> None:
        job.working(State.CANARY)
        messages = claims.sample(self.plan.canary_size, canary.choose)
        if not messages:
            return job.working(State.RUNNING)
        outcomes = Outcomes(self._client, self._queue, self._ledger, returns)
        known = []
        for message in messages:
            try:
                known.append((message, targets.of(message)))
            except NoTarget:
                continue  # the sender rejects it, with the reason
        outcomes.before([(message, target.name) for message, target in known])
        self._crash("after_claim")
        copies = sender.send(messages)
        self._sent += len(messages)
        outcomes.sent()
        self._crash("canary_sent")
        if len(copies) < len(messages):
            reason = sender.reasons.most_common(1)[0][0] if sender.reasons else "no reason was given"
            raise canary.CanaryFailed(
                f"{len(messages) - len(copies)} of the {len(messages)} canary messages could not be sent: {reason}"
            )
        wait = self.plan.canary_wait or canary.default_wait(list({target.name: target for _, target in known}.values()))
        canary.watch(job, outcomes, copies, wait, self._clock, lambda seconds: self._sleep(job, claims, seconds))
        self._crash("after_canary")
        return job.working(State.RUNNING)

    def _stream(self, job: Job, claims: MessageClaims, sender: Sender, returns: Returns | None) -> None:
        while size := self._round(claims):
            claims.checkpoint()
            while (ahead := self._next_at - self._monotonic()) > 0:
                self._sleep(job, claims, ahead)
            messages = claims.claim(size)
            if not messages:
                break
            self._crash("after_claim")
            sender.send(messages)
            self._sent += len(messages)
            if job.total is not None and self.plan.limit is not None:
                job.total = min(job.total, self.plan.limit)
            if self.plan.rate is not None:
                self._next_at = max(self._next_at, self._monotonic()) + len(messages) / self.plan.rate
            self._check(job, sender, returns)
            self._crash("between_rounds")
        self._check(job, sender, returns, last=True)

    def _round(self, claims: MessageClaims) -> int:
        """How many to claim next: only as many as are sent soon, because nobody else can receive them meanwhile."""
        size = claims.batch
        if self.plan.rate is not None:
            size = min(size, max(1, int(self.plan.rate)))
        return size if self.plan.limit is None else min(size, self.plan.limit - self._sent)

    def _sleep(self, job: Job, claims: MessageClaims, seconds: float) -> None:
        self._rest(job, seconds)
        claims.checkpoint()

    def _check(self, job: Job, sender: Sender, returns: Returns | None, *, last: bool = False) -> None:
        """Stops the job when too many come back, or cannot be sent."""
        now = self._monotonic()
        returned = ""
        if returns is not None and (last or now - self._checked_at >= _CHECK_EVERY):
            self._checked_at = now
            reasons = returns.check()
            job.add(returned=len(reasons) - job.counts.returned)
            returned = next(reversed(list(reasons.values())), "")
        allowed = self.plan.stop_after_failures
        if allowed == 0 or last:
            return
        if allowed is None:
            allowed = max(FEWEST_FAILURES, int(FAILED_SHARE * job.counts.sent))
        if job.counts.returned >= allowed:
            raise TooManyFailures(f"{job.counts.returned} messages came back, so the rest was not sent: {returned}")
        if job.counts.failed >= allowed:
            why = sender.reasons.most_common(1)[0][0]
            raise TooManyFailures(f"{job.counts.failed} messages could not be sent, so the rest was not tried: {why}")

    def _report(self, job: Job, sender: Sender) -> None:
        for reason, count in sender.reasons.most_common(_REASONS_SHOWN):
            job.log(f"{count} not sent: {reason}")
        if sender.undeleted:
            job.result["undeleted"] = sender.undeleted[:100]
            job.log(
                f"{len(sender.undeleted)} messages were sent but could not be deleted; they are still in "
                f"{self.plan.queue}. If they are sent again, the ledger keeps them from being processed again."
            )
