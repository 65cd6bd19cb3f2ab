"""Redrive by SQS's own move task, on request: all messages go to one queue, each with its key.

A move gives every message a new MessageId and changes nothing else. So it is used only for messages that carry their
key; others could be processed twice by a handler whose key is the MessageId. Nobody watches what comes back: messages
that fail again do not stop the rest. The task runs in SQS: it continues if this process dies, and the next run follows
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from semel.dlq.access import MessageAccess
from semel.dlq.jobs import Job, JobCancelled
from semel.dlq.queues import depth
from semel.dlq.redrive.plan import PlanError
from semel.dlq.redrive.sender import Targets
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.errors import SqsError

_CHECK_EVERY: Final = 0.5  # seconds
_SURVEYED: Final = 100  # messages, where reading means receiving
_LISTED: Final = 10  # tasks


def survey(access: MessageAccess, targets: Targets, job: Job) -> Queue | None:
    """The one queue that all messages go to; None if there are no messages. Raises PlanError if a move would be wrong.

    On the broker every message is read; on SQS only some, and the job says how many."""
    target: Queue | None = None
    surveyed = 0
    there = depth(access.queue) if access.receives else 0
    # Claimed under a job of its own: its counts are not those of the redrive.
    with access.claims(Job("survey", access.queue.name)) as claims:
        for message in claims.preview(_SURVEYED if access.receives else None):
            surveyed += 1
            if not message.key:
                raise _refused(access, f"message {message.id} does not carry its key")
            if message.state not in ("visible", ""):
                raise _refused(access, f"message {message.id} is in flight")
            try:
                next_target = targets.of(message)
            except SemelError as error:
                raise _refused(access, str(error)) from None
            if target is not None and next_target.name != target.name:
                raise _refused(access, f"messages go to {target.name} and to {next_target.name}")
            target = next_target
    if surveyed < there:
        job.log(f"of about {there} messages only {surveyed} were checked for their keys")
    return target


def _refused(access: MessageAccess, why: str) -> PlanError:
    return PlanError(f"engine sqs-move: {why}. Leave the engine out: Semel then redrives {access.queue.name} itself")


class MoveTask:
    """One redrive by move tasks: a pause ends the task, and a resume starts another for the rest."""

    def __init__(
        self, client: Client, source: Queue, target: Queue, rate: float | None, rest: Callable[[Job, float], None]
    ) -> None:
        self._client, self._source, self._target = client, source, target
        self._rate = rate
        self._rest = rest  # must return when the job is paused, and not wait until it is resumed
        self._moved_before = 0
        self._earlier: list[dict[str, Any]] = []
        self._handle = ""

    def run(self, job: Job) -> None:
        job.log(f"SQS moves the messages to {self._target.name}, each with its key; what comes back does not stop it")
        while not self._follow(job):
            self._moved_before = job.counts.sent
            job.checkpoint()

    def _start(self, job: Job) -> None:
        """Starts a task, or finds the one that an earlier run left in SQS."""
        self._earlier = self._tasks()
        running = next((task for task in self._earlier if task.get("Status") in ("RUNNING", "CANCELLING")), None)
        if running is None:
            arns = {"SourceArn": self._source.arn, "DestinationArn": self._target.arn}
            rate = {} if self._rate is None else {"MaxNumberOfMessagesPerSecond": int(self._rate)}
            self._handle = self._client.call("StartMessageMoveTask", arns | rate).get("TaskHandle", "")
        elif running.get("DestinationArn") == self._target.arn and running.get("TaskHandle"):
            self._handle, self._earlier = running["TaskHandle"], []
            job.log("a move task to that queue is running already, perhaps of an earlier run: this job follows it")
        else:
            raise SemelError(
                f"queue {self._source.name}: a move task to {running.get('DestinationArn') or 'the source queues'} is "
                f"{running['Status'].lower()} in SQS; run this again when it has ended, or end it with: aws sqs "
                f"cancel-message-move-task --task-handle {running.get('TaskHandle', '…')}"
            )
        job.result["task_handle"] = self._handle

    def _follow(self, job: Job) -> bool:
        """Follows one task to its end. Returns False if it was ended because the job is paused."""
        self._start(job)
        try:
            while True:
                task = self._task()
                self._count(job, task)
                status = task.get("Status")
                if status == "COMPLETED":
                    return True
                if status == "CANCELLED":  # by somebody else: after our own cancel we do not ask again
                    raise SemelError(f"the move from {self._source.name} was cancelled by somebody else; run it again")
                if status == "FAILED":
                    raise SemelError(f"SQS ended the move from {self._source.name}: {task.get('FailureReason')}")
                if job.cancelling:
                    raise JobCancelled("cancelled")
                if job.pausing:
                    self._end(job)
                    return False
                self._rest(job, _CHECK_EVERY)
        except BaseException:
            self._end(job)  # nobody would be there to end it later
            raise

    def _end(self, job: Job) -> None:
        with contextlib.suppress(SqsError):  # it has just ended by itself
            self._client.call("CancelMessageMoveTask", {"TaskHandle": self._handle})
        with contextlib.suppress(SqsError):
            self._count(job, self._task())

    def _tasks(self) -> list[dict[str, Any]]:
        """The newest first."""
        params = {"SourceArn": self._source.arn, "MaxResults": _LISTED}
        return list(self._client.call("ListMessageMoveTasks", params).get("Results") or ())

    def _task(self) -> dict[str, Any]:
        """Our task; empty while SQS lists only earlier ones. SQS shows the handle of a running task only."""
        tasks = self._tasks()
        for task in tasks:
            if task.get("TaskHandle") == self._handle:
                return task
        if not tasks or (self._earlier and not self._is_new(tasks)):
            return {}
        return tasks[0]

    def _is_new(self, tasks: list[dict[str, Any]]) -> bool:
        newest, earlier = tasks[0].get("StartedTimestamp", 0), self._earlier[0].get("StartedTimestamp", 0)
        return newest > earlier or len(tasks) > len(self._earlier)

    def _count(self, job: Job, task: dict[str, Any]) -> None:
        moved = self._moved_before + int(task.get("ApproximateNumberOfMessagesMoved", 0))
        if "ApproximateNumberOfMessagesToMove" in task:
            job.total = self._moved_before + int(task["ApproximateNumberOfMessagesToMove"])
        more = moved - job.counts.sent
        if more > 0:
            job.add(matched=more, sent=more, deleted=more)
