"""Foreign text for people: message bodies, keys, errors, whatever somebody else wrote.

The rules: nothing in it is ever markup; what cannot be seen, or turns the text around, is shown as a sign; a large body
is cut before any work is done on it. JSON is indented without being changed: its figures and keys stay as they were.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from semel.doctor.report.words import number

MOST_PRETTY: Final = 256 * 1024  # characters of JSON that are indented
MOST_COLOURED: Final = 24 * 1024  # and coloured, which takes an element for each word of it
MOST_SHOWN: Final = 64 * 1024  # of anything else
EDITABLE: Final = 256 * 1024
_DEEPEST: Final = 60  # levels that are indented
# Controls, what changes the direction of text, what has no width, tags, and halves of surrogate pairs.
_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


@dataclass(frozen=True, slots=True)
class Shown:
    """`kind`: json, text or binary; `note`: what is not shown, "" if all is."""

    html: Markup
    kind: str
    note: str = ""


def body(text: str, size: int) -> Shown:
    """A body as it is put on a page; `size` is its whole length in bytes."""
    if _is_json(text):
        return Shown(Markup(_indented(text, coloured=len(text) <= MOST_COLOURED)), "json")
    odd = len(_ODD.findall(text[:4096]))
    kind = "binary" if odd > 16 and odd > len(text[:4096]) * 0.05 else "text"
    if len(text) <= MOST_SHOWN:
        return Shown(visible(text), kind)
    note = f"The first {number(MOST_SHOWN // 1024)} KiB of {number(size / 1024)} KiB."
    return Shown(visible(text[:MOST_SHOWN]), kind, note)


def visible(text: str) -> Markup:
    """The text, harmless, line by line; characters that nobody would see are shown as signs."""
    return Markup(_ODD.sub(_sign, str(escape(text))))


def line(text: str, most: int) -> Markup:
    """The same on one line, cut, and kept apart from the direction of what stands around it."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return Markup("<bdi>{}</bdi>").format(visible(cut.replace("\n", " ").replace("\t", " ")))


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    sign = chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"U+{code:04X}"
    return f'<span class="odd">{sign}</span>'


def _is_json(text: str) -> bool:
    """Objects and lists only: a bare number or word needs no help."""
    if len(text) > MOST_PRETTY or text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _indented(text: str, *, coloured: bool) -> str:
    parts: list[str] = []
    depth = 0
    tokens = _TOKENS.findall(text)
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        after = tokens[place + 1] if place + 1 < len(tokens) else ""
        if token in "}]":
            depth -= 1
            if before not in "{[":
                parts.append(_newline(depth))
            parts.append(token)
        elif token in "{[":
            parts.append(token)
            depth += 1
            if after not in "}]":
                parts.append(_newline(depth))
        elif token == ",":
            parts += [",", _newline(depth)]
        elif token == ":":
            parts.append(": ")
        else:
            parts.append(_word(token, is_key=after == ":") if coloured else str(visible(token)))
    return "".join(parts)


def _newline(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def _word(token: str, *, is_key: bool) -> str:
    style = "k" if is_key else "s" if token[0] == '"' else "l" if token in ("true", "false", "null") else "d"
    return f'<span class="{style}">{visible(token)}</span>'
