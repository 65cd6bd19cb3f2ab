"""Message move tasks: redrive of a dead-letter queue, in steps that the server takes between requests."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from semel.broker.engine.attributes import Arn
from semel.broker.engine.dead_letters import redrive
from semel.broker.engine.expiry import expire_all
from semel.broker.engine.lookup import find_by_arn
from semel.broker.engine.rows import COLUMNS, Row
from semel.broker.engine.schema import NUMBER_MASK, READY
from semel.broker.engine.store import Caller, Queue, Store
from semel.sqs import limits
from semel.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    OVER_LIMIT,
    QUEUE_DOES_NOT_EXIST,
    RESOURCE_NOT_FOUND,
    ServiceError,
    invalid_value,
)

_TASK_COLUMNS: Final = "number, id, source, destination, rate, status, reason, started, moved, to_move, cursor, until"
_INSERT = """
INSERT INTO move_tasks (id, source, destination, rate, status, started, moved, to_move, cursor, until)
VALUES (?, ?, ?, ?, 'RUNNING', ?, 0, ?, ?, ?)
"""
_RUNNING = f"SELECT {_TASK_COLUMNS} FROM move_tasks WHERE status = 'RUNNING' ORDER BY number"
_BY_ID = f"SELECT {_TASK_COLUMNS} FROM move_tasks WHERE id = ?"
_BY_SOURCE = f"SELECT {_TASK_COLUMNS} FROM move_tasks WHERE source = ? ORDER BY number DESC LIMIT ?"
_SAVE = "UPDATE move_tasks SET status = ?, reason = ?, moved = ?, cursor = ? WHERE number = ?"
_FORGET_OLD = """
DELETE FROM move_tasks WHERE source = ?1 AND status <> 'RUNNING' AND number NOT IN
    (SELECT number FROM move_tasks WHERE source = ?1 ORDER BY number DESC LIMIT 10)
