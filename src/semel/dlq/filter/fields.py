"""The fields of a filter, and how a message's value is compared with the value in the filter.

A missing value matches no comparison, `!=` included: only `not` selects messages without it. A value of another type
does not match. Nothing in a message can make a comparison raise an error.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson

from semel.dlq import fingerprints
from semel.dlq.filter.lexer import quoted
from semel.dlq.messages import DeadLetterMessage
from semel.durations import seconds
from semel.errors import SemelError
from semel.messages.json_path import MISSING, JsonPath

if TYPE_CHECKING:
    from semel.dlq.access.broker import LazyMessage

MAX_PATTERN_LENGTH: Final = 200  # characters
MAX_PATTERN_SIZE: Final = 1_000  # RE2 instructions: the worst case is their number times the length of the text
_NUMBER: Final = re.compile(r"[+-]?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,3})?")
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kKmM])(?:i?[bB])?")
ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Test = Callable[[Any, float], bool]  # takes a message's value and the current time


class InvalidValue(Exception):
    """A value or pattern that the field cannot be compared with. The text says why."""


class Candidate:
    """One message that is tested against a filter. Conditions share the values that are computed here."""

    def __init__(self, message: DeadLetterMessage | LazyMessage, now: float) -> None:
        self.message = message
        self.now = now

    @property
    def texts(self) -> Iterable[str]:
        """The texts in which a bare word is searched."""
        message = self.message
        yield from self.error
        yield from (message.key, message.id, message.original_id, fingerprints.of(message), message.body)

    @cached_property
    def json(self) -> Any:
        try:
            return orjson.loads(self.message.body)
        except ValueError:  # also for a lone surrogate
            return MISSING

    @cached_property
    def error(self) -> tuple[str, ...]:
        message = self.message
        if not (message.error or message.reason):
            return ()
        return tuple(filter(None, dict.fromkeys((fingerprints.error_of(message), message.error))))


class Pattern:
    """An RE2 regular expression, which needs time in proportion to the text, whatever the pattern."""

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        import re2  # takes 10 ms, so only filters with a pattern import it

        if len(text) > MAX_PATTERN_LENGTH:
            raise InvalidValue(f"the pattern has {len(text)} characters; the maximum is {MAX_PATTERN_LENGTH}")
        options = re2.Options()
        options.case_sensitive = not ignore_case
        options.never_capture = True
        options.log_errors = False
        try:
            compiled = re2.compile(text.encode(), options)
        except UnicodeEncodeError:
            raise InvalidValue("the pattern is not valid Unicode: it has half of a surrogate pair") from None
        except re2.error as error:
            raise InvalidValue(f"invalid pattern: {_reason(error)}") from None
        if compiled.programsize > MAX_PATTERN_SIZE:
            raise InvalidValue("the pattern is too large: use smaller counts in {…}")
        self._search = compiled.search

    def found_in(self, text: str) -> bool:
        return self._search(text.encode("utf-8", "replace")) is not None


def _reason(error: Exception) -> str:
    (reason,) = error.args
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


@dataclass(frozen=True, slots=True)
class Value:
    """A value as written in the filter: `"5"` is only the text, a bare 5 is also the number."""

    text: str
    quoted: bool = False
    pattern: Pattern | None = field(default=None, compare=False)
    flags: str = ""

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"/{self.text}/{self.flags}"
        return quoted(self.text) if self.quoted else self.text

    @property
    def number(self) -> int | float | None:
        return None if self.quoted else as_number(self.text)


@dataclass(frozen=True, slots=True)
class Field:
    """`values` returns a candidate's values of this field: none, one, or several, of which any one may match."""

    name: str
    kind: str  # text, number, size, duration, time or any
    values: Callable[[Any], tuple[Any, ...]] = field(compare=False)
    needs_body: bool = False


def as_number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _optional(get: Callable[[Any], Any]) -> Callable[[Candidate], tuple[Any, ...]]:
    return lambda candidate: (value,) if (value := get(candidate.message)) else ()


def _ids(candidate: Candidate) -> tuple[Any, ...]:
    message = candidate.message
    return tuple(dict.fromkeys((message.id, message.original_id or message.id)))


def _age(candidate: Candidate) -> tuple[Any, ...]:
    return (max(0.0, candidate.now - candidate.message.sent),) if candidate.message.sent else ()


FIELDS: Final[Mapping[str, Field]] = {
    known.name: known
    for known in (
        Field("error", "text", lambda candidate: candidate.error),
        Field("reason", "text", _optional(lambda message: message.reason)),
        Field("fingerprint", "text", lambda candidate: (fingerprints.of(candidate.message),)),
        Field("key", "text", _optional(lambda message: message.key)),
        Field("id", "text", _ids),
        Field("queue", "text", _optional(lambda message: message.source)),
        Field("source", "text", _optional(lambda message: message.source)),
        Field("group", "text", _optional(lambda message: message.group)),
        Field("state", "text", _optional(lambda message: message.state)),
        Field("body", "text", _optional(lambda message: message.body), needs_body=True),
        Field("age", "duration", _age),
        Field("receives", "number", lambda candidate: (candidate.message.receives,)),
        Field("attempts", "number", lambda candidate: (candidate.message.attempts,)),
        Field("redrives", "number", lambda candidate: (candidate.message.redrives,)),
        Field("size", "size", lambda candidate: (candidate.message.body_bytes,)),
        Field("sent", "time", _optional(lambda message: message.sent)),
        Field("first_received", "time", _optional(lambda message: message.first_received)),
        Field("expires", "time", _optional(lambda message: message.expires)),
    )
}


