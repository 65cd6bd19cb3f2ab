"""The small language that says which dead letters are meant, the same on the command line, in the API and on the page.

    error ~ "timeout" and age > 2h and not (receives >= 5 or attr.tenant = acme) and $.order.total > 100

A bare word is looked for in the error, the body, the key and the ids. Conditions next to each other must all hold.
Whatever is written, one letter is decided in time that grows with its size only (see `patterns`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol

from semel.dlq.filter import fields as terms
from semel.dlq.filter.fields import FIELDS, BadValue, Field, Seen, Value
from semel.dlq.filter.lexer import EXAMPLE, Kind, Word, words
from semel.dlq.filter.lexer import FilterError as FilterError
from semel.dlq.filter.patterns import Pattern, PatternError
from semel.dlq.messages import DeadLetterMessage
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.access.broker import LazyMessage

MAX_LENGTH: Final = 8_000  # characters
MAX_DEPTH: Final = 50  # of ( ) and not
# Within such a word nothing is written otherwise in JSON, and nothing is joined from two attributes.
_WORD: Final = re.compile(r"[A-Za-z0-9_]{3,100}")
_SIGNS: Final = ("=", "!=", "<", "<=", ">", ">=", "~")


class Condition(Protocol):
    """One part of a filter; its text, parsed, is the same part again."""

    @property
    def needs_body(self) -> bool: ...

    def holds(self, seen: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Condition, ...]

    @property
    def needs_body(self) -> bool:
        return any(part.needs_body for part in self.parts)

    def holds(self, seen: Any) -> bool:
        return all(part.holds(seen) for part in self.parts)

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Any_) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Any_:
    parts: tuple[Condition, ...]

    @property
    def needs_body(self) -> bool:
        return any(part.needs_body for part in self.parts)

    def holds(self, seen: Any) -> bool:
        return any(part.holds(seen) for part in self.parts)

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition

    @property
    def needs_body(self) -> bool:
        return self.part.needs_body

    def holds(self, seen: Any) -> bool:
        return not self.part.holds(seen)

    def __str__(self) -> str:
        return f"not ({self.part})" if isinstance(self.part, All | Any_) else f"not {self.part}"


@dataclass(frozen=True, slots=True)
class Compared:
    """`field sign value`, or with several values `field in (…)`; `but_not` is `!=` and `not in`."""

    of: Field
    sign: str
    values: tuple[Value, ...]
    tests: tuple[terms.Test, ...] = field(compare=False, repr=False)

    @property
    def needs_body(self) -> bool:
        return self.of.needs_body

    def holds(self, seen: Any) -> bool:
        found = self.of.values(seen)
        if not found:
            return False
        fits = any(test(one, seen.now) for test in self.tests for one in found)
        return fits != (self.sign in ("!=", "not in"))

    def __str__(self) -> str:
        if self.sign in ("in", "not in"):
            return f"{self.of.name} {self.sign} ({', '.join(map(str, self.values))})"
        return f"{self.of.name} {self.sign} {self.values[0]}"


@dataclass(frozen=True, slots=True)
class Exists:
    of: Field

    @property
    def needs_body(self) -> bool:
        return self.of.needs_body

    def holds(self, seen: Any) -> bool:
        return bool(self.of.values(seen))

    def __str__(self) -> str:
        return f"{self.of.name} exists"


@dataclass(frozen=True, slots=True)
class Anywhere:
    """A word for itself: in the error, the key, the ids or the body."""

    value: Value
    within: Callable[[str], bool] = field(compare=False, repr=False)
    needs_body: bool = True

    def holds(self, seen: Any) -> bool:
        return any(map(self.within, seen.texts))

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant. `str()` of it is a filter with the same meaning."""

    condition: Condition | None = None

    def matches(self, message: DeadLetterMessage | LazyMessage, now: float) -> bool:
        return self.holds(Seen(message, now))

    def holds(self, seen: Any) -> bool:
        """For what is no letter: the fields that it was parsed with know what they see."""
        return self.condition is None or self.condition.holds(seen)

    @property
    def everything(self) -> bool:
        return self.condition is None

    @property
    def needs_body(self) -> bool:
        """Whether a letter's whole body has to be there to decide."""
        return self.condition is not None and self.condition.needs_body

    @property
    def word(self) -> str | None:
        """A word that the attributes of every letter which matches have in them, whatever its capitals; if one is
        known. With it, most of the others need not be looked at."""
        parts = self.condition.parts if isinstance(self.condition, All) else (self.condition,)
        found = [word for part in parts if isinstance(part, Compared) for word in _words_of(part)]
        return max(found, key=len, default=None)

    def __str__(self) -> str:
        return "" if self.condition is None else str(self.condition)


def _words_of(part: Compared) -> list[str]:
    if part.of.name not in ("error", "reason") or part.sign not in ("~", "=") or part.values[0].pattern is not None:
        return []
    return [word.lower() for word in _WORD.findall(part.values[0].text)]


EVERYTHING: Final = Filter()


def parse(text: str, fields: Mapping[str, Field] = FIELDS) -> Filter:
    """The filter that a text says; nothing at all means every letter. Raises FilterError, which shows the place.

    Other `fields` make it a filter over other things, which have no attributes and no body."""
    if len(text) > MAX_LENGTH:
        raise FilterError(text, MAX_LENGTH, f"it has {len(text)} characters, and at most {MAX_LENGTH} are read")
    if not text.strip():
        return EVERYTHING
    return Filter(_Parser(text, fields).whole())


