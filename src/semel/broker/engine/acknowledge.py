"""DeleteMessage and ChangeMessageVisibility, singly and in batches: what each fate of a receipt handle means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.broker.engine.expiry import hide_until, make_ready, remove, settle
from semel.broker.engine.faults import FaultInjector
from semel.broker.engine.receipts import Receipt
from semel.broker.engine.schema import IN_FLIGHT
from semel.broker.engine.store import Caller, Queue, Row, Store
from semel.broker.engine.validation import check_batch
from semel.sqs import limits
from semel.sqs.errors import ServiceError, invalid_value, missing

_FIND = "SELECT id, state, grp, pos, receives, received, due FROM messages WHERE id = ?"
_FIND_TEN = _FIND.replace("= ?", f"IN ({', '.join('?' * limits.MAX_BATCH_ENTRIES)})")
_HIDE = "UPDATE messages SET due = ? WHERE id = ?"
_UNRECEIVE = """
UPDATE messages SET receives = receives - 1, first = CASE WHEN receives + prior = 1 THEN 0 ELSE first END WHERE id = ?
"""


def delete(store: Store, queue: Queue, params: dict[str, Any], caller: Caller, faulty: FaultInjector) -> dict[str, Any]:
    settle(store, queue, caller.now)
    handle = params["ReceiptHandle"]
    receipt = store.receipts.decode(handle, queue.id)
    row = _find(store, queue, receipt)
    if row is not None and _is_doomed(queue, handle, receipt, row) and not faulty.loses_delete(queue):
        remove(store, queue, [_leaving(row)], caller.now)
    store.count(queue, "deleted")
    return {}


def delete_batch(
    store: Store, queue: Queue, params: dict[str, Any], caller: Caller, faulty: FaultInjector
) -> dict[str, Any]:
    entries = params["Entries"]
    check_batch(entries, "DeleteMessageBatchRequestEntry")
    settle(store, queue, caller.now)
    decode, number = store.receipts.decode, queue.id
    receipts: dict[str, Receipt] = {}

    def read(entry: dict[str, Any]) -> None:
        receipts[entry["Id"]] = decode(entry["ReceiptHandle"], number)

    failed = _each(entries, read).get("Failed", [])
    wanted = [receipt.row for receipt in receipts.values() if receipt.row in queue.lane]
    wanted += [-1] * (limits.MAX_BATCH_ENTRIES - len(wanted))
    found: dict[int, Row] = {row[0]: row for row in store.db.execute(_FIND_TEN, wanted)}
    doomed: dict[int, Row] = {}

    def mark(entry: dict[str, Any]) -> None:
        receipt = receipts[entry["Id"]]
        row = found.get(receipt.row)
        if _is_doomed(queue, entry["ReceiptHandle"], receipt, row) and not faulty.loses_delete(queue):
            assert row is not None
            doomed[receipt.row] = _leaving(row)

    answer = _each([entry for entry in entries if entry["Id"] in receipts], mark)
    if failed:
        answer["Failed"] = failed + answer.get("Failed", [])
    if doomed:
        remove(store, queue, list(doomed.values()), caller.now)
    store.count(queue, "deleted", len(answer.get("Successful", ())))
    return answer


def _find(store: Store, queue: Queue, receipt: Receipt) -> Row | None:
    """The row that a receipt stands for; None if it is deleted, or was purged and only waits to be swept up."""
    row: Row | None = store.db.execute(_FIND, (receipt.row,)).fetchone() if receipt.row in queue.lane else None
    return row


def _is_doomed(queue: Queue, handle: str, receipt: Receipt, row: Row | None) -> bool:
    """Whether a handle deletes what it stands for; False if that is gone already, which is fine.

    Standard: any handle that ever was the message's. FIFO: only the newest, and only while it hides the message."""
    if row is None:
        return False
    if queue.fifo and (row[1] != IN_FLIGHT or row[4] != receipt.receive):
        raise invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
    return True


def _leaving(row: Row) -> Row:
    """What `remove` needs of a row of _FIND: (id, state, grp, received)."""
    return row[0], row[1], row[2], row[5]


def change_visibility(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    settle(store, queue, caller.now)
    _change(store, queue, params["ReceiptHandle"], params["VisibilityTimeout"], caller.now)
    return {}


def change_visibility_batch(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    entries = params["Entries"]
    check_batch(entries, "ChangeMessageVisibilityBatchRequestEntry")
    settle(store, queue, caller.now)

    def one(entry: dict[str, Any]) -> None:
        if "VisibilityTimeout" not in entry:
            raise missing("VisibilityTimeout")
        _change(store, queue, entry["ReceiptHandle"], entry["VisibilityTimeout"], caller.now)

    return _each(entries, one)


def _change(store: Store, queue: Queue, handle: str, seconds: int, now: int) -> None:
    if not 0 <= seconds <= limits.MAX_VISIBILITY:
        raise invalid_value(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
    receipt = store.receipts.decode(handle, queue.id)
    row = _find(store, queue, receipt)
    stale = row is not None and (row[1] != IN_FLIGHT or row[4] != receipt.receive)
    if row is None or (stale and queue.fifo):
        reason = "Message does not exist or is not available for visibility timeout change."
        raise invalid_value(handle, "ReceiptHandle", reason)
    if stale:
        # Standard: accepted without effect, so that a late caller cannot touch the next holder's message.
        return
    number, received = row[0], row[5]
    due = now + seconds * 1000
    if due - received > limits.MAX_VISIBILITY * 1000:
        reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
        raise invalid_value(seconds, "VisibilityTimeout", reason)
    if seconds == 0:
        make_ready(store, queue, [row], now)
    else:
        store.db.execute(_HIDE, (due, number))
        hide_until(queue.lane, due)


def give_back(store: Store, queue: Queue, handles: list[str], received: int, now: int) -> None:
    """Undoes a receive that no client got to see: the messages are visible at once. What was handed out again since to
    the same ReceiveRequestAttemptId, under the same handles, was received later, and stays with whoever has it."""
    for handle in handles:
        receipt = store.receipts.decode(handle, queue.id)
        row = _find(store, queue, receipt)
        if row is not None and row[1] == IN_FLIGHT and row[4:6] == (receipt.receive, received):
            make_ready(store, queue, [row], now)
            store.db.execute(_UNRECEIVE, (receipt.row,))


def _each(entries: list[dict[str, Any]], one: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Does `one` for each entry and reports, entry by entry; an empty list is left out."""
    successful, failed = [], []
    for entry in entries:
        try:
            one(entry)
        except ServiceError as error:
            failed.append(error.as_batch_entry(entry["Id"]))
        else:
            successful.append({"Id": entry["Id"]})
    return {name: listed for name, listed in (("Successful", successful), ("Failed", failed)) if listed}
