"""The HTTP/1.1 layer: turns a connection's bytes into requests, and sends answers in order. Knows nothing about SQS."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Final

import httptools

from semel.broker.connections import Connections

MAX_BODY: Final = 8 * 1024 * 1024  # the largest batch, every character escaped
MAX_HEAD: Final = 64 * 1024
MAX_PIPELINED: Final = 32
LINGER_SECONDS: Final = 2.0
_BITE: Final = 4096
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_HANG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Request:
    """One complete request, and the place for its answer: a connection sends answers in the order of its requests.

    `headers` has lower-case names, and the last value of a repeated header. `raw_headers` are as received, and are only
    kept if signatures are checked."""

    __slots__ = ("_connection", "answer", "body", "headers", "keep_alive", "method", "raw_headers", "target")

    def __init__(
        self,
        connection: Connection,
        method: str,
        target: str,
        headers: dict[bytes, bytes],
        raw_headers: list[tuple[bytes, bytes]],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.answer: bytes | None = None
        self.method = method
        self.target = target
        self.headers = headers
        self.raw_headers = raw_headers
        self.body = body
        self.keep_alive = keep_alive

    def header(self, name: bytes, default: str = "") -> str:
        value = self.headers.get(name)
        return default if value is None else value.decode("latin-1")

    @property
    def peer(self) -> str:
        """The IP address at the other end of the connection."""
        return self._connection.peer

    @property
    def hung_up(self) -> bool:
        """Whether the client has gone, even if the event loop has not noticed yet."""
        return self._connection.hung_up()

    def reply(self, answer: bytes) -> None:
        self.answer = answer if self.method != "HEAD" else answer[: answer.index(b"\r\n\r\n") + 4]
        self._connection.flush()

    def abort(self) -> None:
        """Ends the connection without an answer."""
        self._connection.abort()


class _Date:
    """The Date header's value, made once a second."""

    def __init__(self) -> None:
        self._second, self._text = 0, b""

    def __call__(self) -> bytes:
        second = int(time())
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True).encode()
        return self._text


_date = _Date()


