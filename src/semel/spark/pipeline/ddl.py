"""Reads a schema as Spark's SQL writes it: `id STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING, qty: INT>>`.

PySpark's own reader needs a running Java; `check` and `init` should not. What Spark knows and a JSON body cannot hold,
or a table cannot take, is refused by name.
"""

from __future__ import annotations

import difflib
import re
from typing import Final, NamedTuple, NoReturn

from semel.spark.pipeline.schema import (
    LARGEST_PRECISION,
    Array,
    Decimal,
    Field,
    Kind,
    Map,
    Plain,
    SchemaError,
    Struct,
    Type,
    checked,
)

_NAMES: Final = {kind.value: kind for kind in Kind} | {
    "BYTE": Kind.BYTE,
    "SHORT": Kind.SHORT,
    "INTEGER": Kind.INT,
    "LONG": Kind.LONG,
    "REAL": Kind.FLOAT,
    "TIMESTAMP_LTZ": Kind.TIMESTAMP,
}
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
_REFUSED: Final = {
    "VARCHAR": "use STRING, and a constraint on char_length(…)",
    "CHAR": "use STRING, and a constraint on char_length(…)",
    "CHARACTER": "use STRING, and a constraint on char_length(…)",
    "INTERVAL": "use STRING or BIGINT",
    "TIME": "use STRING, and a constraint",
    "VARIANT": "use MAP<STRING, STRING>, or STRING with any_as_text = true",
    "VOID": "use the type that the values have",
    "OBJECT": "use STRUCT<…> or MAP<STRING, …>",
    "GEOMETRY": "use STRUCT<…> or STRING",
    "GEOGRAPHY": "use STRUCT<…> or STRING",
}
_TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ )
    | (?P<word> [\w-]+ )
    | ` (?P<quoted> (?: [^`] | `` )* ) `
    | ' (?P<text> (?: [^'\\] | \\. | '' )* ) '
    | " (?P<other> (?: [^"\\] | \\. | "" )* ) "
    | (?P<mark> [()<>,:] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\.|''|\"\"", re.DOTALL)
_DEEPEST: Final = 30


class Token(NamedTuple):
    kind: str
    text: str
    place: int


def parse(text: str) -> tuple[Field, ...]:
    """The fields of a DDL text. Raises SchemaError."""
    reader = _Reader(text)
    fields = reader.fields(end="", depth=0)
    return checked(fields)


def parse_type(text: str) -> Type:
    """One type, such as DECIMAL(12,2)."""
    reader = _Reader(text)
    found = reader.type(0)
    if reader.token.kind != "end":
        reader.fail("the type should end here")
    return found


def _tokens(text: str) -> list[Token]:
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise SchemaError(f"{text[place]!r} at character {place + 1} ({_near(text, place)}) does not belong there")
        kind = str(match.lastgroup)
        if kind == "quoted":
            found.append(Token("name", match["quoted"].replace("``", "`"), place))
        elif kind in ("text", "other"):
            found.append(Token("text", _ESCAPED.sub(lambda one: one[0][1], match[kind]), place))
        elif kind != "space":
            found.append(Token(kind, match[0], place))
        place = match.end()
    return [*found, Token("end", "", len(text))]


