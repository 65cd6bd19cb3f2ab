"""A real HTTP server that follows a script, for answers that no well-behaved endpoint gives.

A script is a function from a request to the bytes of the answer; None closes the connection without an answer.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Request:
    line: str
    headers: dict[str, str]
    body: bytes
    connection: int  # 1 for the first connection that the server accepted

    @property
    def operation(self) -> str:
        return self.headers["x-amz-target"].partition(".")[2]

    @property
    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = orjson.loads(self.body)
        return params


Script = Callable[[Request], bytes | None]


def answer(body: Any = None, status: int = 200, headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else orjson.dumps({} if body is None else body)
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {len(content)}\r\n"
    return f"{head}{headers}\r\n".encode() + content


def refusal(code: str, message: str = "no", status: int = 400, headers: str = "") -> bytes:
    return answer({"__type": f"com.amazonaws.sqs#{code}", "message": message}, status, headers)


class Server:
    """`requests` has all requests, in order."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._start(self._serve, sock, self.connections)

    def _serve(self, sock: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), sock:
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._open.add(sock)
            with sock, sock.makefile("rb") as stream:
                while (request := _read(stream, number)) is not None:
                    self.requests.append(request)
                    reply = self.script(request)
                    if reply is None:
                        return
                    sock.sendall(reply)

    def hang_up(self) -> None:
        """Close every connection; new ones are accepted."""
        for sock in list(self._open):
            self._open.discard(sock)
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()


def _read(stream: Any, number: int) -> Request | None:
    line = stream.readline().decode().strip()
    if not line:
        return None
    headers = {}
    while text := stream.readline().decode().strip():
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    return Request(line, headers, stream.read(int(headers.get("content-length", 0))), number)


@contextmanager
def scripted(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(script, tls)
    try:
        yield server
    finally:
        server.stop()


def in_turn(*replies: bytes | None) -> Script:
    """Each request gets the next reply; the last one is repeated."""
    left = list(replies)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]
