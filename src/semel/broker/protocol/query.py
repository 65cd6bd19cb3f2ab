"""The older Query protocol: a form in, XML out. Members have the names that they had before SQS spoke JSON.

A client that accepts `application/json` gets JSON instead of XML, in another form than AWS JSON 1.0. Known from the
live service, by way of users of API Gateway and R: the wrappers, `queueUrls`, `messages`, attributes as a list of
`Name` and `Value`, null for what is not there, `Error` with `Code` and `Message`. Inferred from these: the lists of
batches and of move tasks under the names of the service model, tags as a list of `Key` and `Value`, and the content of
a message attribute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import orjson

from semel.sqs.errors import (
    INVALID_ACTION,
    MISSING_AUTHENTICATION_TOKEN,
    NO_OPERATION,
    QUEUE_DOES_NOT_EXIST,
    SERIALIZATION,
    ServiceError,
)
from semel.sqs.limits import FORBIDDEN_CHARACTER
from semel.sqs.service_model import API_VERSION, Operation, Shape, operations, query_map_fields, query_members

XML_TYPE: Final = b"text/xml"
JSON_TYPE: Final = b"application/json"
_NAMESPACE: Final = f"http://queue.amazonaws.com/doc/{API_VERSION}/"
# More parameters than the largest legal batch can have: ten entries of ten attributes of a few fields each.
_MAX_PARAMETERS: Final = 2_000
# More dots than any name has: SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue has five.
_MAX_DEPTH: Final = 8
_INDEX: Final = re.compile(r"[0-9]{1,9}\Z")
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}\Z")
_QUEUE_PATH: Final = re.compile(r"/\d{12}/[^/]+/?\Z")
_NOT_ABOUT_A_QUEUE: Final = frozenset({"CreateQueue", "ListQueues"})
# SDKs for Java write `Tags.1.Key` in TagQueue, and the service accepts it.
_OTHER_NAMES: Final = {"Tags": "Tags"}
_JSON_NAMES: Final = {"QueueUrls": "queueUrls", "Messages": "messages"}


# Requests.


def parse(method: str, target: str, body: bytes, origin: str) -> tuple[Operation, dict[str, Any]]:
    """The operation that Action names, and its parameters as the service model has them."""
    path, _, query = target.partition("?")
    path = resolved(path)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="strict")
        if method == "POST":
            form = body.decode("utf-8")
            pairs += parse_qsl(form, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="strict")
    except ValueError as error:
        raise ServiceError(SERIALIZATION, f"The request is not a valid form: {error}") from None
    fields = dict(pairs)
    action = fields.get("Action")
    if action is None:
        if method == "GET":
            raise ServiceError(NO_OPERATION, "The request names no Action.")
        raise ServiceError(MISSING_AUTHENTICATION_TOKEN, "The request names no Action and no X-Amz-Target.")
    operation = operations().get(action)
    if operation is None or (action in _NOT_ABOUT_A_QUEUE and _QUEUE_PATH.match(path)):
        raise ServiceError(INVALID_ACTION, f"The action {action} is not valid for this endpoint.")
    if "QueueUrl" in operation.input.members and "QueueUrl" not in fields and path.strip("/"):
        fields["QueueUrl"] = origin + path.rstrip("/")
    params = _read_structure(_Tree.of(fields), operation.input)
    for member in operation.input.required:
        # A form cannot express an empty list; the rules decide what one means.
        if operation.input.members[member].type == "list":
            params.setdefault(member, [])
    return operation, operation.input.check(params, "request")


def resolved(path: str) -> str:
    """A path without dot segments and doubled slashes. Signatures cover this form: anything else in a path can be
    changed on the way, and must not change which queue is meant."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    closing = "/" if segments and path.endswith("/") else ""
    return "/" + "/".join(segments) + closing


class _Tree:
    """Dotted form names as a tree: `Attribute.1.Name=x` is found at tree["Attribute"]["1"]["Name"].value."""

    __slots__ = ("branches", "value")

    def __init__(self) -> None:
        self.branches: dict[str, _Tree] = {}
        self.value: str | None = None

    @classmethod
    def of(cls, pairs: Mapping[str, str]) -> _Tree:
        root = cls()
        for name, value in pairs.items():
            node = root
            for part in name.split(".", _MAX_DEPTH):
                node = node.branches.setdefault(part, cls())
            node.value = value
        return root

    def numbered(self) -> list[_Tree]:
        """The branches 1, 2, 3 … in that order; a list of one may leave the number out."""
        numbers = sorted((name for name in self.branches if _INDEX.match(name)), key=int)
        return [self.branches[number] for number in numbers] or [self]


