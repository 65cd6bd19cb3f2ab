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
from dataclasses import replace
from types import FrameType

import uvicorn
from fastapi import FastAPI

from semel import dashboard_token
from semel.dashboard.connections import Limits, connection_class
from semel.dashboard.server import build
from semel.dashboard.services import Services
from semel.dashboard.settings import Settings
from semel.ports import listen, url_of
from semel.signals import STOP_SIGNALS, received

_log = logging.getLogger("semel.dashboard")


def run(settings: Settings, *, inherited: int | None = None) -> int:
    """Serves until SIGTERM or SIGINT. `inherited` is a listening socket of the parent process. The dashboard then
    also ends when its standard input is closed, which happens when the parent ends."""
    logging.basicConfig(level=logging.WARNING, format="semel: %(levelname)s: %(message)s", stream=sys.stderr)
    settings.check()
    listener = listen(settings.host, settings.port) if inherited is None else socket.socket(fileno=inherited)
    try:
        app = build(replace(settings, port=listener.getsockname()[1]))
        server = server_for(app)
    except BaseException:
        listener.close()
        raise
    if inherited is not None:
        threading.Thread(target=_end_with_parent, args=(server,), name="semel-parent", daemon=True).start()
    services: Services = app.state.services
    url = url_of(listener)
    token = None if settings.has_token else services.settings.token

    def ready() -> None:
        if token is not None:
            try:
                dashboard_token.write(services.inspector.state, url, token)
            except OSError as error:
                _log.warning("commands on this machine do not find the token by themselves: %s", error)
            print(f"semel: log in at {url}/?token={token}", file=sys.stderr, flush=True)
        print(f"semel: dashboard at {url}", flush=True)
        # The OpenAPI description takes a moment to build. It is built early, so that no request waits for it.
        later = threading.Timer(5.0, app.openapi)
        later.daemon = True
        later.start()

    server.ready = ready
    try:
        server.run(sockets=[listener])
    finally:
        if token is not None:
            dashboard_token.remove(services.inspector.state, url, token)
    return 0


class Server(uvicorn.Server):
    """Calls `ready` when it listens, and from then on ends with exit code 0 on SIGTERM and SIGINT."""

    ready: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.ready is not None:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        first = not received
        received.add(sig)
        super().handle_exit(sig, frame)
        if first:
            # If the parent has ended first, uvicorn is already stopping and takes this signal for a second one, which
            # forces the exit. It is the first: stop gracefully.
            self.force_exit = False

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


def server_for(app: FastAPI, limits: Limits = Limits()) -> Server:  # noqa: B008  it is frozen
    config = uvicorn.Config(
        app,
        http=connection_class(limits),
        log_config=None,  # uvicorn's own config would close this process's log handlers
        log_level="error",  # malformed requests are not worth a log line, and could fill a disk
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the access policy reads them
        ws="none",
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=5,
        limit_concurrency=limits.active,
        backlog=2048,
    )
    return Server(config)


def _end_with_parent(server: uvicorn.Server) -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    server.should_exit = True
