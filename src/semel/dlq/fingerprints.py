"""Which messages failed with the same error: a fingerprint of the error, without ids, numbers and quoted text."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from semel.messages.fingerprint import FINGERPRINT_FROM
from semel.messages.fingerprint import shape as shape

if TYPE_CHECKING:
    from semel.dlq.access.broker import LazyMessage
    from semel.dlq.messages import DeadLetterMessage

LENGTH: Final = 10  # hexadecimal digits
MOVED: Final = "moved by SQS: received too often"


def fingerprint(error: str) -> str:
    """Ten hexadecimal digits; the same for all errors of one shape."""
    return _fingerprint(error[:FINGERPRINT_FROM])


@lru_cache(maxsize=4_096)
def _fingerprint(error: str) -> str:
    return sha256(shape(error).encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]


def error_of(message: DeadLetterMessage | LazyMessage) -> str:
    """As the attempt log has it, in one line: so that its fingerprint is also the doctor's."""
    return error_line(message.reason, message.error) or MOVED


def error_line(reason: str, error: str) -> str:
    """Reason and error in one line. An error without a reason of its own is written as both."""
    return f"{reason}: {error}" if reason and error and reason != error else reason or error


def of(message: DeadLetterMessage | LazyMessage) -> str:
    return fingerprint(error_of(message))
