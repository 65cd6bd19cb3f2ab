"""Parses filters; the command line, the API, the pages and the audit log share this language.

    error ~ "timeout" and age > 2h and not (receives >= 5 or attr.tenant = acme) and $.order.total > 100

A bare word is searched in the error, the body, the key and the ids. Adjacent conditions must all hold. Whatever the
filter, the time to test a message is proportional to its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol

from semel.dlq.filter import fields as known_fields
from semel.dlq.filter.fields import FIELDS, Candidate, Field, InvalidValue, Pattern, Test, Value
from semel.dlq.filter.lexer import EXAMPLE, Token, TokenKind, tokenize
from semel.dlq.filter.lexer import FilterError as FilterError
from semel.dlq.messages import DeadLetterMessage
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.access.broker import LazyMessage

MAX_LENGTH: Final = 8_000  # characters
MAX_DEPTH: Final = 50  # of ( ) and not
# JSON never escapes such a word, and the packed form of attributes never splits it.
_WORD: Final = re.compile(r"[A-Za-z0-9_]{3,100}")
_COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=", "~")


class Condition(Protocol):
    """One part of a filter. `str()` of it parses as the same condition."""

    @property
    def needs_body(self) -> bool: ...

    def holds(self, candidate: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Combined:
    parts: tuple[Condition, ...]

    @property
    def needs_body(self) -> bool:
        return any(part.needs_body for part in self.parts)


class And(_Combined):
    __slots__ = ()

    def holds(self, candidate: Any) -> bool:
        return all(part.holds(candidate) for part in self.parts)

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


class Or(_Combined):
    __slots__ = ()

    def holds(self, candidate: Any) -> bool:
        return any(part.holds(candidate) for part in self.parts)

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition

    @property
    def needs_body(self) -> bool:
        return self.part.needs_body

    def holds(self, candidate: Any) -> bool:
        return not self.part.holds(candidate)

    def __str__(self) -> str:
        return f"not ({self.part})" if isinstance(self.part, And | Or) else f"not {self.part}"


@dataclass(frozen=True, slots=True)
class _OfField:
    of: Field

    @property
    def needs_body(self) -> bool:
        return self.of.needs_body


@dataclass(frozen=True, slots=True)
class Comparison(_OfField):
    """`field sign value`, or `field in (value, …)`; `sign` may also be "in" or "not in"."""

    sign: str
    values: tuple[Value, ...]
    tests: tuple[Test, ...] = field(compare=False, repr=False)

    def holds(self, candidate: Any) -> bool:
        values = self.of.values(candidate)
        if not values:
            return False
        fits = any(test(value, candidate.now) for test in self.tests for value in values)
        return fits != (self.sign in ("!=", "not in"))

    def __str__(self) -> str:
        if self.sign in ("in", "not in"):
            return f"{self.of.name} {self.sign} ({', '.join(map(str, self.values))})"
        return f"{self.of.name} {self.sign} {self.values[0]}"

    @property
    def words(self) -> list[str]:
        """Words that are in the attributes of every message for which this holds."""
        by_text = self.of.name in ("error", "reason") and self.sign in ("~", "=") and self.values[0].pattern is None
        return [word.lower() for word in _WORD.findall(self.values[0].text)] if by_text else []


class Exists(_OfField):
    __slots__ = ()

    def holds(self, candidate: Any) -> bool:
        return bool(self.of.values(candidate))

    def __str__(self) -> str:
        return f"{self.of.name} exists"


@dataclass(frozen=True, slots=True)
class TextSearch:
    """A bare word: in the error, the key, the ids or the body."""

    value: Value
    within: Callable[[str], bool] = field(compare=False, repr=False)
    needs_body: bool = True

    def holds(self, candidate: Any) -> bool:
        return any(map(self.within, candidate.texts))

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter. `str()` of it parses as the same filter."""

    condition: Condition | None = None

    def matches(self, message: DeadLetterMessage | LazyMessage, now: float) -> bool:
        return self.holds(Candidate(message, now))

    def holds(self, candidate: Any) -> bool:
        """Like `matches`, for things other than messages: the fields given to `parse` read the candidate."""
        return self.condition is None or self.condition.holds(candidate)

    @property
    def everything(self) -> bool:
        return self.condition is None

    @property
    def needs_body(self) -> bool:
        """Whether the filter needs the whole body of a message."""
        return self.condition is not None and self.condition.needs_body

    @property
    def word(self) -> str | None:
        """A word, in lower case, that the attributes of every matching message contain; None if none is known.

        With it the broker leaves out most other messages."""
        parts = self.condition.parts if isinstance(self.condition, And) else (self.condition,)
        words = [word for part in parts if isinstance(part, Comparison) for word in part.words]
        return max(words, key=len, default=None)

    def __str__(self) -> str:
        return "" if self.condition is None else str(self.condition)


EVERYTHING: Final = Filter()


def parse(text: str, fields: Mapping[str, Field] = FIELDS) -> Filter:
    """Parses a filter; an empty text selects every message. Raises FilterError, which shows the position.

    With other `fields`, it is a filter over things other than messages, which have no attributes and no body."""
    if len(text) > MAX_LENGTH:
        raise FilterError(text, MAX_LENGTH, f"it has {len(text):,} characters; the maximum is {MAX_LENGTH:,}")
    if not text.strip():
        return EVERYTHING
    return Filter(_Parser(text, fields).parse())


