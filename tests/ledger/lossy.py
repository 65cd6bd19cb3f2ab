"""A proxy that loses answers: it forwards a request, and closes the connection instead of returning the answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Lossy:
    """A proxy in front of a server, on its own port. After `lose`, the answer to the next request with these bytes is
    dropped and the connection closed; the server has carried out the request."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0
        self._mutex = threading.Lock()
        self._pattern: bytes | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lose(self, pattern: bytes) -> None:
        with self._mutex:
            self._pattern = pattern

    def close(self) -> None:
        with self._mutex:
            ends, self._open = self._open | {self._listener}, set()
        for end in ends:
            _shut(end)
        for thread in self._threads:
            thread.join()
        for end in ends:
            end.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._mutex:
                    self._open |= {client, server}
                doomed = threading.Event()
                self._start(self._pump, client, server, doomed, True)
                self._start(self._pump, server, client, doomed, False)

    def _pump(self, source: socket.socket, target: socket.socket, doomed: threading.Event, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks:
                    with self._mutex:
                        if self._pattern is not None and self._pattern in data:
                            self._pattern = None
                            doomed.set()
                elif doomed.is_set():
                    self.lost += 1
                    break
                target.sendall(data)
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def lossy(port: int) -> Iterator[Lossy]:
    wire = Lossy(port)
    try:
        yield wire
    finally:
        wire.close()
