"""One kept-alive HTTP/1.1 connection: sends a request and reads its answer. Knows nothing about SQS.

The rule: the connection may carry another request (`reusable`) only if its last answer ended where its headers said.
`heard` says whether any byte of the answer arrived.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import struct
from time import monotonic
from typing import Final, NamedTuple

MAX_HEAD: Final = 64 * 1024
MAX_BODY: Final = 128 * 1024 * 1024  # ten messages of 1 MiB, every character escaped, and more
_BITE: Final = 64 * 1024
_MAX_DIGITS: Final = 18  # of a length; Python reads longer ones slowly, or not at all
_CHUNK_SIZE: Final = re.compile(rb"\s*[0-9A-Fa-f]{1,16}\s*")
_BODILESS: Final = (204, 304)


class Answer(NamedTuple):
    """`sent` counts how often the request was sent before this answer arrived."""

    status: int
    head: bytes
    body: bytes
    sent: int = 1


class Malformed(OSError):
    """The answer is not HTTP, or is larger than any answer of SQS can be."""


class Connection:
    """Used by one thread at a time; only `interrupt` may be called from another."""

    __slots__ = ("_is_plain", "_sock", "_timeout", "heard", "idle_since", "reusable", "used")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._timeout = -1.0
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        self.heard = False
        self.used = False
        self.reusable = True
        self.idle_since = monotonic()

    def exchange(self, request: bytes, timeout: float) -> Answer:
        """Raises OSError when the connection breaks, TimeoutError when nothing comes for `timeout` seconds."""
        if timeout != self._timeout:
            self._set_timeout(timeout)
        self.heard = self.reusable = False
        try:
            return self._exchange(request)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def _set_timeout(self, timeout: float) -> None:
        """Lets the kernel apply the timeout if there is no TLS: Python's own timeouts poll the socket before each call,
        and take Python's lock twice as often."""
        self._timeout = timeout
        if not self._is_plain:
            self._sock.settimeout(timeout)
            return
        self._sock.settimeout(None)
        microseconds = max(1, round(timeout * 1_000_000))
        value = struct.pack("@ll", *divmod(microseconds, 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _exchange(self, request: bytes) -> Answer:
        sock = self._sock
        sock.sendall(request)
        data = sock.recv(_BITE)
        if not data:
            raise ConnectionResetError("the connection was closed before an answer came")
        self.heard = True
        end = data.find(b"\r\n\r\n")
        while end < 0 or data.startswith(b"HTTP/1.1 1"):
            if end >= 0:  # such as 100 Continue: the answer itself is still to come
                data = data[end + 4 :]
            if end < 0 or not data:
                data += self._more()
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) > MAX_HEAD:
                raise Malformed(f"an answer with more than {MAX_HEAD} bytes of headers")
        answer = self._answer(data, end)
        self.used = True
        return answer

    def _answer(self, data: bytes, end: int) -> Answer:
        head = data[: end + 2]  # every line of it ends with CR LF
        if head[:7] != b"HTTP/1." or not head[9:12].isdigit():
            raise Malformed(f"an answer that is not HTTP: {head[:40]!r}")
        status = int(head[9:12])
        lower = head.lower()
        kept = _value(lower, b"\r\nconnection:")
        close = kept == b"close" or (kept != b"keep-alive" and head[:8] != b"HTTP/1.1")
        length = _value(lower, b"\r\ncontent-length:")
        start = end + 4
        if b"\r\ntransfer-encoding:" in lower:
            body, rest = self._chunked(data[start:])
        elif length is not None:
            if not length.isdigit() or len(length) > _MAX_DIGITS or int(length) > MAX_BODY:
                raise Malformed(f"an answer with an unusable Content-Length: {length[:40]!r}")
            stop = start + int(length)
            body, rest = (data[start:stop], data[stop:]) if len(data) >= stop else (self._rest(data, start, stop), b"")
        elif status in _BODILESS:
            body, rest = b"", data[start:]
        else:
            body, rest, close = self._to_the_end(data[start:]), b"", True
        # Surplus bytes would be taken for the next answer.
        self.reusable = not close and not rest
        return Answer(status, head, body)

    def _more(self) -> bytes:
        data = self._sock.recv(_BITE)
        if not data:
            raise ConnectionResetError("the connection was closed in the middle of an answer")
        return data

    def _rest(self, data: bytes, start: int, stop: int) -> bytes:
        """Reads the rest of a body that did not arrive in one piece."""
        body = bytearray(stop - start)
        have = len(data) - start
        body[:have] = data[start:]
        with memoryview(body) as view:
            while have < len(body):
                got = self._sock.recv_into(view[have:])
                if not got:
                    raise ConnectionResetError("the connection was closed in the middle of an answer")
                have += got
        return bytes(body)

    def _chunked(self, data: bytes) -> tuple[bytes, bytes]:
        """The body and what follows it. Chunk extensions and trailers are skipped."""
        buffer, at, body = bytearray(data), 0, bytearray()
        while True:
            while (line := buffer.find(b"\r\n", at)) < 0:
                if len(buffer) - at > MAX_HEAD:
                    raise Malformed("a chunk without an end to its first line")
                buffer += self._more()
            size = _chunk_size(bytes(buffer[at:line].partition(b";")[0]))
            at = line + 2
            if size == 0:
                break
            if len(body) + size > MAX_BODY:
                raise Malformed(f"an answer of more than {MAX_BODY} bytes")
            while len(buffer) < at + size + 2:
                buffer += self._more()
            body += buffer[at : at + size]
            del buffer[: at + size + 2]
            at = 0
        while True:  # trailers, up to an empty line
            while (line := buffer.find(b"\r\n", at)) < 0:
                if len(buffer) - at > MAX_HEAD:
                    raise Malformed("an answer with endless trailers")
                buffer += self._more()
            empty, at = line == at, line + 2
            if empty:
                return bytes(body), bytes(buffer[at:])

    def _to_the_end(self, data: bytes) -> bytes:
        """A body without a length lasts until the connection is closed."""
        pieces, size = [data], len(data)
        while piece := self._sock.recv(_BITE):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY:
                raise Malformed(f"an answer of more than {MAX_BODY} bytes")
        return b"".join(pieces)

    # The time between calls.

    def gone(self) -> bool:
        """Whether the other side has closed an idle connection, or has sent bytes without a request."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def interrupt(self) -> None:
        # The plain socket's method: a TLS socket's own would also drop the TLS state that the reading thread is using.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()


def _value(head: bytes, name: bytes) -> bytes | None:
    """The value of a header; `name` as it stands in the head, from the end of the line before to the colon."""
    at = head.find(name)
    return None if at < 0 else head[at + len(name) : head.index(b"\r\n", at + 2)].strip()


def _chunk_size(text: bytes) -> int:
    if not _CHUNK_SIZE.fullmatch(text):
        raise Malformed(f"a chunk of an unusable size: {text[:40]!r}")
    return int(text, 16)