def attribute(name: str) -> Field:
    def values(candidate: Candidate) -> tuple[Any, ...]:
        attribute = candidate.message.attributes.get(name)
        return () if attribute is None else (attribute.value,)

    return Field(f"attr.{name}", "any", values)


def json_path(text: str) -> Field:
    path = JsonPath.parse(text)

    def values(candidate: Candidate) -> tuple[Any, ...]:
        value = MISSING if candidate.json is MISSING else path.find(candidate.json)
        return () if value is MISSING else (value,)

    return Field(text, "any", values, needs_body=True)


def compare(of: Field, sign: str, expected: Value) -> Test:
    """The test that compares a value of the field with the expected one. Raises InvalidValue."""
    if sign == "~" or expected.pattern is not None:
        return _contains(of, sign, expected)
    if of.kind == "text":
        if sign in ORDER:
            raise InvalidValue(f"{of.name} is a text; compare it with =, !=, ~ or in")
        return lambda value, _now: bool(value == expected.text)
    if of.kind == "any":
        return _ordered(ORDER[sign], expected) if sign in ORDER else _equal(expected)
    return _measured(of, ORDER.get(sign, operator.eq), expected)


def _contains(of: Field, sign: str, expected: Value) -> Test:
    if of.kind not in ("text", "any"):
        raise InvalidValue(f"{of.name} is a {of.kind}; compare it with =, !=, <, <=, > or >=")
    if sign != "~":
        raise InvalidValue(f"a pattern needs ~, as in {of.name} ~ /{expected.text}/")
    within = finder(expected)
    return lambda value, _now: (text := _as_text(value)) is not None and within(text)


def finder(expected: Value) -> Callable[[str], bool]:
    """Whether a text contains the value. Case does not matter, except in a pattern without the flag i."""
    if expected.pattern is not None:
        return expected.pattern.found_in
    exact, folded = expected.text, expected.text.casefold()
    return lambda text: exact in text or folded in text.casefold()


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return None if isinstance(value, bytes) else orjson.dumps(value).decode()


def _equal(expected: Value) -> Test:
    number = expected.number
    constants: dict[str, Any] = {} if expected.quoted else {"true": True, "false": False, "null": None}
    constant = constants.get(expected.text, MISSING)

    def equal(value: Any, _now: float) -> bool:
        if isinstance(value, str):
            return value == expected.text
        if value is None or isinstance(value, bool):
            return value is constant
        return number is not None and isinstance(value, int | float) and value == number

    return equal


def _ordered(holds: Callable[[Any, Any], bool], expected: Value) -> Test:
    number = expected.number

    def ordered(value: Any, _now: float) -> bool:
        if isinstance(value, str):
            if number is None:
                return holds(value, expected.text)
            value = as_number(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and number is not None and holds(value, number)

    return ordered


def _measured(of: Field, holds: Callable[[Any, Any], bool], expected: Value) -> Test:
    if of.kind == "time":
        moment = _moment(of, expected.text)
        return lambda value, now: holds(value, moment(now))
    amount = {"number": _count, "size": _bytes, "duration": _duration}[of.kind](of, expected.text)
    return lambda value, _now: holds(value, amount)


def _count(of: Field, text: str) -> int | float:
    number = as_number(text)
    if number is None:
        raise InvalidValue(f"{text!r} is not a number; write {of.name} >= 5")
    return number


def _bytes(of: Field, text: str) -> int | float:
    if size := _SIZE.fullmatch(text):
        return int(size[1]) << (10 if size[2] in "kK" else 20)
    number = as_number(text)
    if number is None:
        raise InvalidValue(f"{text!r} is not a size in bytes; write {of.name} > 1000 or {of.name} > 64k")
    return number


def _duration(of: Field, text: str) -> float:
    try:
        return seconds(float(text) if as_number(text) is not None else text)
    except SemelError:
        raise InvalidValue(f"{text!r} is not a duration; write {of.name} > 2h, 30m, 90s or 3d") from None


def _moment(of: Field, text: str) -> Callable[[float], float]:
    """A time in ISO 8601 (UTC by default), seconds since 1970, now, or -2h and +2h relative to now."""
    if text.lower() == "now":
        return lambda now: now
    if as_number(text) is not None and not text.startswith(("+", "-")):
        at = float(text)
        return lambda _now: at
    try:
        parsed = datetime.fromisoformat(text)
        at = (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
        return lambda _now: at
    except (ValueError, OverflowError):
        pass
    try:
        if not text.startswith(("+", "-")):
            raise SemelError("a duration without a sign is not a time")
        offset = seconds(text[1:]) * (-1 if text[0] == "-" else 1)
    except SemelError:
        raise InvalidValue(
            f"{text!r} is not a time; write {of.name} >= 2026-11-01T10:00Z, or -2h for two hours ago"
        ) from None
    return lambda now: now + offset
