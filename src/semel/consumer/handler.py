"""A handler: a plain function, and what its signature asks for.

The rule: anything wrong with a handler is an error when it is registered, before any message is received.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from semel.consumer.batch import Batch
from semel.consumer.context import Context, Message
from semel.errors import SemelError
from semel.ledger import callables
from semel.ledger.contract import Transaction
from semel.messages.decoder import Decoder, decoder_for, is_parsed_json
from semel.messages.keys import Body, KeyRule, KeySpec, PayloadDigest, PayloadSpec, key_rule, payload_rule


class Guarantee(StrEnum):
    """What a user may rely on; nothing in Semel promises more."""

    EXACTLY_ONCE = "exactly once: its writes and the ledger's record are one transaction"
    DEDUPLICATED = (
        "at least once, one holder at a time, always with the same key: exactly once if what it calls honours that key"
    )

    @property
    def summary(self) -> str:
        return self.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered function. `options` holds the options that were given with it, not yet resolved."""

    queue: str
    function: Callable[..., Any]
    name: str
    is_async: bool
    is_batch: bool
    decode: Decoder
    key: KeyRule
    payload: PayloadDigest
    rejects_conflicts: bool  # a message with a known key and another payload is rejected; else the key decides
    takes_message: bool  # it gets the message itself instead of its decoded body
    context: str | None  # the names of the parameters for the context, the transaction and the message
    transaction: str | None
    message: str | None
    options: Mapping[str, Any]

    def body_of(self, text: str, value: Any) -> Body:
        """A body that was decoded into `value`, for its key and its digest. Parsed JSON is not parsed again."""
        return Body(text, value) if is_parsed_json(self.decode) and value is not None else Body(text)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.transaction else Guarantee.DEDUPLICATED

    def arguments(self, context: Any, message: Message | None, transaction: Transaction | None) -> dict[str, Any]:
        """The arguments that the handler asked for besides the body."""
        arguments: dict[str, Any] = {}
        if self.context:
            arguments[self.context] = context
        if self.message:
            arguments[self.message] = message
        if self.transaction:
            arguments[self.transaction] = transaction
        return arguments


_BY_NAME: Final = {"ctx": "context", "context": "context", "tx": "transaction", "message": "message"}
_BY_TYPE: Final[dict[Any, str]] = {Context: "context", Transaction: "transaction", Message: "message"}


def inspect_handler(
    queue: str,
    function: Callable[..., Any],
    *,
    is_batch: bool = False,
    key: KeySpec = None,
    payload: PayloadSpec | None = None,
    options: Mapping[str, Any],
) -> Handler:
    """Read the function's signature. Raises SemelError, which names the handler and says how to change it."""
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
    is_async = callables.is_async(function)
    if reason := callables.not_run_by_a_call(function):
        raise SemelError(
            f"the handler {name} would never run: {reason}; make it a plain function or `async def`, and so every "
            "decorator around it (a decorator that runs the wrapped function to its end can leave functools.wraps out)"
        )
    try:
        annotations = typing.get_type_hints(function)
    except Exception as error:  # noqa: BLE001 - whatever the user's annotations evaluate to
        raise SemelError(f"the annotations of the handler {name} cannot be resolved: {error}") from None
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise SemelError(f"the handler {name} takes no message: its first parameter is the body, such as `order: dict`")
    first, *others = parameters
    annotation = annotations.get(first.name, inspect.Parameter.empty)
    if is_batch:
        annotation = _batch_item(name, annotation)
    asked = _asked(name, others, annotations)
    if asked["transaction"] and is_async:
        raise SemelError(
            f"the handler {name} is async and asks for a transaction, which would block the event loop: "
            "make it a plain function, it then runs on a thread of its own"
        )
    if is_batch and (asked["message"] or asked["context"]):
        raise SemelError(
            f"the batch handler {name} cannot take a context or a message: key, attempt and message are in each item "
            "of its batch"
        )
    takes_message = annotation is Message
    try:
        return Handler(
            queue=queue,
            function=function,
            name=name,
            is_async=is_async,
            is_batch=is_batch,
            decode=decoder_for(str if takes_message else annotation),
            key=key_rule(key),
            payload=payload_rule(True if payload is None else payload),
            rejects_conflicts=payload is not None and payload is not False,
            takes_message=takes_message,
            options=dict(options),
            **asked,
        )
    except SemelError as error:
        raise SemelError(f"the handler {name}: {error}") from None


def _batch_item(name: str, annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty or annotation is Batch:
        return Any
    if typing.get_origin(annotation) is Batch:
        return typing.get_args(annotation)[0]
    raise SemelError(
        f"the batch handler {name} takes a Batch: annotate its first parameter as Batch[dict], for example"
    )


def _asked(name: str, parameters: list[inspect.Parameter], annotations: Mapping[str, Any]) -> dict[str, str | None]:
    asked: dict[str, str | None] = dict.fromkeys(("context", "transaction", "message"))
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        what = _BY_TYPE.get(annotations.get(parameter.name)) or _BY_NAME.get(parameter.name)
        if what is None:
            if parameter.default is inspect.Parameter.empty:
                raise SemelError(
                    f"the handler {name} has a parameter {parameter.name!r} that Semel cannot fill: after the body, a "
                    "handler can take `ctx: Context`, `tx: Transaction` and `message: Message`"
                )
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise SemelError(f"the handler {name}: {parameter.name!r} must not be positional-only")
        asked[what] = parameter.name
    return asked
