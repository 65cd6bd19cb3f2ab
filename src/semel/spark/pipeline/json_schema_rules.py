"""The rules of a JSON Schema about values: each becomes a condition in Spark's SQL, `{0}` in it standing for the value.

`rules_for` is pure: a type and the keywords beside it in, conditions with names out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal as Number
from typing import Any, Final, NamedTuple

from semel.spark.pipeline.schema import Array, Decimal, Kind, Map, Plain, SchemaError, Type, literal

_UUID: Final = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_SHOWN: Final = 60


class Rule(NamedTuple):
    """`name` follows the field's path: "must be at least 0"."""

    name: str
    check: str


Maker = Callable[[Any, Type], Rule]


def _bound(words: str, operator: str) -> Maker:
    def make(value: Any, kind: Type) -> Rule:
        return Rule(f"must be {words} {value}", f"{{0}} {operator} {_number(value, kind)}")

    return make


def _length(words: str, operator: str, measure: str, unit: str) -> Maker:
    def make(value: Any, _kind: Type) -> Rule:
        if type(value) is not int or value < 0:
            raise ValueError("a whole number is needed")
        return Rule(f"must have {words} {value} {unit}", f"{measure}({{0}}) {operator} {value}")

    return make


def _pattern(value: Any, _kind: Type) -> Rule:
    if not isinstance(value, str):
        raise ValueError("a regular expression is a text")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    return Rule(f"must match {_short(value)}", f"{{0}} RLIKE {_braced(literal(value))}")


def _enum(values: Any, kind: Type) -> Rule:
    if not isinstance(values, list) or not values:
        raise ValueError("a list of values is needed")
    some = [value for value in values if value is not None]
    words = ", ".join(value if isinstance(value, str) else json.dumps(value) for value in some)
    return Rule(f"must be one of {_short(words)}", f"{{0}} IN ({', '.join(_value(value, kind) for value in some)})")


def _const(value: Any, kind: Type) -> Rule:
    return Rule(f"must be {_short(json.dumps(value))}", f"{{0}} = {_value(value, kind)}")


def _multiple(value: Any, kind: Type) -> Rule:
    if type(value) is not int or value < 1 or not _is(kind, Kind.LONG, Kind.INT, Kind.SHORT, Kind.BYTE):
        raise ValueError('it is understood for integers; for money use "x-sql-type": "DECIMAL(12,2)"')
    return Rule(f"must be a multiple of {value}", f"{{0}} % {value} = 0")


def _unique(value: Any, kind: Type) -> Rule | None:
    if value is not True:
        return None
    if isinstance(kind, Array) and isinstance(kind.element, Map):
        raise ValueError("maps cannot be compared")
    return Rule("must have no element twice", "size(array_distinct({0})) = size({0})")


def _uuid(value: Any, _kind: Type) -> Rule | None:
    return Rule("must be a UUID", f"{{0}} RLIKE {_braced(literal(_UUID))}") if value == "uuid" else None


# keyword: for which JSON types it is there, and what makes the condition.
RULES: Final[dict[str, tuple[tuple[str, ...], Callable[[Any, Type], Rule | None]]]] = {
    "enum": (("string", "integer", "number", "boolean"), _enum),
    "const": (("string", "integer", "number", "boolean"), _const),
    "minimum": (("integer", "number"), _bound("at least", ">=")),
    "maximum": (("integer", "number"), _bound("at most", "<=")),
    "exclusiveMinimum": (("integer", "number"), _bound("more than", ">")),
    "exclusiveMaximum": (("integer", "number"), _bound("less than", "<")),
    "multipleOf": (("integer", "number"), _multiple),
    "pattern": (("string",), _pattern),
    "minLength": (("string",), _length("at least", ">=", "char_length", "characters")),
    "maxLength": (("string",), _length("at most", "<=", "char_length", "characters")),
    "minItems": (("array",), _length("at least", ">=", "size", "elements")),
    "maxItems": (("array",), _length("at most", "<=", "size", "elements")),
    "uniqueItems": (("array",), _unique),
    "minProperties": (("object",), _length("at least", ">=", "size", "names")),
    "maxProperties": (("object",), _length("at most", "<=", "size", "names")),
}


def rules_for(named: str, kind: Type, schema: Mapping[str, Any], where: str) -> list[Rule]:
    """The conditions on a value of the JSON type `named`, held as `kind`. Raises SchemaError."""
    found = [_uuid(schema["format"], kind)] if _is(kind, Kind.STRING) and "format" in schema else []
    for keyword, (types, make) in RULES.items():
        if keyword not in schema:
            continue
        if named not in types:
            raise SchemaError(f"{where}: {keyword!r} says nothing about a {named}; take it out")
        if named == "string" and not _is(kind, Kind.STRING):
            raise SchemaError(
                f"{where}: {keyword!r} is about the text, and this becomes another type; take one of the two out"
            )
        if named == "object" and not isinstance(kind, Map):
            raise SchemaError(f"{where}: {keyword!r} is not understood beside properties; use required")
        try:
            found.append(make(schema[keyword], kind))
        except ValueError as error:
            raise SchemaError(f"{where}: {keyword} {json.dumps(schema[keyword])[:_SHOWN]}: {error}") from None
    return [rule for rule in found if rule is not None]


def _is(kind: Type, *kinds: Kind) -> bool:
    return isinstance(kind, Plain) and kind.kind in kinds


def _number(value: Any, kind: Type) -> str:
    if type(value) not in (int, float):
        raise ValueError("a number is needed")
    if isinstance(kind, Decimal) or type(value) is int:
        return f"{Number(str(value)):f}{'BD' if isinstance(kind, Decimal) else ''}"
    return f"CAST('{value!r}' AS DOUBLE)"


def _value(value: Any, kind: Type) -> str:
    match value:
        case bool() if _is(kind, Kind.BOOLEAN):
            return "true" if value else "false"
        case str() if _is(kind, Kind.STRING):
            return _braced(literal(value))
        case int() | float() if not isinstance(value, bool) and not _is(kind, Kind.BOOLEAN, Kind.STRING):
            return _number(value, kind)
    raise ValueError("a value of another type than the field's can never be there")


def _braced(text: str) -> str:
    """`format` is used on conditions."""
    return text.replace("{", "{{").replace("}", "}}")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
