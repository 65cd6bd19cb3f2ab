"""The conditions of a filter: which fields there are, and how a letter's value is compared with the one written.

The rules: what is not there fulfils no condition, `!=` included, so that only `not` finds letters without it. Values of
another type than the one asked for do not match, and nothing in a letter can make a comparison fail with an error.
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
from semel.dlq.filter.patterns import Pattern
from semel.dlq.messages import DeadLetterMessage
from semel.durations import seconds
from semel.errors import SemelError
from semel.messages.json_path import MISSING, JsonPath

if TYPE_CHECKING:
    from semel.dlq.access.broker import LazyMessage

_NUMBER: Final = re.compile(r"[+-]?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,3})?")
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kKmM])(?:i?[bB])?")
ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Test = Callable[[Any, float], bool]  # a letter's value, and the time


class Seen:
    """One letter while it is looked at: what is worked out for one condition is there for the next."""

    def __init__(self, message: DeadLetterMessage | LazyMessage, now: float) -> None:
        self.message = message
        self.now = now

    @property
    def texts(self) -> Iterable[str]:
        """Where a word that stands for itself is looked for."""
        message = self.message
        yield from self.error
        yield from (message.key, message.id, message.original_id, fingerprints.of(message), message.body)

    @cached_property
    def json(self) -> Any:
        try:
            return orjson.loads(self.message.body)
        except ValueError:  # also where it has a lone surrogate
            return MISSING

    @cached_property
    def error(self) -> tuple[str, ...]:
        message = self.message
        if not (message.error or message.reason):
            return ()
        return tuple(filter(None, dict.fromkeys((fingerprints.error_of(message), message.error))))


@dataclass(frozen=True, slots=True)
class Value:
    """What is compared with, as it was written: `"5"` is the text alone, a bare 5 also the number."""

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
    """`values` gives what a letter has of it: nothing, one, or several of which any will do."""

    name: str
    kind: str  # text, number, size, duration, time or any
    values: Callable[[Any], tuple[Any, ...]] = field(compare=False)
    needs_body: bool = False


class BadValue(Exception):
    """A value that the field cannot be compared with; the text says what it can."""


def as_number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


# Fields.


def _text(of: Callable[[Any], str]) -> Callable[[Seen], tuple[Any, ...]]:
    return lambda seen: (found,) if (found := of(seen.message)) else ()


def _time(of: Callable[[Any], float | None]) -> Callable[[Seen], tuple[Any, ...]]:
    return lambda seen: (found,) if (found := of(seen.message)) else ()


def _ids(seen: Seen) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((seen.message.id, seen.message.original_id or seen.message.id)))


def _age(seen: Seen) -> tuple[Any, ...]:
    return (max(0.0, seen.now - seen.message.sent),) if seen.message.sent else ()


FIELDS: Final = {
    one.name: one
    for one in (
        Field("error", "text", lambda seen: seen.error),
        Field("reason", "text", _text(lambda message: message.reason)),
        Field("fingerprint", "text", lambda seen: (fingerprints.of(seen.message),)),
        Field("key", "text", _text(lambda message: message.key)),
        Field("id", "text", _ids),
        Field("queue", "text", _text(lambda message: message.source)),
        Field("source", "text", _text(lambda message: message.source)),
        Field("group", "text", _text(lambda message: message.group)),
        Field("state", "text", _text(lambda message: message.state)),
        Field("body", "text", _text(lambda message: message.body), needs_body=True),
        Field("age", "duration", _age),
        Field("receives", "number", lambda seen: (seen.message.receives,)),
        Field("attempts", "number", lambda seen: (seen.message.attempts,)),
        Field("redrives", "number", lambda seen: (seen.message.redrives,)),
        Field("size", "size", lambda seen: (seen.message.body_bytes,)),
        Field("sent", "time", _time(lambda message: message.sent)),
        Field("first_received", "time", _time(lambda message: message.first_received)),
        Field("expires", "time", _time(lambda message: message.expires)),
    )
}


def attribute(name: str) -> Field:
    def values(seen: Seen) -> tuple[Any, ...]:
        found = seen.message.attributes.get(name)
        return () if found is None else (found.value,)

    return Field(f"attr.{name}", "any", values)


def json_path(text: str) -> Field:
    path = JsonPath.parse(text)

    def values(seen: Seen) -> tuple[Any, ...]:
        found = MISSING if seen.json is MISSING else path.find(seen.json)
        return () if found is MISSING else (found,)

    return Field(text, "any", values, needs_body=True)


# Comparisons.


def test(of: Field, sign: str, value: Value) -> Test:
    """How a value of the field is held against the one written. Raises BadValue if the two cannot be compared."""
    if sign == "~" or value.pattern is not None:
        return _contains(of, sign, value)
    if of.kind == "text":
        if sign in ORDER:
            raise BadValue(f"{of.name} is a text: compare it with =, !=, ~ or in")
        return lambda found, _now: bool(found == value.text)
    if of.kind == "any":
        return _ordered(ORDER[sign], value) if sign in ORDER else _equal(value)
    return _measured(of, ORDER.get(sign, operator.eq), value)


def _contains(of: Field, sign: str, value: Value) -> Test:
    if of.kind not in ("text", "any"):
        raise BadValue(f"{of.name} is a {of.kind}: compare it with =, !=, <, <=, > or >=")
    if sign != "~":
        raise BadValue(f"a pattern /…/ stands behind ~ only, as in {of.name} ~ /{value.text}/")
    within = finder(value)
    return lambda found, _now: (text := _as_text(found)) is not None and within(text)


def finder(value: Value) -> Callable[[str], bool]:
    """Whether a text contains the value. Capital letters do not matter, except in a pattern without `i`."""
    if value.pattern is not None:
        return value.pattern.found_in
    exact, folded = value.text, value.text.casefold()
    return lambda text: exact in text or folded in text.casefold()


def _as_text(found: Any) -> str | None:
    if isinstance(found, str):
        return found
    return None if isinstance(found, bytes) else orjson.dumps(found).decode()


def _equal(value: Value) -> Test:
    number = value.number
    words: dict[str, Any] = {} if value.quoted else {"true": True, "false": False, "null": None}
    word = words.get(value.text, MISSING)

    def equal(found: Any, _now: float) -> bool:
        if isinstance(found, str):
            return found == value.text
        if found is None or isinstance(found, bool):
            return found is word
        return number is not None and isinstance(found, int | float) and found == number

    return equal


def _ordered(compare: Callable[[Any, Any], bool], value: Value) -> Test:
    number = value.number

    def ordered(found: Any, _now: float) -> bool:
        if isinstance(found, str):
            if number is None:
                return compare(found, value.text)
            found = as_number(found)
        fits = isinstance(found, int | float) and not isinstance(found, bool)
        return fits and number is not None and compare(found, number)

    return ordered


def _measured(of: Field, compare: Callable[[Any, Any], bool], value: Value) -> Test:
    if of.kind == "time":
        when = _moment(of, value.text)
        return lambda found, now: compare(found, when(now))
    wanted = {"number": _plain, "size": _bytes, "duration": _span}[of.kind](of, value.text)
    return lambda found, _now: compare(found, wanted)


def _plain(of: Field, text: str) -> int | float:
    number = as_number(text)
    if number is None:
        raise BadValue(f"{of.name} is a number, and {text!r} is none; write {of.name} >= 5")
    return number


def _bytes(of: Field, text: str) -> int | float:
    sized = _SIZE.fullmatch(text)
    if sized:
        return int(sized[1]) << (10 if sized[2] in "kK" else 20)
    number = as_number(text)
    if number is None:
        raise BadValue(f"{of.name} is in bytes, and {text!r} is no number of them; write {of.name} > 1000 or > 64k")
    return number


def _span(of: Field, text: str) -> float:
    try:
        return seconds(float(text) if as_number(text) is not None else text)
    except SemelError:
        raise BadValue(f"{text!r} is no duration; write {of.name} > 2h, 30m, 90s or 3d") from None


def _moment(of: Field, text: str) -> Callable[[float], float]:
    """A time of ISO 8601 (UTC if it does not say), seconds since 1970, now, or -2h and +2h from now."""
    if text.lower() == "now":
        return lambda now: now
    if as_number(text) is not None and not text.startswith(("+", "-")):
        at = float(text)
        return lambda _now: at
    try:
        read = datetime.fromisoformat(text)
        at = (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
        return lambda _now: at
    except (ValueError, OverflowError):
        pass
    try:
        if not text.startswith(("+", "-")):
            raise SemelError("without a sign it is a length, not a time")
        away = seconds(text[1:]) * (-1 if text[0] == "-" else 1)
    except SemelError:
        raise BadValue(f"{text!r} is no time; write {of.name} >= 2026-11-01T10:00Z, or -2h for two hours ago") from None
    return lambda now: now + away
