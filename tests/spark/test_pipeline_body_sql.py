"""Bodies become rows, or rejects with their reason and field. No value is changed to fit, and no body stops a batch."""

from __future__ import annotations

import datetime
import decimal
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semel.spark.pipeline import body_sql, ddl, json_schema
from semel.spark.pipeline.body_schema import Constraint, closed
from semel.spark.pipeline.config import (
    Extra,
    HandlerSpec,
    ParquetSpec,
    Pipeline,
    PipelineFileError,
    SchemaSpec,
    SourceSpec,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime.datetime(2024, 5, 1, 12, 0, 0)
SOURCE = (
    "message_id STRING, body STRING, key STRING, group_id STRING, dedup_id STRING, sequence_number STRING, "
    "sent_at TIMESTAMP, first_received_at TIMESTAMP, received_at TIMESTAMP, receive_count INT, "
    "attributes MAP<STRING, STRING>, queue STRING"
)
EVERYTHING = """
    id STRING, amount DECIMAL(12,2), n INT, tiny TINYINT, small SMALLINT, big BIGINT, f FLOAT, d DOUBLE, ok BOOLEAN,
    day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, bytes BINARY, place STRUCT<x: INT, name: STRING NOT NULL>,
    numbers ARRAY<INT>, texts ARRAY<STRING>, counts MAP<STRING, INT>,
    lines ARRAY<STRUCT<sku: STRING NOT NULL, qty: INT>>
"""


def source(spark: SparkSession, bodies: list[str], key: str | None = "k") -> DataFrame:
    rows = [
        (f"m{n}", body, key, "g", None, "7", NOW, NOW, NOW, 1, {"a": "b"}, "orders") for n, body in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, SOURCE)


def pipeline(text: str = EVERYTHING, **more: Any) -> Pipeline:
    return Pipeline("orders", "/c", SourceSpec(("orders",)), SchemaSpec(ddl.parse(text), **more), ParquetSpec("/t"))


def outcomes(spark: SparkSession, bodies: list[str], spec: Pipeline | None = None) -> list[Any]:
    rows = body_sql.parsed(source(spark, bodies), spec or pipeline()).collect()
    for row in rows:
        assert (row.row is None) == (row.reason is not None) == (row.message is not None)
    return rows


# What is good. One query for all: each case is a row of it.

GOOD: dict[str, dict[str, Any]] = {
    "{}": {},
    ' \n {"id": "a"}\t ': {"id": "a"},
    '{"id": null}': {"id": None},
    '{"id": "\\u00e9 \\ud83d\\ude00 \\u0000"}': {"id": "é 😀 \0"},
    '{"amount": 1.5}': {"amount": decimal.Decimal("1.50")},
    '{"amount": "1.50"}': {"amount": decimal.Decimal("1.50")},
    '{"amount": 1e5}': {"amount": decimal.Decimal("100000.00")},
    '{"amount": 9999999999.99}': {"amount": decimal.Decimal("9999999999.99")},
    '{"amount": 1.005}': {"amount": decimal.Decimal("1.01")},
    '{"n": -0}': {"n": 0},
    '{"tiny": -128}': {"tiny": -128},
    '{"big": 9223372036854775807}': {"big": 2**63 - 1},
    '{"d": 1}': {"d": 1.0},
    '{"f": 0.5}': {"f": 0.5},
    '{"day": "2024-02-29"}': {"day": datetime.date(2024, 2, 29)},
    '{"at": "2024-05-01T10:00:00Z"}': {"at": datetime.datetime(2024, 5, 1, 10)},
    '{"at": "2024-05-01T10:00:00.123456789Z"}': {"at": datetime.datetime(2024, 5, 1, 10, 0, 0, 123456)},
    '{"at": "2024-05-01 12:00:00+02:00"}': {"at": datetime.datetime(2024, 5, 1, 10)},
    '{"at": "2024-05-01T12:00:00+0200"}': {"at": datetime.datetime(2024, 5, 1, 10)},
    '{"at": "2024-05-01T10:00:00"}': {"at": datetime.datetime(2024, 5, 1, 10)},
    '{"at": "2024-05-01"}': {"at": datetime.datetime(2024, 5, 1)},
    '{"at": 1700000000}': {"at": datetime.datetime(2023, 11, 14, 22, 13, 20)},
    '{"local": "2024-05-01T10:00:00"}': {"local": datetime.datetime(2024, 5, 1, 10)},
    '{"bytes": "AAEC"}': {"bytes": b"\0\1\2"},
    '{"place": {"x": 1, "name": "p", "more": 5}}': {"place": (1, "p")},
    '{"numbers": [1, null]}': {"numbers": [1, None]},
    '{"texts": ["a", null]}': {"texts": ["a", None]},
    '{"texts": []}': {"texts": []},
    '{"counts": {"a": 1}}': {"counts": {"a": 1}},
    '{"lines": [{"sku": "a", "qty": 1}, null]}': {"lines": [("a", 1), None]},
    '{"id": "a", "id": "b"}': {"id": "b"},  # the last one counts, as for Python and JavaScript
    '{"ID": "a", "other": {"deep": [1]}}': {},
}


def test_good_bodies_become_rows(spark: SparkSession) -> None:
    for (body, expected), row in zip(GOOD.items(), outcomes(spark, list(GOOD)), strict=True):
        assert row.reason is None, (body, row.reason, row.field)
        values = {name: value for name, value in row.row.asDict().items() if value is not None}
        assert values == {name: value for name, value in expected.items() if value is not None}, body


BAD: dict[str, tuple[str, str | None]] = {
    "not JSON": ("not JSON", None),
    " ": ("not JSON", None),
    '{"id": "a"': ("not JSON", None),
    '{"id": "a",}': ("not JSON", None),
    "{'id': 'a'}": ("not JSON", None),
    '{id: "a"}': ("not JSON", None),
    '{"n": 01}': ("not JSON", None),
    '{"d": NaN}': ("not JSON", None),
    '{"id": "a\nb"}': ("not JSON", None),
    '\ufeff{"id": "a"}': ("not JSON", None),
    '/* */ {"id": "a"}': ("not JSON", None),
    '{"id": "a"} and more': ("not JSON", None),
    '{"id": "a"}{"id": "b"}': ("not JSON", None),
    '{"id": "a"}\n{"id": "b"}': ("not JSON", None),
    '{"id": "a"},{"id": "b"}': ("not JSON", None),
    '{"id": "a"}}': ("not JSON", None),
    '{"id":' * 3_000: ("not JSON", None),
    '{"other": 1' + "0" * 2_000 + "}": ("not JSON", None),
    "[1]": ("not a JSON object", None),
    "5": ("not a JSON object", None),
    '"{}"': ("not a JSON object", None),
    "null": ("not a JSON object", None),
    '{"id": 7}': ("wrong type: STRING expected", "id"),
    '{"id": {"x": 1}}': ("wrong type: STRING expected", "id"),
    '{"id": ' + "[" * 900 + "]" * 900 + "}": ("wrong type: STRING expected", "id"),
    '{"id": "\\ud800"}': ("not Unicode", "id"),
    '{"amount": 10000000000}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    '{"amount": 9999999999.995}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    '{"amount": 1e999999999}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    '{"amount": "12,50"}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    '{"amount": true}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    '{"amount": ""}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    '{"n": 2147483648}': ("wrong type: INT expected", "n"),
    '{"n": 1.0}': ("wrong type: INT expected", "n"),
    '{"n": "1"}': ("wrong type: INT expected", "n"),
    '{"tiny": 200}': ("wrong type: TINYINT expected", "tiny"),
    '{"small": 32768}': ("wrong type: SMALLINT expected", "small"),
    '{"big": 9223372036854775808}': ("wrong type: BIGINT expected", "big"),
    '{"f": 1e39}': ("wrong type: FLOAT expected", "f"),
    '{"d": 1e400}': ("wrong type: DOUBLE expected", "d"),
    '{"d": "NaN"}': ("wrong type: DOUBLE expected", "d"),
    '{"ok": 1}': ("wrong type: BOOLEAN expected", "ok"),
    '{"day": "2024-02-30"}': ("wrong type: DATE expected", "day"),
    '{"day": "20240101"}': ("wrong type: DATE expected", "day"),
    '{"day": 19000}': ("wrong type: DATE expected", "day"),
    '{"at": "yesterday"}': ("wrong type: TIMESTAMP expected", "at"),
    '{"at": "12:00:00"}': ("wrong type: TIMESTAMP expected", "at"),  # Spark takes it for noon of today
    '{"at": "12:00:00.12345678901Z"}': ("wrong type: TIMESTAMP expected", "at"),
    '{"at": "2024"}': ("wrong type: TIMESTAMP expected", "at"),
    '{"at": "2024-02-30T00:00:00Z"}': ("wrong type: TIMESTAMP expected", "at"),
    '{"at": "0000-01-01T00:00:00Z"}': ("wrong type: TIMESTAMP expected", "at"),
    '{"at": 1700000000000}': ("wrong type: TIMESTAMP expected", "at"),  # milliseconds: a year past 9999
    '{"at": 92233720368547758}': ("wrong type: TIMESTAMP expected", "at"),
    '{"at": true}': ("wrong type: TIMESTAMP expected", "at"),
    '{"local": "2024-05-01T10:00:00Z"}': ("wrong type: TIMESTAMP_NTZ expected", "local"),
    '{"bytes": "!!"}': ("wrong type: BINARY expected", "bytes"),
    '{"place": 5}': ("wrong type: STRUCT expected", "place"),
    '{"place": {"x": "y", "name": "p"}}': ("wrong type: INT expected", "place.x"),
    '{"place": {"x": 1, "name": 5}}': ("wrong type: STRING expected", "place.name"),
    '{"place": {"x": 1}}': ("missing", "place.name"),
    '{"numbers": [1, "x"]}': ("wrong type: ARRAY expected", "numbers"),
    '{"numbers": 5}': ("wrong type: ARRAY expected", "numbers"),
    '{"texts": ["a", 1]}': ("wrong type: STRING expected", "texts[]"),
    '{"counts": {"a": "x"}}': ("wrong type: MAP expected", "counts"),
    '{"counts": {"a": 1, "a": 2}}': ("a name twice", "counts"),
    '{"lines": [{"sku": "a", "qty": "1"}]}': ("wrong type: ARRAY expected", "lines"),
    '{"lines": [{"sku": "a"}, {"qty": 1}]}': ("missing", "lines[].sku"),
    '{"n": "x", "n": 1}': ("wrong type", None),
}


def test_bad_bodies_are_rejected_with_reason_field_and_the_message(spark: SparkSession) -> None:
    for number, ((body, expected), row) in enumerate(zip(BAD.items(), outcomes(spark, list(BAD)), strict=True)):
        assert (row.reason, row.field) == expected, body[:80]
        assert row.message.body == body
        assert row.message.message_id == f"m{number}"
        assert row.message.attributes == {"a": "b"}
        assert row.key == "k"


def test_a_body_of_a_mebibyte_is_read(spark: SparkSession) -> None:
    text = "x" * (1 << 20)
    (row,) = outcomes(spark, [json.dumps({"id": text})])
    assert row.row.id == text


def test_what_must_be_there_is(spark: SparkSession) -> None:
    spec = pipeline("id STRING NOT NULL, n INT NOT NULL")
    rows = outcomes(spark, ['{"id": "a", "n": 1}', '{"n": 1}', '{"id": "a", "n": null}', "{}"], spec)
    assert [(row.reason, row.field) for row in rows] == [
        (None, None),
        ("missing", "id"),
        ("missing", "n"),
        ("missing", "id"),
    ]


def test_names_may_have_anything_in_them(spark: SparkSession) -> None:
    names = ["order id", "a.b", "it's", 'say "x"', "back`tick", "ключ", "r", "key", "body"]
    spec = pipeline(", ".join(f"`{name.replace('`', '``')}` STRING" for name in names))
    body = {name: f"v{number}" for number, name in enumerate(names)}
    good, bad = outcomes(spark, [json.dumps(body), json.dumps(body | {"a.b": 1})], spec)
    assert good.row.asDict() == body
    assert (bad.reason, bad.field) == ("wrong type: STRING expected", "a.b")


def test_fields_that_the_schema_does_not_know_can_be_refused(spark: SparkSession) -> None:
    spec = pipeline(EVERYTHING, extra=Extra.REJECT)
    spec = replace(spec, schema=replace(spec.schema, fields=closed(spec.schema.fields)))
    bodies = {
        '{"id": "a"}': None,
        '{"id": "a", "more": 1}': "more",
        '{"place": {"x": 1, "name": "p"}}': None,
        '{"place": {"x": 1, "name": "p", "more": 1}}': "place",
        '{"lines": [{"sku": "a"}, {"sku": "a", "more": 1}]}': "lines",
        '{"counts": {"anything": 1}}': None,
    }
    for (body, field), row in zip(bodies.items(), outcomes(spark, list(bodies), spec), strict=True):
        assert (row.reason, row.field) == (field and "unknown field", field), body


def test_a_text_field_can_take_anything_as_its_text(spark: SparkSession) -> None:
    spec = pipeline("id STRING, texts ARRAY<STRING>", any_as_text=True)
    bodies = ['{"id": 7}', '{"id": {"x": [1]}}', '{"id": "a", "texts": [1, "b", null]}', '{"id": "\\ud800"}']
    rows = outcomes(spark, bodies, spec)
    assert [row.row and row.row.id for row in rows] == ["7", '{"x":[1]}', "a", None]
    assert rows[2].row.texts == ["1", "b", None]
    assert rows[3].reason == "not Unicode"


# Conditions.


def test_a_row_that_breaks_a_constraint_is_rejected_with_its_name(spark: SparkSession) -> None:
    constraints = (
        Constraint("amount is positive", "amount", "amount > 0 -- as everybody knows"),
        Constraint("country is short", "country", "length(country) = 2"),
        Constraint("cheap or known", None, "amount < 100 OR country IS NOT NULL"),
        Constraint("place is named", "place.name", "place.name <> ''"),
        Constraint("no division by zero", None, "coalesce(10 / (amount - 5) < 100, true)"),
    )
    text = "amount DECIMAL(12,2) NOT NULL, country STRING, place STRUCT<name: STRING>"
    bodies = {
        '{"amount": 1, "country": "DE", "place": {"name": "x"}}': (None, None),
        '{"amount": -1, "country": "DE"}': ("amount is positive", "amount"),
        '{"amount": 1}': (None, None),  # a country that may be missing breaks no rule about it
        '{"amount": 1, "country": "Germany"}': ("country is short", "country"),
        '{"amount": 100}': ("cheap or known", None),
        '{"amount": 1, "place": {"name": ""}}': ("place is named", "place.name"),
        '{"amount": 5}': (None, None),
        '{"amount": "x", "country": "Germany"}': ("wrong type: DECIMAL(12,2) expected", "amount"),
    }
    rows = outcomes(spark, list(bodies), pipeline(text, constraints=constraints))
    for (body, expected), row in zip(bodies.items(), rows, strict=True):
        assert (row.reason, row.field) == expected, body


def test_a_condition_that_fails_on_a_row_rejects_it_and_stops_nothing(spark: SparkSession) -> None:
    constraints = (Constraint("share", None, "100 / n > 1"), Constraint("number", None, "CAST(id AS INT) > 0"))
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    spec = pipeline("id STRING, n INT", constraints=constraints)
    rows = outcomes(spark, ['{"id": "1", "n": 1}', '{"id": "1", "n": 0}', '{"id": "x", "n": 1}'], spec)
    assert [row.reason for row in rows] == [None, "share", "number"]
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def test_the_rules_of_a_json_schema_are_kept(spark: SparkSession) -> None:
    rules = {
        "id": {"type": "string", "maxLength": 3, "pattern": "^[a-z]{1}\\d'"},
        "amount": {"type": "number", "x-sql-type": "DECIMAL(12,2)", "exclusiveMinimum": 0, "maximum": 9.99},
        "rate": {"type": "number", "minimum": 0.1},
        "count": {"type": "integer", "multipleOf": 5},
        "country": {"enum": ["DE", "it's"]},
        "uid": {"type": "string", "format": "uuid"},
        "lines": {
            "type": "array",
            "maxItems": 2,
            "uniqueItems": True,
            "items": {"type": "object", "properties": {"qty": {"type": "integer", "minimum": 1}}},
        },
        "tags": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}},
        "texts": {"type": "array", "items": {"type": "string"}},
    }
    read = json_schema.parse(json.dumps({"type": "object", "properties": rules}))
    spec = pipeline("x INT")
    spec = replace(spec, schema=SchemaSpec(read.fields, read.constraints))
    good = {
        "id": "a1'",
        "amount": 9.99,
        "rate": 0.1,
        "count": 10,
        "country": "it's",
        "uid": "123e4567-e89b-12d3-a456-426614174000",
        "lines": [{"qty": 1}, {}],
        "tags": {"a": "b"},
        "texts": ["a"],
    }
    wrong: list[tuple[str, Any, str]] = [
        ("id", "a1''", "id must have at most 3 characters"),
        ("id", "A1'", "id must match ^[a-z]{1}\\d'"),
        ("amount", 0, "amount must be more than 0"),
        ("amount", 10, "amount must be at most 9.99"),
        ("rate", 0.09, "rate must be at least 0.1"),
        ("count", 11, "count must be a multiple of 5"),
        ("country", "FR", "country must be one of DE, it's"),
        ("uid", "x", "uid must be a UUID"),
        ("lines", [{"qty": 1}, {"qty": 2}, {"qty": 3}], "lines must have at most 2 elements"),
        ("lines", [{"qty": 1}, {"qty": 1}], "lines must have no element twice"),
        ("lines", [{"qty": 1}, {"qty": 0}], "lines[].qty must be at least 1"),
        ("tags", {"a": "b", "c": "dd"}, "tags[] must have at most 1 characters"),
        ("texts", ["a", None], "missing"),
    ]
    bodies = [good, {}, *(good | {name: value} for name, value, _ in wrong)]
    rows = outcomes(spark, [json.dumps(body) for body in bodies], spec)
    assert [row.reason for row in rows] == [None, None, *(said for _, _, said in wrong)]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("amont > 0", "with name `amont` cannot be resolved. Did you mean one of the following? [`amount`]"),
        ("amount >", "Syntax error"),
        ("amount + 1", "is not a boolean"),
        ("sum(amount) > 0", "contains invalid expressions: sum(amount)"),
        ("rand() > 0.5", "must say the same about a row whenever it is asked"),
        ("amount > (SELECT 1)", "must say the same about a row whenever it is asked"),
        ("_semel_key = 'k'", "cannot be resolved"),
    ],
)
def test_a_condition_that_is_none_is_refused_before_anything_runs(spark: SparkSession, check: str, said: str) -> None:
    good = Constraint("fine", None, "amount > 0")
    spec = pipeline("amount INT", constraints=(good, Constraint("odd one", "amount", check)))
    with pytest.raises(PipelineFileError) as refused:
        body_sql.parsed(source(spark, ["{}"]), replace(spec, path=Path("orders.toml")))
    text = str(refused.value)
    assert text.startswith("orders.toml: [[schema.constraints]] 'odd one': check = ")
    assert said in text
    assert "\n" not in text
    assert "fine" not in text