def _near(text: str, place: int) -> str:
    start = max(0, place - 12)
    return f"{'…' if start else ''}{text[start : place + 12]}{'…' if place + 12 < len(text) else ''}".strip()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._place = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._place]

    def fail(self, what: str) -> NoReturn:
        token = self.token
        found = "the text ends" if token.kind == "end" else f"there is {token.text!r} at character {token.place + 1}"
        raise SchemaError(f"{what}, and {found} ({_near(self._text, token.place)})")

    def _next(self) -> Token:
        token = self.token
        self._place += token.kind != "end"
        return token

    def _is(self, mark: str) -> bool:
        return self.token.kind == "mark" and self.token.text == mark

    def _expect(self, mark: str, where: str) -> None:
        if not self._is(mark):
            self.fail(f"{mark!r} is missing {where}")
        self._next()

    def _word(self, *words: str) -> bool:
        """Whether these words come next; if so they are read."""
        coming = self._tokens[self._place : self._place + len(words)]
        if [token.text.upper() for token in coming if token.kind == "word"] != list(words):
            return False
        self._place += len(words)
        return True

    # The grammar.

    def fields(self, end: str, depth: int) -> list[Field]:
        found = [self._field(depth)]
        while self._is(","):
            self._next()
            found.append(self._field(depth))
        if end:
            self._expect(end, "after the fields of a STRUCT")
        elif self.token.kind != "end":
            self.fail(f"after the type of {found[-1].name!r} a comma should follow")
        return found

    def _field(self, depth: int) -> Field:
        if self.token.kind not in ("word", "name"):
            self.fail("a field's name is missing")
        name = self._next().text
        if self._is(":"):
            self._next()
        if self.token.kind != "word":
            self.fail(f"the type of field {name!r} is missing")
        try:
            kind = self.type(depth)
        except SchemaError as error:
            raise SchemaError(str(error) if str(error).startswith("field ") else f"field {name!r}: {error}") from None
        nullable = not self._word("NOT", "NULL")
        comment = ""
        if self._word("COMMENT"):
            if self.token.kind != "text":
                self.fail(f"the comment of field {name!r} should be in quotes")
            comment = self._next().text
        for word in ("DEFAULT", "GENERATED", "COLLATE"):
            if self.token.kind == "word" and self.token.text.upper() == word:
                raise SchemaError(f"field {name!r}: {word} is not possible here; leave it out")
        return Field(name, kind, nullable, comment)

    def type(self, depth: int) -> Type:
        if depth > _DEEPEST:
            raise SchemaError(f"more than {_DEEPEST} types within each other")
        word = self._next().text
        name = word.upper()
        if name in _NAMES:
            if self._is("("):
                self.fail(f"{name} has no length or precision")
            return Plain(_NAMES[name])
        if name in _DECIMALS:
            return self._decimal()
        match name:
            case "ARRAY":
                self._expect("<", "after ARRAY")
                element = self._inner(depth)
                self._expect(">", "after the type of an ARRAY's elements")
                return Array(element)
            case "MAP":
                return self._map(depth)
            case "STRUCT":
                self._expect("<", "after STRUCT")
                return Struct(tuple(self.fields(">", depth + 1)))
        return self._unknown(word)

    def _inner(self, depth: int) -> Type:
        if self.token.kind != "word":
            self.fail("a type is missing")
        return self.type(depth + 1)

    def _map(self, depth: int) -> Map:
        self._expect("<", "after MAP")
        key = self._inner(depth)
        if key != Plain(Kind.STRING):
            raise SchemaError("the keys of a MAP are STRING: names in a JSON object are texts")
        self._expect(",", "between the two types of a MAP")
        value = self._inner(depth)
        self._expect(">", "after the types of a MAP")
        return Map(value)

    def _decimal(self) -> Decimal:
        if not self._is("("):
            return Decimal(10, 0)
        self._next()
        numbers = [self._number()]
        if self._is(","):
            self._next()
            numbers.append(self._number())
        self._expect(")", "after the precision of a DECIMAL")
        precision, scale = (*numbers, 0)[:2]
        if not (1 <= precision <= LARGEST_PRECISION and scale <= precision):
            raise SchemaError(
                f"DECIMAL({precision},{scale}) is not possible: precision is 1 to {LARGEST_PRECISION} digits, of which "
                "scale are behind the point"
            )
        return Decimal(precision, scale)

    def _number(self) -> int:
        if self.token.kind != "word" or not self.token.text.isdecimal():
            self.fail("a number of digits is missing")
        return int(self._next().text)

    def _unknown(self, word: str) -> NoReturn:
        name = word.upper()
        if name in _REFUSED:
            raise SchemaError(f"the type {name} is not possible for a field of a JSON body; {_REFUSED[name]}")
        known = [*_NAMES, "DECIMAL", "ARRAY", "MAP", "STRUCT"]
        close = difflib.get_close_matches(name, known, 1, 0.5)
        meant = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
        raise SchemaError(f"there is no type {word}{meant}")
