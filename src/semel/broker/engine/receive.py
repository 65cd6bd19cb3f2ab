"""ReceiveMessage: which messages are next, hiding them, and what a client gets to see of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from semel.broker.engine import fair, groups
from semel.broker.engine.dead_letters import dead_letter
from semel.broker.engine.expiry import BACK_OF_QUEUE_RECEIVES, hide_until, remove, settle, settle_wholly
from semel.broker.engine.faults import FaultInjector
from semel.broker.engine.look_ahead import horizon
from semel.broker.engine.messages import COLUMNS, Handed, Stored
from semel.broker.engine.schema import IN_FLIGHT, READY
from semel.broker.engine.store import NEVER, Caller, Lane, Queue, Store, sequence_number
from semel.broker.engine.validation import check_token
from semel.sqs import limits
from semel.sqs.checksums import md5_of_attributes
from semel.sqs.errors import INVALID_ATTRIBUTE_NAME, OVER_LIMIT, ServiceError, invalid_value
from semel.sqs.model import enum_values

_READY = f"""
SELECT {COLUMNS} FROM messages INDEXED BY ready
WHERE state = 0 AND grp IS NULL AND pos > ? AND pos < ? ORDER BY pos LIMIT ?
"""
_READY_IN_GROUP = f"""
SELECT {COLUMNS} FROM messages INDEXED BY grouped
WHERE grp = ? AND state = 0 AND pos > ? AND pos < ? ORDER BY pos LIMIT ?
"""
_LOCK = "SELECT min(pos) FROM messages INDEXED BY grouped WHERE grp = ? AND state = 1"
_HAND_OUT = """
UPDATE messages SET state = ?, due = ?, pos = ?, receives = receives + 1, first = ?, received = ? WHERE id = ?
"""
_FIND_ATTEMPT = "SELECT messages FROM attempts WHERE lane = ? AND attempt = ? AND expires > ?"
_SAVE_ATTEMPT = "INSERT OR REPLACE INTO attempts (lane, attempt, expires, messages) VALUES (?, ?, ?, ?)"
_BY_ID = f"SELECT {COLUMNS}, state, due FROM messages WHERE id = ?"
_HIDE_AGAIN = "UPDATE messages SET due = ?, received = MAX(?, received + 1) WHERE id = ?"

# One call gives up looking after so many messages that went to the dead-letter queue or had expired.
_MAX_SET_ASIDE: Final = 1_000
_BEYOND: Final = (1 << 63) - 1


def receive(
    store: Store, queue: Queue, params: dict[str, Any], caller: Caller, faulty: FaultInjector
) -> dict[str, Any]:
    want, visibility, wait = _checked(queue, params)
    view = _view(params)
    now, lane = caller.now, queue.lane
    settle(store, queue, now)
    attempt = params.get("ReceiveRequestAttemptId")
    if attempt is not None:
        again = _same_again(store, queue, attempt, visibility, now)
        if again:
            return {"Messages": [view(queue, handed) for handed in again]}
    room = limits.MAX_IN_FLIGHT - lane.counts[IN_FLIGHT]
    if room <= 0 and not queue.fifo and wait == 0:
        raise ServiceError(OVER_LIMIT, f"Too many messages in flight for queue {queue.name}: the limit is 120000.")
    if wait == 0 and not queue.fifo:
        want = faulty.short_poll(queue.key, want)
    handed = _take(store, queue, min(want, room), visibility, now, faulty) if want and room > 0 else []
    if not handed:
        return {}
    store.count(queue, "received", len(handed))
    if attempt is not None:
        _remember_attempt(store, lane, attempt, handed, now)
    return {"Messages": [view(queue, message) for message in handed]}


def wait_seconds(queue: Queue, params: dict[str, Any]) -> int:
    """How long a receive may wait: what it says itself, also 0, before what the queue says."""
    given = params.get("WaitTimeSeconds")
    return queue.wait if given is None else int(given)


def _checked(queue: Queue, params: dict[str, Any]) -> tuple[int, int, int]:
    want = params.get("MaxNumberOfMessages", 1)
    if not 1 <= want <= limits.MAX_RECEIVE:
        raise invalid_value(want, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    wait = wait_seconds(queue, params)
    if not 0 <= wait <= limits.MAX_WAIT:
        raise invalid_value(wait, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
    visibility = params.get("VisibilityTimeout")
    if visibility is None:
        visibility = queue.visibility // 1000
    elif not 0 <= visibility <= limits.MAX_VISIBILITY:
        raise invalid_value(visibility, "VisibilityTimeout", "Must be >= 0 and <= 43200, if provided.")
    attempt = params.get("ReceiveRequestAttemptId")
    if attempt is not None:
        if not queue.fifo:
            reason = "The request include parameter that is not valid for this queue type."
            raise invalid_value(attempt, "ReceiveRequestAttemptId", reason)
        check_token(attempt, "ReceiveRequestAttemptId")
    return want, visibility * 1000, wait


# Choosing.


def _take(store: Store, queue: Queue, want: int, visibility: int, now: int, faulty: FaultInjector) -> list[Handed]:
    """The next messages, hidden; those that were received too often go to the dead-letter queue instead."""
    chosen: list[Stored] = []
    set_aside = 0
    limit = queue.redrive.max_receives if queue.redrive else None
    for message in _candidates(store, queue, want, now):
        if message.enqueued + queue.retention <= now:
            remove(store, queue, [(message.id, READY, message.grp, 0)], now)
        elif limit is not None and message.receives >= limit and dead_letter(store, queue, message, now):
            pass
        else:
            chosen.append(message)
            if len(chosen) == want:
                break
            continue
        set_aside += 1
        if set_aside == _MAX_SET_ASIDE:
            # More may be ready behind them: whoever waits should look again.
            store.woken.add(queue.key)
            break
    return _hand_out(store, queue, chosen, visibility, now, faulty)


def _candidates(store: Store, queue: Queue, want: int, now: int) -> Iterator[Stored]:
    if queue.fifo:
        return _fifo_candidates(store, queue, want)
    if next(groups.heads(store, queue.lane, -1, 1), None) is not None:
        return fair.candidates(store, queue, now)
    return plain_candidates(store, queue.lane, want)


def plain_candidates(store: Store, lane: Lane, batch: int) -> Iterator[Stored]:
    """Ready messages without a group, in the queue's order."""
    after = lane.low - 1
    while True:
        rows = store.db.execute(_READY, (after, lane.high, batch)).fetchall()
        yield from map(Stored._make, rows)
        if len(rows) < batch:
            return
        after = rows[-1][1]


