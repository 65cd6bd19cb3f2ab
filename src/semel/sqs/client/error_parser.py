"""Turns an answer that is not a success, or a missing answer, into a typed error with a helpful text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import orjson

from semel.sqs.client.connection import Answer, Malformed
from semel.sqs.client.transport import CannotConnect
from semel.sqs.errors import (
    AccessDenied,
    BadRequest,
    CredentialsRefused,
    OverLimit,
    QueueExists,
    QueueNotFound,
    ReceiptInvalid,
    ServerFailed,
    SqsError,
    Throttled,
    TooSoon,
    Unreachable,
)

_SHOWN: Final = 300


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_THROTTLED: Final = _words(
    "RequestThrottled Throttling ThrottledException TooManyRequests RequestLimitExceeded SlowDown "
    "BandwidthLimitExceeded LimitExceededException PriorRequestNotComplete KmsThrottled"
)
# Codes by which a server reports its own failure, whatever the HTTP status.
_FAILED: Final = _words("InternalFailure InternalError InternalServerError ServiceUnavailable RequestTimeout")
_TRANSIENT: Final = _THROTTLED | _FAILED
EXPIRED: Final = _words("ExpiredToken TokenRefreshRequired")
# Codes that a wrong clock can cause.
CLOCK: Final = _words(
    "RequestTimeTooSkewed RequestExpired SignatureDoesNotMatch InvalidSignature AuthFailure RequestInTheFuture"
)
_REFUSED: Final = (CLOCK | EXPIRED) | _words(
    "InvalidClientTokenId UnrecognizedClient MissingAuthenticationToken IncompleteSignature InvalidAccessKeyId"
)

_TYPES: Final[Mapping[str, type[SqsError]]] = {
    "QueueDoesNotExist": QueueNotFound,
    "NonExistentQueue": QueueNotFound,
    "QueueNameExists": QueueExists,
    "QueueAlreadyExists": QueueExists,
    "QueueDeletedRecently": TooSoon,
    "PurgeQueueInProgress": TooSoon,
    "OverLimit": OverLimit,
    "ReceiptHandleIsInvalid": ReceiptInvalid,
    "MessageNotInflight": ReceiptInvalid,
    "InvalidIdFormat": ReceiptInvalid,
    "AccessDenied": AccessDenied,
    "OptInRequired": AccessDenied,
    "KmsAccessDenied": AccessDenied,
    "KmsOptInRequired": AccessDenied,
    **dict.fromkeys(_THROTTLED, Throttled),
    **dict.fromkeys(_FAILED, ServerFailed),
    **dict.fromkeys(_REFUSED, CredentialsRefused),
}


class Call(NamedTuple):
    """The failed call, for error texts. `queue` is as the user named it, `where` is the endpoint's address."""

    operation: str
    queue: str
    where: str
    region: str

    def __str__(self) -> str:
        return f"{self.operation} on queue {self.queue}" if self.queue else self.operation


def short(code: str) -> str:
    """`NonExistentQueue` for `AWS.SimpleQueueService.NonExistentQueue`, `AccessDenied` for `AccessDeniedException`."""
    if code.startswith("KMS."):
        return "Kms" + code[4:].removesuffix("Exception").replace("Throttling", "Throttled")
    return code.rpartition(".")[2].removesuffix("Exception") or code


def throttled(code: str) -> bool:
    return code in _THROTTLED or short(code) in _THROTTLED


def transient(code: str, *, sender_fault: bool) -> bool:
    """Whether one entry of a batch is worth another attempt."""
    return not sender_fault or code in _TRANSIENT or short(code) in _TRANSIENT


def headers_of(head: bytes) -> dict[str, str]:
    """The headers by name, in lower case."""
    headers = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def server_time(head: bytes) -> float | None:
    """The time by the server's clock, from the head of its answer."""
    return _seconds(headers_of(head).get("date", ""))


