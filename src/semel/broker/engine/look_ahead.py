"""How far a FIFO queue looks for groups: among its first 120,000 messages, in flight or not, and no further.

The first message beyond that is found once and then moved along as messages before it leave, so that a receive never
has to count. In a queue with fewer messages there is none.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.broker.engine.store import NEVER, Lane, Store
from semel.sqs import limits

_NTH = "SELECT id FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?"


def horizon(store: Store, lane: Lane) -> int:
    """The row of the first message that is too far away; NEVER if all are near enough."""
    if sum(lane.counts) <= limits.FIFO_LOOK_AHEAD:
        lane.horizon = None
        return NEVER
    if lane.horizon is None:
        row = store.db.execute(_NTH, (lane.low, lane.high, limits.FIFO_LOOK_AHEAD)).fetchone()
        lane.horizon = NEVER if row is None else row[0]
    return lane.horizon


def left(store: Store, lane: Lane, rows: Iterable[int]) -> None:
    """Messages left the lane, and their rows are gone from the table: as many others come within sight."""
    if lane.horizon is not None:
        nearer = sum(row < lane.horizon for row in rows)
        found = store.db.execute(_NTH, (lane.horizon, lane.high, nearer)).fetchone()
        lane.horizon = None if found is None else found[0]
