"""AWS JSON 1.0: the protocol of today's SDKs. Bytes to parameters, results to bytes.

A body is read at most twice. The first reader is compiled from the service model, and reads and checks in one step, but
can only accept or reject. What it rejects goes to the exact check of `semel.sqs.service_model`, which tells what is
wrong from what is merely unusual: null, binary, very large numbers. Members that the model does not have are skipped.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, Required

import orjson

from semel.sqs.errors import SERIALIZATION, UNKNOWN_OPERATION, ServiceError
from semel.sqs.service_model import Operation, Shape, operations

CONTENT_TYPE: Final = b"application/x-amz-json-1.0"
_TARGETS: Final = {f"AmazonSQS.{name}".encode(): operation for name, operation in operations().items()}

_readers: dict[bytes, Callable[[bytes], dict[str, Any]]] = {}


# Requests.


def parse(target: bytes, body: bytes) -> tuple[Operation, dict[str, Any]]:
    """The operation that X-Amz-Target names, and its parameters as the service model has them."""
    operation = _TARGETS.get(target)
    if operation is None:
        raise ServiceError(UNKNOWN_OPERATION, f"The operation {target.decode('latin-1')} is not one of SQS.")
    read = _readers.get(target)
    if read is not None:
        try:
            return operation, read(body)
        except Exception:  # noqa: BLE001, S110 - whatever it is, the exact check says it better
            pass
    return operation, _exactly(operation, body)


def _exactly(operation: Operation, body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise ServiceError(SERIALIZATION, f"The request body is not valid JSON: {error}") from None
    checked: dict[str, Any] = operation.input.check(decoded, "request")
    return checked


def is_warm() -> bool:
    return bool(_readers)


def warm_up() -> None:
    """Compiles the readers, which takes longer than a broker takes to start. It may run on any thread; until it is
    done, the exact check reads all bodies."""
    import msgspec

    whole_number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    readers = {
        target: msgspec.json.Decoder(_typed(operation.input, whole_number), dec_hook=_leave_to_the_exact_check).decode
        for target, operation in _TARGETS.items()
    }
    _readers.update(readers)


class _Blob:
    """The type of binary members, which are left to the exact check."""


def _leave_to_the_exact_check(_type: type, _value: Any) -> Any:
    raise ValueError


def _typed(shape: Shape, whole_number: Any) -> Any:
    """A shape as a type. A structure is a dictionary, so that the rest of the program need not know of this."""
    match shape.type:
        case "structure":
            members = {name: _typed(member, whole_number) for name, member in shape.members.items()}
            members |= {name: Required[members[name]] for name in shape.required}
            typed_dict: Any = typing.TypedDict
            return typed_dict(shape.name, members, total=False)
        case "list":
            return list[_typed(shape.member, whole_number)]  # type: ignore[arg-type,misc]
        case "map":
            return dict[str, _typed(shape.member, whole_number)]  # type: ignore[arg-type,misc]
        case "blob":
            return _Blob
        case "boolean":
            return bool
        case "integer" | "long":
            return whole_number
        case _:
            return str


# Answers.


def answer(operation: Operation, result: dict[str, Any]) -> bytes:
    return orjson.dumps(result) if operation.output.members else b""


def error_answer(error: ServiceError) -> bytes:
    return orjson.dumps({"__type": f"com.amazonaws.sqs#{error.kind.shape}", "message": error.message})


def query_error_header(error: ServiceError) -> str:
    """The older code of an error, which SDKs show to their users."""
    return f"{error.kind.code};{error.kind.fault}"
