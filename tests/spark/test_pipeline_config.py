"""The pipeline file: what it can contain, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.spark.pipeline import template
from semel.spark.pipeline.config import (
    Ack,
    Dedup,
    DeltaSpec,
    HandlerSpec,
    Mode,
    ParquetSpec,
    PipelineFileError,
    PostgresSpec,
    RejectTo,
    SqsSpec,
)
from semel.spark.pipeline.config_file import load

GOOD = """
name = "orders"
checkpoint = "state"
[source]
queues = ["orders"]
[schema]
ddl = "id STRING NOT NULL, amount BIGINT"
[sink]
type = "parquet"
path = "out"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "orders.toml"
    file.write_text(text)
    return file


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(PipelineFileError) as raised:
        load(write(folder, text))
    return str(raised.value)


def test_the_smallest_file(tmp_path: Path) -> None:
    pipeline = load(write(tmp_path, GOOD))
    assert pipeline.name == "orders"
    assert pipeline.checkpoint == str(tmp_path / "state")
    assert pipeline.sink == ParquetSpec(str(tmp_path / "out"))
    assert [(field.name, field.nullable) for field in pipeline.schema.fields] == [("id", False), ("amount", True)]
    assert (pipeline.source.dedup, pipeline.source.ack, pipeline.rejects.to) == (
        Dedup.KEY,
        Ack.SEALED,
        RejectTo.DEAD_LETTER_QUEUE,
    )
    assert pipeline.source.options("/c")["segments"] == "/c/segments"


def test_everything_that_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN", "postgresql://me:secret@db/shop")
    text = """
    name = "orders"
    checkpoint = "s3://lake/state"
    [source]
    queues = ["orders", "arn:aws:sqs:eu-west-1:123456789012:refunds"]
    key = "$.id"
    dedup = "ledger"
    ledger = "${SHOP_DSN}"
    ack = "committed"
    receivers = 3
    max_seconds_per_batch = "5s"
    visibility = "2m"
    [schema]
    ddl = "id STRING NOT NULL"
    metadata = ["sent_at"]
    [[schema.constraints]]
    name = "id is short"
    field = "id"
    check = "length(id) < 40"
    [rejects]
    table = "rejects"
    [sink]
    type = "postgres"
    dsn = "${SHOP_DSN}"
    table = "shop.orders"
    mode = "upsert"
    key = ["id"]
    [trigger]
    every = "1m"
    [log]
    attempt_log = "attempts"
    [metrics]
    health = "127.0.0.1:8080"
    [spark]
    "spark.driver.memory" = "2g"
    """
    pipeline = load(write(tmp_path, text))
    assert pipeline.checkpoint == "s3://lake/state"
    assert pipeline.sink == PostgresSpec("postgresql://me:secret@db/shop", "shop.orders", Mode.UPSERT, ("id",))
    assert "secret" not in repr(pipeline.sink)
    options = pipeline.source.options(pipeline.checkpoint)
    assert options["visibility"] == "120"
    assert options["maxSecondsPerBatch"] == "5"
    assert options["ack"] == "committed"
    assert (pipeline.rejects.to, pipeline.rejects.target) == (RejectTo.TABLE, str(tmp_path / "rejects"))
    assert pipeline.trigger.every == 60
    assert pipeline.spark == {"spark.driver.memory": "2g"}
    assert pipeline.schema.constraints[0].check == "length(id) < 40"


@pytest.mark.parametrize(
    ("sink", "kind"),
    [
        ("parquet", ParquetSpec),
        ("delta", DeltaSpec),
        ("postgres", PostgresSpec),
        ("sqs", SqsSpec),
        ("handler", HandlerSpec),
    ],
)
def test_what_init_writes_is_right_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, kind: type
) -> None:
    monkeypatch.setenv("ORDERS_DSN", "postgresql://db/shop")
    assert isinstance(load(write(tmp_path, template.text(sink))).sink, kind)


