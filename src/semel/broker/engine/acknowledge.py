"""DeleteMessage and ChangeMessageVisibility, singly and in batches: which receipt handles still count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.broker.engine.expiry import expire, make_ready, remove
from semel.broker.engine.fault_injector import FaultInjector
from semel.broker.engine.generation import MessageState
from semel.broker.engine.schema import IN_FLIGHT
from semel.broker.engine.store import Caller, Queue, Store
from semel.broker.engine.validation import check_batch
from semel.sqs import limits
from semel.sqs.errors import ServiceError, invalid_value, missing

_GROUP_OF = "SELECT grp FROM messages WHERE id = ?"


class Target:
    """The message that a handle stands for, as it is now. `is_there`: it has not been deleted. `holds`: the handle is
    the newest, and the message is still hidden."""

    __slots__ = ("group", "holds", "is_there", "number", "state")

    def __init__(self, store: Store, queue: Queue, handle: str) -> None:
        """Raises ReceiptHandleIsInvalid."""
        receipt, generation = store.receipts.parse(handle), queue.generation
        self.number = receipt.row - generation.low
        self.state: MessageState | None = generation.states.get(self.number)
        self.group: str | None = None
        if self.state is None or self.state.handle != handle:
            store.receipts.check(handle, receipt, queue.id)
        state = self.state
        self.is_there = state is not None
        self.holds = (
            state is not None
            and state.state == IN_FLIGHT
            and state.receives == receipt.receive
            and state.start == receipt.start
        )
        if state is None and receipt.row in generation:
            # Most likely it is deleted; or its receive was not on disk when the machine lost power.
            store.write_out()
            row = store.db.execute(_GROUP_OF, (receipt.row,)).fetchone()
            if row is not None:
                self.is_there, self.group = True, row[0]

    def may_be_deleted(self, queue: Queue, handle: str) -> bool:
        """False if it is already deleted, which is not an error.

        Standard: by any handle that the message ever had. FIFO: only by the newest, while the message is hidden."""
        if not self.is_there:
            return False
        if queue.fifo and not self.holds:
            raise invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
        return True


def delete(store: Store, queue: Queue, params: dict[str, Any], caller: Caller, faults: FaultInjector) -> dict[str, Any]:
    expire(store, queue, caller.now)
    handle = params["ReceiptHandle"]
    target = Target(store, queue, handle)
    if target.may_be_deleted(queue, handle) and not faults.loses_delete(queue):
        remove(store, queue, {target.number: target.group}, caller.now)
    store.count(queue, "deleted")
    return {}


def delete_batch(
    store: Store, queue: Queue, params: dict[str, Any], caller: Caller, faults: FaultInjector
) -> dict[str, Any]:
    entries = params["Entries"]
    check_batch(entries, "DeleteMessageBatchRequestEntry")
    expire(store, queue, caller.now)
    leaving: dict[int, str | None] = {}
    generation, parse = queue.generation, store.receipts.parse
    states, low = generation.states, generation.low

    def mark(entry: dict[str, Any]) -> None:
        handle = entry["ReceiptHandle"]
        number = parse(handle)[1] - low
        state = states.get(number)
        if state is not None and state.handle == handle and state.state == IN_FLIGHT and not faults.active:
            leaving[number] = None  # the fast path for most of them
            return
        target = Target(store, queue, handle)
        if target.may_be_deleted(queue, handle) and not faults.loses_delete(queue):
            leaving[target.number] = target.group

    answer = _each(entries, mark)
    if leaving:
        remove(store, queue, leaving, caller.now)
    store.count(queue, "deleted", len(answer.get("Successful", ())))
    return answer


def change_visibility(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    expire(store, queue, caller.now)
    _change(store, queue, params["ReceiptHandle"], params["VisibilityTimeout"], caller.now)
    return {}


def change_visibility_batch(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    entries = params["Entries"]
    check_batch(entries, "ChangeMessageVisibilityBatchRequestEntry")
    expire(store, queue, caller.now)

    def change(entry: dict[str, Any]) -> None:
        if "VisibilityTimeout" not in entry:
            raise missing("VisibilityTimeout")
        _change(store, queue, entry["ReceiptHandle"], entry["VisibilityTimeout"], caller.now)

    return _each(entries, change)


def _change(store: Store, queue: Queue, handle: str, seconds: int, now: int) -> None:
    if not 0 <= seconds <= limits.MAX_VISIBILITY:
        raise invalid_value(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
    target = Target(store, queue, handle)
    if not target.is_there or (queue.fifo and not target.holds):
        reason = "Message does not exist or is not available for visibility timeout change."
        raise invalid_value(handle, "ReceiptHandle", reason)
    state = target.state
    if state is None or state.state != IN_FLIGHT:
        return  # accepted without effect
    due = now + seconds * 1000
    if due - state.received > limits.MAX_VISIBILITY * 1000:
        reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
        raise invalid_value(seconds, "VisibilityTimeout", reason)
    generation = queue.generation
    store.touched.add(generation)
    if seconds == 0:
        make_ready(store, queue, [state], now)
    else:
        state.due = due
        generation.hide(state)
    store.log.add(generation, [state])


def give_back(store: Store, queue: Queue, handles: list[str], received: int, now: int) -> None:
    """Undoes a receive whose answer no client got: the messages are visible at once. Messages that the same
    ReceiveRequestAttemptId has got again since, under the same handles, have a later receive time, and stay hidden."""
    for handle in handles:
        target = Target(store, queue, handle)
        state = target.state
        if state is not None and target.holds and state.received == received:
            make_ready(store, queue, [state], now)
            state.receives -= 1
            if not state.receives:
                state.first = 0
            store.log.add(queue.generation, [state])
            for attempt in queue.generation.undo_attempts(state.number):
                store.log.add_attempt(queue.generation, [], attempt, now)


def _each(entries: list[dict[str, Any]], action: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Calls `action` with each entry, and reports which of them succeeded; an empty list is left out."""
    successful, failed = [], []
    for entry in entries:
        try:
            action(entry)
        except ServiceError as error:
            failed.append(error.as_batch_entry(entry["Id"]))
        else:
            successful.append({"Id": entry["Id"]})
    return {name: listed for name, listed in (("Successful", successful), ("Failed", failed)) if listed}
