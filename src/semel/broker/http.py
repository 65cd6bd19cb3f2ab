"""The HTTP/1.1 edge: bytes of a connection to requests, answers back in order. Knows nothing of SQS."""

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

MAX_BODY: Final = 8 * 1024 * 1024  # the largest batch, every character escaped
MAX_HEAD: Final = 64 * 1024
MAX_PIPELINED: Final = 32
REQUEST_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 600.0
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_HANG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Request:
    """One whole request, and the place of its answer: answers leave a connection in the order of its requests.

    `headers` has lower-case names, the last of equal ones; `raw_headers` is as received, if it was asked for."""

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
    def hung_up(self) -> bool:
        """Whether the client has gone, also if the event loop has not heard of it yet."""
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
    """A whole answer; `headers` are whole lines."""
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
    """One client. Bounded: head and body size, requests in the pipe, and time to send a request."""

    def __init__(
        self, accept: Callable[[Request], None], connections: set[Connection], limit: int, *, raw_headers: bool
    ) -> None:
        self._accept = accept
        self._connections = connections
        self._limit = limit
        if raw_headers:
            self.on_header = self._on_header_keeping_raw  # type: ignore[method-assign]
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._requests: deque[Request] = deque()
        self._poll: select.poll | None = None
        self._busy_since: float | None = None
        self.quiet_since = monotonic()
        self._head_bytes = 0
        self._closing = False
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._raw_headers: list[tuple[bytes, bytes]] = []
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
        self._headers[name.lower()] = value

    def _on_header_keeping_raw(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        if int(self._headers.get(b"content-length", 0)) > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY} bytes")
        elif b"expect" in self._headers and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY} bytes")

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
        self._busy_since, self._head_bytes = None, 0
        self._requests.append(request)
        if len(self._requests) >= MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()
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
                    self._transport.close()
                elif len(requests) == MAX_PIPELINED - 1:
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
        if not self._requests and self._transport is not None:
            self._transport.close()

    def overdue(self, now: float) -> bool:
        """Whether the client takes too long to send its request, or has been silent for too long."""
        if self._busy_since is not None:
            return now - self._busy_since > REQUEST_SECONDS
        return not self._requests and now - self.quiet_since > IDLE_SECONDS

    def _refuse(self, status: int, why: str) -> None:
        if self._closing:
            return
        self._closing = True
        if self._transport is not None:
            self._transport.write(render(status, b"text/plain", f"{why}\n".encode(), keep_alive=False))
            self._transport.close()