def test_a_json_schema_is_read_from_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(
        '{"type": "object", "required": ["id"], "properties": {"id": {"type": "string", "minLength": 1}}}'
    )
    pipeline = load(
        write(tmp_path, GOOD.replace('ddl = "id STRING NOT NULL, amount BIGINT"', 'json_schema = "order.json"'))
    )
    assert [field.name for field in pipeline.schema.fields] == ["id"]
    assert len(pipeline.schema.constraints) == 1


def test_the_endpoint_can_be_given_on_the_command_line(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD), endpoint_url="http://here:1").source.endpoint_url == "http://here:1"


CONSTRAINT = '[[schema.constraints]]\nname = "n"\nfield = "x"\ncheck = "x > 1"\n[sink]'
TWICE = 2 * '[[schema.constraints]]\nname = "n"\ncheck = "id > 1"\n' + "[sink]"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # The file, the top of it, and names.
        (("[sink]", "[sink"), "it is not TOML: "),
        (("[sink]", "[sink"), "(at line 8, column 6)"),
        (('name = "orders"', ""), "name is missing: what the pipeline is called"),
        (('name = "orders"', 'name = "o/r"'), 'name = "o/r": it has up to 80 letters'),
        (('checkpoint = "state"', "checkpoint = 3"), "checkpoint = 3: a text is needed, in quotes"),
        (('checkpoint = "state"', 'checkpoint = "hdfs://x/y"'), 'checkpoint = "hdfs://x/y": it is a folder that'),
        (("[sink]", "[snk]"), "snk: there is no such option; did you mean 'sink'?"),
        (("[sink]", "[snk]"), "[sink] is missing: where rows go"),
        (("name =", 'queues = ["orders"]\nname ='), "queues: there is no such option; it belongs to [source]"),
        (("[source]", "[trigger]\nevery = true\n[source]"), "[trigger] every = true: a duration is needed"),
        (('checkpoint = "state"', 'checkpoint = "state"\nlog = "x"'), 'log = "x": it is a section; write [log]'),
        # [source]
        (("queues", "queus"), "[source] queus: there is no such option; did you mean 'queues'?"),
        (('queues = ["orders"]', ""), "[source] queues is missing: the queues, such as"),
        (('queues = ["orders"]', "queues = []"), "[source] queues = []: it is empty"),
        (('queues = ["orders"]', 'queues = ["a", "a"]'), '[source] queues = ["a", "a"]: it names something twice'),
        (('queues = ["orders"]', "queues = [1]"), "[source] queues = [1]: a list of texts is needed"),
        (('queues = ["orders"]', 'queues = ["my queue"]'), "'my queue' is no name, URL or ARN of a queue"),
        (('queues = ["orders"]', 'queues = ["a,b"]'), "entry 1 has a comma in it"),
        (("[source]", "[source]\nvisibility = 3"), "[source] visibility = 3: it must be from 10 to 43200 seconds"),
        (("[source]", '[source]\nvisibility = "soon"'), "[source] visibility = \"soon\": 'soon' is not a duration"),
        (("[source]", "[source]\nvisibility = 12"), "visibility 12 s is too short for batches"),
        (("[source]", "[source]\nthreads = 1.5"), "[source] threads = 1.5: a whole number is needed"),
        (("[source]", "[source]\nthreads = 500"), "[source] threads = 500: it must be from 1 to 256"),
        (("[source]", '[source]\ndedup = "keys"'), "not one of segments, key, ledger; did you mean 'key'?"),
        (("[source]", '[source]\ndedup = "ledger"'), '[source] ledger is missing: dedup = "ledger" needs its address'),
        (("[source]", '[source]\nledger = "redis://x"'), '[source] ledger is given, but dedup is "key"'),
        (
            ("[source]", '[source]\ndedup = "segments"\nretention = "1d"'),
            '[source] retention is for dedup = "key", and dedup is "segments"',
        ),
        (("[source]", '[source]\nkey = "id"'), "[source] key = \"id\": it is '$.order.id'"),
        # [schema]
        (("BIGINT", "BIGINTEGER"), "[schema] ddl: field 'amount': there is no type BIGINTEGER; did you mean INTEGER?"),
        (
            ("[schema]", '[schema]\njson_schema = "x.json"'),
            "ddl and json_schema are both given, and exclude each other",
        ),
        (('ddl = "id STRING NOT NULL, amount BIGINT"', ""), "[schema] ddl or json_schema or raw is missing"),
        (('ddl = "id STRING NOT NULL, amount BIGINT"', 'json_schema = "x.json"'), "x.json cannot be read"),
        (('ddl = "id STRING NOT NULL, amount BIGINT"', "raw = false"), "raw = false, and neither ddl nor json_schema"),
        (("[schema]", '[schema]\nmetadata = ["sentat"]'), "no column 'sentat'; did you mean 'sent_at'?"),
        (("amount", "_KEY BIGINT, amount"), "metadata: 'key' becomes the column _key, and the schema has"),
        (("[schema]", '[schema]\nextra = "drop"'), '[schema] extra = "drop": it is not one of ignore, reject'),
        (("[schema]", '[schema]\nany_as_text = "yes"'), "true or false is needed, without quotes"),
        (("[sink]", CONSTRAINT), '[[schema.constraints]] field = "x": the schema has no such field'),
        (("[sink]", '[[schema.constraints]]\nname = "n"\n[sink]'), "[[schema.constraints]] check is missing"),
        (("[sink]", '[[schema.constraints]]\nchek = "n"\n[sink]'), "no such option; did you mean 'check'?"),
        (("[sink]", TWICE), "another constraint has this name"),
        # [rejects]
        (
            ("[sink]", '[rejects]\nto = "table"\n[sink]'),
            '[rejects] to = "table": it is "dead-letter-queue"; for another',
        ),
        (("[sink]", '[rejects]\nqueue = "a"\ntable = "b"\n[sink]'), "[rejects] queue and table are both given"),
        # [sink]
        (('type = "parquet"', 'type = "parket"'), '[sink] type = "parket": it is not one of parquet, delta'),
        (('type = "parquet"', ""), "[sink] type is missing: one of parquet"),
        (('path = "out"', ""), "[sink] path is missing: the table's folder"),
        (
            ('path = "out"', 'path = "out"\ntable = "t"'),
            "[sink] table: there is no such option; it belongs to [sink] type =",
        ),
        (
            ('path = "out"', 'path = "${NOT_SET_ANYWHERE}"'),
            "[sink] path: there is no environment variable NOT_SET_ANYWHERE",
        ),
        (('path = "out"', 'path = "${NOT SET}"'), "${NOT SET} names no environment variable"),
        (("[sink]", "[spark]\nexecutor.memory = [1]\n[sink]"), "[spark] spark.executor.memory: a text, a number"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_way_out(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    text = GOOD.replace(*change, 1)
    assert text != GOOD
    if "_KEY" in text:
        text = text.replace("[schema]", '[schema]\nmetadata = ["key"]')
    message = mistakes(tmp_path, text)
    assert said in message
    assert str(tmp_path / "orders.toml") in message


SINK = 'type = "parquet"\npath = "out"'


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ('type = "postgres"\ntable = "t"', "[sink] dsn is missing"),
        ('type = "postgres"\ndsn = "x"\ntable = "t"\nmode = "upsert"', '[sink] key is missing: mode = "upsert" needs'),
        ('type = "postgres"\ndsn = "x"\ntable = "t"\nkey = ["id"]', '[sink] key is given, but mode is "append"'),
        (
            'type = "postgres"\ndsn = "x"\ntable = "t"\nmode = "upsert"\nkey = ["idd"]',
            "[sink] key: the rows have no field 'idd'; did you mean 'id'?",
        ),
        ('type = "sqs"', "[sink] queue is missing"),
        ('type = "sqs"\nqueue = "out.fifo"', "[sink] group is missing: out.fifo is a FIFO queue"),
        ('type = "sqs"\nqueue = "out"\nbody = "amount"', '[sink] body = "amount": it is no STRING'),
        ('type = "handler"\napp = "shop"', '[sink] app = "shop": write it as "module:app"'),
    ],
)
def test_a_mistake_in_a_sink_is_named_too(tmp_path: Path, sink: str, said: str) -> None:
    assert said in mistakes(tmp_path, GOOD.replace(SINK, sink))


