"""What errors of one kind have in common: their text without what differs from one to the next.

The doctor does the same in SQL with the same patterns, so they use only what Python and RE2 both know: no lookaround.
"""

from __future__ import annotations

import re
from typing import Final

FINGERPRINT_FROM: Final = 300  # characters of an error's text
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
    """`order 17 of 'acme' timed out` is `order <n> of '…' timed out`, and so are all others of its kind."""
    text = error[:FINGERPRINT_FROM]
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text
