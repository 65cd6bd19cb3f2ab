"""What errors of one kind have in common: their text without the parts that differ from one error to the next.

The doctor applies the same patterns in SQL, so they use only syntax that both Python and RE2 have: no lookaround.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

FINGERPRINT_FROM: Final = 300  # characters of an error's text
LENGTH: Final = 10  # hexadecimal digits
_UUID: Final = r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"
# What differs between errors of one kind, in this order: quoted text, ids, numbers.
VOLATILE: Final = (
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'…'"),
    (rf"(?i)\b{_UUID}\b", "<id>"),
    (r"\b[0-9]+\b", "<n>"),
    (r"(?i)\b[0-9a-f]{8,}\b", "<id>"),
    (r"[0-9]+", "<n>"),
)
_COMPILED: Final = tuple((re.compile(pattern, re.ASCII), replacement) for pattern, replacement in VOLATILE)


def shape(error: str) -> str:
    """`order 17 of 'acme' timed out` becomes `order <n> of '…' timed out`, and so do all errors of its kind."""
    text = error[:FINGERPRINT_FROM]
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text


def fingerprint(error: str) -> str:
    """Ten hexadecimal digits; the same for all errors of one shape."""
    return _fingerprint(error[:FINGERPRINT_FROM])


def fingerprint_of_shape(text: str) -> str:
    """The fingerprint of all errors with this shape."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]


@lru_cache(maxsize=4_096)
def _fingerprint(error: str) -> str:
    return fingerprint_of_shape(shape(error))
