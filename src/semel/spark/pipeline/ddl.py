"""Reads a schema as Spark's SQL writes it: `id STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING, qty: INT>>`.

PySpark's own parser needs a running Java; `check` and `init` should not. Types of Spark that a JSON body
cannot hold, or a table cannot store, are refused by name. docs/explanation/decisions/0017-schemas.md says why no
library parses the text.
"""

from __future__ import annotations

import difflib
import re
from typing import Final, NamedTuple, NoReturn

import pyarrow as pa

from semel.spark.pipeline.body_schema import COMMENT, TYPES, Fields, SchemaError, array_of, checked, map_of

_NAMES: Final = TYPES | {
    "BYTE": pa.int8(),
    "SHORT": pa.int16(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "REAL": pa.float32(),
    "TIMESTAMP_LTZ": TYPES["TIMESTAMP"],
}
_REFUSED: Final = {
    **dict.fromkeys(("VARCHAR", "CHAR", "CHARACTER"), "use STRING, and a constraint on char_length(…)"),
    **dict.fromkeys(("VARIANT", "JSON"), "use MAP<STRING, STRING>, or STRING with any_as_text = true"),
    **dict.fromkeys(("GEOMETRY", "GEOGRAPHY"), "use STRUCT<…> or STRING"),
    **dict.fromkeys(("TEXT", "UUID"), "use STRING"),
    "BLOB": "use BINARY",
    "DATETIME": "use TIMESTAMP",
    "INTERVAL": "use STRING or BIGINT",
    "OBJECT": "use STRUCT<…> or MAP<STRING, …>",
    "TIME": "use STRING, and a constraint",
    "VOID": "use the type that the values have",
}
_TOKEN: Final = re.compile(
    r"""
    \s+
    | (?P<word> [\w-]+ )
    | ` (?P<name> (?: [^`] | `` )* ) `
    | ' (?P<text> (?: [^'\\] | \\. | '' )* ) '
    | " (?P<other> (?: [^"\\] | \\. | "" )* ) "
    | (?P<mark> [()<>,:] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\.|''|\"\"", re.DOTALL)
_MAX_DEPTH: Final = 30
_MAX_PRECISION: Final = 38
_MAX_DIGITS: Final = 9  # of a number in a type


class Token(NamedTuple):
    kind: str
    text: str
    start: int


def parse(text: str) -> Fields:
    """The fields of a DDL text. Raises SchemaError."""
    return checked(_Parser(text).fields(end="", depth=0))


def parse_type(text: str) -> pa.DataType:
    """One type, such as DECIMAL(12,2)."""
    parser = _Parser(text)
    kind = parser.type(0)
    if parser.token.kind != "end":
        parser.fail("the type should end here")
    return kind


def _tokens(text: str) -> list[Token]:
    tokens, start = [], 0
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            raise SchemaError(f"{text[start]!r} at character {start + 1} ({_near(text, start)}) does not belong there")
        kind = match.lastgroup
        if kind == "name":
            tokens.append(Token(kind, match[kind].replace("``", "`"), start))
        elif kind in ("text", "other"):
            tokens.append(Token("text", _ESCAPED.sub(lambda escape: escape[0][1], match[kind]), start))
        elif kind is not None:
            tokens.append(Token(kind, match[0], start))
        start = match.end()
    return [*tokens, Token("end", "", len(text))]


def _near(text: str, at: int) -> str:
    start = max(0, at - 12)
    return f"{'…' if start else ''}{text[start : at + 12]}{'…' if at + 12 < len(text) else ''}".strip()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    def fail(self, what: str) -> NoReturn:
        token = self.token
        instead = "the text ends" if token.kind == "end" else f"there is {token.text!r} at character {token.start + 1}"
        raise SchemaError(f"{what}, and {instead} ({_near(self._text, token.start)})")

    def _next(self) -> str:
        token = self.token
        self._at += token.kind != "end"
        return token.text

    def _skip(self, mark: str) -> bool:
        """Whether this mark comes next; if so it is read."""
        is_next = self.token.kind == "mark" and self.token.text == mark
        self._at += is_next
        return is_next

    def _expect(self, mark: str, where: str) -> None:
        if not self._skip(mark):
            self.fail(f"{mark!r} is missing {where}")

    def _word(self, *words: str) -> bool:
        """Whether these words come next; if so they are read."""
        coming = self._tokens[self._at : self._at + len(words)]
        is_next = [token.text.upper() for token in coming if token.kind == "word"] == list(words)
        self._at += len(words) * is_next
        return is_next

    # The grammar.

    def fields(self, end: str, depth: int) -> list[pa.Field]:
        fields = [self._field(depth)]
        while self._skip(","):
            fields.append(self._field(depth))
        if end:
            self._expect(end, "after the fields of a STRUCT")
        elif self.token.kind != "end":
            self.fail(f"after the type of {fields[-1].name!r} a comma should follow")
        return fields

    def _field(self, depth: int) -> pa.Field:
        if self.token.kind not in ("word", "name"):
            self.fail("a field's name is missing")
        name = self._next()
        self._skip(":")
        if self.token.kind != "word":
            self.fail(f"the type of field {name!r} is missing")
        try:
            kind = self.type(depth)
        except SchemaError as error:
            raise SchemaError(str(error) if str(error).startswith("field ") else f"field {name!r}: {error}") from None
        nullable = not self._word("NOT", "NULL")
        metadata = None
        if self._word("COMMENT"):
            if self.token.kind != "text":
                self.fail(f"the comment of field {name!r} should be in quotes")
            metadata = {COMMENT: self._next()}
        for word in ("DEFAULT", "GENERATED", "COLLATE"):
            if self._word(word):
                raise SchemaError(f"field {name!r}: {word} is not possible here; leave it out")
        return pa.field(name, kind, nullable, metadata)

    def type(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise SchemaError(f"more than {_MAX_DEPTH} types within each other")
        if self.token.kind != "word":
            self.fail("a type is missing")
        word = self._next()
        match name := word.upper():
            case "DECIMAL" | "DEC" | "NUMERIC":
                return self._decimal()
            case "ARRAY":
                self._expect("<", "after ARRAY")
                element = self.type(depth + 1)
                self._expect(">", "after the type of an ARRAY's elements")
                return array_of(element)
            case "MAP":
                return self._map(depth)
            case "STRUCT":
                self._expect("<", "after STRUCT")
                return pa.struct(self.fields(">", depth + 1))
        if name not in _NAMES:
            raise _unknown(word)
        if self.token.text == "(":
            self.fail(f"{name} has no length or precision")
        return _NAMES[name]

    def _map(self, depth: int) -> pa.DataType:
        self._expect("<", "after MAP")
        if self.type(depth + 1) != pa.string():
            raise SchemaError("the keys of a MAP are STRING: names in a JSON object are texts")
        self._expect(",", "between the two types of a MAP")
        value = self.type(depth + 1)
        self._expect(">", "after the types of a MAP")
        return map_of(value)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._number()
            if self._skip(","):
                scale = self._number()
            self._expect(")", "after the precision of a DECIMAL")
        if not (1 <= precision <= _MAX_PRECISION and scale <= precision):
            raise SchemaError(
                f"DECIMAL({precision},{scale}) is not possible: precision is 1 to {_MAX_PRECISION} digits, of which "
                "scale are behind the point"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        if self.token.kind != "word" or not self.token.text.isdecimal() or len(self.token.text) > _MAX_DIGITS:
            self.fail("a number of digits is missing")
        return int(self._next())


def _unknown(word: str) -> SchemaError:
    name = word.upper()
    if name in _REFUSED:
        return SchemaError(f"the type {name} is not possible for a field of a JSON body; {_REFUSED[name]}")
    known = [*_NAMES, "DECIMAL", "ARRAY", "MAP", "STRUCT"]
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return SchemaError(
        f"there is no type {word}; " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}")
    )
