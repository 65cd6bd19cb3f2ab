"""A process that holds thousands of connections to a server: idle ones, or ones with half a request.

`python crowd.py PORT COUNT TEXT` opens COUNT connections and sends TEXT on each. Then it reads commands from its
standard input: `open` prints how many connections the server has not closed, `more TEXT` sends another text on each of
them. It ends at the end of its input.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self


class Crowd:
    """Runs and controls the process. Inside the `with` block, all its connections have been made."""

    def __init__(self, port: int, count: int, text: str = "") -> None:
        command = [sys.executable, str(Path(__file__)), str(port), str(count), text]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        self.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def wait(self) -> None:
        assert self._read() == "ready"

    @property
    def open(self) -> int:
        """Connections that the server has not closed."""
        self._write("open")
        return int(self._read())

    def send(self, text: str) -> None:
        self._write(f"more {text}")
        assert self._read() == "sent"

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        assert line, "the crowd has ended"
        return line


def main() -> None:
    port, count, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), 30)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(_bytes(text))
        crowd.append(connection)
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "open":
            crowd = list(_still_open(crowd))
            print(len(crowd), flush=True)
        else:
            for connection in crowd:
                with contextlib.suppress(OSError):
                    connection.send(_bytes(rest))
            print("sent", flush=True)


def _bytes(text: str) -> bytes:
    return text.encode().decode("unicode_escape").encode("latin-1")


def _still_open(crowd: list[socket.socket]) -> Iterator[socket.socket]:
    ended = select.poll()
    for connection in crowd:
        ended.register(connection, select.POLLIN)
    maybe = {number for number, _ in ended.poll(0)}
    for connection in crowd:
        if connection.fileno() not in maybe or _has_more(connection):
            yield connection
        else:
            connection.close()


def _has_more(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(65_536))
    except BlockingIOError:
        return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
