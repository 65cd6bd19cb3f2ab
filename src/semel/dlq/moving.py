"""Redrive by the service's own move task: where all letters go to one queue, and each carries its key with it.

A move gives every message a new MessageId and changes nothing else of it. So it is used only for letters that say
their key themselves; any other could be done twice by a handler that goes by MessageIds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from semel.dlq.holding import depth
from semel.dlq.jobs import Job, JobCancelled
from semel.dlq.plan import Engine, PlanError, RedrivePlan
from semel.dlq.sending import Targets
from semel.dlq.taking import Taker
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.errors import SqsError
from semel.sqs.limits import MAX_MOVE_RATE

_LOOK_EVERY: Final = 0.5  # seconds
_LOOKED_AT: Final = 100  # letters, where looking means receiving


@dataclass(frozen=True, slots=True)
class Way:
    """Whether a move can do it; if not, why."""

    target: Queue | None
    why_not: str = ""


def possible(plan: RedrivePlan) -> bool:
    """Whether the plan, whatever is in the queue, is one that a move can carry out."""
    rate_fits = plan.rate is None or 1 <= plan.rate <= MAX_MOVE_RATE
    return not (plan.chooses or plan.dry_run) and rate_fits and plan.engine is not Engine.STREAM


def survey(taker: Taker, targets: Targets, *, free: bool, asked: bool) -> Way:
    """Looks at the letters: all of them where looking is `free`, else at a few. What was not looked at is a reason
    against a move, unless one was `asked` for."""
    target: Queue | None = None
    there = 0 if free else depth(taker.source)
    if not asked and (there > _LOOKED_AT or (taker.source.fifo and not free)):
        return Way(None, "SQS shows what is in a queue only by receiving it, and too much is there for that")
    looked = 0
    for letter in taker.look(None if free else _LOOKED_AT):
        looked += 1
        if not letter.key:
            return Way(None, f"letter {letter.id} does not carry its key with it")
        if letter.state not in ("visible", ""):
            return Way(None, f"letter {letter.id} is in somebody's hand")
        try:
            found = targets.of(letter)
        except SemelError as error:
            return Way(None, str(error))
        if target is not None and found.name != target.name:
            return Way(None, f"letters go to {target.name} and to {found.name}")
        target = found
    if target is None:
        return Way(None, "there are no letters")
    if looked < there:
        return Way(target if asked else None, f"of about {there} letters only {looked} were looked at for their keys")
    return Way(target)


class Move:
    """One redrive by a move task. It is paused by ending the task, and resumed by another for the rest."""

    def __init__(
        self, client: Client, source: Queue, target: Queue, rate: float | None, rest: Callable[[Job, float], None]
    ) -> None:
        self._client, self._source, self._target = client, source, target
        self._rate = rate
        self._rest = rest  # which must return when the job is paused, and not wait until it goes on
        self._moved_before = 0

    def run(self, job: Job) -> None:
        job.say(f"SQS moves them to {self._target.name} by itself: each letter carries its key, and nothing is chosen")
        while not self._task(job):
            self._moved_before = job.counts.sent
            job.checkpoint()

    def _task(self, job: Job) -> bool:
        """One task; False if it was ended because the job is paused."""
        arns = {"SourceArn": self._source.arn, "DestinationArn": self._target.arn}
        rate = {} if self._rate is None else {"MaxNumberOfMessagesPerSecond": int(self._rate)}
        handle = self._client.call("StartMessageMoveTask", arns | rate).get("TaskHandle", "")
        try:
            while True:
                task = self._newest()
                self._count(job, task)
                if task.get("Status") in ("COMPLETED", "CANCELLED"):
                    return True
                if task.get("Status") == "FAILED":
                    raise SemelError(f"SQS ended the move from {self._source.name}: {task.get('FailureReason')}")
                if job.cancelling:
                    raise JobCancelled("cancelled")
                if job.pausing:
                    self._end(job, handle)
                    return False
                self._rest(job, _LOOK_EVERY)
        except BaseException:
            self._end(job, handle)  # nobody would be there to end it later
            raise

    def _end(self, job: Job, handle: str) -> None:
        with contextlib.suppress(SqsError):  # it came to its own end just now
            self._client.call("CancelMessageMoveTask", {"TaskHandle": handle})
        with contextlib.suppress(SqsError):
            self._count(job, self._newest())

    def _newest(self) -> dict[str, Any]:
        results = self._client.call("ListMessageMoveTasks", {"SourceArn": self._source.arn}).get("Results") or [{}]
        task: dict[str, Any] = results[0]
        return task

    def _count(self, job: Job, task: dict[str, Any]) -> None:
        moved = self._moved_before + int(task.get("ApproximateNumberOfMessagesMoved", 0))
        if "ApproximateNumberOfMessagesToMove" in task:
            job.total = self._moved_before + int(task["ApproximateNumberOfMessagesToMove"])
        more = moved - job.counts.sent
        if more > 0:
            job.add(matched=more, sent=more, deleted=more)


def refuse(plan: RedrivePlan, why: str) -> PlanError:
    return PlanError(
        f"engine move: {why}. Leave the engine of the redrive of {plan.queue} to Semel, or ask for stream."
    )
