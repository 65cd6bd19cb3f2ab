"""`@idempotent`: a function runs once for each key, and later calls with the key return the stored result.

The rules: the function runs only under a claim, its result is returned only after it is recorded, and an exception
releases the claim, so that the next call tries again. If the process dies in the middle, what the function does outside
the ledger may happen again; pass the key on to whatever it calls.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, cast, overload

import orjson

from semel.ledger import callables
from semel.ledger.contract import (
    MAX_RESULT,
    Claim,
    ClaimRequest,
    ClaimResult,
    Completion,
    Conflict,
    Done,
    Fenced,
    Held,
    Ledger,
    LedgerError,
    Status,
    Won,
)
from semel.ledger.idempotent.arguments import Key, KeyOf, Payload, PayloadOf
from semel.ledger.idempotent.lease_extender import ExtendedLease, extender_of

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
Me = TypeVar("Me")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class InProgress(LedgerError):
    """Another call with this key is running; it holds the key for `remaining` more seconds, or longer. Call again
    later, or use `concurrent="wait"`."""

    def __init__(self, key: str, remaining: float) -> None:
        super().__init__(
            f"{key!r} is being worked on by another call for up to {remaining:.1f} s more: call again later, "
            'or let calls wait with concurrent="wait"'
        )
        self.key, self.remaining = key, remaining


class PayloadConflict(LedgerError):
    """The key was used before with other arguments. `recorded`: whether that call is done. Choose a key that tells the
    two calls apart."""

    def __init__(self, key: str, recorded: bool) -> None:
        super().__init__(
            f"{key!r} was used before with other arguments{', and is done' if recorded else ''}: "
            "one key must mean one thing; choose a key that tells them apart"
        )
        self.key, self.recorded = key, recorded


class ResultNotKept(LedgerError):
    """The function has run for this key and will not run again, but its result could not be stored. Look up
    what the function did, or `clear` the key to run it again."""


class Idempotent(Protocol[P, R_co]):
    """The decorated function. It is called as before."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> Idempotent[P, R_co]: ...
    @overload
    def __get__(
        self: Idempotent[Concatenate[Me, Q], R_co], instance: Me, owner: type | None = None, /
    ) -> Callable[Q, R_co]: ...

    def key_of(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key in the ledger that a call with these arguments would have."""

    def clear(self, key: str) -> bool:
        """Forget the call with this key, so that the next call with it runs again. The key may be given with or without
        its prefix, `name`. False: it was not known."""


def idempotent(
    ledger: Ledger | Callable[[], Ledger],
    *,
    key: Key,
    name: str | None = None,
    payload: Payload = None,
    concurrent: Literal["raise", "wait"] = "raise",
    timeout: float = 60.0,
    lease: float = 60.0,
    retention: float | None = None,
    encode: Callable[[Any], bytes] | None = None,
    decode: Callable[[bytes], Any] | None = None,
) -> Callable[[Callable[P, R]], Idempotent[P, R]]:
    """Run a function once for each key, and return the stored result to later calls with the same key.

    `key`: the name of an argument, a format string over the arguments ("charge-{order.id}"), or a function of them.
    `name`: the prefix of all keys, so that functions can share a ledger; by default the names of module and function.
    `payload`: names of arguments, or a function of them. If it changes for a key, the call raises PayloadConflict.
    `concurrent`: what a call does while another call with its key runs: "raise" InProgress, or "wait" for the result,
    `timeout` seconds at most. `lease`: seconds after a crash until another call may take over; it is extended while the
    function runs. `retention`: seconds to keep the result; None: the ledger's own. `encode`, `decode`: used instead of
    JSON.

    >>> from semel import SqliteLedger, idempotent
    >>> ledger = SqliteLedger(":memory:")
    >>> @idempotent(ledger, key="order_id", name="charge")
    ... def charge(order_id: str, amount: int) -> str:
    ...     print("charging", amount)
    ...     return f"receipt for {order_id}"
    >>> charge("7", 100), charge("7", 100)
    charging 100
    ('receipt for 7', 'receipt for 7')
    >>> ledger.close()
    """
    if concurrent not in ("raise", "wait"):
        raise LedgerError(f'concurrent={concurrent!r} is unknown: it is "raise" or "wait"')
    if (encode is None) != (decode is None):
        raise LedgerError("encode and decode belong together: give both or none")

    def decorate(function: Callable[P, R]) -> Idempotent[P, R]:
        if reason := callables.not_run_by_a_call(function):
            raise LedgerError(
                f"{_name(function)} cannot be run once and its result stored: {reason}; "
                "make it a plain function or `async def`, and so every decorator around it"
            )
        prefix = f"{function.__module__}.{function.__qualname__}" if name is None else name
        calls = _Calls(
            ledger,
            KeyOf(function, key, prefix),
            PayloadOf(function, payload),
            None if concurrent == "raise" else timeout,
            lease,
            retention,
            encode or orjson.dumps,
            decode or orjson.loads,
        )
        if callables.is_async(function):
            wrapped: Any = _async_wrapper(function, calls)
        else:
            wrapped = _wrapper(function, calls)
        wrapped.key_of = calls.key_of
        wrapped.clear = lambda key: bool(calls.ledger().forget([calls.key_of.prefixed(key)]))
        return cast(Idempotent[P, R], wrapped)

    return decorate


def _wrapper(function: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = calls.new_call(args, kwargs)
        pauses = call.pauses()
        while isinstance(outcome := call.outcome_of(call.claim()), Held):
            time.sleep(next(pauses, None) or call.give_up(outcome))
        if not isinstance(outcome, _Running):
            return outcome.value
        try:
            result = _done(function, function(*args, **kwargs))
        except BaseException as error:
            call.release(outcome, error)
            raise
        return call.finish(outcome, result)

    return wrapper


def _async_wrapper(function: Callable[..., Awaitable[Any]], calls: _Calls) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = calls.new_call(args, kwargs)
        pauses = call.pauses()
        while isinstance(outcome := call.outcome_of(await _claimed(call)), Held):
            await asyncio.sleep(next(pauses, None) or call.give_up(outcome))
        if not isinstance(outcome, _Running):
            return outcome.value
        try:
            result = _done(function, await function(*args, **kwargs))
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(call.release, outcome, error))
            raise
        # A cancellation must not stop this: the work is done, so it must be recorded.
        return await asyncio.shield(asyncio.to_thread(call.finish, outcome, result))

    return wrapper


def _done(function: Callable[..., Any], result: Any) -> Any:
    """The result. Raises if it still has to be awaited or iterated over; the claim is then released."""
    if kind := callables.unfinished(result):
        raise LedgerError(
            f"{_name(function)} returned {kind}, so its work is not done and nothing is stored: await it, or "
            "return a list"
        )
    return result


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))  # a partial has no name of its own


async def _claimed(call: _Call) -> ClaimResult:
    """Claim in another thread. If this task is cancelled meanwhile, a claim that was won is released."""
    asking = asyncio.ensure_future(asyncio.to_thread(call.claim))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError as error:
        result = await asking
        if isinstance(result, Won):
            await asyncio.to_thread(call.release, _Running(result.claim, None), error)
        raise


@dataclass(frozen=True, slots=True)
class _Known:
    value: Any


@dataclass(frozen=True, slots=True)
class _Running:
    claim: Claim
    lease: ExtendedLease | None


@dataclass(frozen=True, slots=True)
class _Calls:
    """What all calls of one decorated function have in common."""

    configured_ledger: Ledger | Callable[[], Ledger]
    key_of: KeyOf
    payload_of: PayloadOf
    wait: float | None  # seconds; None: raise at once
    lease: float
    retention: float | None
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def ledger(self) -> Ledger:
        configured = self.configured_ledger
        return configured if isinstance(configured, Ledger) else configured()

    def new_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        request = ClaimRequest(self.key_of(*args, **kwargs), self.payload_of(*args, **kwargs))
        return _Call(self, self.ledger(), request, uuid.uuid4().hex)


class _Call:
    """One call: from its first claim to its record."""

    def __init__(self, calls: _Calls, ledger: Ledger, request: ClaimRequest, claimant: str) -> None:
        self._calls, self._ledger, self._request, self._claimant = calls, ledger, request, claimant
        self._asked_at = 0.0

    def claim(self) -> ClaimResult:
        self._asked_at = time.monotonic()
        (result,) = self._ledger.claim([self._request], claimant=self._claimant, lease=self._calls.lease)
        return result

    def outcome_of(self, claimed: ClaimResult) -> _Known | _Running | Held:
        match claimed:
            case Won(claim=claim):
                lease = self._calls.lease
                return _Running(claim, extender_of(self._ledger).start(self._ledger, claim, lease, self._asked_at))
            case Done(key=key, status=Status.REJECTED, result=reason):
                raise ResultNotKept(f"{key!r} has run before, but {reason.decode(errors='replace')}")
            case Done(result=result):
                return _Known(self._calls.decode(result))
            case Conflict(key=key, recorded=recorded):
                raise PayloadConflict(key, recorded)
            case Held() if self._calls.wait is None:
                self.give_up(claimed)
        return claimed

    def pauses(self) -> Iterator[float]:
        """How long to wait before each further claim, until the time that a call may wait is over."""
        if self._calls.wait is None:
            return
        ends, pause = time.monotonic() + self._calls.wait, _FIRST_PAUSE
        while (left := ends - time.monotonic()) > 0:
            yield min(left, pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def give_up(self, held: Held) -> float:
        raise InProgress(held.key, held.remaining)

    def release(self, running: _Running, error: BaseException) -> None:
        """The function failed with `error`: release the claim, so that the next call can try. If the release fails too,
        the lease will end by itself."""
        self._stop(running)
        try:
            self._ledger.release([running.claim])
        except LedgerError as trouble:
            error.add_note(f"{running.claim.key!r} stays claimed until its lease ends: {trouble}")

    def finish(self, running: _Running, result: Any) -> Any:
        """The function has returned `result`: it counts once it is recorded."""
        status, kept, trouble = self._encoded(result)
        try:
            (recorded,) = self._ledger.record([Completion(running.claim, status, kept, self._calls.retention)])
        finally:
            self._stop(running)
        if not recorded:
            raise Fenced(
                f"the lease on {running.claim.key!r} ran out and another call took it over: the result of this one "
                "does not count; use a longer lease, and check what has happened twice"
            )
        if status is Status.REJECTED:
            raise ResultNotKept(f"{running.claim.key!r} has run, but {kept.decode()}") from trouble
        return result

    def _encoded(self, result: Any) -> tuple[Status, bytes, Exception | None]:
        """The result as it is stored. What the function did cannot be undone: a result that cannot be stored must not
        make it run again."""
        try:
            kept = self._calls.encode(result)
        except Exception as error:  # noqa: BLE001 - whatever the user's encoder raises
            reason = f"its result of type {type(result).__name__} cannot be stored ({error}): give encode and decode"
            return Status.REJECTED, reason.encode()[:MAX_RESULT], error
        if len(kept) > MAX_RESULT:
            reason = f"its result has {len(kept)} bytes and the ledger keeps at most {MAX_RESULT}: return its address"
            return Status.REJECTED, reason.encode(), None
        return Status.DONE, kept, None

    def _stop(self, running: _Running) -> None:
        if running.lease is not None:
            extender_of(self._ledger).stop(running.lease)
