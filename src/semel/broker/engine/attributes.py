"""Queue attributes: which can be set, to which values, and their defaults. Pure: strings in, strings out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from semel.sqs import limits
from semel.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    OVER_LIMIT,
    ServiceError,
    invalid_value,
)
from semel.sqs.service_model import enum_values

_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "VisibilityTimeout": (0, limits.MAX_VISIBILITY),
    "MessageRetentionPeriod": (limits.MIN_RETENTION, limits.MAX_RETENTION),
    "DelaySeconds": (0, limits.MAX_DELAY),
    "MaximumMessageSize": (limits.MIN_MESSAGE_BYTES, limits.MAX_MESSAGE_BYTES),
    "ReceiveMessageWaitTimeSeconds": (0, limits.MAX_WAIT),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "ContentBasedDeduplication": ("true", "false"),
    "SqsManagedSseEnabled": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_BOOLEANS: Final = ("FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled")
_COMMON_DEFAULTS: Final[Mapping[str, str]] = {
    "VisibilityTimeout": "30",
    "MessageRetentionPeriod": "345600",
    "DelaySeconds": "0",
    "MaximumMessageSize": str(limits.MAX_MESSAGE_BYTES),
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
}
_FIFO_DEFAULTS: Final[Mapping[str, str]] = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_DEEPEST: Final = 50  # levels of a document; a policy has six
_DOCUMENTS: Final = ("Policy", "RedrivePolicy", "RedriveAllowPolicy")
_FIFO_ONLY: Final = ("DeduplicationScope", "FifoThroughputLimit")
_SETTABLE: Final = frozenset(
    {*_RANGES, *_CHOICES, *_DOCUMENTS, "FifoQueue", "KmsMasterKeyId"}  # everything but counts, times and the ARN
)
_ARN: Final = re.compile(r"arn:aws[a-z-]*:sqs:([a-z0-9-]+):(\d{12}):([A-Za-z0-9_.-]{1,80})\Z")


@dataclass(frozen=True, slots=True)
class Arn:
    """An SQS queue's ARN, taken apart."""

    region: str
    account: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Arn | None:
        match = _ARN.match(text)
        return cls(*match.groups()) if match else None

    def __str__(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"


@dataclass(frozen=True, slots=True)
class Redrive:
    """A queue's RedrivePolicy."""

    target: Arn
    max_receives: int


def defaults(fifo: bool) -> dict[str, str]:
    return {**_COMMON_DEFAULTS, **_FIFO_DEFAULTS} if fifo else dict(_COMMON_DEFAULTS)


def normalised(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes as they are stored: `True` and `False`, as Python and .NET write them, in lower case."""
    return {
        name: value.lower() if name in _BOOLEANS and value in ("True", "False") else value
        for name, value in attributes.items()
    }


def checked(requested: Mapping[str, str], current: Mapping[str, str], *, fifo: bool) -> dict[str, str]:
    """`current` with `requested` set, or the error that SQS returns. `current` has only attributes that were set."""
    merged, requested = dict(current), normalised(requested)
    for name, value in requested.items():
        if name not in _SETTABLE or name not in enum_values("QueueAttributeName"):
            raise ServiceError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
        _check_queue_type(name, value, fifo=fifo)
        if value == "" and name in (*_DOCUMENTS, "KmsMasterKeyId"):
            merged.pop(name, None)
        else:
            merged[name] = _check_value(name, value)
    _check_encryption(requested, merged)
    if merged.get("FifoThroughputLimit") == "perMessageGroupId" and merged.get("DeduplicationScope") != "messageGroup":
        raise ServiceError(
            INVALID_ATTRIBUTE_VALUE,
            "Invalid value for the parameter FifoThroughputLimit. Reason: perMessageGroupId is allowed only when "
            "DeduplicationScope is messageGroup.",
        )
    return merged


def _check_queue_type(name: str, value: str, *, fifo: bool) -> None:
    if name == "FifoQueue":
        if not fifo:
            raise ServiceError(INVALID_ATTRIBUTE_NAME, "Unknown Attribute FifoQueue.")
        if value != "true":
            reason = "Modifying queue type is not supported."
            raise ServiceError(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter FifoQueue. Reason: {reason}")
    elif name == "ContentBasedDeduplication" and not fifo:
        raise ServiceError(INVALID_ATTRIBUTE_NAME, "Unknown Attribute ContentBasedDeduplication.")
    elif name in _FIFO_ONLY and not fifo:
        raise ServiceError(INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true.")


def _check_value(name: str, value: str) -> str:
    if name in _RANGES:
        low, high = _RANGES[name]
        number = int(value) if re.fullmatch(r"\d{1,9}", value) else -1
        if not low <= number <= high:
            raise _bad_value(name)
        return str(number)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise _bad_value(name)
    if name == "Policy":
        _check_policy(value)
    if name == "RedriveAllowPolicy":
        parse_redrive_allow(value)
    return value


def _bad_value(name: str) -> ServiceError:
    return ServiceError(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.")


def _check_policy(value: str) -> None:
    policy = _parsed(value)
    if not isinstance(policy, dict):
        raise _bad_value("Policy")
    statements = _listed(policy.get("Statement", []))
    if len(value.encode()) > limits.MAX_POLICY_BYTES or len(statements) > 20:
        raise ServiceError(OVER_LIMIT, "A policy can have 8192 bytes and 20 statements at most.")
    for statement in statements:
        if not isinstance(statement, dict):
            raise _bad_value("Policy")
        principal, condition = statement.get("Principal", []), statement.get("Condition", {})
        principals = _listed(principal.get("AWS", [])) if isinstance(principal, dict) else _listed(principal)
        operators = condition.values() if isinstance(condition, dict) else ()
        conditions = sum(len(keys) if isinstance(keys, dict) else 1 for keys in operators)
        if len(principals) > 50 or conditions > 10 or len(_listed(statement.get("Action", []))) > 7:
            raise ServiceError(OVER_LIMIT, "A policy statement can have 50 principals, 10 conditions and 7 actions.")


def _listed(value: Any) -> list[Any]:
    """In JSON policies, a list of one value may be written as that value."""
    return value if isinstance(value, list) else [value]


def _check_encryption(requested: Mapping[str, str], merged: dict[str, str]) -> None:
    if requested.get("KmsMasterKeyId") and requested.get("SqsManagedSseEnabled") == "true":
        raise ServiceError(
            INVALID_ATTRIBUTE_NAME,
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE.",
        )
    if requested.get("KmsMasterKeyId"):
        merged["SqsManagedSseEnabled"] = "false"
    elif requested.get("SqsManagedSseEnabled") == "true":
        merged.pop("KmsMasterKeyId", None)


def parse_redrive(text: str) -> Redrive:
    """A RedrivePolicy; raises InvalidParameterValue with what is wrong in it."""

    def bad(reason: str) -> ServiceError:
        return invalid_value(text, "RedrivePolicy", reason)

    document = _document(text, bad)
    for key in ("deadLetterTargetArn", "maxReceiveCount"):
        if key not in document:
            raise bad(f"Redrive policy does not contain mandatory attribute: {key}.")
    for key in document:
        if key not in ("deadLetterTargetArn", "maxReceiveCount"):
            raise bad(f"Redrive policy contains an unknown attribute: {key}.")
    target = Arn.parse(str(document["deadLetterTargetArn"]))
    if target is None:
        raise bad("Invalid value for deadLetterTargetArn.")
    count = str(document["maxReceiveCount"])
    if not re.fullmatch(r"\d{1,9}", count) or not 1 <= int(count) <= limits.MAX_RECEIVE_COUNT:
        raise bad(f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.")
    return Redrive(target, int(count))


def parse_redrive_allow(text: str) -> Callable[[Arn], bool]:
    """A RedriveAllowPolicy as a function that says whether a source may use the queue; raises if it is malformed."""

    def bad(reason: str) -> ServiceError:
        return invalid_value(text, "RedriveAllowPolicy", reason)

    document = _document(text, bad)
    permission, sources = document.get("redrivePermission"), document.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise bad("Amazon SQS can't create the redrive allow policy, as it has an unsupported redrivePermission.")
    if permission != "byQueue":
        if sources is not None:
            raise bad("sourceQueueArns is allowed only when redrivePermission is byQueue.")
        return lambda _source: permission == "allowAll"
    if not isinstance(sources, list) or not 1 <= len(sources) <= limits.MAX_REDRIVE_SOURCES:
        raise bad("sourceQueueArns must name 1 to 10 queues when redrivePermission is byQueue.")
    if not all(isinstance(arn, str) and Arn.parse(arn) for arn in sources):
        raise bad("sourceQueueArns must be ARNs of SQS queues.")
    return lambda source: str(source) in sources


def _document(text: str, bad: Callable[[str], ServiceError]) -> dict[str, Any]:
    document = _parsed(text)
    if not isinstance(document, dict):
        raise bad("It is not a valid JSON object.")
    return document


def _parsed(text: str) -> Any:
    """The JSON document; None if it is not JSON, or is nested so deeply that reading it again might fail."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if _is_deeper(document, _DEEPEST) else document


def _is_deeper(document: Any, levels: int) -> bool:
    if not isinstance(document, dict | list):
        return False
    values = document.values() if isinstance(document, dict) else document
    return not levels or any(_is_deeper(value, levels - 1) for value in values)


def same_value(name: str, value: str, other: str) -> bool:
    """Whether two values of an attribute mean the same; JSON documents are compared by content."""
    if value == other or name not in _DOCUMENTS:
        return value == other
    try:
        return bool(_canonical(json.loads(value)) == _canonical(json.loads(other)))
    except (ValueError, RecursionError):
        return False


def _canonical(document: Any) -> Any:
    if isinstance(document, dict) and "maxReceiveCount" in document:
        return {**document, "maxReceiveCount": str(document["maxReceiveCount"])}
    return document