# Keys, metadata, and rows that are not parsed.


def test_a_message_without_a_key_is_rejected(spark: SparkSession) -> None:
    spec = replace(pipeline("id STRING"), source=SourceSpec(("orders",), key="$.order.id"))
    rows = body_sql.parsed(source(spark, ['{"id": "a"}', "nonsense"], key=None), spec).collect()
    assert [(row.reason, row.field) for row in rows] == [
        ("no key: $.order.id finds none", "order.id"),
        ("not JSON", None),
    ]


def test_metadata_columns_come_with_an_underscore(spark: SparkSession) -> None:
    spec = pipeline("id STRING", metadata=("message_id", "sent_at", "attributes", "receive_count"))
    (row,) = outcomes(spark, ['{"id": "a"}'], spec)
    assert row.row.asDict() == {
        "id": "a",
        "_message_id": "m0",
        "_sent_at": NOW,
        "_attributes": {"a": "b"},
        "_receive_count": 1,
    }
    assert body_sql.row_schema(spec).names == list(row.row.asDict())


def test_a_raw_body_is_kept_as_it_is(spark: SparkSession) -> None:
    spec = replace(pipeline("x INT"), schema=SchemaSpec((), raw=True, metadata=("queue",)))
    (row,) = outcomes(spark, ["anything at all"], spec)
    assert row.row.asDict() == {"body": "anything at all", "_queue": "orders"}


