"""The load generator: N connections in a closed loop on one epoll, with requests prepared as bytes.

It runs on the same machine as the server, so its own cost is limited to two system calls and a few byte searches per
request. Its share of a core is reported with every figure: if the generator was busy all the time, the figure measures
the generator, not the server. Every answer is checked; the first wrong one ends the run.
"""

from __future__ import annotations

import gc
import math
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker_bench import machine
from broker_bench.wire import Address, WrongAnswer, connect, framed, refusal

PATIENCE = 30.0  # seconds without an answer after which a server counts as hung
LONGEST = 10.0  # maximum length of a window in seconds, for slow servers
CHUNK = 1 << 16  # above 128 KiB, each recv would cost an mmap


class Work(Protocol):
    """What the connections do. `messages` counts those that the server has confirmed so far."""

    messages: int

    def first(self, slot: int) -> bytes | None:
        """The first request of connection `slot`; None when there is nothing left to do."""

    def next(self, slot: int, answer: bytes) -> bytes | None:
        """Check and count the answer, and return the next request; None when there is nothing left to do."""


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between the end of the warm-up and the end of the measurement."""

    seconds: float
    calls: int
    messages: int
    server_cpu: float
    generator_cpu: float
    machine_cpu: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """Server CPU per call, in microseconds."""
        return self.server_cpu / self.calls * 1e6 if self.calls else math.nan

    @property
    def generator_share(self) -> float:
        """The share of one core that the generator itself used, 0 to 1."""
        return self.generator_cpu / self.seconds

    @property
    def others_share(self) -> float:
        """The share of one core that everything else on the machine used, including kernel threads for the disk."""
        return max(0.0, self.machine_cpu - self.server_cpu - self.generator_cpu) / self.seconds


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    calls: int
    messages: int
    server_cpu: float
    generator_cpu: float
    machine_cpu: float


class Generator:
    """One run of one work against one server."""

    def __init__(self, address: Address, work: Work, connections: int, server_cpu: Callable[[], float]) -> None:
        self.address = address
        self.work = work
        self.connections = connections
        self.server_cpu = server_cpu
        self._poll = select.epoll()
        self._slots: dict[int, tuple[int, socket.socket]] = {}
        self._calls = 0
        self._start = self._mark()  # the window begins here if the work ends before the warm-up does
        self._begin: _Mark | None = None
        self._end: _Mark | None = None

    def run(self, warm_up: float, window: float, *, least_calls: int = 0, drain: bool = True) -> Window:
        """Load the server and measure `window` seconds after `warm_up`, or less if the work ends earlier.

        A server that is too slow to answer `least_calls` in that time gets up to `LONGEST` seconds for them. With
        `drain`, the answers to pending requests are awaited at the end, so that the counts can be checked afterwards.
        """
        collecting = gc.isenabled()
        gc.disable()  # nothing here creates cycles, and a collection would make the server look slow
        try:
            for slot in range(self.connections):
                request = self.work.first(slot)
                if request is not None:
                    self._open(slot, request)
            self._loop(warm_up, window, least_calls, drain)
        except OSError as error:
            raise WrongAnswer(f"connection lost: {error}") from error
        finally:
            for _, sock in self._slots.values():
                sock.close()
            self._poll.close()
            if collecting:
                gc.enable()
        return self._window()

    def _loop(self, warm_up: float, window: float, least_calls: int, drain: bool) -> None:
        clock, poll, slots, step = time.perf_counter, self._poll.poll, self._slots, self.work.next
        partial: dict[int, bytes] = {}
        last = clock()
        turn = last + warm_up
        while slots:
            events = poll(0.25)
            now = clock()
            if events:
                last = now
            elif now - last > PATIENCE:
                raise WrongAnswer(f"no answer for {PATIENCE:.0f} s")
            if now >= turn and self._end is None:
                if self._begin is None:
                    self._begin = self._mark()
                    turn = self._begin.at + window
                elif self._calls - self._begin.calls >= least_calls or now >= self._begin.at + LONGEST:
                    self._end = self._mark()
                    if not drain:
                        return
            for fd, _ in events:
                slot, sock = slots[fd]
                data = sock.recv(CHUNK)
                if not data:
                    raise WrongAnswer("the server closed the connection instead of answering")
                if fd in partial:
                    data = partial.pop(fd) + data
                whole = framed(data)
                if not whole or len(data) < whole:
                    partial[fd] = data
                    continue
                if data[9:12] != b"200":
                    raise refusal(data)
                request = step(slot, data)
                self._calls += 1
                if self._end is not None:
                    request = None
                if request is None or data.find(b": close\r\n", 0, 1000) > 0:
                    self._poll.unregister(fd)
                    del slots[fd]
                    sock.close()
                    if request is not None:
                        self._open(slot, request)
                elif (sent := sock.send(request)) != len(request):
                    _send_rest(sock, request[sent:])

    def _open(self, slot: int, request: bytes) -> None:
        sock = connect(self.address, PATIENCE)
        self._slots[sock.fileno()] = slot, sock
        self._poll.register(sock.fileno(), select.EPOLLIN)
        _send_rest(sock, request)

    def _mark(self) -> _Mark:
        return _Mark(
            at=time.perf_counter(),
            calls=self._calls,
            messages=self.work.messages,
            server_cpu=self.server_cpu(),
            generator_cpu=time.process_time(),
            machine_cpu=machine.busy_seconds(),
        )

    def _window(self) -> Window:
        begin, end = self._begin or self._start, self._end or self._mark()
        return Window(
            seconds=end.at - begin.at,
            calls=end.calls - begin.calls,
            messages=end.messages - begin.messages,
            server_cpu=end.server_cpu - begin.server_cpu,
            generator_cpu=end.generator_cpu - begin.generator_cpu,
            machine_cpu=end.machine_cpu - begin.machine_cpu,
        )


def _send_rest(sock: socket.socket, data: bytes) -> None:
    """Send what did not fit into the socket's buffer. The server reads all of it before it answers."""
    sock.settimeout(PATIENCE)
    sock.sendall(data)
    sock.setblocking(False)
