"""Splits the text of a filter into tokens. Each token has its position, so that an error can point at it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from semel.errors import InvalidRequest

EXAMPLE: Final = 'error ~ "timeout" and age > 2h and not $.order.total > 100'
_BARE: Final = r"[^\s()\"',=<>~!]"
_TOKEN: Final = re.compile(
    rf"""
    (?P<space> \s+ )
    | (?P<path> \$ (?: \.[^\s.\[\]'"*?@(),:=<>~!]+ | \[-?\d+\] | \['(?:[^'\\]|\\.)*'\] | \["(?:[^"\\]|\\.)*"\] )+ )
    | (?P<double> "(?:[^"\\]|\\.)*" )
    | (?P<single> '(?:[^'\\]|\\.)*' )
    | (?P<pattern> /(?:[^/\\]|\\.)+/ [A-Za-z]* )
    | (?P<sign> != | <= | >= | == | [=<>~(),] )
    | (?P<bare> {_BARE} (?: {_BARE} | !(?!=) )* )
    """,
    re.VERBOSE | re.DOTALL,
)


class FilterError(InvalidRequest):
    """An invalid filter. `position` is the index in its text, `problem` what is wrong there. Correct the filter at
    `position`."""

    def __init__(self, text: str, position: int, problem: str, example: str = EXAMPLE) -> None:
        self.text, self.position, self.problem, self.example = text, position, problem, example
        begin = max(0, position - 60)  # of a long filter, only the part around the position is shown
        excerpt = "".join(char if char.isprintable() else " " for char in text[begin : position + 60])
        super().__init__(
            f"invalid filter at character {position + 1}: {problem}\n"
            f"  {excerpt}\n  {' ' * (position - begin)}^\nexample: {example}"
        )


class TokenKind(enum.Enum):
    BARE = "bare"
    QUOTED = "quoted"
    PATTERN = "pattern"
    PATH = "path"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str  # without its quotes
    position: int
    flags: str = ""  # of a pattern

    def is_(self, text: str) -> bool:
        """Whether it is this sign or keyword; a quoted text is neither."""
        return self.kind in (TokenKind.SIGN, TokenKind.BARE) and self.text.lower() == text


def tokenize(text: str) -> list[Token]:
    """All tokens, the last one of the kind END."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise FilterError(text, position, _unexpected(text[position]))
        if match.lastgroup != "space":
            tokens.append(_token(match))
        position = match.end()
    return [*tokens, Token(TokenKind.END, "", len(text))]


def _token(match: re.Match[str]) -> Token:
    text, position = match[0], match.start()
    match match.lastgroup:
        case "double" | "single":
            return Token(TokenKind.QUOTED, re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL), position)
        case "pattern":
            pattern, _, flags = text[1:].rpartition("/")
            return Token(TokenKind.PATTERN, pattern, position, flags)
        case "path":
            return Token(TokenKind.PATH, text, position)
        case "sign":
            return Token(TokenKind.SIGN, "=" if text == "==" else text, position)
    return Token(TokenKind.BARE, text, position)


def _unexpected(char: str) -> str:
    if char in "\"'":
        return "unterminated quote"
    if char == "!":
        return "unexpected !; write != to compare, or `not` before a condition"
    return f"unexpected {char!r}"


def quoted(text: str) -> str:
    """The text as a quoted value of a filter."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
