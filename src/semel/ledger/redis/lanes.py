"""Scripts of many threads, sent to one Redis server over a few connections.

The rule here: while a lane's connection is busy, new calls queue; the next one to get the lane takes along all that
have queued and sends them in one write. So sixteen threads cost the machine hardly more wake-ups than two.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis.exceptions as driver

from semel.ledger.contract import LedgerUnavailable
from semel.ledger.redis.scripts import Script

LANES: Final = 2
_MOST_CALLS: Final = 64  # in one write
_MOST_BYTES: Final = 4 * 1024 * 1024
_FORKED: Final = threading.Lock()


@dataclass(slots=True, eq=False)
class _Call:
    script: Script
    words: bytes  # all that follows the script's name, as Redis reads it
    count: int
    durable: bool
    answer: Any = None
    gate: threading.Lock = field(default_factory=threading.Lock)  # opens when answered, or when it is ours to send
    turn: _Turn | None = None

    def packed(self, command: bytes, name: bytes) -> bytes:
        return b"*%d\r\n" % (self.count + 2) + _packed((command, name)) + self.words


@dataclass(slots=True)
class _Turn:
    """A lane's connection, and the calls that go down it now; the first one's thread does the work."""

    connection: Any
    calls: list[_Call]


class Lanes:
    """Runs scripts. `pool` is the driver's; it only tells how to make a connection."""

    def __init__(self, pool: Any, *, wait_replicas: int, timeout: float) -> None:
        self._pool, self._wait_replicas, self._timeout = pool, wait_replicas, timeout
        self._open()

    def _open(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[_Call] = deque()
        self._all = [self._pool.connection_class(**self._pool.connection_kwargs) for _ in range(LANES)]
        self._free = list(self._all)
        self._closed = False
        self._process = os.getpid()

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[bytes], *, durable: bool) -> Any:
        if self._process != os.getpid():
            self._open_in_child()
        words = _packed([b"%d" % len(keys), *[key.encode() for key in keys], *arguments])
        call = _Call(script, words, 1 + len(keys) + len(arguments), durable and self._wait_replicas > 0)
        try:
            self._join(call)
        except BaseException:  # this thread is being stopped: somebody else must send what it was to send
            self._leave(call)
            raise
        if call.turn is not None:
            self._lead(call.turn)
        if isinstance(call.answer, BaseException):
            raise call.answer
        return call.answer

    def _join(self, call: _Call) -> None:
        """Returns when the call has been answered, or has its turn."""
        with self._mutex:
            if self._closed:
                raise LedgerUnavailable("this ledger was closed")
            if self._free:
                call.turn = _Turn(self._free.pop(), [call])
                return
            call.gate.acquire()
            self._queue.append(call)
        call.gate.acquire()

    def _leave(self, call: _Call) -> None:
        with self._mutex:
            if call in self._queue:
                self._queue.remove(call)
        if call.turn is not None:
            self._pass_on(call.turn.connection, call.turn.calls[1:])

    def _open_in_child(self) -> None:
        """This process was forked: the connections are those of its parent, and whoever was using them is not here."""
        with _FORKED:
            if self._process != os.getpid():
                self._open()

    def _lead(self, turn: _Turn) -> None:
        try:
            self._send(turn)
        except BaseException as error:
            turn.connection.disconnect()
            for call in turn.calls:
                call.answer = _again(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for call in turn.calls[1:]:
                call.gate.release()
            self._pass_on(turn.connection, [])

    def _pass_on(self, connection: Any, calls: list[_Call]) -> None:
        """Hand a lane to the next in the queue, who takes along the others."""
        with self._mutex:
            size = sum(len(call.words) for call in calls)
            while self._queue and len(calls) < _MOST_CALLS and (not calls or size < _MOST_BYTES):
                calls.append(self._queue.popleft())
                size += len(calls[-1].words)
            if not calls:
                self._free.append(connection)
                return
            calls[0].turn = _Turn(connection, calls)
            calls[0].gate.release()

    def _send(self, turn: _Turn) -> None:
        """All calls of a turn, once more if the connection breaks: it may have broken long ago, while idle."""
        try:
            self._attempt(turn)
        except (driver.ConnectionError, OSError) as error:
            turn.connection.disconnect()
            if isinstance(error, driver.AuthenticationError | driver.AuthorizationError | driver.BusyLoadingError):
                raise
            self._attempt(turn)

    def _attempt(self, turn: _Turn) -> None:
        connection, calls = turn.connection, turn.calls
        if self._closed:
            raise LedgerUnavailable("this ledger was closed")
        connection.connect()
        _exchange(connection, calls, [call.packed(b"EVALSHA", call.script.digest) for call in calls])
        unknown = [call for call in calls if isinstance(call.answer, driver.NoScriptError)]
        if unknown:  # a new server, or one that was restarted or told to forget
            _exchange(connection, unknown, [call.packed(b"EVAL", call.script.text) for call in unknown])
        durable = [call for call in calls if call.durable and not isinstance(call.answer, Exception)]
        if durable:
            self._wait_for_replicas(connection, durable)
        if any(isinstance(call.answer, driver.ReadOnlyError) for call in calls):
            # It was the primary once: look the address up anew next time.
            connection.disconnect()

    def _wait_for_replicas(self, connection: Any, calls: Sequence[_Call]) -> None:
        """One WAIT for all calls before it: it speaks of what its own connection has written."""
        wait = (b"WAIT", b"%d" % self._wait_replicas, b"%d" % (self._timeout * 500))
        connection.send_packed_command([b"*3\r\n" + _packed(wait)])
        reached = _read(connection)
        if isinstance(reached, int) and reached >= self._wait_replicas:
            return
        for call in calls:
            call.answer = LedgerUnavailable(
                f"{reached} of {self._wait_replicas} replicas have confirmed the write in time; see to the replicas of "
                "this Redis, or ask for fewer with wait_replicas"
            )

    def close(self) -> None:
        with self._mutex:
            self._closed = True
        for connection in self._all:
            connection.disconnect()


def _packed(words: Sequence[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _exchange(connection: Any, calls: Sequence[_Call], commands: list[bytes]) -> None:
    connection.send_packed_command([b"".join(commands)])
    for call in calls:
        call.answer = _read(connection)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except driver.BusyLoadingError:
        raise
    except driver.ResponseError as error:
        return error


def _again(error: BaseException) -> Exception:
    """A copy, as each thread raises its own."""
    if not isinstance(error, Exception):
        return driver.ConnectionError("the thread that was sending this call was stopped")
    try:
        copy = type(error)(*error.args)
    except TypeError:
        copy = driver.ConnectionError(str(error))
    copy.__cause__ = error
    return copy
