"""`semel serve` as a process, and the raw HTTP that its tests send to it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = "000000000000"
SEMEL: Final = str(Path(sys.executable).with_name("semel"))
_WAIT: Final = 30.0
# Runs a command with a limit on the size of its files: a write beyond it fails, as on a full disk.
_LIMITED: Final = (
    "import os, resource, sys; size = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and all of its output."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body) if self.body else {}
        return content


class Serve:
    """A broker process that has reported that it is ready."""

    def __init__(self, folder: Path, *options: str, file_size: int | None = None) -> None:
        self._process = _start(folder, options, file_size)
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline()
        if not self.ready_line.startswith("semel: SQS listening on http://"):
            ended = self.stop(signal.SIGKILL)
            raise AssertionError(f"not ready: {self.ready_line!r} {ended}")
        self.data_line = self._process.stdout.readline()
        self.pid = self._process.pid
        self.url = self.ready_line.split()[-1]
        self.host, _, port = self.url.removeprefix("http://").rpartition(":")
        self.port = int(port)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Send a signal, unless the process has already ended, and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def wait(self) -> Ended:
        try:
            output, errors = self._process.communicate(timeout=_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, errors = self._process.communicate()
            raise AssertionError(f"it did not end within {_WAIT} seconds; it had said: {output}{errors}") from None
        return Ended(self._process.returncode, output, errors)

    def next_error(self) -> str:
        """Wait for the next line on standard error."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def kill_if_running(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def connect(self) -> Connection:
        return Connection(self.host.strip("[]"), self.port)

    def call(self, operation: str, queue: str | None = None, /, **params: Any) -> Answer:
        """One SQS call on a new connection."""
        with self.connect() as connection:
            return connection.call(operation, queue, **params)

    def create(self, queue: str, **attributes: str) -> None:
        assert self.call("CreateQueue", QueueName=queue, Attributes=attributes).status == 200

    def peek(self, queue: str) -> list[dict[str, Any]]:
        with self.connect() as connection:
            messages: list[dict[str, Any]] = []
            after: int | None = 0
            while after is not None:
                path = f"/_semel/queues/{queue}/messages?limit=1000&after={after}"
                connection.send(request(path, host=self.url, method="GET"))
                page = connection.answer().json
                messages += page["Messages"]
                after = page.get("Next")
            return messages


class Connection:
    """One socket to a broker, for requests written by hand."""

    def __init__(self, host: str, port: int) -> None:
        self.host = f"{host}:{port}"
        self.socket = socket.create_connection((host, port), _WAIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, operation: str, queue: str | None = None, /, **params: Any) -> None:
        """Send a call without waiting for its answer."""
        self.send(call(operation, queue, host=self.host, **params))

    def call(self, operation: str, queue: str | None = None, /, **params: Any) -> Answer:
        self.ask(operation, queue, **params)
        return self.answer()

    def answer(self) -> Answer:
        """Wait for the next answer. Raises ConnectionResetError if the connection ends before it is complete."""
        head = self._read_until(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = 0 if status.split()[1] == "100" else int(headers["content-length"])
        while len(self._buffer) < length:
            self._read()
        return Answer(int(status.split()[1]), headers, self._take(length))

    def at_end(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return not self._buffer and not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def _read_until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._read()
        return self._take(self._buffer.index(mark) + len(mark)).removesuffix(mark)

    def _take(self, length: int) -> bytes:
        prefix = bytes(self._buffer[:length])
        del self._buffer[:length]
        return prefix

    def _read(self) -> None:
        chunk = self.socket.recv(1 << 18)
        if not chunk:
            raise ConnectionResetError(f"the connection ended after {bytes(self._buffer[:1000])!r}")
        self._buffer += chunk


def request(
    target: str,
    body: bytes = b"",
    *,
    host: str,
    method: str = "POST",
    headers: Iterable[str] = (),
    version: str = "1.1",
) -> bytes:
    lines = [f"{method} {target} HTTP/{version}", f"Host: {host.removeprefix('http://')}", *headers]
    if not any(line.lower().startswith(("content-length:", "transfer-encoding:")) for line in lines):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def call(operation: str, queue: str | None = None, /, *, host: str, **params: Any) -> bytes:
    """The bytes of a call in AWS JSON."""
    if queue is not None:
        params["QueueUrl"] = f"http://{host}/{ACCOUNT}/{queue}"
    headers = ["Content-Type: application/x-amz-json-1.0", f"X-Amz-Target: AmazonSQS.{operation}"]
    return request("/", json.dumps(params).encode(), host=host, headers=headers)


def run_to_end(folder: Path, *options: str, file_size: int | None = None) -> Ended:
    """Run a broker that is expected to end by itself."""
    process = _start(folder, options, file_size)
    try:
        output, errors = process.communicate(timeout=_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it runs, and says: {process.communicate()}") from None
    return Ended(process.returncode, output, errors)


def _start(folder: Path, options: Iterable[str], file_size: int | None) -> subprocess.Popen[str]:
    command = [SEMEL, "serve", *options]
    if file_size is not None:
        command = [sys.executable, "-c", _LIMITED, str(file_size), *command]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


Starter = Callable[..., Serve]


def assert_clean(ended: Ended, number: signal.Signals = signal.SIGTERM) -> None:
    """Exit code 0, or 130 after Ctrl-C, and no output after the ready line."""
    assert (ended.code, ended.output, ended.errors) == (130 if number == signal.SIGINT else 0, "", "")
