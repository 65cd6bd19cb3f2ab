"""JSON lines of any application become events with a short mapping."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from doctor.stories import events_and_quality
from semel.doctor.diagnosis import Request, diagnose
from semel.doctor.engine.contract import Engine, Row
from semel.doctor.errors import DoctorError
from semel.doctor.events import STEPS
from semel.doctor.logs.mapping import DEFAULT_WORDS, LogMapping, parse
from semel.doctor.model import Quality
from semel.telemetry.attempt_log import Step
from semel.telemetry.field_mapping import parse_path, written

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC
ISO: Final = "2026-11-16T12:00:00Z"


def read(engine: Engine, tmp_path: Path, mapping: LogMapping, *lines: Any) -> tuple[list[Row], Quality]:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (tmp_path / "app.log").write_text(text)
    return events_and_quality(engine, tmp_path / "app.log", mapping=mapping)


def seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def step(event: Row) -> str:
    return STEPS[event["flag"]].value


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
        (
            "id=.a,time=.t,text=.m,pattern='(?P<key>.)(?P=key)'",
            None,
            r"RE2, which .* \(invalid .*\); it must do without",
        ),
        (r"id=.a,time=.t,text=.m,pattern='(?P<key>\u00e9)'", None, r"\(invalid escape sequence: \\u\)"),
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


def test_lines_become_events_with_all_that_is_mapped(engine: Engine, tmp_path: Path) -> None:
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
    bare = {"msg": {"messageId": "id-2"}, "@timestamp": "2026-11-16T11:59:58", "event": "Message started"}
    (first, start, second), quality = read(engine, tmp_path, mapping, full, bare)
    wanted = {
        "event_time": NOON * 1e6, "queue": "orders.fifo", "message_id": "id-1", "key": "17", "receive_count": 3,
        "sent_time": (NOON - 5) * 1e6, "duration": 1_500_000, "visibility": 30_000_000, "error": '{"type":"Late"}',
        "worker": "web-1", "handler": "charge",
    }  # fmt: skip
    assert {name: second[name] for name in wanted} == wanted
    assert (step(second), second["group_id"] is None) == ("recorded", False)
    assert (seconds(start["event_time"]), step(start)) == (NOON - 1.5, "started")
    assert (seconds(first["event_time"]), step(first)) == (NOON - 2, "started")
    assert (first["queue"], first["worker"], first["group_id"]) == ("log", None, None)
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


def test_times_of_all_kinds_are_understood_in_any_time_zone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    lines = [{"id": f"{number:02}", "t": value} for number, (value, _) in enumerate(TIMES)]
    bad = [{"id": "x", "t": value} for value in ("yesterday", "12:00", "", None, True, "2026-13-77", -5, {"a": 1})]
    events, quality = read(engine, tmp_path, parse("id=.id,time=.t"), *lines, *bad)
    times = {event["message_id"]: seconds(event["event_time"]) for event in events}
    assert times == {f"{number:02}": pytest.approx(at, abs=1e-5) for number, (_, at) in enumerate(TIMES)}
    assert quality == Quality(files=1, lines=len(TIMES) + len(bad), events=len(TIMES), incomplete=len(bad))


DURATIONS: Final = {
    "2": 0.002, "1.5": 0.0015, "350ms": 0.35, "350 ms": 0.35, "2s": 2, "20us": 2e-5, "20µs": 2e-5, "1m30.5s": 90.5,
    "2h0m1s": 7201, "3 min": 180, "1e-3": 1e-6, "long": None, "5 apples": None, "NaN": None, "1e300": None,
}  # fmt: skip


def test_durations_may_have_their_unit_with_them(engine: Engine, tmp_path: Path) -> None:
    lines = [{"id": value, "t": NOON, "e": "done", "took": value} for value in DURATIONS]
    events, _ = read(engine, tmp_path, parse("id=.id,time=.t,event=.e,milliseconds=.took"), *lines)
    durations = {event["message_id"]: seconds(event["duration"]) for event in events if step(event) == "recorded"}
    assert durations == DURATIONS


def test_common_words_are_known_whatever_their_case_and_others_can_be_defined(engine: Engine, tmp_path: Path) -> None:
    words = ["Polled", "BEGIN", "processing-message", "message.processed", "Exception", "ack", "charged", "Job Skipped"]
    lines = [
        {"id": "a", "t": NOON + number, "e": word} for number, word in enumerate([*words, "hummed", "sang", "sang"])
    ]
    mapping = parse("id=.id,time=.t,event=.e", "recorded=charged")
    events, quality = read(engine, tmp_path, mapping, *lines, {"id": "a", "t": NOON})
    assert [step(event) for event in events] == [
        "received", "started", "started", "recorded", "retried", "deleted", "recorded", "skipped",
    ]  # fmt: skip
    assert quality == Quality(
        files=1, lines=12, events=8, incomplete=1, unknown_events=3, unknown_words=("sang", "hummed")
    )


def test_what_is_not_about_a_message_is_incomplete_and_what_is_not_json_malformed(
    engine: Engine, tmp_path: Path
) -> None:
    mapping = parse("id=.msg.id,time=.t,error=.error.text")
    events, quality = read(
        engine,
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
    assert [(event["message_id"], step(event), event["error"]) for event in events] == [
        ("a", "started", None),
        ("b", "started", None),
    ]
    assert (quality.lines, quality.incomplete, quality.malformed) == (7, 3, 2)
    log = tmp_path / "app.log"
    assert quality.samples == (f"{log}:6: Starting up on port 80", f'{log}:7: {{"msg": {{"id": "half"')


def test_a_list_can_be_looked_into(engine: Engine, tmp_path: Path) -> None:
    lines = [{"Records": [{"messageId": "a"}, {"messageId": "b"}], "t": NOON}, {"Records": [], "t": NOON}]
    events, quality = read(engine, tmp_path, parse("id=.Records[0].messageId,time=.t"), *lines)
    assert ([event["message_id"] for event in events], quality.incomplete) == (["a"], 1)


ODD_NAMES: Final = ('it\'s "so"', "a.b", "ключ", "back\\slash", "$x", "sp ace")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_field_may_have_any_name(duckdb_engine: Engine, tmp_path: Path, name: str) -> None:
    mapping = parse(f"id=.[{json.dumps(name)}],time=.t")
    events, _ = read(duckdb_engine, tmp_path, mapping, {name: "a", "t": NOON})
    assert [event["message_id"] for event in events] == ["a"]


def test_a_pattern_captures_in_a_field_what_it_captures_in_python(engine: Engine, tmp_path: Path) -> None:
    pattern = r"order '(?P<id>[^']+)' (?P<event>started|done)(?: in (?P<seconds>[0-9.]+) ?s)?"
    mapping = parse(f"time=.t,text=.m,queue=orders,pattern={json.dumps(pattern)}")
    lines = [
        {"t": NOON, "m": "order 'é-1' started"},
        {"t": NOON + 2, "m": "the order 'é-1' done in 1.5 s"},
        {"t": NOON + 3, "m": "nothing of the kind"},
    ]
    events, quality = read(engine, tmp_path, mapping, *lines)
    assert [mapping.values(line).get("id") for line in lines] == ["é-1", "é-1", None]
    assert [(event["message_id"], step(event), event["duration"]) for event in events] == [
        ("é-1", "started", None),
        ("é-1", "recorded", 1_500_000),
    ]
    assert quality == Quality(files=1, lines=3, events=2, incomplete=1)


def test_an_end_with_a_duration_tells_of_its_start_unless_the_log_does(engine: Engine, tmp_path: Path) -> None:
    mapping = parse("id=.id,time=.t,event=.e,seconds=.s,error=.err")
    events, _ = read(
        engine,
        tmp_path,
        mapping,
        {"id": "a", "t": NOON, "e": "failed", "s": 3, "err": "boom"},
        {"id": "a", "t": NOON + 10, "e": "done", "s": 2.5},
        {"id": "b", "t": NOON + 20, "e": "start"},
        {"id": "b", "t": NOON + 21, "e": "done", "s": 1},
        {"id": "c", "t": NOON + 30, "e": "done"},
    )
    assert [
        (event["message_id"], step(event), event["event_time"] / 1e6 - NOON, seconds(event["duration"]), event["error"])
        for event in events
    ] == [
        ("a", "started", -3, None, None),
        ("a", "retried", 0, 3, "boom"),
        ("a", "started", 7.5, None, None),
        ("a", "recorded", 10, 2.5, None),
        ("b", "started", 20, None, None),
        ("b", "recorded", 21, 1, None),
        ("c", "recorded", 30, None, None),
    ]


def test_without_an_event_a_line_is_a_start_or_with_a_duration_a_run(engine: Engine, tmp_path: Path) -> None:
    mapping = parse("id=.id,time=.t,seconds=.s,error=.err,queue=orders,handler=charge")
    events, quality = read(
        engine,
        tmp_path,
        mapping,
        {"id": "a", "t": NOON},
        {"id": "b", "t": NOON + 1, "s": 0.5},
        {"id": "c", "t": NOON + 2, "s": 0.5, "err": "boom"},
    )
    assert [(event["message_id"], step(event), event["event_time"] / 1e6 - NOON) for event in events] == [
        ("a", "started", 0),
        ("b", "started", 0.5),
        ("b", "recorded", 1),
        ("c", "started", 1.5),
        ("c", "retried", 2),
    ]
    assert {(event["queue"], event["handler"]) for event in events} == {("orders", "charge")}
    assert quality.events == 3


def test_logs_of_any_name_are_read_compressed_or_not(engine: Engine, tmp_path: Path) -> None:
    data = json.dumps({"id": "a", "t": NOON}).encode()
    (tmp_path / "app.log.1").write_bytes(data)
    (tmp_path / "000000.gz").write_bytes(gzip.compress(data))
    (tmp_path / "firehose-2026").write_bytes(data)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    events, quality = events_and_quality(engine, tmp_path, mapping=parse("id=.id,time=.t"))
    assert len(events) == 3
    assert (quality.files, quality.events, len(quality.unreadable)) == (3, 3, 1)


# Columns of CSV and Parquet.

ROWS: Final = [
    {"messageId": "5fea1756-0ec7-4c24-b3fc-9ce5b744f4d1", "ts": ISO, "event": "started", "receiveCount": 1},
    {"messageId": "5fea1756-0ec7-4c24-b3fc-9ce5b744f4d1", "ts": ISO, "event": "done", "receiveCount": 1},
    {"messageId": "5fea1756-0ec7-4c24-b3fc-9ce5b744f4d1", "ts": ISO, "event": "started", "receiveCount": 2},
]


def write_table(folder: Path, suffix: str) -> Path:
    path = folder / f"app{suffix}"
    if suffix == ".parquet":
        table = pa.Table.from_pylist(ROWS)
        times = pa.array([int(NOON * 1e6)] * len(ROWS), pa.timestamp("us", tz="UTC"))
        parquet.write_table(table.set_column(1, "ts", times), path)
    else:
        lines = [",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]
        path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_can_be_mapped(engine: Engine, tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path, suffix)
    mapping = parse("id=.messageId,time=.ts,event=.event,receives=.receiveCount,queue=orders")
    events, quality = events_and_quality(engine, path, mapping=mapping)
    assert sorted((step(event), event["receive_count"], event["event_time"]) for event in events) == [
        ("recorded", 1, NOON * 1e6), ("started", 1, NOON * 1e6), ("started", 2, NOON * 1e6),
    ]  # fmt: skip
    assert quality == Quality(files=1, lines=3, events=3)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_columns_mean_is_detected(tmp_path: Path, suffix: str) -> None:
    diagnosis = diagnose(Request(logs=(str(write_table(tmp_path, suffix)),), engine="duckdb"))
    (case,) = diagnosis.cases
    assert case.behaviour is not None
    assert (case.behaviour.messages, case.behaviour.deliveries, case.behaviour.attempts) == (1, 2, 2)
    assert "receives=.receiveCount" in diagnosis.log_fields[0]
