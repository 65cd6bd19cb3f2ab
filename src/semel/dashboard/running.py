"""The dashboard as a process: the port, the ready line, the signals, the end."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from semel.dashboard.server import build
from semel.dashboard.settings import Settings
from semel.errors import StartError


def run(settings: Settings, *, with_parent: bool = False) -> int:
    """Serves until SIGTERM or SIGINT; `with_parent`: also until standard input ends, as it does with its parent."""
    logging.basicConfig(level=logging.WARNING, format="semel: %(levelname)s: %(message)s", stream=sys.stderr)
    settings.check()
    listener = listen(settings.host, settings.port)
    try:
        server = server_for(build(settings))
    except BaseException:
        listener.close()
        raise
    if with_parent:
        threading.Thread(target=_end_with_parent, args=(server,), name="semel-parent", daemon=True).start()
    print(f"semel: dashboard at {address_of(listener)}", flush=True)
    server.run(sockets=[listener])
    return 0


class Server(uvicorn.Server):
    """Ends well on SIGTERM and SIGINT: that it was asked to is no failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        chosen = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self.handle_exit) for number in chosen]
        try:
            yield
        finally:
            for number, handler in zip(chosen, before, strict=True):
                signal.signal(number, handler)


def server_for(app: FastAPI) -> Server:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who calls is decided by the gate
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        limit_concurrency=500,
        backlog=256,
    )
    return Server(config)


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(256)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is taken; stop what uses it, or choose another with --port (0 picks a free one)"
            ) from None
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _end_with_parent(server: uvicorn.Server) -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    server.should_exit = True
