"""Dataclasses from JSON without any other library: small, strict, and open about what it can do.

Supported: str, int, float, bool, None, Any, dict[str, X], list[X], tuple[X, ...], tuple[X, Y], set[X], frozenset[X],
Literal, Enum, UUID, Decimal, datetime, date, Optional and other unions, NewType, and dataclasses of these, nested.
All else is refused when the decoder is made. Nothing is converted that JSON could have said: "7" is no int. Fields that
the dataclass does not know are ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, NoReturn, Union
from uuid import UUID

import orjson

from semel.errors import SemelError
from semel.messages.decoding import Decoder, Undecodable, json_type, name_of

Convert = Callable[[Any, str], Any]  # a parsed value and its path in; raises Misfit

SUPPORTED: Final = (
    "without msgspec or pydantic possible are dataclasses of str, int, float, bool, None, Any, dict[str, X], list, "
    "tuple, set, frozenset, Literal, Enum, UUID, Decimal, datetime, date, unions and other dataclasses; "
    "`pip install msgspec` allows more"
)


class Misfit(Exception):
    """A value is not what its place asks for."""


def plain_decoder(annotation: Any) -> Decoder:
    """A decoder for one of the supported types; a SemelError for any other."""
    convert = _Makers().of(annotation)

    def decoder(body: str) -> Any:
        try:
            return convert(orjson.loads(body), "$")
        except orjson.JSONDecodeError as error:
            raise Undecodable(f"it is not JSON: {error}") from None
        except Misfit as error:
            raise Undecodable(f"{error}") from None
        except Exception as error:  # noqa: BLE001 - of a __post_init__: the message is at fault, not the worker
            raise Undecodable(f"{name_of(annotation)} refused it with {type(error).__name__}") from None

    return decoder


def _misfit(expected: str, value: Any, path: str) -> NoReturn:
    raise Misfit(f"expected {expected}, got {json_type(value)} - at {path}")


def _exactly(kind: type, expected: str) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if type(value) is not kind:
            _misfit(expected, value, path)
        return value

    return convert


def _float(value: Any, path: str) -> float:
    if type(value) not in (int, float):
        _misfit("a number", value, path)
    return float(value)


def _decimal(value: Any, path: str) -> Decimal:
    if type(value) not in (str, int, float):
        _misfit("a decimal number", value, path)
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise Misfit(f"expected a decimal number - at {path}") from None


def _from_text(make: Callable[[str], Any], expected: str) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if type(value) is not str:
            _misfit(expected, value, path)
        try:
            return make(value)
        except ValueError:
            raise Misfit(f"expected {expected} - at {path}") from None

    return convert


def _anything(value: Any, _path: str) -> Any:
    return value


SCALARS: Final[dict[Any, Convert]] = {
    Any: _anything,
    object: _anything,
    str: _exactly(str, "a string"),
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "a boolean"),
    None: _exactly(type(None), "null"),
    type(None): _exactly(type(None), "null"),
    dict: _exactly(dict, "an object"),
    list: _exactly(list, "a list"),
    float: _float,
    Decimal: _decimal,
    UUID: _from_text(UUID, "a UUID"),
    datetime: _from_text(datetime.fromisoformat, "a time in ISO 8601"),
    date: _from_text(date.fromisoformat, "a date in ISO 8601"),
}


class _Makers:
    """Makes converters; knows the dataclasses that it is in the middle of, so that one may hold itself."""

    def __init__(self) -> None:
        self._made: dict[type, Convert] = {}

    def of(self, annotation: Any) -> Convert:
        if isinstance(annotation, typing.Hashable) and annotation in SCALARS:
            return SCALARS[annotation]
        if isinstance(annotation, typing.NewType):
            return self.of(annotation.__supertype__)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self.of(arguments[0])
        if origin is Literal:
            return _literal(arguments)
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin in (list, set, frozenset) and arguments:
            return self._many(origin, arguments[0])
        if origin is tuple and arguments:
            return self._tuple(arguments)
        if origin is dict and arguments[0] is str:
            return self._dict(arguments[1])
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return _enum(annotation)
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            return self._dataclass(annotation)
        raise SemelError(f"a handler cannot take its message as {name_of(annotation)}: {SUPPORTED}")

    def _union(self, arguments: tuple[Any, ...]) -> Convert:
        ways = [self.of(argument) for argument in arguments]

        def convert(value: Any, path: str) -> Any:
            reasons = []
            for way in ways:
                try:
                    return way(value, path)
                except Misfit as error:
                    reasons.append(error)
            # Of an Optional, the reason of what is not None is the one that helps.
            raise reasons[0] if len(ways) == 2 and type(None) in arguments else Misfit(f"nothing fits - at {path}")

        return convert

    def _many(self, kind: Callable[[list[Any]], Any], item: Any) -> Convert:
        one = self.of(item)

        def convert(value: Any, path: str) -> Any:
            if type(value) is not list:
                _misfit("a list", value, path)
            made = [one(part, f"{path}[{place}]") for place, part in enumerate(value)]
            return made if kind is list else kind(made)

        return convert

    def _tuple(self, arguments: tuple[Any, ...]) -> Convert:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._many(tuple, arguments[0])
        parts = [self.of(argument) for argument in arguments]

        def convert(value: Any, path: str) -> Any:
            if type(value) is not list or len(value) != len(parts):
                _misfit(f"a list of {len(parts)}", value, path)
            return tuple(
                part(one, f"{path}[{place}]") for place, (part, one) in enumerate(zip(parts, value, strict=True))
            )

        return convert

    def _dict(self, item: Any) -> Convert:
        one = self.of(item)

        def convert(value: Any, path: str) -> Any:
            if type(value) is not dict:
                _misfit("an object", value, path)
            return {name: one(part, f"{path}[...]") for name, part in value.items()}

        return convert

    def _dataclass(self, cls: type) -> Convert:
        if cls in self._made:
            return lambda value, path: self._made[cls](value, path)
        self._made[cls] = _anything  # its place, until it is made
        try:
            hints = typing.get_type_hints(cls)
        except (NameError, TypeError) as error:
            raise SemelError(f"the fields of {cls.__qualname__} cannot be made out: {error}") from error
        fields = [field for field in dataclasses.fields(cls) if field.init]
        ways = [(field.name, self.of(hints[field.name]), _required(field)) for field in fields]

        def convert(value: Any, path: str) -> Any:
            if type(value) is not dict:
                _misfit("an object", value, path)
            found = {}
            for name, way, required in ways:
                if name in value:
                    found[name] = way(value[name], f"{path}.{name}")
                elif required:
                    raise Misfit(f"the field {name} is missing - at {path}")
            return cls(**found)

        self._made[cls] = convert
        return convert


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _literal(values: tuple[Any, ...]) -> Convert:
    def convert(value: Any, path: str) -> Any:
        for one in values:
            if type(one) is type(value) and one == value:
                return one
        raise Misfit(f"expected one of {', '.join(map(repr, values))} - at {path}")

    return convert


def _enum(cls: type[enum.Enum]) -> Convert:
    def convert(value: Any, path: str) -> Any:
        for member in cls:
            if member.value == value and isinstance(value, bool) == isinstance(member.value, bool):
                return member
        raise Misfit(f"expected one of {', '.join(repr(member.value) for member in cls)} - at {path}")

    return convert