"""
_NEXT = f"SELECT {COLUMNS} FROM messages WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
_STEP: Final = 200
_LISTED: Final = 10
_MAX_TASK_MS: Final = 36 * 3_600_000


class Status(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


@dataclass(slots=True)
class Task:
    """One row of move_tasks; `cursor` and `until` bound what is still to be moved."""

    number: int
    id: str
    source: str
    destination: str | None
    rate: int | None
    status: str
    reason: str | None
    started: int
    moved: int
    to_move: int
    cursor: int
    until: int

    @property
    def account(self) -> str:
        return self.source.split(":")[4]

    @property
    def handle(self) -> str:
        return b64encode(json.dumps({"taskId": self.id, "sourceArn": self.source}).encode()).decode()

    def shown(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "TaskHandle": self.handle if self.status == Status.RUNNING else None,
            "Status": self.status,
            "SourceArn": self.source,
            "DestinationArn": self.destination,
            "MaxNumberOfMessagesPerSecond": self.rate,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "FailureReason": self.reason,
            "StartedTimestamp": self.started,
        }
        return {key: value for key, value in entry.items() if value is not None}


def _queue_named(store: Store, text: str, parameter: str, caller: Caller, action: str) -> Queue:
    queue = find_by_arn(store, text, caller, action)
    if queue is None:
        raise ServiceError(
            RESOURCE_NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
        )
    return queue


def start(store: Store, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    source = _queue_named(store, params["SourceArn"], "SourceArn", caller, "StartMessageMoveTask")
    if not any(queue.redrive and queue.redrive.target == source.arn for queue in store.queues.values()):
        raise ServiceError(INVALID_PARAMETER_VALUE, "Source queue must be configured as a Dead Letter Queue.")
    destination = params.get("DestinationArn")
    if destination is not None:
        target = _queue_named(store, destination, "DestinationArn", caller, "StartMessageMoveTask")
        _check_destination(source, target)
    rate = params.get("MaxNumberOfMessagesPerSecond")
    if rate is not None and not 1 <= rate <= limits.MAX_MOVE_RATE:
        reason = "You must provide a value between 1 and 500, both inclusive."
        raise invalid_value(rate, "MaxNumberOfMessagesPerSecond", reason)
    running = _running(store)
    if any(task.source == str(source.arn) for task in running):
        raise ServiceError(
            INVALID_PARAMETER_VALUE,
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
        )
    mine = [task for task in running if task.account == source.arn.account]
    if len(mine) >= limits.MAX_MOVE_TASKS:
        raise ServiceError(OVER_LIMIT, f"Only {limits.MAX_MOVE_TASKS} active message move tasks are allowed.")
    expire_all(store, source, caller.now)
    task_id, generation = store.new_id(), source.generation
    until = generation.low | generation.next_number
    bounds = (caller.now, generation.counts[READY], generation.low - 1, until)
    store.db.execute(_INSERT, (task_id, str(source.arn), destination, rate, *bounds))
    store.db.execute(_FORGET_OLD, (str(source.arn),))
    return {"TaskHandle": _by_id(store, task_id).handle}


def _check_destination(source: Queue, target: Queue) -> None:
    if target is source:
        raise ServiceError(INVALID_PARAMETER_VALUE, "Source queue arn and destination queue arn can't be equal.")
    if target.arn.account != source.arn.account:
        raise ServiceError(
            INVALID_PARAMETER_VALUE, "Source queue and destination queue must be owned by the same account."
        )
    if target.fifo != source.fifo:
        raise ServiceError(
            INVALID_PARAMETER_VALUE, "Source queue and destination queue must be of the same type, Standard or FIFO."
        )


def listed(store: Store, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    source = _queue_named(store, params["SourceArn"], "SourceArn", caller, "ListMessageMoveTasks")
    limit = params.get("MaxResults", 1)
    if not 1 <= limit <= _LISTED:
        raise invalid_value(limit, "MaxResults", "You must provide a value between 1 and 10, both inclusive.")
    rows = store.db.execute(_BY_SOURCE, (str(source.arn), limit))
    return {"Results": [Task(*row).shown() for row in rows]}


def cancel(store: Store, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    try:
        content = json.loads(b64decode(params["TaskHandle"], validate=True))
        task_id, source = str(content["taskId"]), str(content["sourceArn"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ServiceError(INVALID_PARAMETER_VALUE, "Value for parameter TaskHandle is invalid.") from None
    _queue_named(store, source, "SourceArn", caller, "CancelMessageMoveTask")
    task = _by_id(store, task_id)
    if task.source != source:
        raise _no_such_task()
    if task.status != Status.RUNNING:
        raise ServiceError(INVALID_PARAMETER_VALUE, "Only active tasks can be cancelled.")
    _save(store, task, Status.CANCELLED)
    return {"ApproximateNumberOfMessagesMoved": task.moved}


def _no_such_task() -> ServiceError:
    return ServiceError(RESOURCE_NOT_FOUND, "Task does not exist.")


def _by_id(store: Store, task_id: str) -> Task:
    row = store.db.execute(_BY_ID, (task_id,)).fetchone()
    if row is None:
        raise _no_such_task()
    return Task(*row)


def _running(store: Store) -> list[Task]:
    return [Task(*row) for row in store.db.execute(_RUNNING)]


def _save(store: Store, task: Task, status: Status, reason: str | None = None) -> None:
    task.status, task.reason = status, reason
    store.db.execute(_SAVE, (status, reason, task.moved, task.cursor, task.number))


# Moving.


def step(store: Store, now: int) -> int | None:
    """Moves a few messages of every running task. Returns when to call it again: `now` means at once, None never."""
    again: list[int] = []
    for task in _running(store):
        due = _step(store, task, now)
        if due is not None:
            again.append(due)
    return min(again, default=None)


def _step(store: Store, task: Task, now: int) -> int | None:
    arn = Arn.parse(task.source)
    source = store.by_arn(arn) if arn else None
    if source is None:
        _save(store, task, Status.FAILED, QUEUE_DOES_NOT_EXIST.code)
        return None
    if now - task.started > _MAX_TASK_MS:
        _save(store, task, Status.FAILED, "TaskTimedOut")
        return None
    budget = _STEP
    if task.rate is not None:
        budget = min(budget, task.rate * (now - task.started) // 1000 - task.moved)
        if budget <= 0:
            return task.started + -(-(task.moved + 1) * 1000 // task.rate)
    expire_all(store, source, now)
    # If the queue was purged meanwhile, the messages to move are gone, although their rows may still be there.
    until = task.until if task.until in source.generation else task.cursor
    store.write_out()
    left = budget
    while rows := store.db.execute(_NEXT, (task.cursor, until, _STEP)).fetchall():
        for row in map(Row._make, rows):
            task.cursor = row.id
            if not _may_move(source, row):
                continue
            target, reason = _target(store, task, row)
            if target is None:
                _save(store, task, Status.FAILED, reason)
                return None
            redrive(store, source, target, row, now)
            task.moved += 1
            left -= 1
            if not left:
                _save(store, task, Status.RUNNING)
                return now
    _save(store, task, Status.COMPLETED)
    return None


def _may_move(source: Queue, row: Row) -> bool:
    """Whether it is ready and, in a FIFO queue, would not overtake a message of its group that is in flight."""
    number, generation = row.id & NUMBER_MASK, source.generation
    state = generation.states.get(number)
    if state is not None and state.state != READY:
        return False
    group = generation.group_of_row(row.group) if source.fifo and row.group is not None else None
    return group is None or not group.in_flight or number < min(group.in_flight)


def _target(store: Store, task: Task, row: Row) -> tuple[Queue | None, str]:
    """Where a message goes, or why it can't."""
    text = task.destination
    if text is None:
        text = row.extras().get("source")
        if text is None:
            return None, "CouldNotDetermineMessageSource"
    arn = Arn.parse(text)
    return (store.by_arn(arn) if arn else None), QUEUE_DOES_NOT_EXIST.code
