"""What a handler knows about its message, and what it can ask of the runtime while it works."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import orjson

from semel.consumer.outcomes import Lost
from semel.errors import SemelError
from semel.ledger import callables
from semel.sqs import Received as Message
from semel.telemetry.logs import MessageLogger, message_logger

if TYPE_CHECKING:
    from semel.consumer.delivery import Delivery

T = TypeVar("T")

__all__ = ["CURRENT", "Context", "Message", "current"]

_MISSING: Final = object()


class Context:
    """The message that a handler works on, and its claim.

    `key` is the idempotency key: pass it on to whatever you call, so that a second attempt is recognised.
    `fence` grows with every claim of the key: a store that compares it can refuse a worker whose claim was taken over.

    >>> from semel import App, Context
    >>> app = App()
    >>> @app.handler("payments", key="$.id")
    ... def charge(payment: dict, ctx: Context) -> None:
    ...     ctx.log.info("attempt %d", ctx.attempt)
    ...     bank.charge(payment["amount"], idempotency_key=ctx.key)
    """

    __slots__ = ("_delivery", "_log")

    def __init__(self, delivery: Delivery) -> None:
        """Internal. A worker makes it."""
        self._delivery = delivery
        self._log: MessageLogger | None = None

    @property
    def key(self) -> str:
        """The idempotency key of the message."""
        return self._delivery.key

    @property
    def key_origin(self) -> str:
        """Where the key was read from, such as "message-id", "$.order.id" or "carried"."""
        return self._delivery.key_origin

    @property
    def fence(self) -> int:
        """The fence of the claim. It grows with every claim of the key."""
        return self._delivery.fence

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. The ledger counts attempts: a delivery of a key that another worker has
        claimed does not count."""
        return self._delivery.attempt

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._delivery.setup.name

    @property
    def message(self) -> Message:
        """The message as it was received."""
        return self._delivery.received

    @property
    def deadline(self) -> float:
        """When the claim or the visibility timeout ends, by semel.consumer.clock.monotonic(), unless the heartbeat
        extends it again."""
        return self._delivery.deadline

    @property
    def lost(self) -> threading.Event:
        """Set when the claim may be lost. Stop working then: another worker may have claimed the key. Async handlers
        are also cancelled."""
        return self._delivery.lost_event()

    def check(self) -> None:
        """Raise Lost if the claim may be lost. Call this between the parts of long work."""
        if self._delivery.is_lost:
            raise Lost(f"the claim on {self.key!r} may be gone: another worker may have the message by now")

    @property
    def log(self) -> MessageLogger:
        """A logger that adds queue, message id, key, fence and attempt to each line."""
        if self._log is None:
            delivery = self._delivery
            self._log = message_logger(
                self.queue, delivery.received.message_id, delivery.key, delivery.fence, delivery.attempt
            )
        return self._log

    @overload
    def step(self, name: str, work: Callable[[], Awaitable[T]]) -> Awaitable[T]: ...
    @overload
    def step(self, name: str, work: Callable[[], T]) -> T: ...
    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Do a part of the work and save its result. The next attempt gets that result, and does not do the part again.

        The result must be JSON. What `work` does can still happen twice, if the worker dies before the result is saved.
        In an async handler, await the step. `work` may then be a coroutine function, or a plain function, which runs on
        the event loop.
        """
        if self._delivery.setup.handler.is_async:
            return self._async_step(name, work)
        saved = self._saved(name)
        if saved is not _MISSING:
            return saved
        self.check()
        result = work()
        if inspect.isawaitable(result):
            callables.unfinished(result)
            raise SemelError(f"the step {name!r} is async in a handler that is not: make the handler async too")
        self._save(name, _encode(name, result))
        return result

    async def _async_step(self, name: str, work: Callable[[], Any]) -> Any:
        import asyncio

        saved = self._saved(name)
        if saved is not _MISSING:
            return saved
        self.check()
        result = work()
        if inspect.isawaitable(result):
            result = await result
        await asyncio.to_thread(self._save, name, _encode(name, result))
        return result

    def _saved(self, name: str) -> Any:
        value = self._delivery.steps.get(name)
        return _MISSING if value is None else orjson.loads(value)

    def _save(self, name: str, value: bytes) -> None:
        delivery = self._delivery
        assert delivery.claim is not None
        if not delivery.setup.ledger.save_step(delivery.claim, name, value):
            raise Lost(f"the claim on {self.key!r} was lost before the result of its step {name!r} could be saved")
        delivery.steps = {**delivery.steps, name: value}


def _encode(name: str, result: Any) -> bytes:
    try:
        return orjson.dumps(result)
    except TypeError as error:
        raise SemelError(
            f"the result of the step {name!r} cannot be kept: {error}; return JSON, or an address"
        ) from None


CURRENT: ContextVar[Delivery] = ContextVar("semel_current")


def current() -> Context:
    """The context of the handler that is running in this thread or task."""
    try:
        return CURRENT.get().context
    except LookupError:
        raise SemelError("no handler runs here: the current context exists only while a message is handled") from None


logger: Final = logging.getLogger("semel.consumer")
