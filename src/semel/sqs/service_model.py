"""SQS's operations and shapes, compiled from the service model that comes with botocore.

Members, required members and types all come from that file; no shape is written by hand. The file is read as data,
because that takes milliseconds, and importing botocore takes much longer.
"""

from __future__ import annotations

import binascii
import gzip
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from semel.errors import SemelError
from semel.sqs.errors import INVALID_PARAMETER_VALUE, SERIALIZATION, ServiceError, missing

API_VERSION: Final = "2012-11-05"

# A check takes a decoded JSON value and its path, and returns the value that the rest of the program may rely on.
Check = Callable[[Any, str], Any]


@dataclass(eq=False)
class Shape:
    """One shape. `check` is set after the members, because some shapes contain themselves."""

    name: str
    type: str
    members: dict[str, Shape] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    member: Shape | None = None
    check: Check = lambda value, _path: value


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    input: Shape
    output: Shape


@cache
def operations() -> dict[str, Operation]:
    """Every operation of SQS by name."""
    model = json.loads(_model_file())
    shapes = _Shapes(model["shapes"])
    nothing = Shape("Nothing", "structure")
    return {
        name: Operation(
            name,
            shapes[spec["input"]["shape"]],
            shapes[spec["output"]["shape"]] if "output" in spec else nothing,
        )
        for name, spec in model["operations"].items()
    }


@cache
def enum_values(shape: str) -> frozenset[str]:
    """The values that an enumerated shape allows."""
    return frozenset(json.loads(_model_file())["shapes"][shape]["enum"])


@cache
def _model_file() -> bytes:
    # find_spec locates the package without importing it.
    spec = find_spec("botocore")
    for root in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(root) / "data" / "sqs" / API_VERSION
        for name, opener in (("service-2.json.gz", gzip.open), ("service-2.json", open)):
            if (folder / name).is_file():
                with opener(folder / name, "rb") as file:
                    return bytes(file.read())
    raise SemelError("botocore's SQS service model was not found; reinstall botocore 1.34.90 or newer")


class _Shapes:
    """Builds shapes on first use. A shape can be looked up while it is being built, so recursive shapes work."""

    def __init__(self, specs: dict[str, Any]) -> None:
        self._specs = specs
        self._built: dict[str, Shape] = {}

    def __getitem__(self, name: str) -> Shape:
        if name in self._built:
            return self._built[name]
        spec = self._specs[name]
        shape = self._built[name] = Shape(name, spec["type"])
        if shape.type == "structure":
            shape.members = {member: self[ref["shape"]] for member, ref in spec["members"].items()}
            shape.required = tuple(spec.get("required", ()))
        elif shape.type == "list":
            shape.member = self[spec["member"]["shape"]]
        elif shape.type == "map":
            shape.member = self[spec["value"]["shape"]]
        shape.check = _checker(shape)
        return shape


def _checker(shape: Shape) -> Check:
    match shape.type:
        case "structure":
            return _structure(shape)
        case "list":
            return _list(shape)
        case "map":
            return _map(shape)
        case "blob":
            return _blob
        case "boolean":
            return _scalar(bool, "Boolean")
        case "integer" | "long":
            return _scalar(int, "Integer")
        case _:
            return _scalar(str, "String")


def _mistyped(value: object, wanted: str, path: str) -> ServiceError:
    tokens = {str: "STRING_VALUE", bool: "BOOLEAN_VALUE", int: "NUMBER_VALUE", float: "NUMBER_VALUE"}
    tokens |= {list: "START_ARRAY", dict: "START_OBJECT", type(None): "NULL_VALUE"}
    return ServiceError(SERIALIZATION, f"{tokens[type(value)]} can not be converted to a {wanted} ({path})")


def _scalar(kind: type, wanted: str) -> Check:
    def check(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _mistyped(value, wanted, path)
        return value

    return check


def _blob(value: Any, path: str) -> str:
    """Binary values are base64 in both protocols and are stored that way. This only checks that the value is base64."""
    if type(value) is not str:
        raise _mistyped(value, "Blob", path)
    try:
        b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ServiceError(SERIALIZATION, f"{path} is not valid base64") from None
    return value


class _Unknown:
    """A type that no value has."""


_PLAIN_TYPES: Final[dict[str, type]] = {"string": str, "integer": int, "boolean": bool}


def _structure(shape: Shape) -> Check:
    members, required = shape.members, shape.required
    # Most values are plain and valid; comparing their type saves a call.
    plain = {name: _PLAIN_TYPES.get(member.type) for name, member in members.items()}

    def check(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _mistyped(value, "Structure", path)
        checked = {}
        for name, item in value.items():
            if type(item) is plain.get(name, _Unknown):
                checked[name] = item
            # As the service does: unknown members are ignored, null is the same as absent.
            elif item is not None and name in members:
                checked[name] = members[name].check(item, name)
        for name in required:
            if name not in checked:
                raise missing(name)
        return checked

    return check


def _list(shape: Shape) -> Check:
    member = shape.member
    assert member is not None

    def check(value: Any, path: str) -> list[Any]:
        if type(value) is not list:
            raise _mistyped(value, "List", path)
        return [member.check(item, path) for item in value]

    return check


def _map(shape: Shape) -> Check:
    member = shape.member
    assert member is not None
    # A tag without a value has an empty string, so null is refused there. In other maps, null entries are dropped.
    takes_null = shape.name != "TagMap"

    def check(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _mistyped(value, "Map", path)
        if not takes_null and None in value.values():
            raise ServiceError(INVALID_PARAMETER_VALUE, "Tag values must not be null.")
        return {key: member.check(item, f"{path}.{key}") for key, item in value.items() if item is not None}

    return check


# The older Query protocol: the current model no longer lists its names, but they can be derived from it.

_QUERY_EXCEPTIONS: Final = {"Actions": "ActionName", "Messages": "Message", "queueUrls": "QueueUrl", "tags": "Tag"}


def query_name(member: str, shape: Shape) -> str:
    """The name of a list or map member in the Query protocol, which writes it as NAME.1, NAME.2, …"""
    if member in _QUERY_EXCEPTIONS:
        return _QUERY_EXCEPTIONS[member]
    if shape.type == "list" and shape.member is not None and shape.member.type == "structure":
        return shape.member.name
    return member.removesuffix("s")


def query_map_fields(member: str) -> tuple[str, str]:
    return ("Key", "Value") if member.lower() == "tags" else ("Name", "Value")


def query_members(shape: Shape) -> Iterator[tuple[str, str, Shape]]:
    """(member, its Query name, its shape) for each member of a structure."""
    for member, inner in shape.members.items():
        repeated = inner.type in ("list", "map")
        yield member, query_name(member, inner) if repeated else member, inner
