"""DynamoDB for tests: moto's server in its own process, behind a proxy that can be shut.

moto keeps its data in memory, and evaluates a condition and writes in two steps without locking. So its requests are
served one at a time, as DynamoDB does for each item. An outage is simulated by shutting the proxy.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import boto3

HOST: Final = "127.0.0.1"
REGION: Final = "eu-west-1"
PATIENCE: Final = 60.0

# The process: moto as a WSGI application under one lock. It prints its port, and ends when its stdin is closed.
_PROGRAM: Final = """
import io, logging, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
moto, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

def application(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with one_at_a_time:
        return [b"".join(moto(environ, start_response))]

server = make_server("127.0.0.1", 0, application, threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
server.serve_forever()
"""


class Proxy:
    """Forwards connections to a port. When it is shut, it closes all connections and refuses new ones."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        listener = socket.create_server((HOST, self.port), backlog=256)
        self.port = listener.getsockname()[1]
        self._listener = listener
        thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def shut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends the thread that waits in accept
            listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._threads.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass_on, args=(near,), daemon=True)
            with self._lock:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, near: socket.socket) -> None:
        with near, socket.create_connection((HOST, self._target)) as far, selectors.DefaultSelector() as waiting:
            for side in (near, far):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {near, far}
            waiting.register(near, selectors.EVENT_READ, far)
            waiting.register(far, selectors.EVENT_READ, near)
            with contextlib.suppress(OSError):
                while self._listener is not None and self._pass_once(waiting):
                    pass
            with self._lock:
                self._open -= {near, far}

    def _pass_once(self, waiting: selectors.BaseSelector) -> bool:
        for ready, _ in waiting.select():
            data = ready.fileobj.recv(65_536)  # type: ignore[union-attr]
            if not data:
                return False
            ready.data.sendall(data)
        return True


class Server:
    """`url` is the address of DynamoDB. stop and start shut and open the proxy: the data stays."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self._process.wait(PATIENCE)
            raise RuntimeError("moto's server did not start: pip install 'moto[server]'")
        self.proxy = Proxy(int(port))
        self.proxy.open()
        self.url = f"http://{HOST}:{self.proxy.port}"
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/moto-api/", timeout=PATIENCE):
                return
            time.sleep(0.02)
        raise RuntimeError("moto's server does not answer")

    def session(self) -> boto3.Session:
        """A session with dummy credentials, so that tests need none."""
        import boto3

        return boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)

    def options(self) -> dict[str, Any]:
        """The options with which a DynamoLedger uses this server."""
        return {"endpoint_url": self.url, "session": self.session()}

    def start(self) -> None:
        self.proxy.open()

    def stop(self) -> None:
        self.proxy.shut()

    def kill(self) -> None:
        self.proxy.shut()

    def close(self) -> None:
        self.proxy.shut()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def running() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()
