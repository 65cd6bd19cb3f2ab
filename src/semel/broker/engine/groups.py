"""Message groups: which one may be served next, on FIFO queues (order) and on Standard queues (fairness).

One row a group says where its first message stands that may be handed out now (`head`). On FIFO that is the first
ready message unless one before it is in flight; on Standard it is simply the first ready one. Rows of groups without
messages are removed, so there are never more rows than messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from typing import Final, NamedTuple

from semel.broker.engine.schema import DELAYED, IN_FLIGHT, READY
from semel.broker.engine.store import Group, Lane, Queue, Row, Store

_FIND = "SELECT id, head, in_flight, sent FROM groups WHERE lane = ? AND name = ?"
_INSERT = """
INSERT INTO groups (lane, name, head, in_flight, sent, busy, busy_at) VALUES (?, ?, ?, 0, ?, 0, ?)
"""
_SET_HEAD = "UPDATE groups SET head = ? WHERE id = ?"
_SET_SENT = "UPDATE groups SET sent = ? WHERE id = ?"
_LOOK = f"""
SELECT name, in_flight, sent,
    (SELECT min(pos) FROM messages WHERE grp = ?1 AND state = {READY}),
    (SELECT min(pos) FROM messages WHERE grp = ?1 AND state = {IN_FLIGHT}),
    EXISTS (SELECT 1 FROM messages WHERE grp = ?1 AND state = {DELAYED})
FROM groups WHERE id = ?1
"""
_UPDATE = "UPDATE groups SET head = ?, in_flight = ? WHERE id = ?"
_DELETE = "DELETE FROM groups WHERE id = ?"
_HEADS = """
SELECT id, head, in_flight, sent, busy, busy_at FROM groups INDEXED BY group_heads
WHERE lane = ? AND head IS NOT NULL AND head > ? ORDER BY head LIMIT ?
"""
_ADD_BUSY = "UPDATE groups SET busy = ?, busy_at = ? WHERE id = ?"
_BUSY = "SELECT busy, busy_at FROM groups WHERE id = ?"

# A tenant is noisy above this share of the messages in flight (and this many of its own), or of recent work.
NOISY_SHARE: Final = 0.10
NOISY_IN_FLIGHT: Final = 30
# "Recent" fades with this time constant; a share of almost nothing is no evidence.
_RECENT_MS: Final = 60_000.0
_EVIDENCE_MS: Final = 10_000.0
_QUIET_AFTER_MS: Final = 300_000
# How exact the time of a tenant's last send is kept.
_SENT_STEP_MS: Final = 1_000


class Head(NamedTuple):
    """A group with something to hand out."""

    id: int
    place: int
    in_flight: int
    sent: int
    busy: float
    busy_at: int


def enter(store: Store, queue: Queue, name: str, place: int | None, now: int) -> int:
    """The group's id, after a message was added at its end; `place` is None if that message is delayed."""
    group = _find(store, queue.lane, name)
    if group is None:
        number = store.db.execute(_INSERT, (queue.lane.id, name, place, now, now)).lastrowid
        assert number is not None
        store.remember_group(Group(number, queue.lane.id, name, place, 0, now))
        return number
    # On FIFO, any message in flight stands before the new one and holds it back.
    if group.head is None and place is not None and not (queue.fifo and group.in_flight):
        store.db.execute(_SET_HEAD, (place, group.id))
        group.head = place
    if not queue.fifo and now - group.sent >= _SENT_STEP_MS:
        store.db.execute(_SET_SENT, (now, group.id))
        group.sent = now
    return group.id


def _find(store: Store, lane: Lane, name: str) -> Group | None:
    group = store.groups.get((lane.id, name))
    if group is None:
        row = store.db.execute(_FIND, (lane.id, name)).fetchone()
        if row is None:
            return None
        number, head, in_flight, sent = row
        group = Group(number, lane.id, name, head, in_flight, sent)
        store.remember_group(group)
    return group


def refresh(store: Store, queue: Queue, number: int, in_flight_change: int = 0) -> None:
    """Finds a group's head again after messages left it or changed state."""
    row = store.db.execute(_LOOK, (number,)).fetchone()
    if row is None:
        return
    name, before, sent, ready, locked, delayed = row
    after = before + in_flight_change
    if (before > 0) != (after > 0):
        queue.lane.busy_groups += 1 if after > 0 else -1
        store.touched.add(queue.lane)
    if ready is None and locked is None and not delayed:
        store.db.execute(_DELETE, (number,))
        store.groups.pop((queue.lane.id, name), None)
        return
    head = None if queue.fifo and ready is not None and locked is not None and locked < ready else ready
    store.db.execute(_UPDATE, (head, after, number))
    store.remember_group(Group(number, queue.lane.id, name, head, after, sent))


def heads(store: Store, lane: Lane, after: int, limit: int) -> Iterator[Head]:
    return map(Head._make, store.db.execute(_HEADS, (lane.id, after, limit)))


# Fairness among the tenants of a Standard queue.


def _faded(amount: float, since: int, now: int) -> float:
    return amount * exp((since - now) / _RECENT_MS)


def worked(store: Store, lane: Lane, group: int | None, milliseconds: int, now: int) -> None:
    """A message was worked on for so long; a tenant that takes much of the consumers' time is noisy."""
    lane.busy = _faded(lane.busy, lane.busy_at, now) + milliseconds
    lane.busy_at = now
    if group is None:
        return
    row: Row | None = store.db.execute(_BUSY, (group,)).fetchone()
    if row is not None:
        store.db.execute(_ADD_BUSY, (_faded(row[0], row[1], now) + milliseconds, now, group))


def is_noisy(lane: Lane, head: Head, now: int) -> bool:
    if now - head.sent >= _QUIET_AFTER_MS:
        return False
    in_flight = lane.counts[IN_FLIGHT]
    if head.in_flight >= NOISY_IN_FLIGHT and head.in_flight > NOISY_SHARE * in_flight:
        return True
    busy = _faded(head.busy, head.busy_at, now)
    return busy >= _EVIDENCE_MS and busy > NOISY_SHARE * max(busy, _faded(lane.busy, lane.busy_at, now))
