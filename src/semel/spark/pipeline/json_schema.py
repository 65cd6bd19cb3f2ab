"""Reads a JSON Schema: its types become fields, its rules become constraints whose names say the field.

The rule: a keyword that is neither understood nor a mere remark is refused by its name. A schema that is only half
looked at would let through what its author forbade.

Null and a missing field are the same thing here, as they are in a table: what is not required, or may be null, may be
both. `integer` is BIGINT, `number` is DOUBLE; `"x-sql-type": "DECIMAL(12,2)"` beside the type says it more exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.spark.pipeline import ddl
from semel.spark.pipeline.json_schema_rules import RULES, Rule, rules_for
from semel.spark.pipeline.schema import (
    Array,
    Constraint,
    Decimal,
    Field,
    Kind,
    Map,
    Plain,
    SchemaError,
    Struct,
    Type,
    checked,
    quoted,
)

_REMARKS: Final = frozenset(
    {
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)
_SHAPE: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "format",
        "contentEncoding",
        "anyOf",
        "$ref",
        "nullable",
        "x-sql-type",
    }
)
_WAYS_OUT: Final = {
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
_FORMATS: Final = {"date-time": Kind.TIMESTAMP, "date": Kind.DATE}
_TYPES: Final[dict[str, Type]] = {
    "string": Plain(Kind.STRING),
    "integer": Plain(Kind.LONG),
    "number": Plain(Kind.DOUBLE),
    "boolean": Plain(Kind.BOOLEAN),
}
_FITTING: Final = {  # x-sql-type: which JSON types it may stand beside
    "integer": (Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG),
    "number": (Kind.FLOAT, Kind.DOUBLE),
    "string": (Kind.STRING, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.DATE, Kind.BINARY),
    "boolean": (Kind.BOOLEAN,),
}
_DEEPEST: Final = 30


@dataclass(frozen=True, slots=True)
class Read:
    """`closed`: the object itself may have no other fields."""

    fields: tuple[Field, ...]
    constraints: tuple[Constraint, ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the body a schema applies: its path for people, and how a condition on it becomes one on the row."""

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
        one, values = f"_semel_e{self.depth}", self.sql if function == "array" else f"map_values({self.sql})"
        outer = self.whole
        return _Place(
            f"{self.path}[]",
            one,
            lambda condition: outer(f"forall({values}, {one} -> {condition})"),
            self.depth + 1,
        )


