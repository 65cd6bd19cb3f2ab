"""Raw requests: sends any bytes that an intruder may write, and reads the answers."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass
from time import monotonic
from typing import Final

PATIENCE: Final = 20.0
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(frozen=True, slots=True)
class Reply:
    """All bytes that came back. `closed`: the server closed the connection before all expected answers had come."""

    data: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in _STATUS.findall(self.data)]


def connect(port: int, *, timeout: float = PATIENCE) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(port: int, data: bytes, *, answers: int = 1, timeout: float = PATIENCE) -> Reply:
    """Send the bytes, and read until all expected answers are complete, the server hangs up, or the time is over."""
    with connect(port, timeout=timeout) as connection:
        with contextlib.suppress(OSError):  # the server need not read everything
            connection.sendall(data)
        return read(connection, answers=answers, timeout=timeout)


def read(connection: socket.socket, *, answers: int = 1, timeout: float = PATIENCE) -> Reply:
    data, ends = bytearray(), monotonic() + timeout
    while count_answers(bytes(data)) < answers:
        try:
            connection.settimeout(max(0.01, ends - monotonic()))
            chunk = connection.recv(1 << 18)
        except TimeoutError:
            return Reply(bytes(data), closed=False)
        except OSError:
            return Reply(bytes(data), closed=True)
        if not chunk:
            return Reply(bytes(data), closed=True)
        data += chunk
    return Reply(bytes(data), closed=False)


def count_answers(data: bytes) -> int:
    """The number of complete answers. An answer without a length is not counted: it is read until the end."""
    count = 0
    while (end := data.find(b"\r\n\r\n")) >= 0:
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", data[: end + 2])
        if length is None or len(data) < end + 4 + int(length[1]):
            break
        count, data = count + 1, data[end + 4 + int(length[1]) :]
    return count


def is_closed(connection: socket.socket, within: float = 0.05) -> bool:
    """Whether the other side has closed the connection."""
    connection.settimeout(within)
    try:
        while connection.recv(1 << 18):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def get(path: str, host: str = "127.0.0.1", *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body or method not in ("GET", "HEAD", "OPTIONS"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