def _fifo_candidates(store: Store, queue: Queue, want: int) -> Iterator[Stored]:
    """Group after group by the age of their first message; all that a group can give before the next one."""
    after, met = -1, set()
    end = horizon(store, queue.lane)
    while True:
        found = list(groups.heads(store, queue.lane, after, want))
        for head in found:
            if head.id not in met and head.place < end:
                met.add(head.id)
                yield from _deliverable(store, head, want)
        if len(found) < want:
            return
        after = found[-1].place


def _deliverable(store: Store, head: groups.Head, batch: int) -> Iterator[Stored]:
    """The messages of a FIFO group that stand before the first one in flight."""
    end = _BEYOND
    if head.in_flight:
        (lock,) = store.db.execute(_LOCK, (head.id,)).fetchone()
        end = _BEYOND if lock is None else lock
    after = head.place - 1
    while True:
        rows = store.db.execute(_READY_IN_GROUP, (head.id, after, end, batch)).fetchall()
        yield from map(Stored._make, rows)
        if len(rows) < batch:
            return
        after = rows[-1][1]


# Receiving by id, which only the admin interface can.


def receive_ids(
    store: Store, queue: Queue, rows: Sequence[int], visibility: int, caller: Caller, faulty: FaultInjector
) -> dict[str, Any]:
    """Hides exactly these messages and hands them out, in this order; whatever is not there or not ready is left out.

    Neither the place in the queue counts nor the order in a FIFO group, and none goes to a dead-letter queue instead:
    who asks for a message by name means this one. A message of a FIFO group that stays behind one taken so waits, as
    it does behind any that is in flight."""
    now, lane = caller.now, queue.lane
    settle_wholly(store, queue, now)
    room = max(0, limits.MAX_IN_FLIGHT - lane.counts[IN_FLIGHT])
    chosen: list[Stored] = []
    for row in dict.fromkeys(rows):
        found = store.db.execute(_BY_ID, (row,)).fetchone() if row in lane else None
        if found is None or found[-2] != READY or len(chosen) == room:
            continue
        message = Stored._make(found[:-2])
        if message.enqueued + queue.retention > now:
            chosen.append(message)
    handed = _hand_out(store, queue, chosen, visibility, now, faulty)
    store.count(queue, "received", len(handed))
    view = _view({"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]})
    return {"Messages": [view(queue, message) for message in handed]}


# Hiding.


def _hand_out(
    store: Store, queue: Queue, chosen: list[Stored], visibility: int, now: int, faulty: FaultInjector
) -> list[Handed]:
    lane, encode = queue.lane, store.receipts.encode
    updates, handed, hidden, soonest = [], [], 0, NEVER
    by_group: dict[int, int] = {}
    for message in chosen:
        row, place, group, receives, _prior, first = message[:6]
        timeout = faulty.visibility(queue, visibility) if faulty.active else visibility
        state = IN_FLIGHT if timeout > 0 else READY
        if state == IN_FLIGHT:
            hidden += 1
            soonest = min(soonest, timeout)
        elif not queue.fifo and receives + 1 >= BACK_OF_QUEUE_RECEIVES:
            place = store.next_row(lane)
        updates.append((state, now + timeout, place, first or now, now, row))
        if group is not None:
            by_group[group] = by_group.get(group, 0) + (state == IN_FLIGHT)
        handed.append(Handed(message, encode(queue.id, row, receives + 1), receives + 1, first or now, now + timeout))
    store.db.executemany(_HAND_OUT, updates)
    if hidden:
        hide_until(lane, now + soonest)
        store.shift(lane, READY, -hidden)
        store.shift(lane, IN_FLIGHT, hidden)
    for group, change in by_group.items():
        groups.refresh(store, queue, group, change)
    if hidden < len(chosen):
        store.woken.add(queue.key)
    return handed


# ReceiveRequestAttemptId.


def _remember_attempt(store: Store, lane: Lane, attempt: str, handed: list[Handed], now: int) -> None:
    messages = json.dumps([(item.message.id, item.receive, item.due) for item in handed])
    expires = now + limits.RECEIVE_ATTEMPT_WINDOW * 1000
    store.db.execute(_SAVE_ATTEMPT, (lane.id, attempt, expires, messages))


def _same_again(store: Store, queue: Queue, attempt: str, visibility: int, now: int) -> list[Handed]:
    """What an earlier receive with the same attempt id got, hidden anew; nothing if any of it has changed since."""
    row = store.db.execute(_FIND_ATTEMPT, (queue.lane.id, attempt, now)).fetchone()
    handed = []
    for number, receive, due in json.loads(row[0]) if row else ():
        found = store.db.execute(_BY_ID, (number,)).fetchone()
        if found is None:
            return []
        message, state, present_due = Stored._make(found[:-2]), found[-2], found[-1]
        if message.receives != receive or state != IN_FLIGHT or present_due != due:
            return []
        handle = store.receipts.encode(queue.id, number, receive)
        handed.append(Handed(message, handle, receive, message.first, now + visibility))
    for item in handed:
        store.db.execute(_HIDE_AGAIN, (now + visibility, now, item.message.id))
    hide_until(queue.lane, now + visibility)
    if handed:
        _remember_attempt(store, queue.lane, attempt, handed, now)
    return handed


# Showing.

View = Callable[[Queue, Handed], dict[str, Any]]


def _view(params: dict[str, Any]) -> View:
    """How this request wants messages shown: which system attributes, which message attributes."""
    system = _system_names(params)
    chosen = _attribute_filter(params.get("MessageAttributeNames") or [])

    def show(queue: Queue, handed: Handed) -> dict[str, Any]:
        message = handed.message
        shown: dict[str, Any] = {
            "MessageId": message.message_id,
            "ReceiptHandle": handed.handle,
            "MD5OfBody": message.md5,
            "Body": message.body,
        }
        if not system and chosen is None:
            return shown
        extra = orjson.loads(message.extra) if message.extra else {}
        if system:
            attributes = {k: v for k, v in _system_attributes(queue, handed, extra).items() if k in system}
            if attributes:
                shown["Attributes"] = attributes
        if chosen is not None and "attributes" in extra:
            selected = {name: value for name, value in extra["attributes"].items() if chosen(name)}
            if selected:
                shown["MessageAttributes"] = selected
                shown["MD5OfMessageAttributes"] = md5_of_attributes(selected)
        return shown

    return show


def _system_names(params: dict[str, Any]) -> frozenset[str]:
    asked = (params.get("AttributeNames") or []) + (params.get("MessageSystemAttributeNames") or [])
    if not asked:
        return frozenset()
    known = enum_values("MessageSystemAttributeName")
    for name in asked:
        if name not in known and name not in enum_values("QueueAttributeName"):
            raise ServiceError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    return known if "All" in asked else frozenset(asked)


def _system_attributes(queue: Queue, handed: Handed, extra: dict[str, Any]) -> dict[str, str]:
    message = handed.message
    attributes = {
        "SenderId": message.sender,
        "SentTimestamp": str(message.sent),
        "ApproximateReceiveCount": str(message.prior + handed.receive),
        "ApproximateFirstReceiveTimestamp": str(handed.first),
    }
    if queue.fifo:
        attributes["SequenceNumber"] = sequence_number(message.id)
    for key, name in _EXTRA_NAMES:
        if key in extra:
            attributes[name] = extra[key]
    return attributes


_EXTRA_NAMES: Final = (
    ("dedup", "MessageDeduplicationId"),
    ("group", "MessageGroupId"),
    ("trace", "AWSTraceHeader"),
    ("source", "DeadLetterQueueSourceArn"),
)


def _attribute_filter(names: list[str]) -> Callable[[str], bool] | None:
    if not names:
        return None
    if "All" in names or ".*" in names:
        return lambda _name: True
    exact = {name for name in names if not name.endswith(".*")}
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return lambda name: name in exact or name.startswith(prefixes)
