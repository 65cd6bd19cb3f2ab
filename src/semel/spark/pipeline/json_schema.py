"""Reads a JSON Schema: its types become fields, its rules become constraints whose names say the field.

The rule: a keyword that is neither understood nor a mere remark is refused by its name. A schema that is understood
only in part would let values through that its author has forbidden.

Null and a missing field are the same here, as in a table: a field that is not required, or that may be null, may be
either. `integer` becomes BIGINT, `number` becomes DOUBLE; `"x-sql-type": "DECIMAL(12,2)"` beside the type chooses
another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from semel.spark.pipeline import ddl
from semel.spark.pipeline.body_schema import COMMENT, TYPES, Constraint, Fields, SchemaError, checked, close, literal
from semel.spark.sinks.table_schema import quoted

_REMARKS: Final = (
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly"),
)
_SHAPE: Final = (
    *("type", "properties", "required", "items", "additionalProperties", "format", "contentEncoding", "anyOf"),
    *("$ref", "nullable", "x-sql-type"),
)
_ADVICE: Final = {
    "allOf": "write its parts as one schema",
    "anyOf": "only one type, and null, can be told apart: choose one",
    "oneOf": "a column has one type: choose one",
    "not": "write it as a constraint in SQL, in [[schema.constraints]]",
    "if": "write it as a constraint in SQL, in [[schema.constraints]]",
    "patternProperties": "use additionalProperties with a schema: it becomes a MAP",
    "prefixItems": "use items: all elements of an array have one type",
    "$dynamicRef": "use $ref",
    "multipleOf": 'it is understood for integers; for money use "x-sql-type": "DECIMAL(12,2)"',
}
_TYPES: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS: Final = {
    ("string", "date-time"): TYPES["TIMESTAMP"],
    ("string", "date"): pa.date32(),
    ("string", "uuid"): pa.string(),
    ("integer", "int32"): pa.int32(),
    ("integer", "int64"): pa.int64(),
    ("number", "float"): pa.float32(),
    ("number", "double"): pa.float64(),
}
_EXACT: Final = {  # x-sql-type: the types that it may name for a JSON type
    "integer": (types.is_integer, types.is_decimal),
    "number": (types.is_floating, types.is_decimal),
    "string": (types.is_string, types.is_timestamp, types.is_date, types.is_binary, types.is_decimal),
    "boolean": (types.is_boolean,),
}
_UUID: Final = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_SHOWN: Final = 60
_MAX_DEPTH: Final = 30


@dataclass(frozen=True, slots=True)
class Read:
    """`closed`: the body may have no other fields."""

    fields: Fields
    constraints: tuple[Constraint, ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the body a schema applies: its path in texts, and how a condition on it becomes one on the row."""

    path: str
    sql: str
    whole: Callable[[str], str] = field(default=lambda condition: condition)
    depth: int = 0

    def member(self, name: str) -> _Place:
        path = f"{self.path}.{name}" if self.path else name
        sql = f"{self.sql}.{quoted(name)}" if self.sql else quoted(name)
        return _Place(path, sql, self.whole, self.depth + 1)

    def each(self, function: str) -> _Place:
        """Each element of an array, or each value of a map."""
        element, values = f"_semel_e{self.depth}", self.sql if function == "array" else f"map_values({self.sql})"
        outer = self.whole
        return _Place(
            f"{self.path}[]",
            element,
            lambda condition: outer(f"forall({values}, {element} -> {condition})"),
            self.depth + 1,
        )