def test_a_secret_is_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    sink = 'type = "postgres"\ndsn = ["hunter2"]\ntable = "${SHOP_PASSWORD}"\nmode = "${SHOP_PASSWORD}"'
    message = mistakes(tmp_path, GOOD.replace(SINK, sink))
    assert "[sink] dsn: a text is needed" in message
    assert "hunter2" not in message


def test_what_a_variable_was_filled_with_and_passwords_of_urls_are_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2 and more")
    text = GOOD.replace("[source]", '[source]\nvisibility = "${SHOP_PASSWORD}"\nkey = "${SHOP_PASSWORD}"')
    text = text.replace('checkpoint = "state"', 'checkpoint = "ftp://me:hunter2@host/x"')
    text = text.replace('["orders"]', f'["http://me:hunter2{"x" * 90}@host/account/a b"]')
    message = mistakes(tmp_path, text + '[spark]\n"spark.password" = ["hunter2"]\n')
    assert all(option in message for option in ("visibility", "key", "checkpoint", "queues", "spark.password"))
    assert "hunter2" not in message
    with pytest.raises(ValueError, match="PostgresSpec") as raised:
        PostgresSpec(["hunter2"], "orders")  # type: ignore[arg-type]
    assert "hunter2" not in str(raised.value)


def test_a_variable_can_be_meant_as_it_stands(tmp_path: Path) -> None:
    pipeline = load(write(tmp_path, GOOD.replace('path = "out"', 'path = "/a/$${x}"')))
    assert pipeline.sink == ParquetSpec("/a/${x}")


