"""Sweeping: what nothing refers to any more is deleted a little at a time, so that it never holds up a request."""

from __future__ import annotations

from typing import Final

from semel.broker.engine.expiry import settle
from semel.broker.engine.schema import LANE_BITS
from semel.broker.engine.store import Store
from semel.sqs import limits

_CHUNK: Final = 500
_DEAD_LANE = "SELECT id FROM lanes WHERE live = 0 LIMIT 1"
_SWEEP_MESSAGES = "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE id >= ? AND id < ? LIMIT ?)"
_SWEEP_GROUPS = "DELETE FROM groups WHERE id IN (SELECT id FROM groups WHERE lane = ? LIMIT ?)"
_DROP_LANE = "DELETE FROM lanes WHERE id = ?"
_SWEEP_ATTEMPTS = """
DELETE FROM attempts WHERE (lane, attempt) IN (SELECT lane, attempt FROM attempts WHERE expires <= ? LIMIT ?)
"""
_SWEEP_NAMES = "DELETE FROM deleted_queues WHERE at <= ?"


def sweep(store: Store, now: int) -> bool:
    """Deletes a chunk of everything that is over. True if there is more to sweep."""
    more = _sweep_lane(store)
    more = store.dedup.sweep(now, _CHUNK) or more
    more = store.db.execute(_SWEEP_ATTEMPTS, (now, _CHUNK)).rowcount == _CHUNK or more
    store.db.execute(_SWEEP_NAMES, (now - limits.RECREATE_PAUSE * 1000,))
    for queue in store.queues.values():
        more = settle(store, queue, now) or more
    return more


def _sweep_lane(store: Store) -> bool:
    row = store.db.execute(_DEAD_LANE).fetchone()
    if row is None:
        return False
    (lane,) = row
    bounds = (lane << LANE_BITS, (lane + 1) << LANE_BITS, _CHUNK)
    # Groups go after all messages that name them: a group's number may be given out again.
    swept = store.db.execute(_SWEEP_MESSAGES, bounds).rowcount
    swept = swept or store.db.execute(_SWEEP_GROUPS, (lane, _CHUNK)).rowcount
    if not swept:
        store.db.execute(_DROP_LANE, (lane,))
    return True