def parse(text: str) -> Read:
    """Raises SchemaError."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    if not isinstance(root, dict):
        raise SchemaError("a JSON Schema is an object")
    try:
        return _Reader(root).read()
    except UnicodeEncodeError:
        raise SchemaError("it has half of a surrogate pair (\\ud800 to \\udfff), which is no character") from None
    except RecursionError:
        raise SchemaError("it is nested too deep to be read") from None


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._constraints: list[Constraint] = []

    def read(self) -> Read:
        body, _ = self._resolved(self._root, _Place("", ""), ())
        if _type_of(body, "the body") != "object" or "properties" not in body:
            raise SchemaError('the body is an object with fields: give it "type": "object" and "properties"')
        fields = checked(self._members(body, _Place("", ""), ()))
        return Read(fields, tuple(self._constraints), closed=body.get("additionalProperties") is False)

    def _resolved(
        self, schema: Any, place: _Place, references: tuple[str, ...]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The schema with $ref followed, and an anyOf of one type and null written out."""
        where = place.path or "the body"
        if not isinstance(schema, dict):
            raise SchemaError(f"{where}: {json.dumps(schema)} is no schema for a column; say its type")
        if place.depth > _MAX_DEPTH:
            raise SchemaError(f"{where}: more than {_MAX_DEPTH} schemas within each other")
        while "$ref" in schema:
            target = schema["$ref"]
            if target in references:
                raise SchemaError(f"{where}: {target} refers to itself, and a table's type must end; write it out")
            references = (*references, target)
            schema = {**self._target(target, where), **{k: v for k, v in schema.items() if k != "$ref"}}
        if "anyOf" in schema:
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            branch, references = self._resolved(_only_branch(schema["anyOf"], where), place, references)
            schema = {**branch, **rest, "nullable": True}
        _refuse_unknown(schema, where)
        return schema, references

    def _target(self, reference: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(f"{where}: $ref {reference!r} is not in this file; copy it into $defs")
        target: Any = self._root
        for part in filter(None, reference[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or name not in target:
                raise SchemaError(f"{where}: $ref {reference!r} leads nowhere; there is no {name!r}")
            target = target[name]
        if not isinstance(target, dict):
            raise SchemaError(f"{where}: $ref {reference!r} is no schema")
        return target

    def _members(self, schema: Mapping[str, Any], place: _Place, references: tuple[str, ...]) -> list[pa.Field]:
        where = place.path or "the body"
        properties, required = schema["properties"], schema.get("required", [])
        are_names = isinstance(required, list) and all(isinstance(name, str) for name in required)
        if not isinstance(properties, dict) or not are_names:
            raise SchemaError(f'{where}: "properties" is an object and "required" a list of names')
        if missing := [name for name in required if name not in properties]:
            raise SchemaError(f"{where}: {', '.join(map(repr, missing))} is required, and has no schema in properties")
        if not isinstance(schema.get("additionalProperties", True), bool):
            raise SchemaError(
                f"{where}: an object has fields or is a map: properties or additionalProperties, not both"
            )
        return [
            self._field(name, inner, place.member(name), references, required=name in required)
            for name, inner in properties.items()
        ]

    def _field(self, name: str, schema: Any, place: _Place, references: tuple[str, ...], *, required: bool) -> pa.Field:
        schema, references = self._resolved(schema, place, references)
        comment = schema.get("description")
        metadata = {COMMENT: comment} if isinstance(comment, str) else None
        field = pa.field(name, self._type(schema, place, references), not required or _may_be_null(schema), metadata)
        return close(field) if schema.get("additionalProperties") is False else field

    def _type(self, schema: Mapping[str, Any], place: _Place, references: tuple[str, ...]) -> pa.DataType:
        where = place.path
        named = _type_of(schema, where)
        if named == "object":
            kind = self._object(schema, place, references)
        elif named == "array":
            if "items" not in schema:
                raise SchemaError(f'{where}: say what is in the array, as in "items": {{"type": "string"}}')
            kind = pa.list_(self._field("element", schema["items"], place.each("array"), references, required=True))
        else:
            kind = _scalar(named, schema, where)
        for rule in _rules(named, kind, schema, where):
            check = place.whole(f"({place.sql} IS NULL OR {rule.check.format(place.sql)})")
            # A null array or map has no element that could break a rule.
            self._constraints.append(Constraint(f"{where} {rule.name}", where, f"coalesce({check}, true)"))
        return kind

    def _object(self, schema: Mapping[str, Any], place: _Place, references: tuple[str, ...]) -> pa.DataType:
        if "properties" in schema:
            return pa.struct(self._members(schema, place, references))
        values = schema.get("additionalProperties")
        if not isinstance(values, dict):
            raise SchemaError(
                f'{place.path}: say what is in the object: "properties", or "additionalProperties" with the type that '
                "all its values have"
            )
        return pa.map_(pa.string(), self._field("value", values, place.each("map"), references, required=True))


def _only_branch(branches: Any, where: str) -> Any:
    if not isinstance(branches, list):
        raise SchemaError(f"{where}: anyOf is a list of schemas")
    real = [branch for branch in branches if branch != {"type": "null"}]
    if len(real) != 1 or len(real) == len(branches):
        raise SchemaError(f"{where}: anyOf is not understood here; {_ADVICE['anyOf']}")
    return real[0]


def _refuse_unknown(schema: Mapping[str, Any], where: str) -> None:
    known = {*_REMARKS, *_SHAPE, *_RULES}
    for keyword in schema:
        if keyword not in known and not (keyword.startswith("x-") and keyword != "x-sql-type"):
            advice = _ADVICE.get(keyword, "take it out, or write it as a constraint in SQL, in [[schema.constraints]]")
            raise SchemaError(f"{where}: {keyword!r} is not understood here; {advice}")


def _type_of(schema: Mapping[str, Any], where: str) -> str:
    """The one type beside null that a schema allows."""
    named = schema.get("type")
    if named is None:
        named = "object" if "properties" in schema else "array" if "items" in schema else _of_values(schema)
    names = [name for name in (named if isinstance(named, list) else [named]) if name != "null"]
    if len(names) != 1:
        raise SchemaError(f"{where}: a column has one type (and may be null): choose one of {named!r}")
    if names[0] not in (*_TYPES, "object", "array"):
        raise SchemaError(f"{where}: say its type: one of {', '.join(_TYPES)}, object, array")
    return str(names[0])


def _of_values(schema: Mapping[str, Any]) -> str | None:
    """The type of an enum or const without a type."""
    values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kinds = {names.get(type(value)) for value in values}
    return kinds.pop() if len(kinds) == 1 else None


def _may_be_null(schema: Mapping[str, Any]) -> bool:
    named = schema.get("type")
    return (
        (isinstance(named, list) and "null" in named)
        or schema.get("nullable") is True
        or None in schema.get("enum", ())
    )


def _scalar(named: str, schema: Mapping[str, Any], where: str) -> pa.DataType:
    kind = _TYPES[named]
    if "format" in schema:
        format_ = schema["format"]
        kind = _FORMATS.get((named, format_)) if isinstance(format_, str) else None
        if kind is None:
            raise SchemaError(
                f"{where}: format {format_!r} of a {named} is not understood here; possible are date-time, date and "
                "uuid. Take it out, or say the same as a pattern"
            )
    if "contentEncoding" in schema:
        if named != "string" or schema["contentEncoding"] != "base64":
            raise SchemaError(f"{where}: contentEncoding is understood as base64 of a string; take it out")
        kind = pa.binary()
    return _exact(named, schema["x-sql-type"], where) if schema.get("x-sql-type") is not None else kind


def _exact(named: str, exact: Any, where: str) -> pa.DataType:
    if not isinstance(exact, str):
        raise SchemaError(f"{where}: x-sql-type is a text such as 'DECIMAL(12,2)'")
    try:
        kind = ddl.parse_type(exact)
    except SchemaError as error:
        raise SchemaError(f"{where}: x-sql-type: {error}") from None
    if not any(fits(kind) for fits in _EXACT[named]):
        raise SchemaError(f"{where}: x-sql-type {exact} does not go with the type {named!r}")
    return kind


# Rules about values: each becomes a condition in Spark's SQL, in which `{0}` stands for the value.


class _Rule(NamedTuple):
    """`name` follows the field's path: "must be at least 0"."""

    name: str
    check: str


_Maker = Callable[[Any, pa.DataType], _Rule | None]


def _bound(words: str, operator: str) -> _Maker:
    return lambda value, kind: _Rule(f"must be {words} {value}", f"{{0}} {operator} {_number(value, kind)}")


def _length(words: str, operator: str, measure: str, unit: str) -> _Maker:
    def make(value: Any, _kind: pa.DataType) -> _Rule:
        if type(value) is not int or value < 0:
            raise ValueError("a whole number is needed")
        return _Rule(f"must have {words} {value} {unit}", f"{measure}({{0}}) {operator} {value}")

    return make


def _pattern(value: Any, _kind: pa.DataType) -> _Rule:
    if not isinstance(value, str):
        raise ValueError("a regular expression is a text")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    return _Rule(f"must match {_short(value)}", f"{{0}} RLIKE {_braced(literal(value))}")


def _enum(values: Any, kind: pa.DataType) -> _Rule:
    if not isinstance(values, list) or not values:
        raise ValueError("a list of values is needed")
    allowed = [value for value in values if value is not None]
    words = ", ".join(value if isinstance(value, str) else json.dumps(value) for value in allowed)
    return _Rule(f"must be one of {_short(words)}", f"{{0}} IN ({', '.join(_value(value, kind) for value in allowed)})")


def _const(value: Any, kind: pa.DataType) -> _Rule:
    return _Rule(f"must be {_short(json.dumps(value))}", f"{{0}} = {_value(value, kind)}")


def _multiple(value: Any, kind: pa.DataType) -> _Rule:
    if type(value) is not int or value < 1 or not types.is_integer(kind):
        raise ValueError('it is understood for integers; for money use "x-sql-type": "DECIMAL(12,2)"')
    return _Rule(f"must be a multiple of {value}", f"{{0}} % {value} = 0")


def _unique(value: Any, kind: pa.DataType) -> _Rule | None:
    if value is not True:
        return None
    if types.is_map(kind.value_type):
        raise ValueError("maps cannot be compared")
    return _Rule("must have no element twice", "size(array_distinct({0})) = size({0})")


# keyword: the JSON types that it is for, and the function that makes its condition.
_RULES: Final[dict[str, tuple[tuple[str, ...], _Maker]]] = {
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


def _rules(named: str, kind: pa.DataType, schema: Mapping[str, Any], where: str) -> Iterator[_Rule]:
    """The conditions on a value of the JSON type `named`, held as `kind`. Raises SchemaError."""
    if types.is_string(kind) and schema.get("format") == "uuid":
        yield _Rule("must be a UUID", f"{{0}} RLIKE {_braced(literal(_UUID))}")
    for keyword, (json_types, make) in _RULES.items():
        if keyword not in schema:
            continue
        if named not in json_types:
            raise SchemaError(f"{where}: {keyword!r} says nothing about a {named}; take it out")
        if named == "string" and not types.is_string(kind):
            raise SchemaError(
                f"{where}: {keyword!r} is about the text, and this becomes another type; take one of the two out"
            )
        if named == "object" and not types.is_map(kind):
            raise SchemaError(f"{where}: {keyword!r} is not understood beside properties; use required")
        try:
            rule = make(schema[keyword], kind)
        except ValueError as error:
            raise SchemaError(f"{where}: {keyword} {json.dumps(schema[keyword])[:_SHOWN]}: {error}") from None
        if rule is not None:
            yield rule


def _number(value: Any, kind: pa.DataType) -> str:
    if type(value) not in (int, float):
        raise ValueError("a number is needed")
    if types.is_decimal(kind) or type(value) is int:
        return f"{Decimal(str(value)):f}{'BD' if types.is_decimal(kind) else ''}"
    return f"CAST('{value!r}' AS DOUBLE)"


def _value(value: Any, kind: pa.DataType) -> str:
    match value:
        case bool() if types.is_boolean(kind):
            return "true" if value else "false"
        case str() if types.is_string(kind):
            return _braced(literal(value))
        case int() | float() if not isinstance(value, bool) and not (types.is_boolean(kind) or types.is_string(kind)):
            return _number(value, kind)
    raise ValueError("a value of another type than the field's can never be there")


def _braced(text: str) -> str:
    """Escapes braces: `format` is applied to conditions."""
    return text.replace("{", "{{").replace("}", "}}")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
