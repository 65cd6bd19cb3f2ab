"""Any application's JSON lines become events, by a mapping of a few words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from semel.doctor.errors import DoctorError
from semel.doctor.events import SCHEMA
from semel.doctor.logs import mapped
from semel.doctor.logs import spark_reader as logs
from semel.doctor.logs.mapping import DEFAULT_WORDS, LogMapping, parse, parse_path, written
from semel.doctor.model import Quality
from semel.telemetry.attempt_log import Step

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC
ISO: Final = "2026-11-16T12:00:00Z"


def read(spark: SparkSession, tmp_path: Path, mapping: LogMapping, *lines: Any) -> tuple[list[Row], Quality]:
    text = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines)
    (tmp_path / "app.log").write_text(text)
    reading = logs.read(spark, [str(tmp_path / "app.log")], mapping=mapping)
    assert reading.events.schema.simpleString() == spark.createDataFrame([], SCHEMA).schema.simpleString()
    rows = reading.events.orderBy("at", F.desc("step")).collect()
    return rows, reading.quality()


# What the option says.


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (".a", ("a",)),
        (".a.b-c.d_e", ("a", "b-c", "d_e")),
        ('."@timestamp"', ("@timestamp",)),
        (".@timestamp", ("@timestamp",)),
        ('.a["x.y"].z', ("a", "x.y", "z")),
        ("$.a['x y']", ("a", "x y")),
        ('["x"].y', ("x", "y")),
        (".Records[0].messageId", ("Records", 0, "messageId")),
    ],
)
def test_paths_are_read_as_jq_reads_them(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_path("id", text) == path
    assert parse_path("id", written(path)) == path


def test_a_mapping_has_paths_constants_and_words() -> None:
    mapping = parse(
        ' id=.msg.messageId, time=."@timestamp",event=.a["x,y"],queue=orders,visibility=30s ',
        "recorded=Order Charged|shipped,failed=bounced",
    )
    assert mapping.paths == {"id": ("msg", "messageId"), "time": ("@timestamp",), "event": ("a", "x,y")}
    assert mapping.constants == {"queue": "orders", "visibility": "30s"}
    assert mapping.words == {
        **DEFAULT_WORDS,
        "order_charged": Step.RECORDED,
        "shipped": Step.RECORDED,
        "bounced": Step.RETRIED,
    }
    assert not mapping.has_receives
    assert parse("id=.id,time=.t,receives=.n").has_receives


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("id=.id", None, r"--map: time=\.path is missing"),
        ("time=.id", None, r"--map: id=\.path is missing"),
        ("id=.id,time=.t,evnt=.e", None, r"--map evnt=…: no such field, did you mean event\?; there are id, time"),
        ("id=id,time=.t", None, r"--map id=id: a path begins with a dot, as in id=\.id"),
        ("id=.id,id=.x,time=.t", None, "--map id=…: given twice"),
        ("id=.a..b,time=.t", None, r"--map id=\.a\.\.b: cannot read it from '\.\.b' on"),
        ("id=.,time=.t", None, r"--map id=\.: cannot read it"),
        ("id=$,time=.t", None, r"--map id=\$: a line is an object"),
        ("id=.[0],time=.t", None, "a line is an object"),
        ("id .id", None, r"--map: cannot read 'id \.id'; write name=value"),
        ("id=.a,time=.a.b", None, r"--map: id=\.a is a part of time=\.a\.b"),
        ("id=.a[0],time=.a.b", None, "has a list where there is an object in time=.a.b"),
        ("id=.a,time=.t,seconds=.s,milliseconds=.m", None, "seconds and milliseconds are the same in different units"),
        ("id=.a,time=.t,visibility=long", None, "--map visibility=long: give seconds"),
        (r'id=.["a\d"],time=.t', None, r"--map id=\"a.d\": not a string as in JSON"),
        ("id=.a,time=.t,text=.m", None, '--map: text=.path and pattern="…" go together'),
        ("id=.a,time=.t,pattern='(?P<key>.)'", None, "go together"),
        ("id=.a,time=.t,text=.m,pattern='(?P<key>'", None, "not a regular expression: missing"),
        ("id=.a,time=.t,text=.m,pattern='(?P<key>.)(.)'", None, r"name each group as a field, \(\?P<id>…\)"),
        ("id=.a,time=.t,text=.m,pattern=x", None, "name each group as a field"),
        ("id=.a,time=.t,text=.m,pattern='(?P<kei>.)'", None, r"\(\?P<kei>…\) is no field, did you mean key\?"),
        ("id=.a,time=.t,text=.m,pattern='(?P<key>.)(?=x)'", None, "must do without look-around"),
        ("id=.a,time=.t,text=.m,seconds=.s,pattern='(?P<nanoseconds>.)'", None, "the same in different units"),
        ("id=.a,time=.t", "recorder=x", r"--events recorder=…: no such step, did you mean recorded\?"),
        ("id=.a,time=.t", "dropped=x", "--events dropped=…: no such step"),
        ("id=.a,time=.t", "recorded=", "--events recorded=: give words"),
        ("id=.a,time=.t", "recorded=x,retried=X", "--events: x cannot be both recorded and retried"),
    ],
)
def test_what_cannot_be_understood_is_named(text: str, words: str | None, said: str) -> None:
    with pytest.raises(DoctorError, match=said):
        parse(text, words)


def test_a_value_is_what_the_pattern_captures_else_what_the_path_has_else_the_constant() -> None:
    mapping = parse("time=.t,text=.m,key=.k[0].x,queue=orders,error=.e,pattern='(?P<id>a+)(?: by (?P<key>\\w+))?'")
    assert mapping.values({"t": 1, "m": " aaa by bob", "k": [{"x": True}]}) == {
        "time": "1",
        "text": "aaa by bob",
        "id": "aaa",
        "key": "bob",
        "queue": "orders",
    }
    assert mapping.values({"m": "x", "k": [{"x": True}], "e": {"é": [1]}}) == {
        "text": "x",
        "key": "true",
        "queue": "orders",
        "error": '{"é":[1]}',
    }
    assert mapping.values({"k": {"x": 1}, "t": None, "m": ""}) == {"queue": "orders"}
    assert (mapping.captured, mapping.has_receives, mapping.duration) == (("id", "key"), False, None)


# Lines.


def test_lines_become_events_with_all_that_is_mapped(spark: SparkSession, tmp_path: Path) -> None:
    mapping = parse(
        'id=.msg.messageId,time=."@timestamp",event=.event,queue=.msg["queue.url"],key=.order,worker=.pod,receives=.n,'
        "sent=.sent,group=.group,milliseconds=.took_ms,visibility=.vt,error=.err,handler=.fn"
    )
    full = {
        "msg": {"messageId": "id-1", "queue.url": "https://sqs.eu-west-1.amazonaws.com/123/orders.fifo"},
        "@timestamp": ISO,
        "event": "FINISHED",
        "order": 17,
        "pod": "web-1",
        "n": "3",
        "sent": str(int((NOON - 5) * 1000)),
        "group": "eu",
        "took_ms": 1500,
        "vt": "30s",
        "err": {"type": "Late"},
        "fn": "charge",
    }
    started = {"msg": {"messageId": "id-1"}, "@timestamp": "2026-11-16T11:59:58.5", "event": "Message started"}
    (first, second), quality = read(spark, tmp_path, mapping, full, started)
    assert second.asDict() == {
        "at": NOON, "step": "recorded", "queue": "orders.fifo", "message_id": "id-1", "key": "17", "fence": None,
        "receive_count": 3, "sent_at": NOON - 5, "group": "eu", "seconds": 1.5, "visibility": 30.0,
        "error": '{"type":"Late"}', "worker": "web-1", "handler": "charge",
    }  # fmt: skip
    assert (first.at, first.step, first.queue, first.worker) == (NOON - 1.5, "started", "log", None)
    assert quality == Quality(files=1, lines=2, events=2)


TIMES: Final = [
    (ISO, NOON),
    ("2026-11-16 12:00:00", NOON),
    ("2026-11-16 12:00:00,250", NOON + 0.25),
    ("2026-11-16T13:00:00.250+01:00", NOON + 0.25),
    ("2026-11-16T13:00:00+0100", NOON),
    ("2026-11-16t12:00:00.123456789z", NOON + 0.123456),
    (NOON + 0.5, NOON + 0.5),
    (str(NOON), NOON),
    (NOON * 1e3, NOON),
    (str(int(NOON * 1e3)), NOON),
    (int(NOON * 1e6), NOON),
    (int(NOON * 1e9), NOON),
    ("1.7948304e9", NOON),
]


def test_times_of_all_kinds_are_understood_in_any_session_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    lines = [{"id": f"{number:02}", "t": value} for number, (value, _) in enumerate(TIMES)]
    bad = [{"id": "x", "t": value} for value in ("yesterday", "12:00", "", None, True, "2026-13-77", -5, {"a": 1})]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows, quality = read(spark, tmp_path, parse("id=.id,time=.t"), *lines, *bad)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = {row.message_id: row.at for row in rows}
    assert found == {f"{number:02}": pytest.approx(at, abs=1e-5) for number, (_, at) in enumerate(TIMES)}
    assert quality == Quality(files=1, lines=len(TIMES) + len(bad), events=len(TIMES), incomplete=len(bad))


def test_durations_may_have_their_unit_with_them(spark: SparkSession) -> None:
    values = [
        "2",
        "1.5",
        "350ms",
        "350 ms",
        "2s",
        "20us",
        "1m30.5s",
        "2h0m1s",
        "3 min",
        "1e-3",
        "long",
        "5 apples",
        None,
    ]
    frame = spark.createDataFrame([(value,) for value in values], "value STRING")
    found = [row[0] for row in frame.select(mapped.duration(F.col("value"), 0.001)).collect()]
    wanted = [0.002, 0.0015, 0.35, 0.35, 2, 2e-5, 90.5, 7201, 180, 1e-6, None, None, None]
    assert found == [None if value is None else pytest.approx(value) for value in wanted]


def test_common_words_are_known_whatever_their_case_and_others_can_be_taught(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = ["Polled", "BEGIN", "processing-message", "message.processed", "Exception", "ack", "charged", "Job Skipped"]
    lines = [{"id": "a", "t": NOON + number, "e": word} for number, word in enumerate([*words, "hummed", "sang"])]
    mapping = parse("id=.id,time=.t,event=.e", "recorded=charged")
    rows, quality = read(spark, tmp_path, mapping, *lines, {"id": "a", "t": NOON})
    assert [row.step for row in rows] == [
        "received", "started", "started", "recorded", "retried", "deleted", "recorded", "skipped",
    ]  # fmt: skip
    assert quality == Quality(
        files=1, lines=11, events=8, incomplete=1, unknown_events=2, unknown_words=("hummed", "sang")
    )


def test_what_is_not_about_a_message_is_incomplete_and_what_is_no_json_malformed(
    spark: SparkSession, tmp_path: Path
) -> None:
    mapping = parse("id=.msg.id,time=.t,error=.error.text")
    rows, quality = read(
        spark,
        tmp_path,
        mapping,
        '2026-11-16T12:00:00Z stdout F {"msg": {"id": "a"}, "t": 1794830400}',
        {"msg": {"id": "b"}, "t": NOON + 1, "error": "a text where another line has an object"},
        {"msg": "a text", "t": NOON},
        {"level": "info"},
        {"msg": {"id": ""}, "t": NOON},
        "Starting up on port 80",
        '{"msg": {"id": "half"',
        "",
    )
    assert [(row.message_id, row.step, row.error) for row in rows] == [("a", "started", None), ("b", "started", None)]
    assert (quality.lines, quality.incomplete, quality.malformed) == (7, 3, 2)
    assert set(quality.samples) == {"Starting up on port 80", '{"msg": {"id": "half"'}


def test_a_list_can_be_looked_into(spark: SparkSession, tmp_path: Path) -> None:
    lines = [{"Records": [{"messageId": "a"}, {"messageId": "b"}], "t": NOON}, {"Records": [], "t": NOON}]
    rows, quality = read(spark, tmp_path, parse("id=.Records[0].messageId,time=.t"), *lines)
    assert ([row.message_id for row in rows], quality.incomplete) == (["a"], 1)


def test_an_end_with_a_duration_tells_of_its_start_unless_the_log_does(spark: SparkSession, tmp_path: Path) -> None:
    mapping = parse("id=.id,time=.t,event=.e,seconds=.s,error=.err")
    rows, _ = read(
        spark,
        tmp_path,
        mapping,
        {"id": "a", "t": NOON, "e": "failed", "s": 3, "err": "boom"},
        {"id": "a", "t": NOON + 10, "e": "done", "s": 2.5},
        {"id": "b", "t": NOON + 20, "e": "start"},
        {"id": "b", "t": NOON + 21, "e": "done", "s": 1},
        {"id": "c", "t": NOON + 30, "e": "done"},
    )
    assert [(row.message_id, row.step, row.at - NOON, row.seconds, row.error) for row in rows] == [
        ("a", "started", -3, None, None),
        ("a", "retried", 0, 3, "boom"),
        ("a", "started", 7.5, None, None),
        ("a", "recorded", 10, 2.5, None),
        ("b", "started", 20, None, None),
        ("b", "recorded", 21, 1, None),
        ("c", "recorded", 30, None, None),
    ]


def test_without_an_event_a_line_is_a_start_or_with_a_duration_a_run(spark: SparkSession, tmp_path: Path) -> None:
    mapping = parse("id=.id,time=.t,seconds=.s,error=.err,queue=orders,handler=charge")
    rows, quality = read(
        spark,
        tmp_path,
        mapping,
        {"id": "a", "t": NOON},
        {"id": "b", "t": NOON + 1, "s": 0.5},
        {"id": "c", "t": NOON + 2, "s": 0.5, "err": "boom"},
    )
    assert [(row.message_id, row.step, row.at - NOON) for row in rows] == [
        ("a", "started", 0),
        ("b", "started", 0.5),
        ("b", "recorded", 1),
        ("c", "started", 1.5),
        ("c", "retried", 2),
    ]
    assert {(row.queue, row.handler) for row in rows} == {("orders", "charge")}
    assert quality.events == 3


def test_logs_of_any_name_are_read_compressed_or_not(spark: SparkSession, tmp_path: Path) -> None:
    data = json.dumps({"id": "a", "t": NOON}).encode()
    (tmp_path / "app.log.1").write_bytes(data)
    (tmp_path / "000000.gz").write_bytes(gzip.compress(data))
    (tmp_path / "firehose-2026").write_bytes(data)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    reading = logs.read(spark, [str(tmp_path)], mapping=parse("id=.id,time=.t"))
    assert not reading.exact
    assert reading.events.count() == 3
    quality = reading.quality()
    assert (quality.files, quality.events, len(quality.unreadable)) == (3, 3, 1)