class _Parser:
    """From words to conditions, by going down: or, and, not, then one condition."""

    def __init__(self, text: str, fields: Mapping[str, Field]) -> None:
        self._text = text
        self._fields = fields
        self._words = words(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        condition = self._any()
        if self._now.kind is not Kind.END:
            problem = "this ) has no ( before it" if self._now.is_(")") else f"{self._now.text!r} cannot stand here"
            raise self._error(self._now, problem)
        return condition

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return _joined(Any_, parts)

    def _all(self) -> Condition:
        parts = [self._not()]
        while self._take("and") or not (self._now.kind is Kind.END or self._now.is_("or") or self._now.is_(")")):
            parts.append(self._not())
        return _joined(All, parts)

    def _not(self) -> Condition:
        word = self._now
        if not (self._now.is_("not") or self._now.is_("(")):
            return self._condition()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(word, f"( ) and not may be at most {MAX_DEPTH} deep")
        if self._take("not"):
            found: Condition = Not(self._not())
        else:
            self._at += 1
            found = self._any()
            if not self._take(")"):
                raise self._error(word, "this ( is not closed")
        self._depth -= 1
        return found

    def _condition(self) -> Condition:
        word = self._next()
        if word.kind is Kind.END:
            raise self._error(word, "a condition is missing here")
        if word.kind is Kind.SIGN or any(map(word.is_, ("and", "or", "in", "exists"))):
            raise self._error(word, f"{word.text!r} cannot stand here; before it belongs a field")
        compared = self._now.kind is Kind.SIGN and self._now.text in _SIGNS
        asked = self._now.is_("exists") or self._now.is_("in") or (self._now.is_("not") and self._peek.is_("in"))
        if word.kind in (Kind.PATH, Kind.BARE) and (compared or asked):
            return self._about(self._field(word))
        if word.kind is Kind.PATH:
            raise self._error(word, "say what about it", f"{word.text} = 5, or {word.text} exists")
        value = self._value(word)
        return Anywhere(value, terms.finder(value))

    def _about(self, of: Field) -> Condition:
        if self._take("exists"):
            return Exists(of)
        if self._now.is_("in") or self._now.is_("not"):
            sign = "not in" if self._take("not") else "in"
            self._at += 1
            return self._compared(of, sign, self._list(of))
        return self._compared(of, self._next().text, [self._next()])

    def _list(self, of: Field) -> list[Word]:
        example = f"{of.name} in (a, b)"
        if not self._take("("):
            raise self._error(self._now, "behind `in` stands a list", example)
        found = [self._next()]
        while self._take(","):
            found.append(self._next())
        if not self._take(")"):
            raise self._error(self._now, "the list goes on with , or ends with )", example)
        return found

    def _compared(self, of: Field, sign: str, given: Sequence[Word]) -> Condition:
        values, tests = [], []
        for word in given:
            if word.kind in (Kind.END, Kind.SIGN, Kind.PATH) or any(map(word.is_, ("and", "or", "not"))):
                raise self._error(word, f"a value is missing here for {of.name} {sign}", f"{of.name} {sign} value")
            value = self._value(word)
            try:
                tests.append(terms.test(of, "=" if sign in ("!=", "in", "not in") else sign, value))
            except BadValue as error:
                raise self._error(word, str(error)) from None
            values.append(value)
        return Compared(of, sign, tuple(values), tuple(tests))

    def _field(self, word: Word) -> Field:
        name, of_letters = word.text, self._fields is FIELDS
        if word.kind is Kind.PATH and of_letters:
            try:
                return terms.json_path(name)
            except SemelError as error:
                raise self._error(word, str(error)) from None
        if name.startswith("attr.") and len(name) > len("attr.") and of_letters:
            return terms.attribute(name.removeprefix("attr."))
        if name in self._fields:
            return self._fields[name]
        near = get_close_matches(name, self._fields, 1)
        known = [*self._fields, *(("attr.NAME", "$.json.path") if of_letters else ())]
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise self._error(word, f"there is no field {name!r}; {meant}")

    def _value(self, word: Word) -> Value:
        if word.kind is not Kind.PATTERN:
            return Value(word.text, word.kind is Kind.QUOTED)
        if word.flags not in ("", "i"):
            raise self._error(
                word, f"behind a pattern stands i or nothing, not {word.flags!r}", 'error ~ /time(d )?out/i, "/a/path"'
            )
        try:
            return Value(word.text, False, Pattern(word.text, ignore_case=word.flags == "i"), word.flags)
        except PatternError as error:
            place = Word(word.kind, word.text, word.place + 1 + error.place)
            raise self._error(place, f"in the pattern: {error}", "error ~ /time(d )?out/i") from None

    # Words.

    @property
    def _now(self) -> Word:
        return self._words[self._at]

    @property
    def _peek(self) -> Word:
        return self._words[min(self._at + 1, len(self._words) - 1)]

    def _next(self) -> Word:
        word = self._now
        self._at = min(self._at + 1, len(self._words) - 1)
        return word

    def _take(self, word: str) -> bool:
        taken = self._now.is_(word)
        self._at += taken
        return taken

    def _error(self, word: Word, problem: str, example: str = EXAMPLE) -> FilterError:
        return FilterError(self._text, word.place, problem, example)


def _joined(kind: type[All] | type[Any_], parts: Sequence[Condition]) -> Condition:
    """One part is itself; parts of the same kind become one, so that ( ) which change nothing do not count."""
    if len(parts) == 1:
        return parts[0]
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else [part]
    return kind(tuple(flat))
