"""Queue policies: parsed once, then asked who may do what. Pure.

The rule: a statement that is not understood never allows anything. An Allow with an unknown operator, principal or
variable does not match; a Deny with one does. Any policy that SQS would store can be parsed.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from operator import eq, ge, gt, le, lt
from typing import Any, Final

from semel.broker.engine.identity import Access, Identity

# Condition keys in lower case, each with the values that the call has for it.
Context = Mapping[str, Sequence[str]]


class Verdict(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    NO_MATCH = "no match"


class _NotUnderstood(Exception):
    """A part of a statement is not supported here."""


def context_of(access: Access, owner: str, now: int) -> Context:
    """The values that conditions can test for a call to a queue of the account `owner`, at `now` in milliseconds.

    aws:SourceArn and aws:SourceAccount are missing: they are for calls by AWS services, which do not happen here."""
    identity, seconds = access.identity, f"{now // 1000}"
    values = {
        "aws:currenttime": seconds,
        "aws:epochtime": seconds,
        "aws:principalaccount": identity.account,
        "aws:principalarn": identity.arn,
        "aws:principalisawsservice": "false",
        "aws:principaltype": "User",
        "aws:requestedregion": identity.region,
        "aws:resourceaccount": owner,
        "aws:securetransport": "true" if access.secure else "false",
        "aws:sourceip": access.source_ip,
        "aws:useragent": access.user_agent,
        "aws:userid": identity.user_id,
        "aws:username": identity.name,
        "aws:viaawsservice": "false",
    }
    return {key: (value,) for key, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Policy:
    """What a queue's Policy attribute says."""

    statements: tuple[Statement, ...]

    @classmethod
    def parse(cls, text: str) -> Policy:
        document = json.loads(text)
        return cls(tuple(Statement.parse(item) for item in _listed(document.get("Statement", []))))

    def verdict(self, identity: Identity, action: str, resource: str, context: Context) -> Verdict:
        """`action` is that of one message (SendMessage, not SendMessageBatch). One Deny outweighs every Allow."""
        verdict = Verdict.NO_MATCH
        for statement in self.statements:
            if statement.matches(identity, action, resource, context):
                if statement.denies:
                    return Verdict.DENIED
                verdict = Verdict.ALLOWED
        return verdict


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement; it matches if all of `parts` do. None: it is not understood."""

    denies: bool
    parts: tuple[_Part, ...] | None

    @classmethod
    def parse(cls, statement: Mapping[str, Any]) -> Statement:
        effect = statement.get("Effect")
        denies = effect != "Allow"
        try:
            if effect not in ("Allow", "Deny"):
                raise _NotUnderstood(effect)
            parts = (_actions(statement), _principals(statement, denies), _resources(statement), _conditions(statement))
        except _NotUnderstood:
            return cls(denies, None)
        return cls(denies, parts)

    def matches(self, identity: Identity, action: str, resource: str, context: Context) -> bool:
        if self.parts is None:
            return self.denies
        return all(part(identity, action, resource, context) for part in self.parts)


_Part = Callable[[Identity, str, str, Context], bool]


def _listed(value: Any) -> list[Any]:
    """In JSON policies, a list of one value may be written as that value."""
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> list[str]:
    """Words of a policy. Numbers and booleans may be written without quotes; variables are not supported."""
    values = [json.dumps(item) if isinstance(item, bool | int | float) else item for item in _listed(value)]
    if not all(isinstance(item, str) and "${" not in item for item in values):
        raise _NotUnderstood(value)
    return values


def _either(statement: Mapping[str, Any], name: str) -> tuple[Any, bool]:
    """The element `name`, or its opposite `Not…`, and whether it was the opposite. There must be one of them."""
    present = [key for key in (name, f"Not{name}") if key in statement]
    if len(present) != 1:
        raise _NotUnderstood(name)
    return statement[present[0]], present[0] != name


# Who, what and where.


def _actions(statement: Mapping[str, Any]) -> _Part:
    value, negated = _either(statement, "Action")
    patterns = [_wildcards(text, re.IGNORECASE) for text in _texts(value)]

    def part(_identity: Identity, action: str, _resource: str, _context: Context) -> bool:
        return any(pattern.match(f"sqs:{action}") for pattern in patterns) is not negated

    return part


def _resources(statement: Mapping[str, Any]) -> _Part:
    value, negated = _either(statement, "Resource")
    patterns = [_wildcards(text) for text in _texts(value)]

    def part(_identity: Identity, _action: str, resource: str, _context: Context) -> bool:
        return any(pattern.match(resource) for pattern in patterns) is not negated

    return part


_PRINCIPALS: Final = frozenset({"AWS", "Service", "Federated", "CanonicalUser"})
_ACCOUNT_ROOT: Final = re.compile(r"arn:aws[a-z-]*:iam::([0-9]{12}):root\Z")


def _principals(statement: Mapping[str, Any], denies: bool) -> _Part:
    """An account stands for all its users; but a Deny with NotPrincipal spares only the users that it names."""
    value, negated = _either(statement, "Principal")
    if value == "*":
        value = {"AWS": "*"}
    if not isinstance(value, dict) or not value.keys() <= _PRINCIPALS:
        raise _NotUnderstood(value)
    # Services and federated users do not call here.
    named = frozenset(_ACCOUNT_ROOT.sub(r"\1", text) for text in _texts(value.get("AWS", [])))
    if any("*" in text for text in named - {"*"}):
        raise _NotUnderstood(value)
    by_account = not (negated and denies)

    def part(identity: Identity, _action: str, _resource: str, _context: Context) -> bool:
        names = {"*", identity.arn, identity.user_id}
        if by_account:
            names.add(identity.account)
        return named.isdisjoint(names) is negated

    return part


def _wildcards(text: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """`*` is any text, `?` any character. Each piece between two stars is searched for once, without backtracking."""
    first, *others = [re.escape(piece).replace(r"\?", ".") for piece in text.split("*")]
    middle = "".join([f"(?>.*?{piece})" for piece in others[:-1] if piece])
    last = f".*{others[-1]}" if others else ""
    return re.compile(rf"{first}{middle}{last}\Z", flags | re.DOTALL)


# Conditions.


def _conditions(statement: Mapping[str, Any]) -> _Part:
    """All operators and all their keys must match; of the values of a key, one is enough."""
    condition = statement.get("Condition", {})
    if not isinstance(condition, dict):
        raise _NotUnderstood(condition)
    checks = []
    for operator, keys in condition.items():
        if not isinstance(keys, dict):
            raise _NotUnderstood(keys)
        checks += [_check(operator, key.lower(), _texts(values)) for key, values in keys.items()]

    def part(_identity: Identity, _action: str, _resource: str, context: Context) -> bool:
        return all(check(context) for check in checks)

    return part


_OPERATOR: Final = re.compile(r"(?:(foranyvalue|forallvalues):)?(\w+?)(ifexists)?\Z")


def _check(operator: str, key: str, wanted: list[str]) -> Callable[[Context], bool]:
    match = _OPERATOR.match(operator.lower())
    if match is None:
        raise _NotUnderstood(operator)
    quantifier, base, if_exists = match.groups()
    if base == "null":
        if quantifier or if_exists:
            raise _NotUnderstood(operator)
        absent = [_boolean(text) for text in wanted]
        return lambda context: (key not in context) in absent
    negated = base in _NEGATIONS
    make = _TESTS.get(_NEGATIONS.get(base, base))
    if make is None:
        raise _NotUnderstood(operator)
    tests = [make(text) for text in wanted]

    def satisfies(value: str) -> bool:
        return any(test(value) for test in tests) is not negated

    def check(context: Context) -> bool:
        values = context.get(key)
        if not values:
            # Without a value nothing is equal, so that "not equal" holds.
            return bool(if_exists) or quantifier == "forallvalues" or (negated and quantifier is None)
        return all(map(satisfies, values)) if quantifier == "forallvalues" else any(map(satisfies, values))

    return check


def _equal(wanted: str) -> Callable[[str], bool]:
    return lambda value: value == wanted


def _equal_ignoring_case(wanted: str) -> Callable[[str], bool]:
    return lambda value: value.lower() == wanted.lower()


def _like(wanted: str) -> Callable[[str], bool]:
    pattern = _wildcards(wanted)
    return lambda value: pattern.match(value) is not None


def _arn_like(wanted: str) -> Callable[[str], bool]:
    """Matches each of the six parts separately: a wildcard does not match a colon, except in the last part."""
    patterns = [_wildcards(part) for part in wanted.split(":", 5)]
    if len(patterns) != 6:
        raise _NotUnderstood(wanted)

    def test(value: str) -> bool:
        parts = value.split(":", 5)
        return len(parts) == 6 and all(pattern.match(part) for pattern, part in zip(patterns, parts, strict=True))

    return test


def _boolean(wanted: str) -> bool:
    if wanted.lower() not in ("true", "false"):
        raise _NotUnderstood(wanted)
    return wanted.lower() == "true"


def _is(wanted: str) -> Callable[[str], bool]:
    expected = _boolean(wanted)
    return lambda value: value.lower() == ("true" if expected else "false")


def _network(wanted: str) -> Callable[[str], bool]:
    try:
        network: IPv4Network | IPv6Network = ip_network(wanted, strict=False)
    except ValueError:
        raise _NotUnderstood(wanted) from None

    def test(value: str) -> bool:
        try:
            address = ip_address(value)
        except ValueError:
            return False
        return (getattr(address, "ipv4_mapped", None) or address) in network

    return test


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?\d{1,30}(\.\d{1,30})?", text) else None


_DATE: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?:Z|([+-])(\d\d):?(\d\d))?)?\Z", re.ASCII
)


def _moment(text: str) -> float | None:
    """Seconds since 1970, from ISO 8601 or a number."""
    match = _DATE.match(text)
    if match is None:
        return _number(text)
    *parts, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    offset = (int(hours or 0) * 60 + int(minutes or 0)) * 60
    if not (year and 1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and minute <= 59 and second <= 60):
        return None
    return timegm((year, month, day, hour, minute, second)) - (-offset if sign == "-" else offset)


def _compared(
    read: Callable[[str], float | None], holds: Callable[[float, float], bool]
) -> Callable[[str], Callable[[str], bool]]:
    def make(wanted: str) -> Callable[[str], bool]:
        limit = read(wanted)
        if limit is None:
            raise _NotUnderstood(wanted)

        def test(value: str) -> bool:
            number = read(value)
            return number is not None and holds(number, limit)

        return test

    return make


_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "equals": eq,
    "lessthan": lt,
    "lessthanequals": le,
    "greaterthan": gt,
    "greaterthanequals": ge,
}
# An operator's name in lower case, to the maker of its test.
_TESTS: Final[Mapping[str, Callable[[str], Callable[[str], bool]]]] = {
    "stringequals": _equal,
    "stringequalsignorecase": _equal_ignoring_case,
    "stringlike": _like,
    "arnequals": _arn_like,
    "arnlike": _arn_like,
    "bool": _is,
    "ipaddress": _network,
    **{f"numeric{name}": _compared(_number, holds) for name, holds in _COMPARISONS.items()},
    **{f"date{name}": _compared(_moment, holds) for name, holds in _COMPARISONS.items()},
}
_NEGATIONS: Final[Mapping[str, str]] = {
    "stringnotequals": "stringequals",
    "stringnotequalsignorecase": "stringequalsignorecase",
    "stringnotlike": "stringlike",
    "arnnotequals": "arnequals",
    "arnnotlike": "arnlike",
    "notipaddress": "ipaddress",
    "numericnotequals": "numericequals",
    "datenotequals": "dateequals",
}
