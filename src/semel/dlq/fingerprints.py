"""Finds messages that failed with the same error: a fingerprint of the error without ids, numbers and quoted text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.messages.fingerprint import fingerprint

if TYPE_CHECKING:
    from semel.dlq.access.broker import LazyMessage
    from semel.dlq.messages import DeadLetterMessage

MOVED: Final = "moved by SQS: received too often"


def error_of(message: DeadLetterMessage | LazyMessage) -> str:
    """The error in one line, as the attempt log has it, so that the doctor forms the same groups."""
    return error_line(message.reason, message.error) or MOVED


def error_line(reason: str, error: str) -> str:
    """Reason and error in one line. If both are the same text, it is written once."""
    return f"{reason}: {error}" if reason and error and reason != error else reason or error


def of(message: DeadLetterMessage | LazyMessage) -> str:
    return fingerprint(error_of(message))
