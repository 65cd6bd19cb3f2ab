"""Schemas, as DDL and as JSON Schema: one tree gives Spark's and Arrow's schema, and nothing is dropped silently."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from semel.spark.pipeline import body_schema, ddl, json_schema
from semel.spark.pipeline.body_schema import COMMENT, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = """
    id STRING NOT NULL COMMENT 'it''s the order\\'s', amount DECIMAL(12, 2), n TINYINT, small SMALLINT, i INTEGER,
    l LONG, f REAL, d DOUBLE, ok BOOLEAN, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, `odd ``name`` 1` BINARY,
    lines ARRAY<STRUCT<sku: STRING NOT NULL, prices: MAP<STRING, ARRAY<DECIMAL>>>> NOT NULL
"""


def test_every_type_of_a_ddl_is_read() -> None:
    fields = {field.name: field for field in ddl.parse(ORDER)}
    expected = pa.field("id", pa.string(), nullable=False, metadata={COMMENT: "it's the order's"})
    assert fields["id"].equals(expected, check_metadata=True)
    assert fields["amount"].type == pa.decimal128(12, 2)
    assert fields["at"].type == pa.timestamp("us", tz="UTC")
    assert fields["local"].type == pa.timestamp("us")
    assert fields["odd `name` 1"].type == pa.binary()
    prices = pa.map_(pa.string(), pa.list_(pa.decimal128(10, 0)))
    line = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("prices", prices)])
    assert fields["lines"] == pa.field("lines", pa.list_(line), nullable=False)


def test_spark_reads_the_same_from_a_ddl(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    text = ORDER.replace("COMMENT 'it''s the order\\'s'", "") + ", unique: INT, select INT, case INT, constraint INT"
    assert from_arrow_schema(pa.schema(ddl.parse(text))) == StructType.fromDDL(text)


def test_a_schema_survives_the_checkpoint() -> None:
    for fields in (ddl.parse(ORDER), json_schema.parse(json.dumps(ORDER_SCHEMA)).fields):
        assert body_schema.decode(json.loads(json.dumps(body_schema.encode(fields)))) == fields


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a field's name is missing, and the text ends"),
        ("id", "the type of field 'id' is missing"),
        ("id STRNG", "field 'id': there is no type STRNG; did you mean STRING?"),
        ("id STRING,", "a field's name is missing"),
        ("id STRING n INT", "after the type of 'id' a comma should follow, and there is 'n' at character 11"),
        ("id STRING; n INT", "';' at character 10"),
        ("id VARCHAR(3)", "the type VARCHAR is not possible for a field of a JSON body; use STRING"),
        ("id INTERVAL", "the type INTERVAL is not possible"),
        ("id TEXT", "the type TEXT is not possible for a field of a JSON body; use STRING"),
        ("id DATETIME", "the type DATETIME is not possible for a field of a JSON body; use TIMESTAMP"),
        ("id DECIMAL(39, 1)", "DECIMAL(39,1) is not possible: precision is 1 to 38"),
        ("id DECIMAL(3, 4)", "DECIMAL(3,4) is not possible"),
        ("id INT(3)", "INT has no length"),
        ("id ARRAY", "'<' is missing after ARRAY"),
        ("id ARRAY<INT", "'>' is missing after the type of an ARRAY's elements"),
        ("id MAP<INT, INT>", "the keys of a MAP are STRING"),
        ("id STRUCT<x: INT, y: FOO>", "field 'y': there is no type FOO"),
        ("unique INT, select INT, case INT, a$ INT", "'$' at character 36"),
        ("id INT DEFAULT 3", "field 'id': DEFAULT is not possible here"),
        ("id INT COMMENT x", "the comment of field 'id' should be in quotes"),
        ("id INT, ID STRING", "fields 'id' and 'ID' are one name in SQL"),
        ("s STRUCT<x: INT, X: INT>", "fields 's.x' and 's.X' are one name"),
        ("_semel_w INT", "names that begin with _semel are Semel's own"),
        (f"a {'ARRAY<' * 40}INT{'>' * 40}", "more than 30 types within each other"),
    ],
)
def test_a_mistake_in_a_ddl_is_named(text: str, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        ddl.parse(text)
    assert said in str(raised.value)


# JSON Schema.

ORDER_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Order",
    "type": "object",
    "required": ["id", "lines"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "maxLength": 36, "pattern": "^[a-z]{2}'", "description": "its number"},
        "amount": {"type": "number", "x-sql-type": "DECIMAL(12,2)", "exclusiveMinimum": 0},
        "count": {"type": ["integer", "null"], "minimum": 1, "multipleOf": 5},
        "country": {"enum": ["DE", "FR", None]},
        "placed": {"type": "string", "format": "date-time"},
        "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
        "tags": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
    },
    "$defs": {
        "line": {
            "type": "object",
            "required": ["sku"],
            "properties": {"sku": {"type": "string"}, "qty": {"type": "integer", "minimum": 1}},
        }
    },
}


def test_a_json_schema_becomes_fields_and_constraints_with_names() -> None:
    read = json_schema.parse(json.dumps(ORDER_SCHEMA))
    assert body_schema.ddl(read.fields).replace("`", "") == (
        "id STRING NOT NULL, amount DECIMAL(12,2), count BIGINT, country STRING, placed TIMESTAMP, day DATE, "
        "lines ARRAY<STRUCT<sku: STRING NOT NULL, qty: BIGINT>> NOT NULL, tags MAP<STRING, STRING>"
    )
    assert read.closed
    assert read.fields[0].metadata == {COMMENT: b"its number"}
    assert [(constraint.name, constraint.field) for constraint in read.constraints] == [
        ("id must match ^[a-z]{2}'", "id"),
        ("id must have at most 36 characters", "id"),
        ("amount must be more than 0", "amount"),
        ("count must be at least 1", "count"),
        ("count must be a multiple of 5", "count"),
        ("country must be one of DE, FR", "country"),
        ("lines[].qty must be at least 1", "lines[].qty"),
        ("lines must have at least 1 elements", "lines"),
        ("tags[] must have at most 3 characters", "tags[]"),
    ]


def of_field(schema: Any, **more: Any) -> str:
    return json.dumps({"type": "object", "properties": {"a": schema}, **more})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"oneOf": [{"type": "string"}]}, "a: 'oneOf' is not understood here; a column has one type"),
        ({"allOf": []}, "a: 'allOf' is not understood here; write its parts as one schema"),
        ({"not": {}}, "a: 'not' is not understood here; write it as a constraint in SQL"),
        ({"type": "string", "contentMediaType": "x"}, "a: 'contentMediaType' is not understood here"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "a: anyOf is not understood here; only one type"),
        ({"type": ["string", "integer"]}, "a: a column has one type (and may be null): choose one of"),
        ({"type": "strin"}, "a: say its type: one of string, integer"),
        ({}, "a: say its type"),
        (True, "a: true is no schema for a column"),
        ({"type": "object"}, 'a: say what is in the object: "properties"'),
        ({"type": "array"}, "a: say what is in the array"),
        (
            {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
            "a: an object has fields or is",
        ),
        ({"type": "string", "format": "email"}, "a: format 'email' of a string is not understood here"),
        ({"type": "string", "format": "date", "minLength": 3}, "a: 'minLength' is about the text"),
        ({"type": "string", "minimum": 3}, "a: 'minimum' says nothing about a string"),
        ({"type": "number", "multipleOf": 0.01}, "a: multipleOf 0.01: it is understood for integers; for money use"),
        ({"type": "string", "pattern": "("}, 'a: pattern "(": it is no regular expression'),
        ({"type": "string", "enum": [1]}, "a: enum [1]: a value of another type"),
        ({"type": "string", "x-sql-type": "INT"}, "a: x-sql-type INT does not go with the type 'string'"),
        ({"type": "number", "x-sql-type": "DECIMAL(99)"}, "a: x-sql-type: DECIMAL(99,0) is not possible"),
        ({"$ref": "other.json#/x"}, "a: $ref 'other.json#/x' is not in this file"),
        ({"$ref": "#/$defs/x"}, "a: $ref '#/$defs/x' leads nowhere"),
        ({"$ref": "#"}, "# refers to itself"),
        ({"type": "object", "properties": {"b": {"type": "null"}}}, "a.b: a column has one type"),
    ],
)
def test_what_a_json_schema_says_and_a_table_cannot_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        json_schema.parse(of_field(schema))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[]", "a JSON Schema is an object"),
        ('{"type": "string"}', "the body is an object with fields"),
        (of_field({"type": "string"}, required=["b"]), "'b' is required, and has no schema"),
        (of_field({"type": "string"}, required=["a", {}]), '"required" a list of names'),
    ],
)
def test_a_file_that_is_no_schema_of_a_body_is_refused(text: str, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        json_schema.parse(text)
    assert said in str(raised.value)
