"""The dashboard as a process: the port, the ready line, the signals, the end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from semel.dashboard.ports import address_of, listen
from semel.dashboard.server import build
from semel.dashboard.settings import Settings
from semel.signals import STOP_SIGNALS, received


def run(settings: Settings, *, inherited: int | None = None) -> int:
    """Serves until SIGTERM or SIGINT. `inherited` is a listening socket that the parent process handed over: then it
    also ends when standard input does, as it does with the parent."""
    logging.basicConfig(level=logging.WARNING, format="semel: %(levelname)s: %(message)s", stream=sys.stderr)
    settings.check()
    listener = listen(settings.host, settings.port) if inherited is None else socket.socket(fileno=inherited)
    try:
        app = build(settings)
        server = server_for(app)
    except BaseException:
        listener.close()
        raise
    if inherited is not None:
        threading.Thread(target=_end_with_parent, args=(server,), name="semel-parent", daemon=True).start()

    def ready() -> None:
        print(f"semel: dashboard at {address_of(listener)}", flush=True)
        # The API's description takes a moment to make: who asks for it need not wait, nor does who comes first.
        later = threading.Timer(5.0, app.openapi)
        later.daemon = True
        later.start()

    server.ready = ready
    server.run(sockets=[listener])
    return 0


class Server(uvicorn.Server):
    """Says when it listens, and from then on ends well on SIGTERM and SIGINT: that it was asked to is no failure."""

    ready: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.ready is not None:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        received.add(sig)
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [signal.signal(number, self.handle_exit) for number in STOP_SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(STOP_SIGNALS, before, strict=True):
                signal.signal(number, handler)


def server_for(app: FastAPI) -> Server:
    config = uvicorn.Config(
        app,
        log_config=None,  # its own would close the handlers of whoever runs this
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


def _end_with_parent(server: uvicorn.Server) -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    server.should_exit = True
