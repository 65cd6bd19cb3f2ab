"""A proxy to PostgreSQL that can close a connection before a message reaches the server, or freeze connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Wire:
    """Forwards bytes between its own port and the server, until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._guard = threading.Lock()
        self._ends: list[socket.socket] = [self._listener]
        self._cut_at: bytes | None = None
        self._alive: list[threading.Event] = []  # one for each connection
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def cut_before(self, message: bytes) -> None:
        """The next time that these bytes are sent, close the connection instead of forwarding them."""
        with self._guard:
            self._cut_at = message

    def freeze(self) -> None:
        """Silently stop forwarding on all existing connections; new ones work."""
        with self._guard:
            for alive in self._alive:
                alive.clear()

    def close(self) -> None:
        with self._guard:
            for alive in self._alive:
                alive.set()
            for end in self._ends:
                _shut(end)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                alive = threading.Event()
                alive.set()
                pumps = [
                    threading.Thread(target=self._pump, args=(*pair, alive), daemon=True)
                    for pair in ((client, server), (server, client))
                ]
                with self._guard:
                    self._ends += (client, server)
                    self._threads += pumps
                    self._alive.append(alive)
                for pump in pumps:
                    pump.start()

    def _pump(self, source: socket.socket, target: socket.socket, alive: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                alive.wait()
                with self._guard:
                    if self._cut_at is not None and self._cut_at in data:
                        self._cut_at = None
                        break
                target.sendall(data)
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()
