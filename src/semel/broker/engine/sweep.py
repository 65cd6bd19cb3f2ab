"""Deletes what nothing refers to any more, a little at a time, so that it never holds up a request."""

from __future__ import annotations

from typing import Final

from semel.broker.engine.expiry import expire
from semel.broker.engine.schema import GENERATION_BITS
from semel.broker.engine.store import Store
from semel.sqs import limits

_CHUNK: Final = 500
_DEAD_GENERATION = "SELECT id FROM generations WHERE live = 0 LIMIT 1"
_SWEEP_MESSAGES = "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE id >= ? AND id < ? LIMIT ?)"
_SWEEP_LOG = "DELETE FROM receive_log WHERE generation = ?"
_DROP_GENERATION = "DELETE FROM generations WHERE id = ?"
_SWEEP_NAMES = "DELETE FROM deleted_queues WHERE at <= ?"


def sweep(store: Store, now: int) -> bool:
    """Deletes a chunk of everything that has expired or is no longer used. True if there is more to sweep."""
    store.write_out()
    more = _sweep_generation(store)
    more = store.dedup.sweep(now, _CHUNK) or more
    more = store.log.trim(store.generations, now) or more
    store.db.execute(_SWEEP_NAMES, (now - limits.RECREATE_PAUSE * 1000,))
    for queue in store.queues.values():
        more = expire(store, queue, now) or more
        queue.generation.expire_attempts(now)
    return more


def _sweep_generation(store: Store) -> bool:
    row = store.db.execute(_DEAD_GENERATION).fetchone()
    if row is None:
        return False
    (number,) = row
    bounds = (number << GENERATION_BITS, (number + 1) << GENERATION_BITS, _CHUNK)
    if not store.db.execute(_SWEEP_MESSAGES, bounds).rowcount:
        store.db.execute(_SWEEP_LOG, (number,))
        store.db.execute(_DROP_GENERATION, (number,))
    return True
