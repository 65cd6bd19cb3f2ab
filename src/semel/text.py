"""Foreign text, times and counts for people, formatted the same way on pages, in the terminal and on the command line.

The rule: no body, key or error is shown unchanged. A control character could move the cursor, and a direction mark
could reverse the line, so each is shown as a symbol. JSON is only indented: its numbers and keys stay as they were
written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"
# Control characters except newline and tab, direction marks, zero-width characters, tags, and lone surrogates.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_MAX_INDENT: Final = 60  # levels


def symbol(char: str) -> str:
    """What is shown instead of an unprintable character: ␛, U+202E."""
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"U+{code:04X}"


def printable(text: str) -> str:
    """The text with a symbol for each unprintable character; newlines and tabs stay."""
    return UNPRINTABLE.sub(lambda match: symbol(match[0]), text)


def one_line(text: str) -> str:
    return printable(text.replace("\n", " ").replace("\t", " "))


def reason(error: object) -> str:
    """What the system says about an error, without its number: `Connection refused`."""
    return getattr(error, "strerror", None) or str(error)


def moment(at: float | None) -> str:
    """2026-11-15 14:03:22, in UTC."""
    try:
        return datetime.fromtimestamp(at if at is not None else math.nan, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def count(value: float, thing: str = "") -> str:
    """`1 message`, `1,204 messages`."""
    return f"{value:,.0f} {thing if round(value) == 1 else _plural(thing)}".strip()


def _plural(thing: str) -> str:
    if thing.endswith("y") and thing[-2:-1] not in ("a", "e", "o", "u"):
        return f"{thing[:-1]}ies"
    if thing.endswith("s"):
        return f"{thing}es"
    return f"{thing}s" if thing else ""


def is_json(text: str) -> bool:
    """Whether it is a JSON object or array; a bare number or word needs no formatting."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def json_tokens(text: str) -> Iterator[tuple[str, str]]:
    """(kind, token) of valid JSON, indented: kind is key, string, literal, number, or "" for punctuation and space."""
    depth = 0
    tokens = _TOKENS.findall(text)
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else ""
        after = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token in "}]":
            depth -= 1
            yield "", token if before in "{[" else f"{_newline(depth)}{token}"
        elif token in "{[":
            depth += 1
            yield "", token if after in "}]" else f"{token}{_newline(depth)}"
        elif token == ",":
            yield "", f",{_newline(depth)}"
        elif token == ":":
            yield "", ": "
        else:
            yield _kind(token, after), token


def indented_json(text: str) -> str:
    return "".join(token for _, token in json_tokens(text))


def _kind(token: str, after: str) -> str:
    if token[0] == '"':
        return "key" if after == ":" else "string"
    return "literal" if token in ("true", "false", "null") else "number"


def _newline(depth: int) -> str:
    return "\n" + "  " * min(depth, _MAX_INDENT)
