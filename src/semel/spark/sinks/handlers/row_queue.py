"""A task's rows as the queue of a consumer: handed out, put back for later, and deleted when done. All in memory.

The rules, which are those of SQS:
1. A row stays in the queue until it is deleted. If it is put back for some seconds, it is handed out again after them.
2. FIFO: the rows of a group are handed out in order, and no further ones while some are out or wait.
3. A message that comes twice counts once: the second row with its id is dropped, whatever happens to the first.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from semel.sqs import Cancel, Failure, Queue, Received
from semel.sqs.errors import Cancelled

TICK: Final = 0.25


@dataclass(slots=True, eq=False)
class Row:
    """One message. `due`: it is not handed out before this time of the monotonic clock. `out_at`: when it was handed
    out last."""

    place: int
    message: Received
    due: float = 0.0
    out_at: float = 0.0

    def __lt__(self, other: Row) -> bool:
        return self.place < other.place


class Line:
    """The order of a Standard queue: first come, first served."""

    def __init__(self) -> None:
        self._ready: deque[Row] = deque()
        self._later: list[tuple[float, Row]] = []

    def add(self, row: Row) -> None:
        if row.due:
            self.back(row)
        else:
            self._ready.append(row)

    def back(self, row: Row) -> None:
        heapq.heappush(self._later, (row.due, row))

    def show(self, receipt: str) -> None:
        """Ends the wait of a row that was put back."""
        for place, (_, row) in enumerate(self._later):
            if row.message.receipt == receipt:
                del self._later[place]
                heapq.heapify(self._later)
                self._ready.append(row)
                return

    def deleted(self, row: Row) -> None:
        pass

    def take(self, most: int, now: float) -> list[Row]:
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[1])
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def next_due(self) -> float | None:
        """When the next row can be handed out; None: never, unless one is put back."""
        if self._ready:
            return 0.0
        return self._later[0][0] if self._later else None

    def drain(self) -> list[Row]:
        rows = [*self._ready, *(row for _, row in sorted(self._later))]
        self._ready.clear()
        self._later.clear()
        return rows


@dataclass(slots=True)
class _Group:
    rows: list[Row] = field(default_factory=list)  # a heap: the first is the oldest
    out: int = 0


class Groups:
    """The order of a FIFO queue: each group's own, groups side by side."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._due: list[tuple[float, int, str]] = []  # groups with no row out: when their first row is due

    def _group(self, row: Row) -> tuple[str, _Group]:
        name = row.message.group or ""
        return name, self._groups.setdefault(name, _Group())

    def add(self, row: Row) -> None:
        name, group = self._group(row)
        heapq.heappush(group.rows, row)
        if len(group.rows) == 1 and not group.out:
            self._announce(name, group)

    def back(self, row: Row) -> None:
        name, group = self._group(row)
        heapq.heappush(group.rows, row)
        self._returned(name, group)

    def show(self, receipt: str) -> None:
        """Does nothing: in a group, a row that waits keeps its time, as those behind it wait for it."""

    def deleted(self, row: Row) -> None:
        self._returned(*self._group(row))

    def _returned(self, name: str, group: _Group) -> None:
        group.out -= 1
        if group.rows and not group.out:
            self._announce(name, group)
        elif not group.rows and not group.out:
            del self._groups[name]

    def _announce(self, name: str, group: _Group) -> None:
        heapq.heappush(self._due, (group.rows[0].due, group.rows[0].place, name))

    def take(self, most: int, now: float) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < most and self._due and self._due[0][0] <= now:
            group = self._groups[heapq.heappop(self._due)[2]]
            while group.rows and len(rows) < most and group.rows[0].due <= now:
                rows.append(heapq.heappop(group.rows))
                group.out += 1
        return rows

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def drain(self) -> list[Row]:
        rows = sorted(row for group in self._groups.values() for row in group.rows)
        self._groups = {name: _Group(out=group.out) for name, group in self._groups.items() if group.out}
        self._due.clear()
        return rows