def parse(text: str) -> Read:
    """Raises SchemaError."""
    try:
        root = json.loads(text)
    except json.JSONDecodeError as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    if not isinstance(root, dict):
        raise SchemaError("a JSON Schema is an object")
    return _Reader(root).read()


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._constraints: list[Constraint] = []

    def read(self) -> Read:
        found, _ = self._resolved(self._root, _Place("", ""), ())
        if _type_of(found, "the body") != "object" or "properties" not in found:
            raise SchemaError('the body is an object with fields: give it "type": "object" and "properties"')
        struct = self._struct(found, _Place("", ""), ())
        return Read(checked(struct.fields), tuple(self._constraints), struct.closed)

    def _resolved(self, schema: Any, place: _Place, seen: tuple[str, ...]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The schema with $ref followed, and an anyOf of one type and null written out."""
        where = place.path or "the body"
        if not isinstance(schema, dict):
            raise SchemaError(f"{where}: {json.dumps(schema)} is no schema for a column; say its type")
        if place.depth > _DEEPEST:
            raise SchemaError(f"{where}: more than {_DEEPEST} schemas within each other")
        while "$ref" in schema:
            target = schema["$ref"]
            if target in seen:
                raise SchemaError(f"{where}: {target} refers to itself, and a table's type must end; write it out")
            seen = (*seen, target)
            schema = {**self._target(target, where), **{k: v for k, v in schema.items() if k != "$ref"}}
        if "anyOf" in schema:
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            branch, seen = self._resolved(_only_branch(schema["anyOf"], where), place, seen)
            schema = {**branch, **rest, "nullable": True}
        _refuse_unknown(schema, where)
        return schema, seen

    def _target(self, reference: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(f"{where}: $ref {reference!r} is not in this file; copy it into $defs")
        found: Any = self._root
        for part in filter(None, reference[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise SchemaError(f"{where}: $ref {reference!r} leads nowhere; there is no {name!r}")
            found = found[name]
        if not isinstance(found, dict):
            raise SchemaError(f"{where}: $ref {reference!r} is no schema")
        return found

    def _struct(self, schema: Mapping[str, Any], place: _Place, seen: tuple[str, ...]) -> Struct:
        where = place.path or "the body"
        properties, required = schema["properties"], schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise SchemaError(f'{where}: "properties" is an object and "required" a list of names')
        if missing := [name for name in required if name not in properties]:
            raise SchemaError(f"{where}: {', '.join(map(repr, missing))} is required, and has no schema in properties")
        others = schema.get("additionalProperties", True)
        if not isinstance(others, bool):
            raise SchemaError(
                f"{where}: an object has fields or is a map: properties or additionalProperties, not both"
            )
        fields = [
            self._field(name, found, place.member(name), seen, required=name in required)
            for name, found in properties.items()
        ]
        return Struct(tuple(fields), closed=not others)

    def _field(self, name: str, schema: Any, place: _Place, seen: tuple[str, ...], *, required: bool) -> Field:
        found, seen = self._resolved(schema, place, seen)
        kind = self._type(found, place, seen)
        comment = found.get("description", "")
        return Field(name, kind, not required or _may_be_null(found), comment if isinstance(comment, str) else "")

    def _type(self, schema: Mapping[str, Any], place: _Place, seen: tuple[str, ...]) -> Type:
        where = place.path
        named = _type_of(schema, where)
        kind: Type
        if named == "object":
            kind = self._object(schema, place, seen)
        elif named == "array":
            if "items" not in schema:
                raise SchemaError(f'{where}: say what is in the array, as in "items": {{"type": "string"}}')
            element, nullable = self._inner(schema["items"], place.each("array"), seen)
            kind = Array(element, nullable)
        else:
            kind = _scalar(named, schema, where)
        self._add(rules_for(named, kind, schema, where), place)
        return kind

    def _object(self, schema: Mapping[str, Any], place: _Place, seen: tuple[str, ...]) -> Type:
        if "properties" in schema:
            return self._struct(schema, place, seen)
        values = schema.get("additionalProperties")
        if not isinstance(values, dict):
            raise SchemaError(
                f'{place.path}: say what is in the object: "properties", or "additionalProperties" with the type that '
                "all its values have"
            )
        value, nullable = self._inner(values, place.each("map"), seen)
        return Map(value, nullable)

    def _inner(self, schema: Any, place: _Place, seen: tuple[str, ...]) -> tuple[Type, bool]:
        found, seen = self._resolved(schema, place, seen)
        return self._type(found, place, seen), _may_be_null(found)

    def _add(self, rules: list[Rule], place: _Place) -> None:
        for rule in rules:
            check = place.whole(f"({place.sql} IS NULL OR {rule.check.format(place.sql)})")
            # Of a null array or map there is no element that could break a rule.
            self._constraints.append(Constraint(f"{place.path} {rule.name}", place.path, f"coalesce({check}, true)"))


def _only_branch(branches: Any, where: str) -> Any:
    if not isinstance(branches, list):
        raise SchemaError(f"{where}: anyOf is a list of schemas")
    real = [one for one in branches if one != {"type": "null"}]
    if len(real) != 1 or len(real) == len(branches):
        raise SchemaError(f"{where}: anyOf is not understood here; {_WAYS_OUT['anyOf']}")
    return real[0]


def _refuse_unknown(schema: Mapping[str, Any], where: str) -> None:
    known = _REMARKS | _SHAPE | RULES.keys()
    for keyword in schema:
        if keyword not in known and not (keyword.startswith("x-") and keyword != "x-sql-type"):
            way_out = _WAYS_OUT.get(
                keyword, "take it out, or write it as a constraint in SQL, in [[schema.constraints]]"
            )
            raise SchemaError(f"{where}: {keyword!r} is not understood here; {way_out}")


def _type_of(schema: Mapping[str, Any], where: str) -> str:
    """The one type beside null that a schema allows."""
    given = schema.get("type")
    if given is None:
        given = "object" if "properties" in schema else "array" if "items" in schema else _of_values(schema)
    names = [name for name in (given if isinstance(given, list) else [given]) if name != "null"]
    if len(names) != 1:
        raise SchemaError(f"{where}: a column has one type (and may be null): choose one of {given!r}")
    if names[0] not in (*_TYPES, "object", "array"):
        raise SchemaError(f"{where}: say its type: one of {', '.join(_TYPES)}, object, array")
    return str(names[0])


def _of_values(schema: Mapping[str, Any]) -> str | None:
    """The type of an enum or const that names none."""
    values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    found = {names.get(type(value)) for value in values}
    return found.pop() if len(found) == 1 else None


def _may_be_null(schema: Mapping[str, Any]) -> bool:
    given = schema.get("type")
    return (
        (isinstance(given, list) and "null" in given)
        or schema.get("nullable") is True
        or None in schema.get("enum", ())
    )


def _scalar(named: str, schema: Mapping[str, Any], where: str) -> Type:
    kind: Type = _TYPES[named]
    if "format" in schema:
        kind = _formatted(named, schema["format"], kind, where)
    if "contentEncoding" in schema:
        if named != "string" or schema["contentEncoding"] != "base64":
            raise SchemaError(f"{where}: contentEncoding is understood as base64 of a string; take it out")
        kind = Plain(Kind.BINARY)
    exact = schema.get("x-sql-type")
    return kind if exact is None else _exact(named, exact, where)


def _formatted(named: str, given: Any, kind: Type, where: str) -> Type:
    if named == "string" and given in _FORMATS:
        return Plain(_FORMATS[given])
    if named == "string" and given == "uuid":
        return kind
    if (named, given) in (("integer", "int32"), ("integer", "int64"), ("number", "float"), ("number", "double")):
        return Plain({"int32": Kind.INT, "int64": Kind.LONG, "float": Kind.FLOAT, "double": Kind.DOUBLE}[given])
    raise SchemaError(
        f"{where}: format {given!r} of a {named} is not understood here; possible are date-time, date and uuid. "
        "Take it out, or say the same as a pattern"
    )


def _exact(named: str, exact: Any, where: str) -> Type:
    if not isinstance(exact, str):
        raise SchemaError(f"{where}: x-sql-type is a text such as 'DECIMAL(12,2)'")
    try:
        kind = ddl.parse_type(exact)
    except SchemaError as error:
        raise SchemaError(f"{where}: x-sql-type: {error}") from None
    fits = (
        named in ("number", "integer", "string")
        if isinstance(kind, Decimal)
        else isinstance(kind, Plain) and kind.kind in _FITTING[named]
    )
    if not fits:
        raise SchemaError(f"{where}: x-sql-type {exact} does not go with the type {named!r}")
    return kind
