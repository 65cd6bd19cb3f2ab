"""Which changes to a pipeline file are allowed, and which are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel.spark.pipeline.checkpoint import CheckpointError
from semel.spark.pipeline.compatibility import Change, PipelineChanged, check, compare, recorded
from semel.spark.pipeline.config_file import load

FILE = """
name = "orders"
checkpoint = "state"
[source]
queues = ["orders", "refunds"]
key = "$.id"
dedup = "key"
[schema]
ddl = "id STRING NOT NULL, amount BIGINT, place STRUCT<city: STRING>, tags ARRAY<STRING>"
metadata = ["sent_at"]
[sink]
type = "postgres"
dsn = "postgresql://me:secret@db/shop"
table = "orders"
"""


def spec(folder: Path, *changes: tuple[str, str]) -> dict[str, object]:
    text = FILE
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    file = folder / "p.toml"
    file.write_text(text)
    # It has been through the checkpoint.
    made: dict[str, object] = json.loads(json.dumps(recorded(load(file))))
    return made


def changes(folder: Path, *change: tuple[str, str]) -> list[Change]:
    return compare(spec(folder), spec(folder, *change))


def test_the_same_file_is_no_change(tmp_path: Path) -> None:
    assert changes(tmp_path) == []


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    assert "secret" not in json.dumps(spec(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("amount BIGINT", "amount BIGINT, note STRING"), "note is new; existing rows have null"),
        (("city: STRING", "city: STRING, zip: STRING"), "place.zip is new"),
        (("id STRING NOT NULL", "id STRING"), "id may be null from now on"),
        (('"refunds"', '"refunds", "returns"'), "returns is read from now on"),
        (('["sent_at"]', '["sent_at", "queue"]'), "_queue is new"),
        (('dedup = "key"', 'dedup = "key"\nack = "committed"'), "ack is committed from now on"),
        (('dedup = "key"', 'dedup = "key"\nretention = "2d"'), "keys are kept for 2 days from now on"),
    ],
)
def test_a_change_that_is_fine_is_told(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    (difference,) = changes(tmp_path, change)
    assert said in difference.text
    assert not difference.breaking


def test_the_retention_under_its_former_name_is_no_change(tmp_path: Path) -> None:
    two_days = spec(tmp_path, ('dedup = "key"', 'dedup = "key"\nretention = "2d"'))
    former = json.loads(json.dumps(two_days))
    former["source"]["remember"] = former["source"].pop("retention")
    assert compare(former, two_days) == []
    (change,) = compare(former, spec(tmp_path))
    assert "[source] keys are kept for" in change.text


@pytest.mark.parametrize(
    "change",
    [
        ('dedup = "key"', 'dedup = "key"\nthreads = 8\nmax_messages_per_batch = 10\nreceivers = 2'),
        ("[sink]", '[trigger]\nevery = "1m"\n[sink]'),
        ("me:secret@db", "me:other@db2"),
    ],
)
def test_what_harms_nothing_is_no_change(tmp_path: Path, change: tuple[str, str]) -> None:
    assert changes(tmp_path, change) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"orders", "refunds"', '"orders"'), "refunds is no longer read"),
        (('"$.id"', '"$.order"'), "key was $.id and is $.order"),
        (('dedup = "key"', 'dedup = "segments"'), "weaker guarantee"),
        (('dedup = "key"', 'dedup = "ledger"\nledger = "sqlite:///x.db"'), 'does not know what came under "key"'),
        (('dedup = "key"', 'dedup = "key"\ndedup_partitions = 9'), "dedup_partitions was 4 and is 9"),
        (("amount BIGINT", "amount STRING"), "amount was BIGINT and is STRING"),
        (("amount BIGINT", "amount INT"), "amount was BIGINT and is INT"),
        (("tags ARRAY<STRING>", "tags ARRAY<INT>"), "tags was ARRAY<STRING> and is ARRAY<INT>"),
        (("city: STRING", "city: INT"), "place.city was STRING"),
        (("amount BIGINT, ", ""), "amount is gone"),
        (("tags ARRAY<STRING>", "tags MAP<STRING, STRING>"), "tags was ARRAY<STRING> and is MAP<STRING, STRING>"),
        (("amount BIGINT", "amount DECIMAL(20,2)"), "amount was BIGINT and is DECIMAL(20,2)"),
        (
            ('ddl = "id STRING NOT NULL, amount BIGINT, place STRUCT<city: STRING>, tags ARRAY<STRING>"', "raw = true"),
            "id is gone",
        ),
        (("amount BIGINT", "amount BIGINT NOT NULL"), "amount is NOT NULL now"),
        (("amount BIGINT", "amount BIGINT, note STRING NOT NULL"), "note is new and NOT NULL"),
        (('["sent_at"]', '["queue"]'), "sent_at is gone"),
        (('table = "orders"', 'table = "orders2"'), "table was orders and is orders2"),
        (('table = "orders"', 'table = "orders"\nmode = "upsert"\nkey = ["id"]'), "mode was append and is upsert"),
        (
            (
                'type = "postgres"\ndsn = "postgresql://me:secret@db/shop"\ntable = "orders"',
                'type = "delta"\npath = "x"',
            ),
            "type was",
        ),
    ],
)
def test_a_change_that_would_break_exactly_once_is_refused_with_its_reason(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    former = spec(tmp_path)
    with pytest.raises(PipelineChanged) as refused:
        check(former, spec(tmp_path, change))
    assert said in str(refused.value)
    assert all(difference.breaking for difference in refused.value.changes)


def test_a_history_with_segments_under_a_file_that_leaves_dedup_out_says_what_to_write(tmp_path: Path) -> None:
    former = spec(tmp_path, ('dedup = "key"', 'dedup = "segments"'))
    advice = 'is "key", the default, .* write dedup = "segments" under .source. to go on'
    with pytest.raises(PipelineChanged, match=advice):
        check(former, spec(tmp_path, ('dedup = "key"\n', "")))


def test_another_ledger_is_refused_and_another_password_for_it_is_not(tmp_path: Path) -> None:
    def with_ledger(address: str) -> dict[str, object]:
        return spec(tmp_path, ('dedup = "key"', f'dedup = "ledger"\nledger = "{address}"'))

    former = with_ledger("postgresql://me:secret@db:5432/shop?sslmode=require")
    assert "secret" not in json.dumps(former)
    assert compare(former, with_ledger("postgresql://you:other@db:5432/shop")) == []
    with pytest.raises(PipelineChanged, match="which does not know what was done so far"):
        check(former, with_ledger("postgresql://me:secret@elsewhere/shop"))


def test_a_body_that_was_kept_as_text_cannot_become_fields(tmp_path: Path) -> None:
    ddl = 'ddl = "id STRING NOT NULL, amount BIGINT, place STRUCT<city: STRING>, tags ARRAY<STRING>"'
    with pytest.raises(PipelineChanged, match="body is gone"):
        check(spec(tmp_path, (ddl, "raw = true")), spec(tmp_path, (ddl, 'ddl = "id STRING"')))


@pytest.mark.parametrize(
    "former",
    [
        [{"name": "id", "type": "STRING", "nullable": True}],
        [{"name": "id", "type": "STRUNG", "nullable": True, "fields": []}],
        [{"name": "id", "type": "DECIMAL(x,2)", "nullable": True, "fields": []}],
        [{"name": "id", "type": {"array": "STRING"}, "nullable": True, "fields": []}],
        [{"name": None, "type": "STRING", "nullable": True, "fields": []}],
        ["id"],
        {"fields": []},
        "id STRING",
        None,
    ],
)
def test_a_record_in_another_form_is_one_clear_error(tmp_path: Path, former: object) -> None:
    with pytest.raises(CheckpointError, match=r"pipeline\.json of this checkpoint cannot be read .* new table for it"):
        compare({**spec(tmp_path), "schema": former}, spec(tmp_path))


def test_elements_that_may_be_null_cannot_become_elements_that_may_not(tmp_path: Path) -> None:
    def with_items(kind: object) -> dict[str, object]:
        properties = {"a": {"type": "array", "items": {"type": kind}}}
        (tmp_path / "s.json").write_text(json.dumps({"type": "object", "properties": properties}))
        ddl = 'ddl = "id STRING NOT NULL, amount BIGINT, place STRUCT<city: STRING>, tags ARRAY<STRING>"'
        return spec(tmp_path, (ddl, 'json_schema = "s.json"'))

    with pytest.raises(PipelineChanged, match=r"a was ARRAY<BIGINT> and is ARRAY<BIGINT> without nulls"):
        check(with_items(["integer", "null"]), with_items("integer"))


@pytest.mark.parametrize("kinds", [("INT", "BIGINT"), ("FLOAT", "DOUBLE"), ("DECIMAL(5,2)", "DECIMAL(9,2)")])
def test_a_wider_type_is_refused_and_told_why(tmp_path: Path, kinds: tuple[str, str]) -> None:
    former, new = (spec(tmp_path, ("amount BIGINT", f"amount {kind}")) for kind in kinds)
    with pytest.raises(
        PipelineChanged, match=r"\(a wider type too: files and tables that are there keep the old one\)"
    ):
        check(former, new)