def test_a_handler_gets_the_sources_rows(spark: SparkSession) -> None:
    spec = replace(pipeline("id STRING NOT NULL"), sink=HandlerSpec("shop:app"))
    good, bad = body_sql.parsed(source(spark, ['{"id": "a"}', "{}"], key=None), spec).collect()
    assert good.row.asDict() == source(spark, ['{"id": "a"}'], key=None).first().asDict()  # type: ignore[union-attr]
    assert (bad.reason, bad.field) == ("missing", "id")
    raw = replace(spec, schema=SchemaSpec((), raw=True))
    (row,) = body_sql.parsed(source(spark, ["anything"], key=None), raw).collect()
    assert (row.reason, row.row.body) == (None, "anything")


def test_the_message_and_what_is_traced_can_come_along_with_good_rows(spark: SparkSession) -> None:
    spec = pipeline("id STRING")
    (row,) = body_sql.parsed(source(spark, ['{"id": "a"}']), spec, with_message=True, traced=True).collect()
    assert row.row.id == "a"
    assert row.message.message_id == row.message_id == "m0"
    assert (row.queue, row.group_id, row.sent_at, row.receive_count) == ("orders", "g", NOW, 1)


def test_arrow_sees_the_row_as_the_schema_says(spark: SparkSession) -> None:
    spec = pipeline(EVERYTHING)
    table = body_sql.parsed(source(spark, list(GOOD)), spec).toArrow()
    row = table.schema.field("row").type
    for expected in body_sql.row_schema(spec):
        assert str(row.field(expected.name).type).replace(" not null", "") == str(expected.type).replace(
            " not null", ""
        ), expected.name
