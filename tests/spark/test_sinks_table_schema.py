"""The columns of a table: the types that it stores, and how its columns may change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.spark.pipeline import ddl
from semel.spark.pipeline.body_schema import encode
from semel.spark.pipeline.compatibility import compare
from semel.spark.sinks.contract import SinkError
from semel.spark.sinks.table_schema import differences, grown, in_shape, sql_type, storable

TABLE = "id STRING NOT NULL, n INT, place STRUCT<city: STRING, at: STRUCT<x: INT NOT NULL>>, tags ARRAY<INT>"


def schema(text: str) -> pa.Schema:
    return pa.schema(ddl.parse(text))


def refusal(old: pa.Schema, new: pa.Schema, *, may_lack: bool = False) -> str | None:
    try:
        grown(old, new, table="orders", advice="Choose another.", may_lack=may_lack)
    except SinkError as error:
        return str(error)
    return None


def file_breaks(old: pa.Schema, new: pa.Schema) -> bool:
    """What a pipeline's file is told about the same change."""
    rest = {
        "source": {"queues": [], "key": None, "dedup": "key", "dedup_partitions": 4, "ack": "sealed"},
        "sink": {},
        "metadata": [],
    }
    former, spec = ({**rest, "schema": encode(list(fields))} for fields in (old, new))
    return any(change.breaking for change in compare(former, spec))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("n INT", "n BIGINT"), "column n: the table has INT, the rows BIGINT"),
        (("n INT", "n STRING"), "column n: the table has INT, the rows STRING"),
        (("n INT, ", ""), "column n: the table has it (INT), the rows no longer do"),
        (("n INT", "n INT, m INT NOT NULL"), "column m: is new and NOT NULL, and the rows that are there lack it"),
        (("city: STRING", "city: INT"), "column place.city: the table has STRING, the rows INT"),
        (("x: INT NOT NULL", "x: INT NOT NULL, y: INT NOT NULL"), "column place.at.y: is new and NOT NULL"),
        (("ARRAY<INT>", "ARRAY<BIGINT>"), "column tags: the table has ARRAY<INT>, the rows ARRAY<BIGINT>"),
        (("ARRAY<INT>", "MAP<STRING, INT>"), "column tags: the table has ARRAY<INT>, the rows MAP<STRING, INT>"),
    ],
)
def test_a_change_that_breaks_a_table_is_refused_by_the_table_and_by_the_file(
    change: tuple[str, str], said: str
) -> None:
    old, new = schema(TABLE), schema(TABLE.replace(*change))
    assert said in str(refusal(old, new))
    assert file_breaks(old, new)


def test_a_column_and_a_field_of_a_struct_that_may_be_null_are_added_last() -> None:
    new = schema("more STRING, " + TABLE.replace("city: STRING", "zip: STRING, city: STRING"))
    old = schema(TABLE)
    both = grown(old, new, table="orders", advice="", may_lack=False)
    assert both.names == ["id", "n", "place", "tags", "more"]
    assert [part.name for part in both.field("place").type] == ["city", "at", "zip"]
    assert not file_breaks(old, new)
    assert [difference.breaking for difference in differences(old, new)] == [False, False]


def test_not_null_is_judged_by_who_asks() -> None:
    """A table must take the new rows; a file must describe the old ones."""
    strict, loose = schema("id STRING NOT NULL"), schema("id STRING")
    assert "the table has it as NOT NULL, the rows may be without a value" in str(refusal(strict, loose))
    assert not file_breaks(strict, loose)
    assert refusal(loose, strict) is None
    assert file_breaks(loose, strict)


def test_rows_may_lack_a_column_only_where_that_is_allowed_and_it_may_be_null() -> None:
    old = schema(TABLE)
    assert refusal(old, schema(TABLE.replace("n INT, ", "")), may_lack=True) is None
    assert "(STRING NOT NULL)" in str(refusal(old, schema(TABLE.replace("id STRING NOT NULL, ", "")), may_lack=True))


@pytest.mark.parametrize(
    ("column_type", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_binary()), pa.binary()),
        (pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time64("us")),
        (pa.uint32(), pa.int64()),
        (pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
        (pa.map_(pa.string(), pa.struct([("a", pa.date64())])), pa.map_(pa.string(), pa.struct([("a", pa.date32())]))),
    ],
)
def test_a_table_has_few_types(column_type: pa.DataType, stored: pa.DataType) -> None:
    assert storable(pa.schema([("a", column_type)])).field("a").type == stored


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float16(), pa.duration("s"), pa.decimal256(40, 2)])
def test_a_type_that_no_table_has_is_refused_with_its_column(kind: pa.DataType) -> None:
    with pytest.raises(SinkError, match="column a: a table cannot hold the type"):
        storable(pa.schema([("a", kind)]))


def test_what_only_the_pipeline_knows_of_a_column_is_not_stored() -> None:
    fields = ddl.parse("id STRING COMMENT 'a', place STRUCT<city: STRING COMMENT 'b'>")
    stored = storable(pa.schema(fields))
    assert stored.equals(pa.schema(fields))
    assert stored.field("id").metadata is None
    assert stored.field("place").type.field("city").metadata is None


def test_a_type_is_written_as_it_is_read() -> None:
    kind = schema("a STRUCT<`odd ``name`: MAP<STRING, ARRAY<DECIMAL(9,2)>> NOT NULL, t: TIMESTAMP_NTZ>").field("a").type
    assert sql_type(kind) == "STRUCT<`odd ``name`: MAP<STRING, ARRAY<DECIMAL(9,2)>> NOT NULL, `t`: TIMESTAMP_NTZ>"
    assert ddl.parse_type(sql_type(kind)) == kind


def test_a_value_that_does_not_fit_its_column_is_an_error_that_names_both() -> None:
    batch = pa.record_batch({"n": ["1", "x"]})
    with pytest.raises(SinkError, match="orders: column n: INT was expected, STRING came"):
        in_shape(batch, pa.schema([("n", pa.int32())]), "orders")
