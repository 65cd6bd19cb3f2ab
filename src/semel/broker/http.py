"""The HTTP/1.1 edge: bytes of a connection to requests, answers back in order. Knows nothing of SQS."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Final

import httptools

MAX_BODY: Final = 8 * 1024 * 1024  # the largest batch, every character escaped
MAX_HEAD: Final = 64 * 1024
MAX_PIPELINED: Final = 32
REQUEST_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 600.0
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_HANG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Request:
    """One whole request. `headers` is as received, but for names in lower case."""

    __slots__ = ("body", "headers", "keep_alive", "method", "raw_headers", "target")

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[bytes, bytes],
        raw_headers: list[tuple[bytes, bytes]],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.raw_headers = raw_headers
        self.body = body
        self.keep_alive = keep_alive

    def header(self, name: bytes, default: str = "") -> str:
        value = self.headers.get(name)
        return default if value is None else value.decode("latin-1")


class Exchange:
    """A request and the place of its answer: answers leave a connection in the order in which requests came."""

    __slots__ = ("answer", "connection", "request")

    def __init__(self, connection: Connection, request: Request) -> None:
        self.connection = connection
        self.request = request
        self.answer: bytes | None = None

    @property
    def hung_up(self) -> bool:
        return self.connection.hung_up()

    def reply(self, answer: bytes) -> None:
        self.answer = answer
        self.connection.flush()

    def abort(self) -> None:
        """Ends the connection without an answer."""
        self.connection.abort()


class _Date:
    """The Date header's value, made once a second."""

    def __init__(self) -> None:
        self._second, self._text = 0, ""

    def __call__(self) -> str:
        second = int(time())
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True)
        return self._text


_date = _Date()


def render(
    status: int, content_type: str, body: bytes, *, keep_alive: bool = True, headers: Mapping[str, str] | None = None
) -> bytes:
    """A whole answer."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) if headers else ""
    close = "" if keep_alive else "Connection: close\r\n"
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\nContent-Type: {content_type}\r\n{extra}{close}"
        f"Content-Length: {len(body)}\r\nDate: {_date()}\r\n\r\n"
    ).encode("latin-1", "replace") + body


class Connection(asyncio.Protocol):
    """One client. Bounded: head and body size, requests in the pipe, and time to send a request."""

    def __init__(self, accept: Callable[[Exchange], None], connections: set[Connection], limit: int) -> None:
        self._accept = accept
        self._connections = connections
        self._limit = limit
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[Exchange] = deque()
        self._poll: select.poll | None = None
        self._busy_since: float | None = None
        self.quiet_since = monotonic()
        self._head_bytes = 0
        self._closing = False
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._named: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if len(self._connections) >= self._limit:
            self._refuse(503, f"more than {self._limit} connections")
            return
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closing = True
        self._transport = None
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._busy_since is None:
            self._busy_since = monotonic()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "this server speaks HTTP/1.1 only")
        except httptools.HttpParserCallbackError:
            if not self._closing:
                raise
        except httptools.HttpParserError as error:
            self._refuse(400, f"not an HTTP request: {error}")
        else:
            if self._head_bytes > MAX_HEAD and not self._body_bytes and self._busy_since is not None:
                self._refuse(431, f"more than {MAX_HEAD} bytes of headers")

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    # The parser's side.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._named = named = {name.lower(): value for name, value in self._headers}
        if int(named.get(b"content-length", 0)) > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY} bytes")
        elif b"expect" in named and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY} bytes")

    def on_message_complete(self) -> None:
        if self._closing:
            return
        request = Request(
            self._parser.get_method().decode("latin-1"),
            self._url.decode("latin-1"),
            self._named,
            self._headers,
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
            self._parser.should_keep_alive(),
        )
        self._reset()
        self._busy_since, self._head_bytes = None, 0
        exchange = Exchange(self, request)
        self._exchanges.append(exchange)
        if len(self._exchanges) >= MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()
        self._accept(exchange)

    # Answers.

    def flush(self) -> None:
        """Writes the answers that are next in order."""
        while self._exchanges and self._exchanges[0].answer is not None:
            exchange = self._exchanges.popleft()
            assert exchange.answer is not None
            if self._transport is not None:
                self._transport.write(exchange.answer)
                if not exchange.request.keep_alive or (self._closing and not self._exchanges):
                    self._closing = True
                    self._transport.close()
                elif len(self._exchanges) == MAX_PIPELINED - 1:
                    self._transport.resume_reading()
        self.quiet_since = monotonic()

    def hung_up(self) -> bool:
        """Whether the client has gone, also if the event loop has not heard of it yet."""
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
        if not self._exchanges and self._transport is not None:
            self._transport.close()

    def overdue(self, now: float) -> bool:
        """Whether the client takes too long to send its request, or has been silent for too long."""
        if self._busy_since is not None:
            return now - self._busy_since > REQUEST_SECONDS
        return not self._exchanges and now - self.quiet_since > IDLE_SECONDS

    def _refuse(self, status: int, why: str) -> None:
        if self._closing:
            return
        self._closing = True
        if self._transport is not None:
            self._transport.write(render(status, "text/plain", f"{why}\n".encode(), keep_alive=False))
            self._transport.close()
