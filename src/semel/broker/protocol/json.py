"""AWS JSON 1.0: the protocol of today's SDKs. Bytes to parameters, results to bytes."""

from __future__ import annotations

from typing import Any, Final

import orjson

from semel.sqs.errors import SERIALIZATION, UNKNOWN_OPERATION, ServiceError
from semel.sqs.model import Operation, operations

CONTENT_TYPE: Final = b"application/x-amz-json-1.0"
_TARGETS: Final = {f"AmazonSQS.{name}": operation for name, operation in operations().items()}


def parse(target: str, body: bytes) -> tuple[Operation, dict[str, Any]]:
    """The operation that X-Amz-Target names, and its parameters as the service model has them."""
    operation = _TARGETS.get(target)
    if operation is None:
        raise ServiceError(UNKNOWN_OPERATION, f"The operation {target} is not one of SQS.")
    try:
        decoded = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise ServiceError(SERIALIZATION, f"The request body is not valid JSON: {error}") from None
    return operation, operation.input.check(decoded, "request")


def answer(operation: Operation, result: dict[str, Any]) -> bytes:
    return orjson.dumps(result) if operation.output.members else b""


def error_answer(error: ServiceError) -> bytes:
    return orjson.dumps({"__type": f"com.amazonaws.sqs#{error.kind.shape}", "message": error.message})


def query_error_header(error: ServiceError) -> str:
    """The older code of an error, which SDKs show to their users."""
    return f"{error.kind.code};{error.kind.fault}"
