"""Decodes a message's body into the type that its handler's annotation asks for.

Rules: an annotation that cannot be decoded is refused when the handler is registered, not at the first message; a body
that does not fit raises Undecodable with a short reason that does not quote the body; msgspec and pydantic are imported
only where an annotation needs them.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, TypeVar

import orjson

from semel.errors import SemelError

Decoder = Callable[[str], Any]

LONGEST_REASON: Final = 300
POSSIBLE: Final = (
    "use dict, list, str, bytes, Any or no annotation, a dataclass or TypedDict, a msgspec.Struct, "
    "a pydantic model, or a list, union or Optional of these"
)
_UNTYPED: Final[tuple[Any, ...]] = (Any, object, inspect.Parameter.empty)
_OBJECTS: Final[tuple[Any, ...]] = (dict, dict[str, Any], dict[str, object], dict[Any, Any], typing.Dict)  # noqa: UP006
_JSON_TYPES: Final = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
_LISTS: Final[tuple[Any, ...]] = (list, list[Any], list[object], typing.List)  # noqa: UP006


class Undecodable(SemelError):
    """A body does not fit the type that its handler takes; `reason` says why in a few words, without the body. Correct
    the producer, or the handler's type."""

    def __init__(self, reason: str) -> None:
        self.reason = reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"
        super().__init__(f"the body cannot be decoded: {self.reason}")


def decoder_for(annotation: Any) -> Decoder:
    """The function that decodes a body into what `annotation` asks for. Raises SemelError if that is not possible.

    - dict, list, Any, no annotation: the body as JSON; dict and list also check that it is of that type.
    - str: the body as it is. bytes: its UTF-8 bytes.
    - pydantic models, and types that contain one: pydantic, with the model's own settings.
    - all others (dataclasses, TypedDicts, msgspec Structs, unions, lists, …): msgspec.
    """
    if annotation in _UNTYPED:
        return _json
    if annotation in _OBJECTS:
        return _object
    if annotation in _LISTS:
        return _list
    if annotation is str:
        return _text
    if annotation is bytes:
        return _bytes
    if isinstance(annotation, (str, TypeVar)) or annotation is None:
        raise SemelError(f"a handler cannot have a message of type {annotation!r}: {POSSIBLE}")
    if _holds_pydantic(annotation):
        return _with_pydantic(annotation)
    return _with_msgspec(annotation)


def is_parsed_json(decoder: Decoder) -> bool:
    """Whether it returns the body exactly as orjson parses it."""
    return decoder in (_json, _object, _list)


def _json(body: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Undecodable(f"it is not JSON: {error}") from None


def _object(body: str) -> Any:
    value = _json(body)
    if type(value) is not dict:
        _wrong("a JSON object", value)
    return value


def _list(body: str) -> Any:
    value = _json(body)
    if type(value) is not list:
        _wrong("a JSON list", value)
    return value


def _wrong(expected: str, value: Any) -> NoReturn:
    raise Undecodable(f"expected {expected}, got {_JSON_TYPES.get(type(value), 'a number')}")


def _text(body: str) -> str:
    return body


def _bytes(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise Undecodable("it is not valid Unicode") from None


def _with_msgspec(annotation: Any) -> Decoder:
    import msgspec
    import msgspec.inspect

    try:
        unknown = _custom_type(msgspec.inspect.type_info(annotation), set())
        decode = msgspec.json.Decoder(annotation).decode
    except (TypeError, NameError, AttributeError, RuntimeError) as error:
        raise _refused(annotation, f"{error}") from error
    if unknown is not None:
        raise _refused(annotation, f"msgspec cannot decode JSON into a {unknown.__qualname__}")

    def decoder(body: str) -> Any:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            raise Undecodable(f"{error}") from None
        except msgspec.DecodeError as error:
            raise Undecodable(f"it is not JSON: {error}") from None
        except Exception as error:  # noqa: BLE001 - of a __post_init__, or too deep: the message is at fault
            raise Undecodable(f"{_name_of(annotation)} rejected it with {type(error).__name__}") from None

    return decoder


def _custom_type(node: Any, visited: set[int]) -> type | None:
    """The first type that msgspec cannot decode without a hook; msgspec would report it only at the first message."""
    import msgspec.inspect

    if isinstance(node, tuple):
        return next((custom for child in node if (custom := _custom_type(child, visited))), None)
    if not isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) or id(node) in visited:
        return None
    visited.add(id(node))
    if isinstance(node, (msgspec.inspect.CustomType, msgspec.inspect.ExtType)):
        return getattr(node, "cls", object)
    return _custom_type(tuple(getattr(node, name) for name in node.__struct_fields__), visited)


def _with_pydantic(annotation: Any) -> Decoder:
    import pydantic

    try:
        adapter = annotation if isinstance(annotation, pydantic.TypeAdapter) else pydantic.TypeAdapter(annotation)
        adapter.rebuild(raise_errors=True)
    except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
        raise _refused(annotation, f"{error}".partition("\n")[0]) from error
    validate = adapter.validate_json

    def decoder(body: str) -> Any:
        try:
            return validate(body)
        except pydantic.ValidationError as error:
            raise Undecodable(_reason_of(error)) from None
        except Exception as error:  # noqa: BLE001 - of a validator: the message is at fault, not the worker
            raise Undecodable(f"{_name_of(annotation)} rejected it with {type(error).__name__}") from None

    return decoder


def _reason_of(error: Any) -> str:
    """Where and why, without the input that pydantic would show."""
    errors = error.errors(include_input=False, include_url=False, include_context=False)
    reasons = [f"{each['msg']} - at $" + "".join(f".{step}" for step in each["loc"]) for each in errors[:3]]
    return "; ".join(reasons) + (f"; and {len(errors) - 3} more" if len(errors) > 3 else "")


def _holds_pydantic(annotation: Any) -> bool:
    pydantic: Any = sys.modules.get("pydantic")  # not imported: then nobody can have made a model with it
    if pydantic is None:
        return False
    if isinstance(annotation, getattr(pydantic, "TypeAdapter", ())):
        return True
    return any(
        (isinstance(part, type) and issubclass(part, pydantic.BaseModel))
        or hasattr(part, "__pydantic_core_schema__")
        or type(part).__module__.partition(".")[0] == "pydantic"
        for part in _parts(annotation, [])
    )


def _parts(annotation: Any, visited: list[Any]) -> Iterator[Any]:
    """The annotation and all that it is made of: arguments of generics, fields of dataclasses and TypedDicts."""
    if any(annotation is other for other in visited):
        return
    visited.append(annotation)
    yield annotation
    alias = [annotation.__value__] if hasattr(annotation, "__value__") else []  # type X = ...
    for part in (*alias, *typing.get_args(annotation), *getattr(annotation, "__metadata__", ())):
        yield from _parts(part, visited)
    if dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation):
        try:
            hints = typing.get_type_hints(annotation, include_extras=True)
        except (NameError, TypeError):
            return  # reported when the decoder is built
        for part in hints.values():
            yield from _parts(part, visited)


def _name_of(annotation: Any) -> str:
    return annotation.__qualname__ if inspect.isclass(annotation) else str(annotation)


def _refused(annotation: Any, reason: str) -> SemelError:
    return SemelError(f"a handler cannot have a message of type {_name_of(annotation)}: {reason}; {POSSIBLE}")
