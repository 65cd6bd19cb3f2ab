"""A worker's health over HTTP for probes, its metrics for Prometheus, and its control for operators.

The rules: status 200 means healthy, 503 means unhealthy. Requests are cheap, and no answer contains a message body.
Only /control changes anything. /control, and /workers, which shows keys, answer only clients that `access` allows.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

from semel.errors import StartError
from semel.telemetry.access import refusal
from semel.telemetry.worker_control import Command, Controlled, Refused

log = logging.getLogger("semel.telemetry")

MAX_REQUESTS: Final = 32  # at a time; for one more, the oldest that is still arriving is cut off, or it is refused
REQUEST_SECONDS: Final = 10.0  # for a client to send its whole request, and as long to read the whole answer
ROOM_SECONDS: Final = 1.0  # for a client that was cut off to be gone
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_COMMAND: Final = 16 * 1024  # bytes
MAX_DIGITS: Final = 20  # of a length
PATHS: Final = "/health, /health/live, /health/ready, /metrics"
CONTROL_PATHS: Final = ", /workers, /control"
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: needs no restart. `ready`: receives messages, or would if it were not paused. `details`: why not."""

    live: bool
    ready: bool
    details: dict[str, Any] = field(default_factory=dict)


class HealthServer:
    """Serves until `close`. Without `control` the worker can be watched, but not controlled."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        health: Callable[[], Health],
        metrics: Callable[[], str],
        control: Controlled | None = None,
        token: str | None = None,
    ) -> None:
        self._server = _bound(host, port, _Sources(health, metrics, control, token))
        self.host: str = host
        self.port: int = self._server.server_address[1]
        self._wake, self._woken = os.pipe()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="semel-health", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.write(self._woken, b"x")
        self._thread.join()
        self._server.server_close()
        os.close(self._wake)
        os.close(self._woken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _serve(self) -> None:
        # `serve_forever` would wake up every half second to see whether to end; this loop sleeps until there is work.
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN)
        waiting.register(self._server.fileno(), select.POLLIN)
        while not self._closed:
            if any(descriptor == self._server.fileno() for descriptor, _ in waiting.poll()):
                self._server.handle_request()


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the answers come from."""

    health: Callable[[], Health]
    metrics: Callable[[], str]
    control: Controlled | None
    token: str | None


def _bound(host: str, port: int, sources: _Sources) -> _Server:
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return _Server(family, (host, port), sources)
    except (OSError, OverflowError) as error:
        raise StartError(
            f"the health endpoint cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}; "
            "choose another port, 0 for any free port, or leave it out"
        ) from None


class _Server(ThreadingHTTPServer):
    timeout = 0
    request_queue_size = 64

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int], sources: _Sources) -> None:
        self.address_family = family
        self.sources = sources
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self._arriving: dict[socket.socket, None] = {}  # whose request has not arrived completely, oldest first
        self._lock = threading.Lock()
        super().__init__(address, _Answer)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own makes a DNS lookup, which may take long

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)  # out of file descriptors, for example: do not try again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False) or self._make_room():
            with self._lock:
                self._arriving[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Cuts off the client that has been sending its request for the longest time."""
        with self._lock:
            oldest = next(iter(self._arriving), None)
            if oldest is None:
                return False
            del self._arriving[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=ROOM_SECONDS)

    def arrived(self, request: socket.socket) -> None:
        with self._lock:
            self._arriving.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def shutdown_request(self, request: Any) -> None:
        self.arrived(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a client of the health endpoint went away", exc_info=True)


class _Arriving(io.RawIOBase):
    """What a client sends until its deadline, which a byte now and then does not extend."""

    def __init__(self, connection: socket.socket, ends: float) -> None:
        self._connection, self._ends = connection, ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(0.001, self._ends - time.monotonic()))
        return self._connection.recv_into(buffer)


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS
    server_version = "semel"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Arriving(self.connection, time.monotonic() + self.timeout))

    def do_GET(self) -> None:
        self.server.arrived(self.connection)
        path = self._path()
        if path == "/metrics":
            self._metrics()
        elif path in ("/health", "/health/live", "/health/ready"):
            self._health(path)
        elif path == "/workers" and self.server.sources.control is not None:
            self._controlled(self.server.sources.control.workers)
        else:
            paths = PATHS + (CONTROL_PATHS if self.server.sources.control is not None else "")
            self._send(HTTPStatus.NOT_FOUND, TEXT, f"not found; the paths are {paths}\n".encode())

    do_HEAD = do_GET

    def _path(self) -> str:
        try:
            return urlsplit(self.path).path.rstrip("/")
        except ValueError:  # a host with an unpaired bracket
            return ""

    def do_POST(self) -> None:
        control = self.server.sources.control
        if control is None or self._path() != "/control":
            self._send(HTTPStatus.NOT_IMPLEMENTED, TEXT, b"this endpoint cannot be controlled\n")
        else:
            self._controlled(lambda: control.do(self._command()))

    def _controlled(self, answer: Callable[[], dict[str, Any]]) -> None:
        """Sends the answer, or why there is none, to clients that are allowed to ask."""
        if len(self.headers.get_all("host", ())) > 1:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": "more than one Host header"})
            return
        refused = refusal(self.client_address[0], self.headers.get, self.server.sources.token)
        if refused is not None:
            self._send_json(refused.status, {"error": refused.text})
            return
        try:
            self._send_json(HTTPStatus.OK, answer())
        except Refused as error:
            self._send_json(HTTPStatus(error.status), {"error": str(error)})
        except Exception:
            log.exception("the control endpoint failed")
            self._send_json(
                HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the request failed; the worker's log says why"}
            )

    def _command(self) -> Command:
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json" or not (length.isascii() and length.isdigit()):
            raise Refused("send the command as application/json, with a Content-Length", 415)
        if len(length) > MAX_DIGITS or int(length) > MAX_COMMAND:
            raise Refused(f"a command can have at most {MAX_COMMAND:,} bytes", 413)
        try:
            content = self.rfile.read(int(length))
        except TimeoutError:
            raise Refused("the command did not arrive in time", 408) from None
        self.server.arrived(self.connection)
        try:
            return Command.read(json.loads(content))
        except (ValueError, RecursionError):
            raise Refused("the command is not JSON") from None

    def _health(self, path: str) -> None:
        try:
            state = self.server.sources.health()
        except Exception:  # whatever it is: it is not healthy
            log.exception("the health of the worker cannot be determined")
            state = Health(False, False, {"error": "the health cannot be determined; the log says why"})
        body: dict[str, Any]
        if path == "/health/live":
            good, body = state.live, {"live": state.live}
        elif path == "/health/ready":
            good, body = state.ready, {"ready": state.ready}
        else:
            good = state.live and state.ready
            body = {"live": state.live, "ready": state.ready, "details": state.details}
        self._send_json(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, body)

    def _metrics(self) -> None:
        try:
            data = self.server.sources.metrics().encode()
        except Exception:  # Prometheus shows the target as down
            log.exception("the metrics page cannot be made")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"the metrics page cannot be made; the log says why\n")
        else:
            self._send(HTTPStatus.OK, METRICS_TYPE, data)

    def _send_json(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        self._send(status, "application/json", f"{json.dumps(body, default=str, skipkeys=True)}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.connection.settimeout(self.timeout)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: probes come every few seconds."""
