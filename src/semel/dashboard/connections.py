"""Limits for each client of the dashboard: the size of headers, pipelined requests, time, and connections.

uvicorn itself waits for ever for a request, and for a client to read its answer. Here, a client that takes too long is
disconnected. If there are too many connections, those that have never sent a complete request are closed first, then
those that have been quiet for the longest time. A client that waits for an answer keeps its connection.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD: Final = 64 * 1024
MAX_PIPELINED: Final = 32
MAX_SURPLUS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """`connections`: if more are open, some are closed. `active`: if none of them can be closed, 503 is the answer from
    this number of connections on, and from this number of requests in progress. `request_seconds`: how long a client
    may take to send a request, plus a second for each `least_rate` bytes of body; also how long it may take to read the
    next part of an answer. `idle_seconds`: how long a connection may have no request. `tick_seconds`: how often these
    limits are checked."""

    connections: int = 400
    active: int = 1000
    request_seconds: float = 60.0
    least_rate: int = 16 * 1024
    idle_seconds: float = 30.0
    tick_seconds: float = 5.0


class _CutOff(Exception):
    """Ends the parser's work on a connection that has been aborted."""


class Connection(HttpToolsProtocol):
    """One client. `limits` is set by `connection_class`."""

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._quiet_since = monotonic()
        self._request_since: float | None = None  # when the request that is still arriving began
        self._has_asked = False
        self._raw_bytes = self._body_bytes = 0  # of the request that is arriving
        self._surplus = 0  # bytes of a body that came after its answer
        self._blocked_since: float | None = None  # since when the client has taken nothing of an answer
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._make_room()
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._request_since is None:
            self._request_since = monotonic()
        self._raw_bytes += len(data)
        super().data_received(data)
        # Everything except the body and the framing of its chunks counts as headers, also trailers after the body.
        if self._request_since is not None and self._raw_bytes > MAX_HEAD + 2 * self._body_bytes:
            self._refuse(431, f"more than {MAX_HEAD} bytes of headers")

    def pause_writing(self) -> None:
        self._blocked_since, self._unread = monotonic(), self.transport.get_write_buffer_size()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._blocked_since = None
        super().resume_writing()

    # Called by the parser.

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise _CutOff
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:  # the client goes on sending instead of reading why it was refused
            self._surplus += len(body)
            if self._surplus > MAX_SURPLUS:
                self.transport.abort()
                raise _CutOff
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._request_since, self._has_asked = None, True
        self._raw_bytes = self._body_bytes = self._surplus = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._quiet_since = monotonic()
        super().on_response_complete()

    # Limits.

    def overdue(self, now: float) -> bool:
        """Whether the client takes too long to send its request or to read an answer, or has been silent for too
        long."""
        if self.flow.write_paused or self.transport.is_closing():
            unread = self.transport.get_write_buffer_size()
            if self._blocked_since is None or unread < self._unread:
                self._blocked_since = now
            self._unread = unread
            return now - self._blocked_since > self.limits.request_seconds
        if self._request_since is not None:
            if self.flow.read_paused:  # it would send more if we read
                self._request_since = now
            allowed = self.limits.request_seconds + self._body_bytes / self.limits.least_rate
            return now - self._request_since > allowed
        return self._is_idle and now - self._quiet_since > self.limits.idle_seconds

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def expendable(self) -> tuple[bool, float] | None:
        """Its rank among those that can be closed to make room, lowest first. None: the client waits for an answer."""
        if self._blocked_since is not None:
            return self._has_asked, self._blocked_since
        if self._request_since is not None:
            return self._has_asked, self._request_since
        return (self._has_asked, self._quiet_since) if self._is_idle else None

    def _make_room(self) -> None:
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        ranked = [(*rank, id(other), other) for other in others if (rank := other.expendable()) is not None]
        for *_, connection in heapq.nsmallest(max(1, self.limits.connections // 16), ranked):
            self.connections.discard(connection)
            connection.transport.abort()

    def _tick(self) -> None:
        if self.overdue(monotonic()):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

    def _refuse(self, status: int, why: str) -> None:
        if self.transport.is_closing():
            return
        body = f"{why}\n".encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def connection_class(limits: Limits) -> type[Connection]:
    """uvicorn creates the connections itself, so the limits are an attribute of the class."""
    return type("Connection", (Connection,), {"limits": limits})