class RowQueue:
    """What the consumer uses as its queue. `put` and the methods below it are for the task that fills it.

    `changed`: one condition for all queues of the task; it is notified of changes.
    """

    def __init__(
        self,
        queue: Queue,
        attributes: Mapping[str, str],
        changed: threading.Condition,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.real = queue
        self.name, self.fifo, self.client = queue.name, queue.fifo, queue.client
        self._attributes = dict(attributes)
        self._changed = changed
        self._monotonic = monotonic
        self._order: Line | Groups = Groups() if queue.fifo else Line()
        self._known: set[str] = set()
        self._out: dict[str, Row] = {}  # by receipt
        self._left = 0
        self._closed = False
        self.wake_at = 0  # the task is notified when at most this many rows are left
        self.duplicates = 0

    # For the consumer.

    @property
    def url(self) -> str:
        return self.real.url

    @property
    def scope(self) -> str:
        return self.real.scope

    def attributes(self, *names: str) -> dict[str, str]:
        return {name: self._attributes[name] for name in names or self._attributes if name in self._attributes}

    def receive(
        self,
        limit: int = 10,
        wait: int = 0,
        *,
        visibility: int | None = None,  # noqa: ARG002
        attempt_id: str | None = None,  # noqa: ARG002
        cancel: Cancel | None = None,
    ) -> list[Received]:
        until = self._monotonic() + wait
        with self._changed:
            while True:
                if cancel is not None and cancel.is_set():
                    raise Cancelled(f"{self.name}: the task is over")
                if self._closed:
                    self._changed.wait(0.01)  # the receivers are about to be stopped
                    return []
                now = self._monotonic()
                if rows := self._order.take(limit, now):
                    for row in rows:
                        row.out_at = now
                        self._out[row.message.receipt] = row
                    return [row.message for row in rows]
                if now >= until:
                    return []
                due = self._order.next_due()
                self._changed.wait(min(TICK, until - now, TICK if due is None else max(0.001, due - now)))

    def delete(self, receipts: Sequence[str]) -> list[Failure | None]:
        with self._changed:
            for receipt in receipts:
                row = self._out.pop(receipt, None)
                if row is not None:
                    self._order.deleted(row)
                    self._left -= 1
            # Receivers wait for a free group of a FIFO queue. Otherwise only the last deletes matter, to the task.
            if self.fifo or not self._out or self._left <= self.wake_at:
                self._changed.notify_all()
        return [None] * len(receipts)

    def change_visibility(
        self,
        pairs: Sequence[tuple[str, int]],
        *,
        timeout: float | None = None,
    ) -> list[Failure | None]:
        """With a timeout it is a heartbeat: rows that are out stay out. Without, rows are put back for later."""
        if timeout is None:
            self.hide(pairs)
        return [None] * len(pairs)

    def hide(self, pairs: Iterable[tuple[str, float]]) -> None:
        """Put rows back: each is handed out again when its seconds have passed."""
        now = self._monotonic()
        with self._changed:
            for receipt, seconds in pairs:
                row = self._out.pop(receipt, None)
                if row is not None:
                    row.due = now + seconds if seconds else 0.0
                    self._order.back(row)
                elif not seconds:
                    self._order.show(receipt)
            self._changed.notify_all()

    # For the task.

    def put(self, messages: Iterable[Received]) -> None:
        """Add rows."""
        with self._changed:
            for message in messages:
                if message.message_id in self._known:
                    self.duplicates += 1
                    continue
                place = len(self._known)
                self._known.add(message.message_id)
                message.receipt = str(place)
                self._order.add(Row(place, message))
                self._left += 1
            self._changed.notify_all()

    @property
    def left(self) -> int:
        return self._left

    @property
    def out(self) -> int:
        return len(self._out)

    def next_due(self) -> float | None:
        with self._changed:
            return self._order.next_due()

    def find_lost(self, in_flight: Mapping[str, Any], after: float) -> int:
        """Put back rows that the consumer has dropped because their claim was lost: they have been out for more than
        `after` seconds, and are not in flight there."""
        now = self._monotonic()
        with self._changed:
            lost = [
                row
                for row in self._out.values()
                if row.message.message_id not in in_flight and now - row.out_at > after
            ]
        self.hide((row.message.receipt, after) for row in lost)
        return len(lost)

    def drain(self) -> Iterator[tuple[Received, float]]:
        """Take all waiting messages out of the queue, in order, each with the seconds that it still has to wait."""
        with self._changed:
            rows, now = self._order.drain(), self._monotonic()
            self._left -= len(rows)
        return iter([(row.message, max(0.0, row.due - now)) for row in rows])

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
