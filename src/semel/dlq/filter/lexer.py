"""A filter's text, cut into words. Each word knows its place, so that an error can point at it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from semel.errors import InvalidRequest

EXAMPLE: Final = 'error ~ "timeout" and age > 2h and not $.order.total > 100'
_BARE: Final = r"[^\s()\"',=<>~!]"
_WORD: Final = re.compile(
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
    """A filter that is not understood: `position` is the place in its text, `problem` what is wrong there."""

    def __init__(self, text: str, position: int, problem: str, example: str = EXAMPLE) -> None:
        self.text, self.position, self.problem, self.example = text, position, problem, example
        # What is long is shown around the place.
        begin = max(0, position - 60)
        shown = "".join(char if char.isprintable() else " " for char in text[begin : position + 60])
        super().__init__(
            f"the filter is not understood at character {position + 1}: {problem}\n"
            f"  {shown}\n  {' ' * (position - begin)}^\nwrite it as, for example: {example}"
        )


class Kind(enum.Enum):
    BARE = "bare"
    QUOTED = "quoted"
    PATTERN = "pattern"
    PATH = "path"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Word:
    kind: Kind
    text: str  # without its quotes
    place: int
    flags: str = ""  # of a pattern

    def is_(self, word: str) -> bool:
        """Whether it is this sign, or this word and not the quoted text."""
        return self.kind in (Kind.SIGN, Kind.BARE) and self.text.lower() == word


def words(text: str) -> list[Word]:
    """All words, and the end behind the last of them."""
    found: list[Word] = []
    place = 0
    while place < len(text):
        match = _WORD.match(text, place)
        if match is None:
            raise FilterError(text, place, _unreadable(text[place]))
        if match.lastgroup != "space":
            found.append(_word(match))
        place = match.end()
    return [*found, Word(Kind.END, "", len(text))]


def _word(match: re.Match[str]) -> Word:
    text, place = match[0], match.start()
    match match.lastgroup:
        case "double" | "single":
            return Word(Kind.QUOTED, re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL), place)
        case "pattern":
            inside, _, flags = text[1:].rpartition("/")
            return Word(Kind.PATTERN, inside, place, flags)
        case "path":
            return Word(Kind.PATH, text, place)
        case "sign":
            return Word(Kind.SIGN, "=" if text == "==" else text, place)
    return Word(Kind.BARE, text, place)


def _unreadable(char: str) -> str:
    if char in "\"'":
        return "this quote is not closed"
    if char == "!":
        return "! stands only in !=; before a condition it is `not`"
    return f"{char!r} cannot stand here"


def quoted(text: str) -> str:
    """The text in quotes, as a filter has it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
