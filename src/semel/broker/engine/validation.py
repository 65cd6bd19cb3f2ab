"""What a message may be: body, attributes, ids, sizes. Pure; each failure is the error that SQS returns."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from semel.sqs import limits
from semel.sqs.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    TOO_MANY_ENTRIES,
    ServiceError,
    invalid_value,
    missing,
)


def check_body(body: str) -> None:
    if not body:
        raise missing("MessageBody")
    # isprintable is the cheap way to know that most bodies are fine.
    if not (body.isascii() and body.isprintable()) and limits.FORBIDDEN_CHARACTER.search(body):
        raise ServiceError(
            INVALID_MESSAGE_CONTENTS,
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
            "#xE000 to #xFFFD | #x10000 to #x10FFFF",
        )


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def check_token(value: str, parameter: str) -> None:
    if not limits.TOKEN.match(value):
        reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid_value(value, parameter, reason)


def _bad_attribute(text: str) -> ServiceError:
    return ServiceError(INVALID_PARAMETER_VALUE, text)


def checked_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], int]:
    """Message attributes as they are stored, and their size: names, types and values all count."""
    if len(attributes) > limits.MAX_MESSAGE_ATTRIBUTES:
        raise _bad_attribute(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{limits.MAX_MESSAGE_ATTRIBUTES}]."
        )
    kept: dict[str, dict[str, Any]] = {}
    size = 0
    for name, value in attributes.items():
        if not limits.ATTRIBUTE_NAME.match(name):
            raise _bad_attribute(
                f"The message attribute name '{name}' is invalid. Attribute name can contain letters, digits, "
                "underscore (_), hyphen (-), and period (.) characters; it can't start with AWS. or Amazon., "
                "start or end with a period, or have two periods in a row; 1 to 256 in length."
            )
        kept[name], length = _checked_attribute(name, value)
        size += byte_length(name) + byte_length(value["DataType"]) + length
    return kept, size


def _checked_attribute(name: str, value: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    if "StringListValues" in value or "BinaryListValues" in value:
        raise _bad_attribute(f"Message (user) attribute '{name}' uses a list value, which is not supported.")
    kind = value["DataType"]
    if not kind:
        raise _bad_attribute(f"The message attribute '{name}' must contain a non-empty message attribute type.")
    match = limits.ATTRIBUTE_TYPE.match(kind)
    if match is None or len(kind) > 256:
        raise _bad_attribute(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    base = match.group(1)
    field = "BinaryValue" if base == "Binary" else "StringValue"
    content = value.get(field)
    if not content or ("StringValue" in value and "BinaryValue" in value):
        raise _bad_attribute(f"Message (user) attribute '{name}' must contain a non-empty value of type '{base}'.")
    if base == "Binary":
        return {"BinaryValue": content, "DataType": kind}, len(b64decode(content))
    if limits.FORBIDDEN_CHARACTER.search(content):
        raise invalid_value(content, f"MessageAttribute.{name}.StringValue", "It contains characters that are invalid.")
    if base == "Number":
        content = _checked_number(name, content)
    return {"StringValue": content, "DataType": kind}, byte_length(content)


def _checked_number(name: str, text: str) -> str:
    """A Number has up to 38 digits, 10^-128 to 10^126. Stored as given: clients check the MD5 of what they sent."""
    if not limits.NUMBER.match(text.strip()):
        raise _bad_attribute(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    if not limits.is_number(text):
        raise _bad_attribute(
            f"Message (user) attribute '{name}' must be a number of up to 38 digits, 10^-128 to 10^126."
        )
    return text


def checked_trace_header(system_attributes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The AWSTraceHeader, the only system attribute that a sender may set."""
    for name, value in system_attributes.items():
        if name != "AWSTraceHeader":
            raise _bad_attribute(f"Message system attribute name '{name}' is invalid. Valid name is AWSTraceHeader.")
        if value["DataType"] != "String" or not value.get("StringValue"):
            raise _bad_attribute(
                "Message system attribute 'AWSTraceHeader' must contain a non-empty value of type 'String'."
            )
        return str(value["StringValue"])
    return None


def check_batch(entries: list[dict[str, Any]], entry_name: str) -> None:
    """What makes a whole batch invalid."""
    if not entries:
        raise ServiceError(EMPTY_BATCH_REQUEST, f"There should be at least one {entry_name} in the request.")
    if len(entries) > limits.MAX_BATCH_ENTRIES:
        raise ServiceError(
            TOO_MANY_ENTRIES, f"Maximum number of entries per request are 10. You have sent {len(entries)}."
        )
    ids = set()
    for entry in entries:
        entry_id = entry["Id"]
        if not limits.BATCH_ENTRY_ID.match(entry_id):
            raise ServiceError(
                INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry_id in ids:
            raise ServiceError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {entry_id} repeated.")
        ids.add(entry_id)
