"""How far a FIFO queue looks for groups: among its first 120,000 messages, in flight or not, and no further.

The first message beyond that limit is found once, and then moved on as messages before it leave, so that a receive
never has to count. A queue with fewer messages has none. Groups that begin beyond it wait in `beyond_look_ahead`.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.broker.engine.generation import NEVER, Generation, Group
from semel.broker.engine.schema import NUMBER_MASK
from semel.broker.engine.store import Store
from semel.sqs import limits

_NTH = "SELECT id FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?"
_NEXT = "SELECT id FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"


def look_ahead_end(store: Store, generation: Generation) -> int:
    """The number of the first message beyond the limit; NEVER if there is none."""
    if sum(generation.counts) <= limits.FIFO_LOOK_AHEAD:
        if generation.look_ahead_end is not None:
            generation.look_ahead_end = None
            _bring_in(generation, list(generation.beyond_look_ahead))
        return NEVER
    if generation.look_ahead_end is None:
        bounds = (generation.low, generation.high, limits.FIFO_LOOK_AHEAD)
        row = store.db.execute(_NTH, bounds).fetchone()
        generation.look_ahead_end = NEVER if row is None else row[0] & NUMBER_MASK
    return generation.look_ahead_end


def left(store: Store, generation: Generation, numbers: Iterable[int]) -> None:
    """Messages have left, so as many others come within the limit."""
    end = generation.look_ahead_end
    if end is None:
        return
    nearer = 0
    for number in numbers:
        if number < end:
            nearer += 1
        else:
            generation.beyond_look_ahead.pop(number, None)  # its group is offered again with what it has left
    if not nearer:
        return
    store.write_out()
    rows = [row for (row,) in store.db.execute(_NEXT, (generation.low | end, generation.high, nearer + 1))]
    # If all are now within the limit, the end is searched for again when there are more messages.
    generation.look_ahead_end = rows[nearer] & NUMBER_MASK if len(rows) > nearer else None
    _bring_in(generation, [row & NUMBER_MASK for row in rows[:nearer]])


def set_aside(generation: Generation, group: Group, number: int) -> None:
    """Sets aside a group whose first message is beyond the limit."""
    generation.beyond_look_ahead[number] = group


def _bring_in(generation: Generation, numbers: Iterable[int]) -> None:
    for number in numbers:
        group = generation.beyond_look_ahead.pop(number, None)
        if group is not None:
            generation.offer(group)
