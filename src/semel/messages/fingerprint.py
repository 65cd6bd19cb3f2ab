"""What errors of one kind have in common: their text without what differs from one to the next.

Spark does the same with the same patterns, so they are written for both: in Java's regular expressions, and with
characters of ASCII only where Python has to be told.
"""

from __future__ import annotations

import re
from typing import Final

FINGERPRINT_FROM: Final = 300  # characters of an error's text
# Where a word begins or ends; what \b takes for a letter is not the same in every Java.
_BEGINS: Final = r"(?<![0-9A-Za-z_])"
_ENDS: Final = r"(?![0-9A-Za-z_])"
_UUID: Final = r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"
_HASH: Final = r"(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}"
# What differs between errors of one kind, in this order: quoted text, ids, numbers.
VOLATILE: Final = (
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'…'"),
    (f"(?i){_BEGINS}{_UUID}{_ENDS}", "<id>"),
    (f"(?i){_BEGINS}{_HASH}{_ENDS}", "<id>"),
    (r"[0-9]+", "<n>"),
)
_COMPILED: Final = tuple((re.compile(pattern, re.ASCII), stand_in) for pattern, stand_in in VOLATILE)


def shape(error: str) -> str:
    """`order 17 of 'acme' timed out` is `order <n> of '…' timed out`, and so are all others of its kind."""
    found = error[:FINGERPRINT_FROM]
    for pattern, stand_in in _COMPILED:
        found = pattern.sub(stand_in, found)
    return found
