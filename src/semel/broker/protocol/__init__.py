"""Bytes to calls and back: AWS JSON 1.0, and the older Query protocol with its XML answers.

Knows no rule of SQS and does no I/O; what a request may contain comes from botocore's service model. This is the
entrance; each protocol has a module of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from semel.broker.protocol import json, query
from semel.broker.protocol.json import is_warm, query_error_header, warm_up
from semel.sqs.errors import NO_OPERATION, ServiceError
from semel.sqs.service_model import Operation

__all__ = [
    "Call",
    "Protocol",
    "answer",
    "error_answer",
    "is_warm",
    "parse",
    "protocol_of",
    "query_error_header",
    "warm_up",
]


class Protocol(Enum):
    """How a request is read, and how its answer is written."""

    JSON = "json"
    QUERY = "query"
    QUERY_AS_JSON = "query, answered in JSON"


# Python 3.11 looks a member up each time it is named.
_JSON, _QUERY, _QUERY_AS_JSON = Protocol


class Call(NamedTuple):
    """One request, decoded and checked against the service model. `params` must not be changed."""

    operation: Operation
    params: dict[str, Any]
    protocol: Protocol


def protocol_of(headers: Mapping[bytes, bytes]) -> Protocol:
    if b"x-amz-target" in headers:
        return _JSON
    return _QUERY_AS_JSON if query.JSON_TYPE in headers.get(b"accept", b"") else _QUERY


def parse(method: str, target: str, headers: Mapping[bytes, bytes], body: bytes, origin: str) -> Call:
    """The call that a request makes; `headers` has lower-case names. Raises ServiceError on anything malformed."""
    name = headers.get(b"x-amz-target")
    if name is not None:
        operation, params = json.parse(name, body)
        return Call(operation, params, _JSON)
    return Call(*query.parse(method, target, body, origin), protocol_of(headers))


def answer(call: Call, result: dict[str, Any], request_id: str) -> tuple[bytes, bytes]:
    """Content type and body of a success."""
    if call.protocol is _JSON:
        return json.CONTENT_TYPE, json.answer(call.operation, result)
    if call.protocol is _QUERY_AS_JSON:
        return query.JSON_TYPE, query.json_answer(call.operation, result, request_id)
    return query.XML_TYPE, query.answer(call.operation, result, request_id)


def error_answer(protocol: Protocol, error: ServiceError, request_id: str) -> tuple[bytes, bytes]:
    """Content type and body of an error; the JSON protocol also needs `query_error_header`."""
    if protocol is _JSON:
        return json.CONTENT_TYPE, json.error_answer(error)
    if protocol is _QUERY_AS_JSON and error.kind is not NO_OPERATION:
        return query.JSON_TYPE, query.json_error_answer(error, request_id)
    return query.XML_TYPE, query.error_answer(error, request_id)
