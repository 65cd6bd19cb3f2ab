"""Redrive: dead letters go back to work, each once, and nothing is lost on the way.

Rounds of take, send, delete (see `taking` and `sending`), with a canary before them if one is wanted. Between two
rounds nothing is half done: there the job is paused, cancelled, or stopped because too much comes back. A crash at any
point leaves every letter in its queue or its copy in the other; in both at worst, and then the ledger knows the copy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from semel.dlq.access.sqs import Choice, Matcher, MessageClaims, SqsClaims, taker
from semel.dlq.filter import parser as filters
from semel.dlq.jobs import Job, JobStopped, State
from semel.dlq.redrive import canary
from semel.dlq.redrive import move_task as moving
from semel.dlq.redrive.outcomes import Outcomes, Returns
from semel.dlq.redrive.plan import Engine, RedrivePlan
from semel.dlq.redrive.sender import Crash, NoTarget, Sender, Targets
from semel.ledger.contract import Ledger
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import Admin

CHUNK: Final = 1_000  # letters of one round
_RECEIVED_CHUNK: Final = 100  # the same where they come ten at a time
FEWEST_FAILURES: Final = 10
FAILED_SHARE: Final = 0.05
_WATCH_EVERY: Final = 1.0
_REASONS_SHOWN: Final = 5


class TooManyFailures(JobStopped):
    """What was sent comes back, or cannot be sent: the rest stays where it is."""


def _live(_point: str) -> None:
    pass


def _nothing(_target: Queue) -> None:
    pass


class Redriver:
    """Carries out one plan: `job.run(redriver.run)`, or on a thread, `jobs.start("redrive", queue, redriver.run)`.

    `ledger` is what the workers use; with it the canary's fate is known also on AWS. `clock` is the time in seconds
    since 1970, `monotonic`, `sleep` and `rest` how it passes; `crash` is told of each point where a process may die."""

    def __init__(
        self,
        plan: RedrivePlan,
        client: Client,
        *,
        ledger: Ledger | None = None,
        where: Matcher | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[Job, float], None] = Job.sleep,
        rest: Callable[[Job, float], None] = Job.rest,
        crash: Crash = _live,
        taking: Callable[[Client, Queue, Choice, Job, Callable[[], float]], MessageClaims] = taker,
    ) -> None:
        self.plan, self._client, self._ledger = plan, client, ledger
        self._where: Matcher = filters.parse(plan.where) if where is None else where
        self._clock, self._monotonic, self._crash = clock, monotonic, crash
        self._sleep, self._rest = sleep, rest
        self._taking = taking
        self._next_at = 0.0
        self._watched_at = 0.0
        self._sent = 0

    def run(self, job: Job) -> None:
        """Raises JobStopped, JobCancelled or another SemelError for every end but a good one."""
        plan = self.plan
        source = self._client.queue(plan.queue)
        _ = source.url
        targets = Targets(self._client, source, plan.to)
        if plan.dry_run:
            with self._taker(source, job) as hand:
                return self._count(job, hand, targets)
        if plan.engine is Engine.SQS_MOVE:
            return self._move(job, source, targets)
        returns = self._returns(source)
        copies: set[str] = set() if returns is None else returns.copies
        with self._taker(source, job) as hand:
            if isinstance(hand, SqsClaims):
                hand.copies = copies
            sender = Sender(
                hand,
                targets,
                job,
                threads=plan.threads,
                crash=self._crash,
                copies=copies,
                expect=_nothing if returns is None else returns.expect,
            )
            try:
                if plan.canary:
                    self._canary(job, source, hand, sender, targets, returns)
                self._stream(job, hand, sender, returns)
            finally:
                sender.close()
                self._crash("before_give_back")
                self._tell(job, sender)
        if not job.counts.sent and job.counts.skipped and sender.reasons:
            raise NoTarget(sender.reasons.most_common(1)[0][0])
        return None

    def _taker(self, source: Queue, job: Job) -> MessageClaims:
        admin = Admin.of(self._client)
        started = float(admin.health()["now"]) if admin is not None else self._clock()
        return self._taking(
            self._client, source, Choice(self._where, frozenset(self.plan.ids), started), job, self._monotonic
        )

    def _returns(self, source: Queue) -> Returns | None:
        admin = Admin.of(self._client)
        return None if admin is None else Returns(admin, self._client, source.name)

    # Without sending anything.

    def _count(self, job: Job, hand: MessageClaims, targets: Targets) -> None:
        found: Counter[str] = Counter()
        unknown = ""
        for message in hand.look(self.plan.limit):
            job.checkpoint()
            try:
                found[targets.of(message).name] += 1
            except NoTarget as error:
                unknown = str(error)
                found[""] += 1
        job.counts.matched = job.total = found.total()
        job.result["targets"] = dict(found)
        job.say(f"dry run: {found.total()} letters match, nothing was sent")
        if unknown:
            job.say(f"{found['']} of them cannot be sent: {unknown}")

    def _move(self, job: Job, source: Queue, targets: Targets) -> None:
        """By the service itself, because somebody asked for it."""
        # A look of its own, for what it counts is not what the redrive does.
        with self._taker(source, Job("survey", self.plan.queue)) as hand:
            way = moving.survey(hand, targets, free=Admin.of(self._client) is not None)
        if way.target is None:
            if way.note:
                raise moving.refuse(self.plan, way.note)
            return
        if way.note:
            job.say(f"moved because it was asked for: {way.note}")
        moving.Move(self._client, source, way.target, self.plan.rate, self._rest).run(job)

    # Sending.

    def _canary(
        self, job: Job, source: Queue, hand: MessageClaims, sender: Sender, targets: Targets, returns: Returns | None
    ) -> None:
        job.working(State.CANARY)
        count = self.plan.canary if self.plan.limit is None else min(self.plan.canary, self.plan.limit)
        messages = hand.first(count, canary.choose)
        if not messages:
            return
        fates = Outcomes(self._client, source, self._ledger, returns)
        known: list[Queue] = []
        pairs = []
        for message in messages:
            try:
                target = targets.of(message)
            except NoTarget:
                continue  # the sender says so
            known.append(target)
            pairs.append((message, target.name))
        fates.before(pairs)
        self._crash("after_take")
        copies = sender.send(messages)
        self._sent += len(messages)
        fates.sent()
        self._crash("canary_sent")
        if len(copies) < len(messages):
            reason = sender.reasons.most_common(1)[0][0] if sender.reasons else "no reason was given"
            raise canary.CanaryFailed(
                f"{len(messages) - len(copies)} of the {len(messages)} canary messages could not be sent: {reason}"
            )
        wait = self.plan.canary_wait or canary.patience(list({queue.name: queue for queue in known}.values()))
        job.say(f"{len(copies)} went first; what becomes of them is awaited for up to {wait:g} s")
        canary.watch(job, fates, copies, wait, self._clock, self._sleep)
        self._crash("after_canary")
        job.working(State.RUNNING)

    def _stream(self, job: Job, hand: MessageClaims, sender: Sender, returns: Returns | None) -> None:
        while most := self._most(hand):
            job.checkpoint()
            self._pace(job)
            messages = hand.take(most)
            if not messages:
                break
            self._crash("after_take")
            sender.send(messages)
            self._sent += len(messages)
            if job.total is not None and self.plan.limit is not None:
                job.total = min(job.total, self.plan.limit)
            if self.plan.rate is not None:
                self._next_at = max(self._next_at, self._monotonic()) + len(messages) / self.plan.rate
            self._watch(job, sender, returns)
            self._crash("between_rounds")
        self._watch(job, sender, returns, last=True)

    def _most(self, hand: MessageClaims) -> int:
        """How many to take next: no more than are sent soon, as they are hidden from everybody else meanwhile."""
        most = _RECEIVED_CHUNK if isinstance(hand, SqsClaims) else CHUNK
        if self.plan.rate is not None:
            most = min(most, max(1, int(self.plan.rate)))
        return most if self.plan.limit is None else min(most, self.plan.limit - self._sent)

    def _pace(self, job: Job) -> None:
        while (ahead := self._next_at - self._monotonic()) > 0:
            self._sleep(job, ahead)

    def _watch(self, job: Job, sender: Sender, returns: Returns | None, *, last: bool = False) -> None:
        """Ends the job when too much comes back, or cannot be sent."""
        now = self._monotonic()
        if returns is not None and (last or now - self._watched_at >= _WATCH_EVERY):
            self._watched_at = now
            job.add(returned=len(returns.look()) - job.counts.returned)
        allowed = self.plan.stop_after_failures
        if allowed == 0 or last:
            return
        if allowed is None:
            allowed = max(FEWEST_FAILURES, int(FAILED_SHARE * job.counts.sent))
        if job.counts.returned >= allowed:
            assert returns is not None
            why = next(reversed(returns.found.values()))
            raise TooManyFailures(f"{job.counts.returned} letters are back already, so the rest was not sent: {why}")
        if job.counts.failed >= allowed:
            why = sender.reasons.most_common(1)[0][0]
            raise TooManyFailures(f"{job.counts.failed} letters could not be sent, so the rest was not tried: {why}")

    def _tell(self, job: Job, sender: Sender) -> None:
        for reason, count in sender.reasons.most_common(_REASONS_SHOWN):
            job.say(f"{count} not sent: {reason}")
        if sender.undeleted:
            job.result["undeleted"] = sender.undeleted[:100]
            job.say(
                f"{len(sender.undeleted)} were sent and could not be deleted; they are still in {self.plan.queue}. "
                "The ledger knows their copies: sent once more, they are not done once more."
            )
