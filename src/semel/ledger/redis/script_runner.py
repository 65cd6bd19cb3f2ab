"""Runs scripts on one Redis server over a few connections, which all threads share.

Scripts that come at the same time are sent in one write. The rule: every script may be repeated, so if a connection
breaks, its scripts are sent once more on a new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import redis.exceptions as driver

from semel.ledger.combiner import Call, Closed, Combiner, NoTurn, copied
from semel.ledger.contract import LedgerUnavailable
from semel.ledger.redis.scripts import Script

CONNECTIONS: Final = 2
_MOST_BYTES: Final = 4 * 1024 * 1024  # in one write
# A new connection would get the same error.
_FINAL: Final = (driver.AuthenticationError, driver.AuthorizationError, driver.BusyLoadingError)


class _Run(NamedTuple):
    """One script. `words` is all that follows its name in the command, in the format that Redis reads."""

    script: Script
    words: bytes
    word_count: int
    durable: bool

    def command(self, name: bytes, script: bytes) -> bytes:
        return b"*%d\r\n" % (self.word_count + 2) + _packed((name, script)) + self.words


class ScriptRunner:
    """Thread-safe. `pool` is the driver's, and makes the connections."""

    def __init__(self, pool: Any, *, wait_replicas: int, timeout: float) -> None:
        self._wait_replicas, self._timeout = wait_replicas, timeout
        self._combiner = Combiner(
            [pool.make_connection() for _ in range(CONNECTIONS)],
            self._serve,
            dispose=lambda connection: connection.disconnect(),
            most=_MOST_BYTES,
        )

    def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[bytes], *, durable: bool, timeout: float | None
    ) -> Any:
        """The script's answer. `durable`: return only when as many replicas have it as `wait_replicas` asks for."""
        words = _packed([b"%d" % len(keys), *[key.encode() for key in keys], *arguments])
        run = _Run(script, words, 1 + len(keys) + len(arguments), durable and self._wait_replicas > 0)
        patience = self._timeout if timeout is None else min(timeout, self._timeout)
        call = Call(run, kind=patience, size=len(words), deadline=time.monotonic() + patience)
        try:
            return self._combiner.run(call)
        except Closed:
            raise LedgerUnavailable("this ledger was closed") from None
        except NoTurn:
            raise LedgerUnavailable(f"it gave no answer to others within {patience:g} seconds") from None

    def close(self) -> None:
        self._combiner.close(self._timeout)

    def _serve(self, connection: Any, calls: list[Call]) -> None:
        """Send the scripts, and once more if the connection breaks: it may have broken long ago, while idle."""
        deadline = min(call.deadline for call in calls) if calls[0].kind < self._timeout else None
        try:
            try:
                answers = self._attempt(connection, calls, deadline)
            except (driver.ConnectionError, OSError) as error:
                connection.disconnect()
                if isinstance(error, _FINAL):
                    raise
                answers = self._attempt(connection, calls, deadline)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            connection.disconnect()
            for call in calls:
                call.end(error=copied(error))
            return
        except BaseException:
            connection.disconnect()
            raise
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, Exception):
                call.end(error=answer)
            else:
                call.end(answer)

    def _attempt(self, connection: Any, calls: Sequence[Call], deadline: float | None) -> list[Any]:
        runs: list[_Run] = [call.work for call in calls]
        connection.socket_connect_timeout = _left(deadline, self._timeout)
        connection.connect()
        answers = _exchange(connection, [run.command(b"EVALSHA", run.script.digest) for run in runs], deadline)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, driver.NoScriptError)]
        if unknown:  # a new server, or one that was restarted or whose scripts were flushed
            again = [runs[place].command(b"EVAL", runs[place].script.text) for place in unknown]
            for place, answer in zip(unknown, _exchange(connection, again, deadline), strict=True):
                answers[place] = answer
        if any(isinstance(answer, driver.ReadOnlyError) for answer in answers):
            # It is no longer the primary: look the address up again next time.
            connection.disconnect()
            return answers
        durable = [n for n, run in enumerate(runs) if run.durable and not isinstance(answers[n], Exception)]
        if durable and (problem := self._wait_for_replicas(connection)):
            for place in durable:
                answers[place] = LedgerUnavailable(problem)
        return answers

    def _wait_for_replicas(self, connection: Any) -> str:
        """One WAIT for all scripts before it: it covers what its own connection has written. Returns what is wrong, or
        "" if the replicas have confirmed."""
        wait = (b"WAIT", b"%d" % self._wait_replicas, b"%d" % (self._timeout * 500))
        (reached,) = _exchange(connection, [b"*3\r\n" + _packed(wait)], None)
        if isinstance(reached, int) and reached >= self._wait_replicas:
            return ""
        return (
            f"{reached} of {self._wait_replicas} replicas have confirmed the write in time; check the replicas of "
            "this Redis, or ask for fewer with wait_replicas"
        )


def _packed(words: Sequence[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _exchange(connection: Any, commands: list[bytes], deadline: float | None) -> list[Any]:
    """Send commands in one write. Returns their answers, which include the errors of single commands."""
    connection.send_packed_command([b"".join(commands)])
    return [_read(connection, deadline) for _ in commands]


def _read(connection: Any, deadline: float | None) -> Any:
    if deadline is not None and not connection.can_read(_left(deadline, 0)):
        raise driver.TimeoutError("no answer within the time that the call was given")
    try:
        return connection.read_response()
    except driver.BusyLoadingError:
        raise
    except driver.ResponseError as error:
        return error


def _left(deadline: float | None, otherwise: float) -> float:
    return otherwise if deadline is None else max(0.001, deadline - time.monotonic())