_NOTHING: Final = _Tree()
_NOTHING.value = ""


def _read(tree: _Tree, shape: Shape, member: str) -> Any:
    match shape.type:
        case "structure":
            return _read_structure(tree, shape)
        case "list":
            assert shape.member is not None
            return [_read(item, shape.member, member) for item in tree.numbered()]
        case "map":
            assert shape.member is not None
            key, value = query_map_fields(member)
            return {
                item.branches[key].value or "": _read(item.branches.get(value, _NOTHING), shape.member, member)
                for item in tree.numbered()
                if key in item.branches
            }
        case "integer" | "long":
            if not _WHOLE_NUMBER.match(tree.value or ""):
                raise ServiceError(SERIALIZATION, f"{member} must be a whole number, not {tree.value!r}")
            return int(tree.value or "")
        case "boolean":
            return tree.value == "true"
        case _:
            return tree.value


def _read_structure(tree: _Tree, shape: Shape) -> dict[str, Any]:
    branches = tree.branches
    return {
        member: _read(branch, inner, member)
        for member, name, inner in query_members(shape)
        if (branch := branches.get(name) or branches.get(_OTHER_NAMES.get(member, name)))
    }


# Answers in XML.


def answer(operation: Operation, result: dict[str, Any], request_id: str) -> bytes:
    name, wrapped = operation.name, ""
    if operation.output.members:
        inner = _write_structure(result, operation.output)
        wrapped = f"<{name}Result>{inner}</{name}Result>" if inner else f"<{name}Result/>"
    return (
        f'<?xml version="1.0"?><{name}Response xmlns="{_NAMESPACE}">{wrapped}'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{name}Response>"
    ).encode()


def error_answer(error: ServiceError, request_id: str) -> bytes:
    kind = error.kind
    if kind is NO_OPERATION:
        return b"<UnknownOperationException/>"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{kind.fault}</Type>'
        f"<Code>{kind.code}</Code><Message>{_text(_message(error))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _message(error: ServiceError) -> str:
    """The text of an error, where this protocol has a text of its own."""
    if error.kind is QUEUE_DOES_NOT_EXIST:
        return error.message.removesuffix(".") + " for this wsdl version."
    return error.message


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A bare carriage return would be read back as a line feed; what XML cannot carry must not break the answer.
    text = FORBIDDEN_CHARACTER.sub("\ufffd", str(value))
    return escape(text, {"\r": "&#xD;", '"': "&quot;"})


def _write_structure(value: Mapping[str, Any], shape: Shape) -> str:
    return "".join(
        _write(value[member], inner, member, name)
        for member, name, inner in query_members(shape)
        if value.get(member) is not None
    )


def _write(value: Any, shape: Shape, member: str, name: str) -> str:
    match shape.type:
        case "structure":
            return f"<{name}>{_write_structure(value, shape)}</{name}>"
        case "list":
            assert shape.member is not None
            return "".join(_write(item, shape.member, member, name) for item in value)
        case "map":
            assert shape.member is not None
            key, inner = query_map_fields(member)
            return "".join(
                f"<{name}><{key}>{_text(k)}</{key}>{_write(v, shape.member, member, inner)}</{name}>"
                for k, v in value.items()
            )
        case _:
            return f"<{name}>{_text(value)}</{name}>"


# The same in JSON.


def json_answer(operation: Operation, result: dict[str, Any], request_id: str) -> bytes:
    content: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if operation.output.members:
        content[f"{operation.name}Result"] = _json(result, operation.output, "")
    return orjson.dumps({f"{operation.name}Response": content}, option=orjson.OPT_SORT_KEYS)


def json_error_answer(error: ServiceError, request_id: str) -> bytes:
    content = {"Code": error.kind.code, "Message": _message(error), "Type": error.kind.fault, "Detail": None}
    return orjson.dumps({"Error": content, "RequestId": request_id})


def _json(value: Any, shape: Shape, member: str) -> Any:
    if value is None:
        return None
    match shape.type:
        case "structure":
            return {
                _JSON_NAMES.get(name, name): _json(value.get(name), inner, name)
                for name, inner in shape.members.items()
            }
        case "list":
            assert shape.member is not None
            return [_json(item, shape.member, member) for item in value]
        case "map":
            assert shape.member is not None
            key, inner_key = query_map_fields(member)
            return [{key: k, inner_key: _json(v, shape.member, member)} for k, v in value.items()]
        case _:
            return value