class _Parser:
    """Recursive descent: or, and, not, then one condition."""

    def __init__(self, text: str, fields: Mapping[str, Field]) -> None:
        self._text = text
        self._fields = fields
        self._tokens = tokenize(text)
        self._index = 0
        self._depth = 0

    def parse(self) -> Condition:
        condition = self._or()
        if self._current.kind is not TokenKind.END:
            problem = "unmatched )" if self._current.is_(")") else f"unexpected {self._current.text!r}"
            raise self._error(self._current, problem)
        return condition

    def _or(self) -> Condition:
        parts = [self._and()]
        while self._accept("or"):
            parts.append(self._and())
        return _joined(Or, parts)

    def _and(self) -> Condition:
        parts = [self._not()]
        while self._accept("and") or not (
            self._current.kind is TokenKind.END or self._current.is_("or") or self._current.is_(")")
        ):
            parts.append(self._not())
        return _joined(And, parts)

    def _not(self) -> Condition:
        token = self._current
        if not (token.is_("not") or token.is_("(")):
            return self._condition()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(token, f"( ) and not are nested more than {MAX_DEPTH} deep")
        if self._accept("not"):
            condition: Condition = Not(self._not())
        else:
            self._index += 1
            condition = self._or()
            if not self._accept(")"):
                raise self._error(token, "unclosed (")
        self._depth -= 1
        return condition

    def _condition(self) -> Condition:
        token = self._next()
        if token.kind is TokenKind.END:
            raise self._error(token, "expected a condition")
        if token.kind is TokenKind.SIGN or any(map(token.is_, ("and", "or", "in", "exists"))):
            raise self._error(token, f"expected a field or a word, not {token.text!r}")
        compared = self._current.kind is TokenKind.SIGN and self._current.text in _COMPARISONS
        listed = self._current.is_("in") or (self._current.is_("not") and self._following.is_("in"))
        if token.kind in (TokenKind.PATH, TokenKind.BARE) and (compared or listed or self._current.is_("exists")):
            return self._about(self._field(token))
        if token.kind is TokenKind.PATH:
            raise self._error(token, "a JSON path needs a comparison", f"{token.text} = 5, or {token.text} exists")
        value = self._value(token)
        return TextSearch(value, known_fields.finder(value))

    def _about(self, of: Field) -> Condition:
        if self._accept("exists"):
            return Exists(of)
        if self._current.is_("in") or self._current.is_("not"):
            sign = "not in" if self._accept("not") else "in"
            self._index += 1
            return self._comparison(of, sign, self._list(of))
        return self._comparison(of, self._next().text, [self._next()])

    def _list(self, of: Field) -> list[Token]:
        example = f"{of.name} in (a, b)"
        if not self._accept("("):
            raise self._error(self._current, "`in` needs a list in parentheses", example)
        tokens = [self._next()]
        while self._accept(","):
            tokens.append(self._next())
        if not self._accept(")"):
            raise self._error(self._current, "expected , or ) in the list", example)
        return tokens

    def _comparison(self, of: Field, sign: str, tokens: Sequence[Token]) -> Condition:
        values, tests = [], []
        for token in tokens:
            no_value = token.kind in (TokenKind.END, TokenKind.SIGN, TokenKind.PATH)
            if no_value or any(map(token.is_, ("and", "or", "not"))):
                raise self._error(token, f"{of.name} {sign} needs a value", f"{of.name} {sign} value")
            value = self._value(token)
            try:
                tests.append(known_fields.compare(of, "=" if sign in ("!=", "in", "not in") else sign, value))
            except InvalidValue as error:
                raise self._error(token, str(error)) from None
            values.append(value)
        return Comparison(of, sign, tuple(values), tuple(tests))

    def _field(self, token: Token) -> Field:
        name, of_messages = token.text, self._fields is FIELDS
        if token.kind is TokenKind.PATH and of_messages:
            try:
                return known_fields.json_path(name)
            except SemelError as error:
                raise self._error(token, str(error)) from None
        if name.startswith("attr.") and len(name) > len("attr.") and of_messages:
            return known_fields.attribute(name.removeprefix("attr."))
        if name in self._fields:
            return self._fields[name]
        close = get_close_matches(name, self._fields, 1)
        names = [*self._fields, *(("attr.NAME", "$.json.path") if of_messages else ())]
        hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(names)}"
        raise self._error(token, f"there is no field {name!r}; {hint}")

    def _value(self, token: Token) -> Value:
        if token.kind is not TokenKind.PATTERN:
            return Value(token.text, token.kind is TokenKind.QUOTED)
        if token.flags not in ("", "i"):
            problem = f"unknown pattern flag {token.flags!r}; the only flag is i"
            raise self._error(token, problem, 'error ~ /time(d )?out/i, or a quoted text: "/a/path"')
        try:
            return Value(token.text, False, Pattern(token.text, ignore_case=token.flags == "i"), token.flags)
        except InvalidValue as error:
            raise self._error(token, str(error), "error ~ /time(d )?out/i") from None

    @property
    def _current(self) -> Token:
        return self._tokens[self._index]

    @property
    def _following(self) -> Token:
        return self._tokens[min(self._index + 1, len(self._tokens) - 1)]

    def _next(self) -> Token:
        token = self._current
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _accept(self, text: str) -> bool:
        accepted = self._current.is_(text)
        self._index += accepted
        return accepted

    def _error(self, token: Token, problem: str, example: str = EXAMPLE) -> FilterError:
        return FilterError(self._text, token.position, problem, example)


def _joined(kind: type[And] | type[Or], parts: Sequence[Condition]) -> Condition:
    """A single part as it is; nested parts of the same kind become one, so that redundant ( ) do not matter."""
    if len(parts) == 1:
        return parts[0]
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else [part]
    return kind(tuple(flat))