def from_answer(answer: Answer, call: Call) -> SqsError:
    headers = headers_of(answer.head)
    body = _json(answer.body)
    shape = str(body.get("__type", "")).rpartition("#")[2].partition(":")[0]
    code = headers.get("x-amzn-query-error", "").partition(";")[0] or shape or headers.get("x-amzn-errortype", "")
    message = str(body.get("message") or body.get("Message") or _excerpt(answer.body)).rstrip(".")
    kind = _kind(answer.status, code, shape, message)
    known = code or f"HTTP{answer.status}"
    # An answer without a code is not from SQS.
    advice = _advice(kind, call) if code else f"Check that an SQS endpoint answers at {call.where}."
    text = f"{call}: {message or 'no reason given'} ({known}, HTTP {answer.status}). {advice}"
    error = kind(text, code=known, operation=call.operation, queue=call.queue, status=answer.status)
    if isinstance(error, CredentialsRefused):
        error.server_time = _seconds(headers.get("date", ""))
    error.request_id = headers.get("x-amzn-requestid", "")
    error.attempts = answer.sent
    return error


def _kind(status: int, code: str, shape: str, message: str) -> type[SqsError]:
    for name in (code, short(code), shape, short(shape)):
        if name in _TYPES:
            return _TYPES[name]
    if short(code) == "InvalidParameterValue" and "ReceiptHandle" in message:
        return ReceiptInvalid
    if status == 429:
        return Throttled
    if status >= 500:
        return ServerFailed
    return AccessDenied if status in (401, 403) else BadRequest


def _advice(kind: type[SqsError], call: Call) -> str:
    if kind is QueueNotFound:
        return (
            f"Check the name, and that it is in region {call.region} of this account at {call.where}. "
            f"`{_create_command(call)}` creates it, and so does create_queue() in Python."
        )
    if kind is AccessDenied:
        return f"The credentials need the permission sqs:{_permission(call.operation)} on it."
    if kind is CredentialsRefused:
        return f"Check the access key, its secret and session token, the region ({call.region}) and the clock."
    if kind is Throttled:
        return "Call less often, or allow more attempts (AWS_MAX_ATTEMPTS)."
    if kind is OverLimit:
        return "Delete messages that are in flight, or let their visibility timeout end."
    if kind is QueueExists:
        return "Use the queue as it is, or change its attributes with SetQueueAttributes."
    if kind is TooSoon:
        return "Wait a minute."
    if kind is ServerFailed:
        return f"Try again later; the endpoint is {call.where}."
    if kind is ReceiptInvalid:
        return "Receive the message again; its newest receipt counts."
    return "Correct the call."


def _create_command(call: Call) -> str:
    name = re.split("[/:]", call.queue)[-1] or "NAME"
    fifo = " --fifo" if name.endswith(".fifo") else ""
    elsewhere = "" if ".amazonaws.com" in call.where else f" --endpoint-url {call.where}"
    return f"semel queues create {name}{fifo} --region {call.region}{elsewhere}"


def _permission(operation: str) -> str:
    # Batches are allowed by the permission for the single operation.
    return operation.removesuffix("Batch")


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _excerpt(body: bytes) -> str:
    return " ".join(body[:_SHOWN].decode("utf-8", "replace").split())


def from_exception(error: OSError, call: Call, timeout: float) -> Unreachable:
    if isinstance(error, CannotConnect):
        text = f"cannot connect to {call.where}: {error}. Check the endpoint, the region and the network."
    elif isinstance(error, TimeoutError):
        text = f"no answer from {call.where} within {timeout:g} s. Check the network, or raise read_timeout."
    elif isinstance(error, Malformed):
        text = f"{call.where} sent {error}. Check that an SQS endpoint answers there."
    else:
        text = f"the connection to {call.where} ended: {error.strerror or error}. Try again."
    return Unreachable(f"{call}: {text}", operation=call.operation, queue=call.queue)


def unreadable(call: Call, what: str) -> ServerFailed:
    """The error for a success without the content that it must have."""
    text = f"{call}: {call.where} answered with {what}. Check that an SQS endpoint answers there."
    return ServerFailed(text, code="UnreadableAnswer", operation=call.operation, queue=call.queue, status=200)


def not_json(call: Call, answer: Answer) -> ServerFailed:
    return unreadable(call, f"what is not JSON: {_excerpt(answer.body)!r}")
