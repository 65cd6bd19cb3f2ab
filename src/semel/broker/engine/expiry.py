"""What time does to messages: visibility timeouts and delays end, retention runs out. And how messages leave a queue.

Nothing happens by itself: every access to a queue brings it up to date first. A message becomes visible once for each
receive, and expires once, so the cost is in proportion to receives and sends. One call does at most `_CHUNK` of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop
from typing import Final

from semel.broker.engine import groups, look_ahead
from semel.broker.engine.generation import NEVER, Generation, MessageState
from semel.broker.engine.schema import GENERATION_BITS, IN_FLIGHT, NUMBER_MASK
from semel.broker.engine.store import Queue, Store

_CHUNK: Final = 500
_OLDEST = "SELECT id, enqueued, grp FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
_BY_ID = "SELECT id, enqueued, grp FROM messages WHERE id = ?"
_BACKDATED = "SELECT id, enqueued FROM messages WHERE id >= ? AND id < ? AND arrived IS NOT NULL"
_STALE_BACKDATED: Final = 1_000


def expire(store: Store, queue: Queue, now: int) -> bool:
    """Brings a queue up to `now`, a chunk of work at most. True if more is left to do."""
    generation = queue.generation
    more = False
    if now >= generation.due_floor:
        more = _expire_visibility(store, queue, now)
    if now >= generation.expiry_floor:
        more = _expire_retention(store, queue, now) or more
    return more


def expire_all(store: Store, queue: Queue, now: int) -> None:
    while expire(store, queue, now):
        pass


def _expire_visibility(store: Store, queue: Queue, now: int) -> bool:
    due = queue.generation.take_due(now, _CHUNK)
    if due:
        make_ready(store, queue, due, now)
    return len(due) == _CHUNK


def make_ready(store: Store, queue: Queue, states: Iterable[MessageState], now: int) -> None:
    """Puts hidden messages back into the queue. If they are due, the receive log needs no entry: it has the times."""
    generation = queue.generation
    store.touched.add(generation)
    fair = bool(generation.groups) and not generation.fifo
    for state in states:
        if fair and state.state == IN_FLIGHT:
            groups.worked(generation, state.group, min(state.due, now) - state.received, now)
        generation.make_ready(state)
    store.woken.add(queue.key)


def _expire_retention(store: Store, queue: Queue, now: int) -> bool:
    generation = queue.generation
    store.write_out()
    rows = store.db.execute(_OLDEST, (generation.low, generation.high, _CHUNK)).fetchall()
    kept, more = NEVER, False
    over: dict[int, str | None] = {}
    for row, enqueued, group in rows:
        if enqueued + queue.retention > now:
            kept = enqueued
            break
        over[row & NUMBER_MASK] = group
    else:
        more = len(rows) == _CHUNK  # there may be more behind them
    backdated = _backdated(store, generation)
    while backdated and len(over) < 2 * _CHUNK:
        enqueued, number = backdated[0] >> GENERATION_BITS, backdated[0] & NUMBER_MASK
        row = store.db.execute(_BY_ID, (generation.low | number,)).fetchone()
        if row is not None and enqueued + queue.retention > now:
            kept = min(kept, enqueued)
            break
        heappop(backdated)
        if row is not None:
            over[number] = row[2]
    more = more or len(over) >= 2 * _CHUNK
    if over:
        remove(store, queue, over, now)
    # Messages sent from now on are younger than those that were kept.
    generation.expiry_floor = now if more else min(kept, now) + queue.retention
    return more


def _backdated(store: Store, generation: Generation) -> list[int]:
    backdated = generation.backdated
    if len(backdated) > _STALE_BACKDATED + 2 * sum(generation.counts):
        rows = store.db.execute(_BACKDATED, (generation.low, generation.high))
        backdated[:] = [enqueued << GENERATION_BITS | row & NUMBER_MASK for row, enqueued in rows]
        heapify(backdated)
    return backdated


def remove(store: Store, queue: Queue, messages: dict[int, str | None], now: int) -> None:
    """Removes messages for good, given as number and group. The group is not needed for messages with a state."""
    generation = queue.generation
    store.touched.add(generation)
    low, fair = generation.low, bool(generation.groups) and not generation.fifo
    store.delete([low | number for number in messages])
    for number, group in messages.items():
        state = generation.forget(number, group)
        if fair and state is not None and state.state == IN_FLIGHT:
            groups.worked(generation, state.group, now - state.received, now)
    if generation.look_ahead_end is not None:
        look_ahead.left(store, generation, messages)
    if generation.groups:
        store.woken.add(queue.key)
