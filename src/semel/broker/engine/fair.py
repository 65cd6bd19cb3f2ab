"""Fair queues: on a Standard queue, a tenant that floods it does not make the others wait.

A tenant is a message group; a message without one is a tenant of its own. Quiet tenants go first, by age; then the
noisy one with the fewest messages in flight. At most a handful can be noisy at once, as each needs a tenth of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from semel.broker.engine import groups
from semel.broker.engine.groups import Head
from semel.broker.engine.messages import COLUMNS, Stored
from semel.broker.engine.store import Queue, Store

_NEXT_IN_GROUP = f"""
SELECT {COLUMNS} FROM messages INDEXED BY grouped WHERE grp = ? AND state = 0 AND pos > ? ORDER BY pos LIMIT 1
"""
_NEXT_WITHOUT_GROUP = f"""
SELECT {COLUMNS} FROM messages INDEXED BY ready
WHERE state = 0 AND grp IS NULL AND pos > ? AND pos < ? ORDER BY pos LIMIT 1
"""
# Heads read at a time: more than can be noisy at once, so that a round always meets the quiet ones too.
_ROUND: Final = 32


def candidates(store: Store, queue: Queue, now: int) -> Iterator[Stored]:
    """Ready messages in the order in which fairness hands them out. Each one yielded counts as taken."""
    tenants = _Tenants(store, queue, now)
    while True:
        message = tenants.next_quiet() or tenants.next_noisy()
        if message is None:
            return
        yield message


class _Tenants:
    def __init__(self, store: Store, queue: Queue, now: int) -> None:
        self._store, self._queue, self._now = store, queue, now
        self._quiet: list[tuple[int, int, Stored, Head | None]] = []  # by place
        self._noisy: list[tuple[int, int, Stored, Head]] = []  # by messages in flight, then place
        self._taken: dict[int, int] = {}
        self._met: set[int] = set()
        self._after_head, self._all_read = -1, False
        self._add_ungrouped(queue.lane.low - 1)

    def next_quiet(self) -> Stored | None:
        while True:
            if not self._quiet or self._quiet[0][0] > self._after_head:
                self._read_heads()
            if not self._quiet:
                return None
            _place, _, message, head = heappop(self._quiet)
            if head is None:
                self._add_ungrouped(message.pos)
                return message
            if not self._is_noisy(head):
                self._take(head, message)
                return message
            # It became noisy by what this very call has taken.
            self._push(head, message)

    def next_noisy(self) -> Stored | None:
        if not self._noisy:
            return None
        _in_flight, _, message, head = heappop(self._noisy)
        self._take(head, message)
        return message

    def _take(self, head: Head, message: Stored) -> None:
        self._taken[head.id] = self._taken.get(head.id, 0) + 1
        self._add_from(head, message.pos)

    def _in_flight(self, head: Head) -> int:
        return head.in_flight + self._taken.get(head.id, 0)

    def _is_noisy(self, head: Head) -> bool:
        return groups.is_noisy(self._queue.lane, head._replace(in_flight=self._in_flight(head)), self._now)

    def _push(self, head: Head, message: Stored) -> None:
        if self._is_noisy(head):
            heappush(self._noisy, (self._in_flight(head), message.pos, message, head))
        else:
            heappush(self._quiet, (message.pos, message.id, message, head))

    def _add_from(self, head: Head, after: int) -> None:
        row = self._store.db.execute(_NEXT_IN_GROUP, (head.id, after)).fetchone()
        if row is not None:
            self._push(head, Stored._make(row))

    def _add_ungrouped(self, after: int) -> None:
        row = self._store.db.execute(_NEXT_WITHOUT_GROUP, (after, self._queue.lane.high)).fetchone()
        if row is not None:
            heappush(self._quiet, (row[1], row[0], Stored._make(row), None))

    def _read_heads(self) -> None:
        """The next round of tenants, oldest first; none twice, though a head may move while this call goes on."""
        if self._all_read:
            return
        found = list(groups.heads(self._store, self._queue.lane, self._after_head, _ROUND))
        self._all_read = len(found) < _ROUND
        for head in found:
            if head.id not in self._met:
                self._met.add(head.id)
                self._add_from(head, head.place - 1)
        if found:
            self._after_head = found[-1].place