def render(status: int, content_type: bytes, body: bytes, *, keep_alive: bool = True, headers: bytes = b"") -> bytes:
    """The bytes of an answer; `headers` are complete lines."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\n%b%bContent-Length: %d\r\nDate: %b\r\n\r\n%b" % (
        status,
        _REASONS.get(status, b""),
        content_type,
        headers,
        b"" if keep_alive else b"Connection: close\r\n",
        len(body),
        _date(),
        body,
    )


class Connection(asyncio.Protocol):
    """One client. Limits: size of head and body, pipelined requests, and time to send a request or read an answer."""

    def __init__(self, accept: Callable[[Request], None], connections: Connections, *, raw_headers: bool) -> None:
        self._accept = accept
        self._connections = connections
        if raw_headers:
            self.on_header = self._on_header_keeping_raw  # type: ignore[method-assign]
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._requests: deque[Request] = deque()
        self._poll: select.poll | None = None
        self.peer = ""
        self._busy_since: float | None = None
        self.quiet_since = monotonic()
        self._raw_bytes = 0  # received since the end of the last request
        self._has_asked = False
        self._pipe_full = self._pipe_blocked = False  # two reasons not to read
        self._blocked_since, self._unread_before = 0.0, 0  # since when the client has read nothing of an answer
        self._unread_reported = 0
        self._unread = bytearray()
        self._closing = False
        self._body_bytes = 0
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._raw_bytes = 0
        self._forget_body()

    def _forget_body(self) -> None:
        self._body: list[bytes] = []
        self._connections.arriving_bytes -= self._body_bytes
        self._body_bytes = 0

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]).partition("%")[0] if isinstance(name, tuple) else ""
        if not self._connections.admit(self):
            self._refuse(503, f"more than {self._connections.limits.connections} connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closing = True
        self._transport = None
        self._connections.remove(self)
        self._reset()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._busy_since is None:
            self._busy_since = monotonic()
        if len(data) > _BITE or self._unread:
            # In small pieces, so that no more requests are read than may be pipelined.
            self._unread += data
            self._go_on_reading()
            return
        self._parse(data)

    def _go_on_reading(self) -> None:
        while self._unread and not self._pipe_full and not self._pipe_blocked and not self._closing:
            bite = bytes(self._unread[:_BITE])
            del self._unread[:_BITE]
            self._parse(bite)

    def _parse(self, data: bytes) -> None:
        if self._busy_since is None:
            self._busy_since = monotonic()
        self._raw_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            # The request was accepted like any other. The upgrade is declined, which needs no answer of its own.
            self._parser = httptools.HttpRequestParser(self)
            rest = data[offer.args[0] :]
            if rest:
                self._parse(rest)
        except httptools.HttpParserCallbackError:
            if not self._closing:
                raise
        except httptools.HttpParserError as error:
            self._refuse(400, f"not an HTTP request: {error}")
        else:
            # Everything except the body and the framing of its chunks is headers, also if it comes after the body.
            if self._raw_bytes > MAX_HEAD + 2 * self._body_bytes and self._busy_since is not None:
                self._refuse(431, f"more than {MAX_HEAD} bytes of headers")

    def eof_received(self) -> bool:
        """A client that sends nothing more may still read: its requests are answered first."""
        self._closing = True
        return bool(self._requests)

    def pause_writing(self) -> None:
        self._pipe_blocked = True
        self._blocked_since, self._unread_before = monotonic(), self._unread_bytes()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._pipe_blocked = False
        self._report_unread()
        self._go_on_reading()
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._pipe_blocked or self._pipe_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # The parser's side.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"host" and name in self._headers:
            self._refuse(400, "more than one Host header")  # it is unclear which one counts (RFC 9112, 3.2)
        self._headers[name] = value

    def _on_header_keeping_raw(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._raw_headers.append((name, value))  # the check of the signature refuses a second Host

    def on_headers_complete(self) -> None:
        if int(self._headers.get(b"content-length", 0)) > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY} bytes")
        elif b"expect" in self._headers and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._closing:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        self._connections.arriving_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY} bytes")
        elif self._connections.arriving_bytes > self._connections.limits.arriving_bytes:
            self._refuse(503, "too many bytes arrive at once; try again in a moment")

    def on_message_complete(self) -> None:
        if self._closing:
            return
        body = self._body
        request = Request(
            self,
            self._parser.get_method().decode("latin-1"),
            self._url.decode("latin-1"),
            self._headers,
            self._raw_headers,
            body[0] if len(body) == 1 else b"".join(body),
            self._parser.should_keep_alive(),
        )
        self._reset()
        self._busy_since = None
        self._has_asked = True
        self._requests.append(request)
        if not request.keep_alive:
            self._closing = True  # it is the last one: anything that the client sends after it is not read
        if len(self._requests) == MAX_PIPELINED:
            self._pipe_full = True
            self._read_or_not()
        self._accept(request)

    # Answers.

    def flush(self) -> None:
        """Writes the answers that are next in order."""
        requests = self._requests
        while requests and requests[0].answer is not None:
            request = requests.popleft()
            if self._transport is not None and request.answer is not None:
                self._transport.write(request.answer)
                if not request.keep_alive or (self._closing and not requests):
                    self._closing = True
                    if request.method:
                        self._transport.close()
                    else:
                        self._linger()
                elif self._pipe_full and len(requests) < MAX_PIPELINED:
                    self._pipe_full = False
                    self._go_on_reading()
                    self._read_or_not()
        self._report_unread()
        self.quiet_since = monotonic()

    def _report_unread(self) -> None:
        unread = self._unread_bytes() if self._requests or self._pipe_blocked else 0
        if unread != self._unread_reported:
            self._unread_reported = unread
            self._connections.set_unread(self, unread)

    def _unread_bytes(self) -> int:
        """The size of answers that the client has not read yet, or that wait for an earlier answer."""
        written = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return written + sum(len(request.answer) for request in self._requests if request.answer is not None)

    def hung_up(self) -> bool:
        """Whether the client has gone, even if the event loop has not noticed yet."""
        if self._transport is None or self._transport.is_closing():
            return True
        if self._poll is None:
            sock = self._transport.get_extra_info("socket")
            if sock is None or sock.fileno() < 0:
                return True
            self._poll = select.poll()
            self._poll.register(sock.fileno(), _HANG_UP)
        return any(events & (_HANG_UP | select.POLLNVAL) for _, events in self._poll.poll(0))

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Closes as soon as every request so far is answered."""
        self._closing = True
        if not self._requests and self._transport is not None:
            self._transport.close()

    def overdue(self, now: float) -> bool:
        """Whether the client takes too long to send its request or to read an answer, or has been silent for too
        long."""
        limits = self._connections.limits
        if self._pipe_blocked:
            unread = self._unread_bytes()
            if unread < self._unread_before:
                self._blocked_since = now
            self._unread_before = unread
            return now - self._blocked_since > limits.request_seconds
        if self._busy_since is not None:
            return now - self._busy_since > limits.request_seconds
        return not self._requests and now - self.quiet_since > limits.idle_seconds

    def expendable(self) -> tuple[bool, float] | None:
        """Its rank among connections that can be closed to make room, lowest first. None: it waits for an answer."""
        if self._requests and not self._pipe_blocked:
            return None
        quiet_since = self._blocked_since if self._pipe_blocked else self._busy_since or self.quiet_since
        return self._has_asked, quiet_since

    def let_go(self) -> None:
        """Closes a connection that waits for no answer."""
        if self._pipe_blocked:
            self.abort()
        else:
            self._closing = True
            if self._transport is not None:
                self._transport.close()

    def _refuse(self, status: int, why: str) -> None:
        """Sends the last answer of this connection, after those that are still due."""
        if self._closing:
            return
        self._closing = True
        self._forget_body()  # while it lingers, others may need the room
        last = Request(self, "", "", {}, [], b"", keep_alive=False)
        self._requests.append(last)
        last.reply(render(status, b"text/plain", f"{why}\n".encode(), keep_alive=False))

    def _linger(self) -> None:
        """Closes our side and lets the client finish sending. Otherwise the data that it still sends would make its
        system discard our last answer unread."""
        transport, connections = self._transport, self._connections
        if transport is None or transport.is_closing():
            return
        if connections.lingering >= connections.limits.lingering:
            transport.close()
            return

        def end() -> None:
            connections.lingering -= 1
            transport.abort()

        connections.lingering += 1
        transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, end)
