"""What time does to messages: visibility and delays end, retention runs out. And how rows leave a queue.

Nothing happens on its own: whoever looks at a queue settles it first. Each message is promoted or expired once, so
the cost belongs to the receive or send that came before; one call does at most `_CHUNK` of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.broker.engine import groups, look_ahead
from semel.broker.engine.schema import IN_FLIGHT, READY
from semel.broker.engine.store import NEVER, Lane, Queue, Row, Store

_CHUNK: Final = 500
# A Standard message received this often without a delete goes to the back of the queue.
BACK_OF_QUEUE_RECEIVES: Final = 3

_DUE = """
SELECT id, state, grp, pos, receives, received, due FROM messages INDEXED BY hidden
WHERE lane = ? AND state > 0 AND due <= ? ORDER BY due LIMIT ?
"""
_NEXT_DUE = "SELECT min(due) FROM messages INDEXED BY hidden WHERE lane = ? AND state > 0"
_PROMOTE = "UPDATE messages SET state = 0, pos = ? WHERE id = ?"
_OLDEST = """
SELECT id, state, grp, received, enqueued FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?
"""
_LATECOMERS = """
SELECT id, state, grp, received, enqueued FROM messages INDEXED BY latecomers
WHERE lane = ? AND late > 0 ORDER BY enqueued LIMIT ?
"""
_DELETE = "DELETE FROM messages WHERE id = ?"


def settle(store: Store, queue: Queue, now: int) -> bool:
    """Brings a queue up to `now`, a chunk of work at most. True if more is left to do."""
    lane = queue.lane
    more = False
    if now >= lane.due_floor:
        more = _promote(store, queue, now)
    if now >= lane.expiry_floor:
        more = _expire(store, queue, now) or more
    return more


def settle_wholly(store: Store, queue: Queue, now: int) -> None:
    while settle(store, queue, now):
        pass


def next_due(store: Store, lane: Lane) -> int:
    """When the next hidden message becomes visible; NEVER if none is hidden."""
    (due,) = store.db.execute(_NEXT_DUE, (lane.id,)).fetchone()
    return NEVER if due is None else int(due)


def _promote(store: Store, queue: Queue, now: int) -> bool:
    lane = queue.lane
    rows = store.db.execute(_DUE, (lane.id, now, _CHUNK)).fetchall()
    if rows:
        make_ready(store, queue, rows, now)
    more = len(rows) == _CHUNK
    lane.due_floor = now if more else next_due(store, lane)
    return more


def make_ready(store: Store, queue: Queue, rows: Sequence[Row], now: int) -> None:
    """Puts hidden messages back: FIFO to their old place, Standard too unless they failed too often.

    A row is (id, state, grp, pos, receives, received, due)."""
    lane = queue.lane
    updates: list[tuple[int, int]] = []
    touched: dict[int, int] = {}
    for row, state, group, place, receives, received, due in rows:
        if not queue.fifo and state == IN_FLIGHT and receives >= BACK_OF_QUEUE_RECEIVES:
            place = store.next_row(lane)
        updates.append((place, row))
        store.shift(lane, state, -1)
        if state == IN_FLIGHT and not queue.fifo:
            groups.worked(store, lane, group, min(due, now) - received, now)
        if group is not None:
            touched[group] = touched.get(group, 0) - (state == IN_FLIGHT)
    store.shift(lane, READY, len(rows))
    store.db.executemany(_PROMOTE, updates)
    for group, change in touched.items():
        groups.refresh(store, queue, group, change)
    store.woken.add(queue.key)


def _expire(store: Store, queue: Queue, now: int) -> bool:
    lane = queue.lane
    in_order = store.db.execute(_OLDEST, (lane.low, lane.high, _CHUNK)).fetchall()
    late = store.db.execute(_LATECOMERS, (lane.id, _CHUNK)).fetchall()
    kept, more = NEVER, False
    dead: dict[int, Row] = {}
    for rows in (in_order, late):
        for row in rows:
            if row[4] + queue.retention > now:
                kept = min(kept, row[4])
                break
            dead[row[0]] = row
        else:
            # All of them are over: there may be more behind them.
            more = more or len(rows) == _CHUNK
    if dead:
        remove(store, queue, [row[:4] for row in dead.values()], now)
    # Whatever is sent from now on is younger than what was kept.
    lane.expiry_floor = now if more else min(kept, now) + queue.retention
    return more


def remove(store: Store, queue: Queue, rows: Sequence[Row], now: int) -> None:
    """Takes messages out of the queue for good. A row is (id, state, grp, received)."""
    lane = queue.lane
    store.db.executemany(_DELETE, [(row[0],) for row in rows])
    store.touched.add(lane)
    touched: dict[int, int] = {}
    ungrouped = 0
    if lane.horizon is not None:
        look_ahead.left(store, lane, [row[0] for row in rows])
    for _row, state, group, received in rows:
        lane.counts[state] -= 1
        if group is not None:
            touched[group] = touched.get(group, 0) - (state == IN_FLIGHT)
            if state == IN_FLIGHT and not queue.fifo:
                groups.worked(store, lane, group, now - received, now)
        elif state == IN_FLIGHT:
            ungrouped += now - received
    if ungrouped:
        groups.worked(store, lane, None, ungrouped, now)
    for group, change in touched.items():
        groups.refresh(store, queue, group, change)
        store.woken.add(queue.key)


def hide_until(lane: Lane, due: int) -> None:
    """A message of the lane was hidden until `due`."""
    if due < lane.due_floor:
        lane.due_floor = due