def test_settings_of_spark_may_be_written_in_both_ways(tmp_path: Path) -> None:
    text = '[spark]\nexecutor.memory = "4g"\n"spark.sql.ansi.enabled" = false\n[sink]'
    pipeline = load(write(tmp_path, GOOD.replace("[sink]", text)))
    assert pipeline.spark == {"spark.executor.memory": "4g", "spark.sql.ansi.enabled": "false"}


def test_each_key_counts_once_unless_the_file_says_otherwise_and_a_handler_has_its_ledger(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD)).source.dedup is Dedup.KEY
    handler = GOOD.replace(SINK, 'type = "handler"\napp = "shop:app"')
    assert load(write(tmp_path, handler)).source.dedup is Dedup.SEGMENTS
    by_key = handler.replace("[source]", '[source]\ndedup = "key"')
    assert "would be taken for one, and be lost" in mistakes(tmp_path, by_key)
    assert '[source] ack = "sealed"' in mistakes(tmp_path, handler.replace("[source]", '[source]\nack = "sealed"'))


def test_a_queue_or_a_handler_needs_no_schema(tmp_path: Path) -> None:
    without = GOOD.replace('[schema]\nddl = "id STRING NOT NULL, amount BIGINT"\n', "")
    assert load(write(tmp_path, without.replace(SINK, 'type = "handler"\napp = "shop:app"'))).schema.raw
    assert load(write(tmp_path, without.replace(SINK, 'type = "sqs"\nqueue = "out"'))).schema.raw
    assert "[schema] ddl or json_schema or raw is missing" in mistakes(tmp_path, without)


