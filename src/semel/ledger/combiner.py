"""Combines the calls of many threads into one commit, one statement or one write to the socket.

A thread that finds a free connection leads: it serves its own call together with those that wait, and then hands the
connection to the first call that has arrived meanwhile. The rules: each caller gets its own result or its own error; no
call waits for its turn past its deadline; if the leading thread is interrupted, no other call is left waiting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from semel.ledger.contract import LedgerUnavailable

Resource = TypeVar("Resource")

_GATHER: Final = 8  # how often a leader yields to other threads, as long as more calls arrive


class Closed(Exception):
    """The combiner was closed before the call was made."""


class NoTurn(Exception):
    """The call's deadline came before its turn. It was not made."""


class Call:
    """One call in the queue. Calls of the same `kind` can be served together; a call of kind None is served alone. The
    store gives `work` and `size` their meaning."""

    __slots__ = ("deadline", "error", "kind", "result", "served", "size", "turn", "wake", "work")

    def __init__(self, work: Any, *, kind: Any, deadline: float, size: int = 1) -> None:
        self.work, self.kind, self.deadline, self.size = work, kind, deadline, size
        self.result: Any = None
        self.error: BaseException | None = None
        self.served = False
        self.turn: list[Any] = []  # the connection, once this call leads
        self.wake: threading.Lock | None = None  # held while the call waits

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result, self.error, self.served = result, error, True


class Combiner(Generic[Resource]):
    """Shares a few connections among any number of threads.

    `serve(connection, calls)` must end each of the calls. `most`: the maximum total size of calls that are served
    together. `gather`: threads that were just served tend to call again at once, so let them queue before the next
    calls are served. `dispose` closes a connection that is no longer needed.
    """

    def __init__(
        self,
        connections: Iterable[Resource],
        serve: Callable[[Resource, list[Call]], None],
        *,
        dispose: Callable[[Resource], None],
        most: int,
        gather: bool = False,
    ) -> None:
        self._serve, self._dispose, self._most, self._gathers = serve, dispose, most, gather
        self._mutex = threading.Lock()  # guards all below, and every call's turn
        self._queue: deque[Call] = deque()
        self._free = list(connections)
        self._open = len(self._free)
        self._closed = False
        self._all_closed = threading.Event()

    def run(self, call: Call) -> Any:
        """The call's result, or its error."""
        if self._await_turn(call):
            self._lead(call)
        if call.error is not None:
            raise call.error
        return call.result

    def borrow(self, deadline: float) -> Resource:
        """Wait for a connection, and take it for this thread alone until `give_back`."""
        call = Call(None, kind=None, deadline=deadline)
        self._await_turn(call)
        connection: Resource = call.turn[0]
        return connection

    def give_back(self, connection: Resource) -> None:
        """Hand a connection to the first call that waits for one."""
        with self._mutex:
            if self._queue:
                following = self._queue.popleft()
                following.turn = [connection]
                assert following.wake is not None
                following.wake.release()
                return
            if not self._closed:
                self._free.append(connection)
                return
        self._close_one(connection)

    def close(self, timeout: float) -> bool:
        """Refuse new calls, and wait for those under way. False: some still run; their end closes the connections."""
        with self._mutex:
            self._closed = True
            unused, self._free = self._free, []
        for connection in unused:
            self._close_one(connection)
        return self._all_closed.wait(timeout)

    def _await_turn(self, call: Call) -> bool:
        """True: this thread leads. False: another one has served the call."""
        with self._mutex:
            if self._closed:
                raise Closed
            if self._free:
                call.turn.append(self._free.pop())
                return True
            call.wake = threading.Lock()
            call.wake.acquire()
            self._queue.append(call)
        try:
            if not call.wake.acquire(timeout=max(0.0, call.deadline - time.monotonic())):
                with self._mutex:
                    if call in self._queue:
                        self._queue.remove(call)
                        raise NoTurn
                call.wake.acquire()  # its group is being served just now
        except NoTurn:
            raise
        except BaseException:  # this thread is being stopped
            self._leave(call)
            raise
        return not call.served

    def _leave(self, call: Call) -> None:
        with self._mutex:
            if call in self._queue:
                self._queue.remove(call)
        if call.turn:
            self.give_back(call.turn[0])

    def _lead(self, call: Call) -> None:
        connection, group = call.turn[0], [call]
        try:
            if self._gathers:
                self._gather()
            group += self._companions(call)
            self._serve(connection, group)
        except BaseException as error:
            for other in group:
                if not other.served:
                    other.end(error=error if other is call else interrupted())
            raise
        finally:
            self.give_back(connection)
            for other in group[1:]:
                assert other.wake is not None
                other.wake.release()

    def _gather(self) -> None:
        for _ in range(_GATHER):
            waiting = len(self._queue)
            time.sleep(0)
            if len(self._queue) == waiting:
                return

    def _companions(self, first: Call) -> list[Call]:
        """The queued calls that can be served with the first one. No call overtakes one that must be served alone."""
        companions: list[Call] = []
        if not self._queue:
            return companions
        with self._mutex:
            room, left = self._most - first.size, deque[Call]()
            while self._queue and self._queue[0].kind is not None:
                call = self._queue.popleft()
                if call.kind == first.kind and call.size <= room:
                    companions.append(call)
                    room -= call.size
                else:
                    left.append(call)
            left.extend(self._queue)
            self._queue = left
        return companions

    def _close_one(self, connection: Resource) -> None:
        try:
            self._dispose(connection)
        finally:
            with self._mutex:
                self._open -= 1
                if not self._open:
                    self._all_closed.set()


def interrupted() -> LedgerUnavailable:
    return LedgerUnavailable("the thread that was making this call for others was interrupted; try again")


def copied(error: Exception) -> Exception:
    """A copy of an error that several callers share, so that each raises its own."""
    try:
        copy = type(error)(*error.args)
    except TypeError:
        copy = LedgerUnavailable(str(error))
    copy.__cause__ = error.__cause__ or error
    return copy
