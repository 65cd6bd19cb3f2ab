"""A load generator: many connections on one epoll, requests as ready-made bytes.

Closed loop: each connection sends its next request when it has its answer, so the server sets the pace. This measures
its peak. Open loop: requests are sent at a fixed rate, whatever happens to earlier ones. A request takes an idle
connection or opens one. If no more may be opened, the request is given up at once; if it gets no answer within
`PATIENCE`, it is given up then.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

PATIENCE: Final = 5.0  # seconds until a client gives up and hangs up
BATCH: Final = 10
_BODY: Final = "x" * 200
_CHUNK: Final = 1 << 16


@dataclass(slots=True)
class Outcome:
    """The results of the requests. `accepted` are the numbers of the messages that the server has confirmed."""

    seconds: float = 0.0
    offered: int = 0
    accepted: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)  # by the server, with an answer
    unanswered: int = 0  # given up after PATIENCE, or cut off
    unsent: int = 0  # there was no connection
    delays: list[float] = field(default_factory=list)  # seconds until a batch was accepted

    @property
    def rate(self) -> float:
        """Accepted messages a second."""
        return len(self.accepted) / self.seconds

    @property
    def offered_rate(self) -> float:
        return self.offered * BATCH / self.seconds


@dataclass(slots=True, eq=False)
class _Client:
    """One connection, and its request that waits for an answer."""

    sock: socket.socket
    first: int = -1  # the number of its first message; -1: idle
    since: float = 0.0
    unsent: bytes = b""
    received: bytes = b""


class Generator:
    """One run. The messages are numbered from `first`."""

    def __init__(self, address: tuple[str, int], queue: str, *, connections: int, first: int = 0) -> None:
        self._address, self._most, self._number = address, connections, first
        self._url = f"http://{address[0]}:{address[1]}/000000000000/{queue}"
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._idle: list[_Client] = []
        self._waiting: deque[tuple[float, _Client]] = deque()
        self.outcome = Outcome()

    @property
    def next_number(self) -> int:
        return self._number

    def closed_loop(self, seconds: float) -> Outcome:
        return self._run(seconds, None)

    def open_loop(self, rate: float, seconds: float) -> Outcome:
        """Send `rate` messages a second."""
        return self._run(seconds, rate / BATCH)

    def _run(self, seconds: float, rate: float | None) -> Outcome:
        began = time.monotonic()
        try:
            while (now := time.monotonic()) < began + seconds:
                due = self._most if rate is None else int((now - began) * rate) - self.outcome.offered
                for _ in range(due):
                    if rate is None and not self._idle and len(self._clients) >= self._most:
                        break
                    self._offer(now)
                for fd, events in self._poll.poll(0.001):
                    client = self._clients.get(fd)
                    if client is not None:
                        self._handle(client, events)
                self._give_up(now)
        finally:
            self.outcome.seconds = time.monotonic() - began
            self.outcome.unanswered += sum(client.first >= 0 for client in self._clients.values())
            for client in list(self._clients.values()):
                client.sock.close()
            self._poll.close()
        return self.outcome

    def _offer(self, now: float) -> None:
        self.outcome.offered += 1
        client = self._idle.pop() if self._idle else self._connect()
        if client is None:
            self.outcome.unsent += 1
            return
        client.first, client.since = self._number, now
        self._number += BATCH
        client.unsent = self._request(client.first)
        self._waiting.append((now, client))
        self._write(client)

    def _connect(self) -> _Client | None:
        if len(self._clients) >= self._most:
            return None
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            sock.close()
            return None
        client = self._clients[sock.fileno()] = _Client(sock)
        self._poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return client

    def _request(self, first: int) -> bytes:
        entries = [
            {"Id": str(number), "MessageBody": f'{{"n":{number},"pad":"{_BODY}"}}'}
            for number in range(first, first + BATCH)
        ]
        body = json.dumps({"QueueUrl": self._url, "Entries": entries}).encode()
        head = f"POST / HTTP/1.1\r\nHost: {self._address[0]}:{self._address[1]}\r\n"
        head += "Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.SendMessageBatch\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _write(self, client: _Client) -> None:
        try:
            client.unsent = client.unsent[client.sock.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self._drop(client)
                return
        self._poll.modify(client.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if client.unsent else 0))

    def _handle(self, client: _Client, events: int) -> None:
        if events & select.EPOLLOUT and client.unsent:
            self._write(client)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and client.sock.fileno() >= 0:
            try:
                data = client.sock.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(client)
                return
            client.received += data
            self._answered(client)

    def _answered(self, client: _Client) -> None:
        head, end, rest = client.received.partition(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]) if end else 0
        if not end or len(rest) < length:
            return
        outcome = self.outcome
        if client.first < 0:
            pass  # the server refused the connection before there was a request
        elif head[9:12] == b"200":
            if b'"Failed":[{' in rest:
                raise AssertionError(f"a message was refused alone: {rest[:500]!r}")
            outcome.accepted += range(client.first, client.first + BATCH)
            outcome.delays.append(time.monotonic() - client.since)
        else:
            said = json.loads(rest)["__type"].rpartition("#")[2] if rest.startswith(b"{") else "text"
            outcome.refused[f"{head[9:12].decode()} {said}"] += 1
        client.received, client.first = b"", -1
        if b"Connection: close" in head:
            self._drop(client)
        else:
            self._idle.append(client)

    def _give_up(self, now: float) -> None:
        waiting = self._waiting
        while waiting and (waiting[0][0] < now - PATIENCE or waiting[0][1].since != waiting[0][0]):
            since, client = waiting.popleft()
            if client.first >= 0 and client.since == since and client.sock.fileno() >= 0:
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        """Close the connection, also when the server has closed it."""
        if client.sock.fileno() < 0:
            return
        del self._clients[client.sock.fileno()]
        client.sock.close()
        if client.first >= 0:
            self.outcome.unanswered += 1
            client.first = -1
        elif client in self._idle:
            self._idle.remove(client)