def test_the_queue_of_a_sink_is_where_the_source_is_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = GOOD.replace("[source]", '[source]\nendpoint_url = "http://here:1"')
    sink = load(write(tmp_path, text.replace(SINK, 'type = "sqs"\nqueue = "out"'))).sink
    assert isinstance(sink, SqsSpec)
    assert sink.endpoint_url == "http://here:1"
    sink = load(write(tmp_path, text.replace(SINK, 'type = "sqs"\nqueue = "out"\nregion = "eu-west-1"'))).sink
    assert isinstance(sink, SqsSpec)
    assert (sink.endpoint_url, sink.region) == (None, "eu-west-1")


def test_an_option_is_handed_to_the_source_as_it_is_written(tmp_path: Path) -> None:
    text = GOOD.replace("[source]", '[source]\nprofile = "shop-2.0"\nmax_seconds_per_batch = "1500ms"')
    options = load(write(tmp_path, text)).source.options("/c")
    assert (options["profile"], options["maxSecondsPerBatch"]) == ("shop-2.0", "1.5")


@pytest.mark.parametrize(
    "odd",
    [
        "source = 3",
        "schema = []",
        "sink = 'x'",
        "spark = 1",
        "name = nan",
        "[schema]\nconstraints = 3",
        "[schema]\nconstraints = [3]",
        "[[schema.constraints]]\nname = 3",
        "[sink]\ntype = ['x']",
        "[sink]",
        "[source]\nvisibility = nan",
        "[source]\nretention = -inf",
        "[source]\nqueues = [[]]",
        "[source]\nqueues = [1, 2]",
        "[source]\ndedup = {}",
        "[trigger]\nevery = 1979-05-27",
        "[rejects]\nto = 1979-05-27T07:32:00Z",
        "[sink]\ntype = 'postgres'\nkey = 3\nmode = {}",
    ],
)
def test_whatever_toml_holds_is_a_mistake_and_never_a_traceback(tmp_path: Path, odd: str) -> None:
    assert "not of the right type" not in mistakes(tmp_path, odd)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("queues", "queus").replace("path", "paht").replace("BIGINT", "BIGINTEGER")
    text = text.replace("[sink]", 'metadata = ["sentat"]\n[[schema.constraints]]\nchek = "x"\n[sink]')
    message = mistakes(tmp_path, text.replace("[source]", '[source]\ndedup = "ledger"\nthreads = 1.5'))
    said = ("queus:", "paht:", "threads = 1.5", "ledger is missing", "BIGINTEGER", "'sentat'", "chek:")
    assert all(name in message for name in said)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"nowhere\.toml: there is no such file"):
        load(tmp_path / "nowhere.toml")


def test_a_file_that_cannot_be_read_is_named_once_with_the_reason_in_words(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError) as refused:
        load(tmp_path)
    assert str(refused.value) == f"{tmp_path}: it cannot be read: Is a directory"
    (tmp_path / "orders.toml").write_bytes(b"\xff")
    with pytest.raises(PipelineFileError, match=r"orders\.toml: it is not UTF-8 text$"):
        load(tmp_path / "orders.toml")


def test_a_queue_is_not_read_and_written_by_one_pipeline(tmp_path: Path) -> None:
    text = GOOD.replace('type = "parquet"\npath = "out"', 'type = "sqs"\nqueue = "orders"\ngroup = "country"')
    message = mistakes(tmp_path, text)
    assert "read by this very pipeline" in message
    assert "no field 'country'" in message


@pytest.mark.parametrize("text", ["x = " + "[" * 3_000, f"[{'a.' * 600}b]\nc = 1\n"])
def test_a_file_that_is_nested_too_deep_is_a_mistake_of_the_file(tmp_path: Path, text: str) -> None:
    assert "nested too deep" in mistakes(tmp_path, text)


def test_a_json_schema_that_is_no_unicode_or_too_deep_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    for schema in ('{"type": "object", "properties": {"\\ud800": {"type": "string"}}}', "[" * 3_000):
        (tmp_path / "body.json").write_text(schema)
        assert "json_schema" in mistakes(tmp_path, GOOD.replace("ddl", 'json_schema = "body.json" #'))
