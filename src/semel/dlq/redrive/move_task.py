"""Redrive by the service's own move task, for those who ask for it: all letters go to one queue, each with its key.

A move gives every message a new MessageId and changes nothing else of it. So it is used only for letters that say
their key themselves; any other could be done twice by a handler that goes by MessageIds. Nobody watches what comes
back: what was moved fails again, if it does, without stopping the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from semel.dlq.access.leases import depth
from semel.dlq.access.sqs import MessageClaims
from semel.dlq.jobs import Job, JobCancelled
from semel.dlq.redrive.plan import PlanError, RedrivePlan
from semel.dlq.redrive.sender import Targets
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.errors import SqsError

_LOOK_EVERY: Final = 0.5  # seconds
_LOOKED_AT: Final = 100  # letters, where looking means receiving


@dataclass(frozen=True, slots=True)
class Way:
    """Where a move would take them; None if there are none, or if it cannot be done. `note` says why, or what is not
    known."""

    target: Queue | None
    note: str = ""


def survey(taker: MessageClaims, targets: Targets, *, free: bool) -> Way:
    """Looks at the letters: all of them where looking is `free`, else at a few; it says what was not looked at."""
    target: Queue | None = None
    there = 0 if free else depth(taker.source)
    looked = 0
    for message in taker.look(None if free else _LOOKED_AT):
        looked += 1
        if not message.key:
            return Way(None, f"letter {message.id} does not carry its key with it")
        if message.state not in ("visible", ""):
            return Way(None, f"letter {message.id} is in somebody's hand")
        try:
            found = targets.of(message)
        except SemelError as error:
            return Way(None, str(error))
        if target is not None and found.name != target.name:
            return Way(None, f"letters go to {target.name} and to {found.name}")
        target = found
    if looked < there:
        return Way(target, f"of about {there} letters only {looked} were looked at for their keys")
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
        job.say(f"SQS moves them to {self._target.name} by itself, each with its key; what comes back does not stop it")
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
                if task.get("Status") == "COMPLETED":
                    return True
                if task.get("Status") == "CANCELLED":  # not by us: we do not look at it again after that
                    raise SemelError(f"the move from {self._source.name} was cancelled by somebody else; run it again")
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
    return PlanError(f"engine sqs-move: {why}. Leave the engine out: Semel then redrives {plan.queue} itself")
