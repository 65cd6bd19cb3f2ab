"""Fair queues: on a Standard queue, a tenant that floods it does not make the others wait.

A tenant is a message group; a message without one is a tenant of its own. Quiet tenants go first, by age; then the
noisy ones, first the one with the fewest messages in flight. At most a handful can be noisy at
once, as each needs a tenth of all.
"""

from __future__ import annotations

from heapq import heappop, heappush

from semel.broker.engine.generation import Generation, Group
from semel.broker.engine.groups import is_noisy
from semel.broker.engine.schema import GENERATION_BITS, NUMBER_MASK
from semel.broker.engine.store import Store

_NEXT = "SELECT id FROM messages WHERE id > ? AND id < ? AND grp IS NULL ORDER BY id LIMIT ?"


def take(store: Store, generation: Generation, want: int, now: int) -> list[int]:
    """Takes out ready messages in fair order; returns their numbers."""
    ungrouped = _Ungrouped(store, generation, want)
    numbers: list[int] = []
    noisy: list[tuple[int, int, Group]] = []  # by messages in flight, then by the first one's place
    while len(numbers) < want:
        group = generation.next_group()
        key = ungrouped.next_key()
        if group is not None and (key is None or group.items[group.start] < key):
            generation.pop_group()
            if is_noisy(generation, group, now):
                heappush(noisy, (len(group.in_flight) + group.receiving, group.items[group.start], group))
            else:
                numbers.append(_take_from(group))
                generation.offer(group)
        elif key is not None:
            number = ungrouped.pop()
            if number not in numbers:  # it may have two entries
                numbers.append(number)
        else:
            break
    while noisy and len(numbers) < want:
        in_flight, _, group = heappop(noisy)
        numbers.append(_take_from(group))
        if len(group):
            heappush(noisy, (in_flight + 1, group.items[group.start], group))
    for _, _, group in noisy:
        generation.offer(group)
    return numbers


def _take_from(group: Group) -> int:
    group.receiving += 1
    return group.pop()


class _Ungrouped:
    """The ready messages without a group, by place. What is not popped is found again by the next receive."""

    def __init__(self, store: Store, generation: Generation, want: int) -> None:
        self._store, self._generation, self._want = store, generation, want
        self._read: list[int] = []  # numbers, the next one last
        self._end = 0  # messages behind this number have not been read

    def next_key(self) -> int | None:
        generation = self._generation
        returned = generation.next_returned()
        number = self._next_number()
        keys = [] if returned is None else [returned.key]
        if number is not None:
            keys.append(number << GENERATION_BITS | number)
        return min(keys, default=None)

    def pop(self) -> int:
        """The message of `next_key`."""
        generation, key = self._generation, self.next_key()
        assert key is not None
        if self._read and key & NUMBER_MASK == self._read[-1]:
            generation.cursor = self._read.pop()
            if not self._read:
                generation.cursor = self._end  # all in between have a group, or a state
        else:
            heappop(generation.returned)
        return key & NUMBER_MASK

    def _next_number(self) -> int | None:
        """The number of the next message that was never received."""
        generation = self._generation
        low, states = generation.low, generation.states
        while not self._read and max(generation.cursor, self._end) + 1 < generation.next_number:
            after = max(generation.cursor, self._end)
            bounds = (low | after, low | generation.next_number, self._want)
            rows = [row - low for (row,) in self._store.db.execute(_NEXT, bounds)]
            self._end = rows[-1] if len(rows) == self._want else generation.next_number - 1
            self._read = [number for number in reversed(rows) if number not in states]
            if not self._read:
                generation.cursor = self._end
        return self._read[-1] if self._read else None
