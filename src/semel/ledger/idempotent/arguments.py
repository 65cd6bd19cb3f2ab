"""Derives the key of a call, and the digest of its payload, from its arguments.

The rule: the same call has the same key in every process. Values that could differ from run to run are refused.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import inspect
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from semel.ledger.contract import LedgerError

Key = str | Callable[..., str]
Payload = Sequence[str] | Callable[..., Any] | None

_PLAIN: Final = (str, int, uuid.UUID, decimal.Decimal, datetime.date, enum.Enum)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+>")  # in the default text of an object


class _Arguments:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, including defaults. Raises TypeError if they do not fit, as a plain call would."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def check_name(self, name: str, what: str) -> None:
        if name not in self._signature.parameters:
            known = ", ".join(self._signature.parameters) or "none"
            raise LedgerError(f"{self._function.__qualname__} has no argument {name!r} for its {what}; it has {known}")


class KeyOf(_Arguments):
    """The key of a call: `prefix`, a colon, and the text that `key` makes from the arguments."""

    def __init__(self, function: Callable[..., Any], key: Key, prefix: str) -> None:
        super().__init__(function)
        self._key, self._prefix = key, f"{prefix}:" if prefix else ""
        if isinstance(key, str) and "{" not in key:
            self.check_name(key, "key")

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if callable(self._key):
            made = self._key(*args, **kwargs)
            if not isinstance(made, str) or not made:
                raise LedgerError(f"the key function of {self._function.__qualname__} returned {made!r}: return a text")
            return self._prefix + made
        arguments = self.bound(args, kwargs)
        return self._prefix + (self._formatted(arguments) if "{" in self._key else self._plain(arguments))

    def prefixed(self, key: str) -> str:
        return key if self._prefix and key.startswith(self._prefix) else self._prefix + key

    def _formatted(self, arguments: dict[str, Any]) -> str:
        assert isinstance(self._key, str)
        try:
            made = self._key.format(**arguments)
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            raise LedgerError(
                f"the key {self._key!r} of {self._function.__qualname__} does not fit its arguments: {error!r}"
            ) from error
        if _ADDRESS.search(made):
            raise LedgerError(
                f"the key {made!r} contains a memory address, which differs from process to process: {self._way}"
            )
        return made

    def _plain(self, arguments: dict[str, Any]) -> str:
        assert isinstance(self._key, str)
        value = arguments[self._key]
        if not isinstance(value, _PLAIN) or value == "":
            raise LedgerError(f"the argument {self._key}={value!r} cannot be a key: {self._way}")
        return str(value.value if isinstance(value, enum.Enum) else value)

    @property
    def _way(self) -> str:
        return f"use a text, a number or a UUID, or give {self._function.__qualname__} a key function"


class PayloadOf(_Arguments):
    """A digest of the chosen arguments, or "" if none are chosen."""

    def __init__(self, function: Callable[..., Any], payload: Payload) -> None:
        super().__init__(function)
        self._payload = payload
        if payload is not None and not callable(payload):
            for name in [payload] if isinstance(payload, str) else payload:
                self.check_name(name, "payload")

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if self._payload is None:
            return ""
        if callable(self._payload):
            chosen = self._payload(*args, **kwargs)
        else:
            arguments = self.bound(args, kwargs)
            names = [self._payload] if isinstance(self._payload, str) else self._payload
            chosen = {name: arguments[name] for name in names}
        options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
        try:
            text = orjson.dumps(chosen, default=_as_json, option=options)
        except TypeError as error:
            raise LedgerError(
                f"the payload of {self._function.__qualname__} cannot be digested ({error}): "
                "give a payload function that returns JSON"
            ) from error
        return hashlib.sha256(text).hexdigest()


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON")
