"""The clients of a broker, and the limits for all of them together: connections, and memory for unread answers.

The rule: clients that take too much make room for others. Clients that have never sent a complete request are
disconnected first, then those that have been quiet the longest. A client that waits for an answer stays connected.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from semel.broker.http import Connection

_SHARE: Final = 64  # the fraction (1/64) of all connections that is closed at once, as it takes a moment to check all


@dataclass(frozen=True, slots=True)
class Limits:
    """`request_seconds`: for a client to send a request, and to read the next part of an answer. `idle_seconds`: for a
    connection without a request. `unread_bytes`: of answers that all clients together have not read yet.
    `arriving_bytes`: of bodies that have not arrived completely. `lingering`: refused clients that may finish sending,
    so that they can read why. `tick_seconds`: how often these times are checked."""

    connections: int = 4096
    request_seconds: float = 60.0
    idle_seconds: float = 600.0
    unread_bytes: int = 512 * 1024 * 1024
    arriving_bytes: int = 256 * 1024 * 1024
    lingering: int = 128
    tick_seconds: float = 10.0


class Connections:
    """All connections that are open. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lingering = 0
        self.arriving_bytes = 0
        self._open: set[Connection] = set()
        self._unread: dict[Connection, int] = {}  # bytes, of those who leave something unread
        self._unread_bytes = 0

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more, or room could be made."""
        if len(self._open) >= self.limits.connections and not self._make_room():
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.set_unread(connection, 0)

    def set_unread(self, connection: Connection, size: int) -> None:
        """How many bytes this client has not read. If all have too many, the one with the most is disconnected."""
        self._unread_bytes += size - self._unread.pop(connection, 0)
        if size:
            self._unread[connection] = size
        while self._unread_bytes > self.limits.unread_bytes:
            worst = max(self._unread, key=self._unread.__getitem__)
            self._unread_bytes -= self._unread.pop(worst)
            worst.abort()

    def let_overdue_go(self, now: float) -> None:
        for connection in [connection for connection in self._open if connection.overdue(now)]:
            connection.abort()

    def _make_room(self) -> bool:
        candidates = [
            (*rank, id(connection), connection)
            for connection in self._open
            if (rank := connection.expendable()) is not None
        ]
        chosen = heapq.nsmallest(max(1, self.limits.connections // _SHARE), candidates)
        for *_, connection in chosen:
            self.remove(connection)
            connection.let_go()
        return bool(chosen)
