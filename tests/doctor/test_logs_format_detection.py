"""Without `--map`, the first lines of a log decide what its fields mean; what is uncertain or missing is reported."""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
import shlex
import string
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.cli.doctor.options import SAMPLE_MAP
from semel.doctor import SAMPLE
from semel.doctor.errors import DoctorError
from semel.doctor.logs.fields import moment
from semel.doctor.logs.format_detection import MISSING, Detection, detect
from semel.doctor.logs.mapping import CONSTANTS, DEFAULT_WORDS, LogMapping, own, parse
from semel.doctor.logs.phrases import event_words, phrase_step
from semel.telemetry.attempt_log import SPARK_SCHEMA, Step
from semel.telemetry.field_mapping import plain, value_at

LOGS: Final = Path(__file__).parent / "logs"
UUID: Final = "5fea1756-0ec7-4c24-b3fc-9ce5b744f4d{}"
AT: Final = 1_794_830_400  # 2026-11-16 12:00 UTC
TASK_ID: Final = "Celery logs its task id, not the SQS message id; a retry is a new message with the same task id"


def records_of(name: str) -> list[Any]:
    path = LOGS / name
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".json":
        return [json.loads(path.read_text())]
    records = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # Lambda's own lines are not JSON
            records.append(json.loads(line))
    return records


def message(number: int, **fields: Any) -> dict[str, Any]:
    return {"message_id": UUID.format(number), "ts": AT + number, **fields}


def paths(detection: Detection) -> str:
    return detection.mapping.as_option()


# Known formats.

CELERY_PATTERN: Final = (
    r"^Task (?P<handler>[^\\[]+)\\[(?P<id>[^\\]]+)\\] (?P<event>received|succeeded|retry|raised expected|"
    r"raised unexpected|reject|ignored|INTERNAL ERROR)(?: in (?P<seconds>[0-9.]+)s|: (?P<error>.*))?"
)
RECORD: Final = ".message.Records[0]"
SAMPLES: Final = [
    (
        "powertools.jsonl",
        "Lambda Powertools",
        "id=.message_id,time=.timestamp,event=.message,receives=.receive_count,handler=.function_name,error=.exception,"
        "milliseconds=.duration_ms,key=.order_id",
        "started=processing_record,recorded=record_processed,retried=record_failed",
        "queue worker sent",
        [],
        {"started": 7, "recorded": 6, "retried": 1},
    ),
    (
        "powertools-event.jsonl",
        "Lambda Powertools",
        f"id={RECORD}.messageId,time=.timestamp,receives={RECORD}.attributes.ApproximateReceiveCount,"
        f"queue={RECORD}.eventSourceARN,sent={RECORD}.attributes.SentTimestamp,handler=.function_name",
        "",
        "event seconds key worker error",
        [".message.Records has up to 3 messages in a line; only the first is read"],
        {},
    ),
    (
        "celery.jsonl",
        "Celery",
        f'text=.message,time=.asctime,worker=.hostname,pattern="{CELERY_PATTERN}"',
        "retried=raised_expected|raised_unexpected|internal_error",
        "receives key queue sent",
        [TASK_ID],
        {"received": 9, "recorded": 6, "retried": 2, "skipped": 1},
    ),
    (
        "celery-fields.jsonl",
        "Celery",
        "id=.task_id,time=.ts,event=.state,queue=.queue,worker=.hostname,handler=.task_name,error=.error,"
        "seconds=.runtime",
        "",
        "receives key sent",
        [".runtime names no unit; it is read as seconds", TASK_ID],
        {"received": 8, "started": 8, "recorded": 7, "retried": 1},
    ),
    (
        "structlog.jsonl",
        "structlog",
        "id=.message_id,time=.timestamp,event=.event,receives=.receive_count,queue=.queue,worker=.pod,error=.exception,"
        "seconds=.elapsed_seconds,key=.order_id",
        "recorded=processing_finished,retried=processing_failed",
        "sent",
        ['.event has words that are not known, "charging card": say what they mean with --events'],
        {"received": 8, "None": 8, "recorded": 7, "deleted": 7, "retried": 1},
    ),
    (
        "json-logger.jsonl",
        "JSON log",
        "id=.sqs.MessageId,time=.asctime,text=.message,receives=.sqs.Attributes.ApproximateReceiveCount,"
        "queue=.QueueUrl,worker=.process,sent=.sqs.Attributes.SentTimestamp,error=.exc_info,"
        r'pattern="(?i)\\b(?P<event>failed[^a-z0-9]+to[^a-z0-9]+delete|processing|processed|received|deleted|error)\\b"',
        "delete_failed=failed_to_delete",
        "seconds key",
        [],
        {"received": 9, "started": 9, "recorded": 8, "deleted": 7, "retried": 1, "delete_failed": 1},
    ),
    (
        "loguru.jsonl",
        "JSON log",
        "id=.record.extra.messageId,time=.record.time.repr,event=.record.message,receives=.record.extra.receives,"
        "worker=.record.process.id,error=.record.exception.value,key=.record.extra.invoiceNumber",
        "",
        "seconds queue sent",
        [],
        {"started": 7, "recorded": 6, "deleted": 6, "retried": 1},
    ),
    (
        "runs.csv",
        "guessed",
        'id=.["Msg ID"],time=.Time,event=.Result,receives=.Try,worker=.Host,milliseconds=.["Took (ms)"],'
        'key=.["Order No"]',
        "",
        "queue error sent",
        [".Try is read as the receive count; it may count something else"],
        {"recorded": 20, "retried": 1},
    ),
    (
        "zap.jsonl",
        "guessed",
        "id=.ctx.job.uuid,time=.ts,event=.what,seconds=.took",
        "",
        "receives key queue worker error sent",
        [".ctx.job.uuid is taken for the message id because its values are UUIDs"],
        {"received": 10, "recorded": 10},
    ),
    (
        "export.json",
        "guessed",
        'id=.messageId,time=.["@timestamp"],event=.event,worker=.["shard.host"],records=.events',
        "",
        "receives seconds key queue error sent",
        [],
        {"started": 6, "recorded": 6},
    ),
]


@pytest.mark.parametrize(("name", "format", "option", "events", "missing", "doubts", "steps"), SAMPLES)
def test_a_log_is_recognised_by_its_first_lines(
    name: str, format: str, option: str, events: str, missing: str, doubts: list[str], steps: dict[str, int]
) -> None:
    records = records_of(name)
    detection = detect(records)
    mapping = detection.mapping
    assert (detection.format, mapping.as_option(), mapping.as_events_option()) == (format, option, events)
    assert [field.name for field in detection.missing] == sorted(missing.split(), key=list(MISSING).index)
    assert all(field.effect == MISSING[field.name] for field in detection.missing)
    assert list(detection.doubts) == doubts
    lines = value_at(records[0], mapping.records) if mapping.records else records
    values = [mapping.values(line) for line in lines]
    assert Counter(str(mapping.step_of(line["event"])) for line in values if {"id", "event"} <= line.keys()) == steps
    assert parse(option, events) == mapping


def test_semels_own_log_needs_no_guess() -> None:
    detection = detect(records_of("semel.jsonl"))
    assert detection == Detection("Semel attempt log", own())
    columns = {column.split()[0].strip("`") for column in SPARK_SCHEMA.split(", ")}
    unused = {"fence", "attempt", "key_origin", "count"}
    assert {path[0] for path in own().paths.values()} == columns - unused
    assert [own().step_of(step) for step in Step] == [
        None if step in (Step.SENT, Step.DROPPED) else step for step in Step
    ]
    assert own().step_of("done") is None


def test_what_celery_says_in_its_text_is_read_as_fields() -> None:
    records = records_of("celery.jsonl")
    mapping = detect(records).mapping
    lines = [mapping.values(record) for record in records]
    ends = [line for line in lines if line.get("event") not in (None, "received")]
    assert {line["handler"] for line in ends} == {"shop.tasks.charge"}
    assert [line["error"] for line in ends if "error" in line] == [
        "Retry in 3s: ConnectionError('gateway')",
        "KeyError('amount')",
    ]
    assert ends[0]["seconds"] == "0.800000000"
    assert len({line["id"] for line in lines if "id" in line}) == 9


def test_cloudtrail_is_refused_with_what_to_log_instead() -> None:
    document = records_of("cloudtrail.json")
    for records in (document, document[0]["Records"]):
        with pytest.raises(
            DoctorError, match=r"only SendMessage has\na message id(.|\n)*Log a JSON line in the consumer"
        ):
            detect(records)


# Which field it is, if several could be.


def test_only_lines_about_messages_count() -> None:
    noise = [
        {"time": AT, "timestamp": "2026-11-16T12:00:00Z", "event": "GET /", "order_id": str(n)} for n in range(150)
    ]
    lines = [message(n % 8, event="done", shop=f"s-{n}") for n in range(20)]
    assert paths(detect(noise + lines)) == "id=.message_id,time=.ts,event=.event"


MESSAGE: Final = {"message_id": UUID}
CHOICES: Final = [
    # Ids: what SQS calls so before anything else; what is known to be another id never.
    ({"request_id": UUID, "order_id": UUID, "msg": {"id": UUID}}, "id=.msg.id,time=.ts,key=.order_id", []),
    (
        {"trace_id": UUID, "thing": UUID},
        "id=.thing,time=.ts",
        [".thing is taken for the message id because its values"],
    ),
    ({"id": "m-{}"}, "id=.id,time=.ts", [".id is taken for the message id because of its name"]),
    (MESSAGE | {"in": {"messageId": "x{}"}}, "", [".message_id is taken for the message id, not .in.messageId"]),
    (MESSAGE | {"copy": {"messageId": UUID}}, "", []),
    (MESSAGE | {"parent_message_id": "x{}"}, "", []),
    (MESSAGE | {"queue": "1{}"}, "", []),
    # Times: that of the line, not of the message or the order.
    (MESSAGE | {"sent_at": str(AT - 9)}, ",sent=.sent_at", []),
    (MESSAGE | {"created_at": "2026-01-01 00:00:00", "expires_ts": str(AT)}, "", []),
    (MESSAGE | {"time": "2026-11-16 11:00:00"}, "", [".ts is taken for the time, not .time"]),
    (MESSAGE | {"datetime": "2026-11-16T12:00:0{}Z"}, "", []),
    # Keys: what is the same in all lines of a message, and differs between messages.
    (MESSAGE | {"customer_id": "c{}", "orderNumber": "{}"}, ",key=.orderNumber", []),
    (MESSAGE | {"shop_ref": "the only shop"}, "", []),
    (MESSAGE | {"shop_ref": "1"}, "", []),
    (MESSAGE | {"invoice": "{}", "order": "{}"}, ",key=.invoice", [".invoice is taken for the key, not .order"]),
    (MESSAGE | {"order": "{}", "idempotency_key": "{}"}, ",key=.idempotency_key", []),
    # Counts, durations, queues: by name and value.
    (MESSAGE | {"receives": "0"}, "", []),
    (MESSAGE | {"attempt": "1"}, ",receives=.attempt", [".attempt is read as the receive count; it may count"]),
    (MESSAGE | {"duration": "35{}"}, ",milliseconds=.duration", [".duration names no unit; it is read as milli"]),
    (MESSAGE | {"duration": "1.{}"}, ",seconds=.duration", [".duration names no unit; it is read as seconds"]),
    (MESSAGE | {"duration": "35{}ms"}, ",seconds=.duration", []),
    (MESSAGE | {"elapsedNs": "35{}"}, ",nanoseconds=.elapsedNs", []),
    (MESSAGE | {"visibility_timeout_seconds": "30"}, ",visibility=.visibility_timeout_seconds", []),
    (MESSAGE | {"from": "arn:aws:sqs:eu-west-1:123:orders"}, ",queue=.from", []),
    (MESSAGE | {"dlq": "https://sqs.eu-west-1.amazonaws.com/1/dead", "queue": "q"}, ",queue=.queue", []),
    # Events: what happened, not how bad it is, nor any truth.
    (MESSAGE | {"level": "error", "phase": "started"}, ",event=.phase", []),
    (MESSAGE | {"retryable": "false", "success": "true"}, ",event=.success", []),
    (MESSAGE | {"cold_start": "false"}, "", []),
    (MESSAGE | {"event": "started", "state": "started"}, ",event=.event", []),
]


@pytest.mark.parametrize(("fields", "option", "doubts"), CHOICES)
def test_a_field_is_chosen_by_name_and_value(fields: dict[str, Any], option: str, doubts: list[str]) -> None:
    def filled(value: Any, number: int) -> Any:
        if isinstance(value, dict):
            return {name: filled(below, number) for name, below in value.items()}
        return value.format(number)

    detection = detect([{"ts": AT + number, **filled(fields, number)} for number in range(6)] * 2)
    start = "" if option.startswith("id=") else "id=.message_id,time=.ts"
    assert paths(detection) == f"{start}{option}"
    assert len(detection.doubts) == len(doubts)
    assert all(doubt.startswith(expected) for doubt, expected in zip(detection.doubts, doubts, strict=True))


def test_a_key_that_changes_within_a_message_is_none() -> None:
    lines = [message(number % 5, batch_ref=f"b{number}") for number in range(10)]
    assert paths(detect(lines)) == "id=.message_id,time=.ts"


def test_a_field_in_most_lines_is_preferred_to_a_surer_name_in_few() -> None:
    lines = [message(number, host=f"h{number}") for number in range(9)]
    assert paths(detect([*lines, message(9, worker="w")])) == "id=.message_id,time=.ts,worker=.host"


def test_the_end_of_a_run_is_its_time_if_it_has_a_start_too() -> None:
    lines = [{"message_id": UUID.format(n), "start_time": AT + n, "end_time": AT + n + 9} for n in range(5)]
    assert paths(detect(lines)) == "id=.message_id,time=.end_time"


def test_a_field_that_is_text_here_and_an_object_there_is_only_one_of_the_two() -> None:
    lines = [message(number, status="done") for number in range(5)] + [message(6, status={"queue": "orders"})]
    assert paths(detect(lines)) == "id=.message_id,time=.ts,event=.status"


def test_a_line_with_a_list_in_it_is_not_a_document() -> None:
    record = {"messageId": UUID}
    assert detect([{"ts": AT, "Records": [record, record]}]).mapping.records is None
    with pytest.raises(DoctorError, match="no time"):
        detect([{"Records": [record, record]}])


def test_celery_is_recognised_among_lines_of_the_application() -> None:
    application: list[dict[str, Any]] = [{"timestamp": AT, "message": "GET /", "host": "web"} for _ in range(50)]
    celery = [{"asctime": "2026-11-16 12:00:00,250", "message": f"Task a.b[{n}] received"} for n in range(5)]
    mapping = detect(application + celery).mapping
    assert mapping.paths == {"text": ("message",), "time": ("asctime",)}


def test_the_sample_log_needs_no_option() -> None:
    records = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    assert detect(records).mapping.paths == parse(SAMPLE_MAP).paths


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (AT, AT),
        (str(AT * 1_000 + 250), AT + 0.25),
        (AT * 1_000_000, AT),
        (AT * 1_000_000_000, AT),
        ("2026-11-16T12:00:00Z", AT),
        ("2026-11-16 13:00:00,250+0100", AT + 0.25),
        ("2026-11-16 12:00:00 UTC", AT),
        (dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC), AT),
        (12, None),
        (True, None),
        ("12:00", None),
        ("2026-11-16 12:00:00 | INFO | started", None),
    ],
)
def test_times_are_told_by_their_values(value: Any, seconds: float | None) -> None:
    assert moment(value) == seconds


def test_rows_of_parquet_have_times_and_numbers_of_their_own() -> None:
    rows = [
        {
            "message_id": UUID.format(n),
            "at": dt.datetime(2026, 11, 16, 12, n, tzinfo=dt.UTC),
            "receive_count": 1,
            "ms": 4,
        }
        for n in range(5)
    ]
    assert paths(detect(rows)) == "id=.message_id,time=.at,receives=.receive_count"


# Sentences.


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("Processing order 17", Step.STARTED),
        ("Order 17 processed in 3 s", Step.RECORDED),
        ("Finished processing", Step.RECORDED),
        ("Error while processing order", Step.RETRIED),
        ("Failed to delete message", Step.DELETE_FAILED),
        ("message could not be deleted", Step.DELETE_FAILED),
        ("Message deleted", Step.DELETED),
        ("Order 17 was not processed", Step.RETRIED),
        ("unable to complete the order", Step.RETRIED),
        ("moved to dead-letter queue after 5 failed attempts", Step.REJECTED),
        ("already processed, skipped", Step.DUPLICATE),
        ("visibility extended by 30 s", Step.HEARTBEAT),
        ("Received message", Step.RECEIVED),
        ("connection lost", None),
        ("end of the process is not true", None),
        ("", None),
    ],
)
def test_of_several_words_the_outcome_decides(text: str, step: Step | None) -> None:
    assert phrase_step(text) is step


def test_sentences_that_vary_are_read_by_a_pattern_and_its_mistakes_are_said() -> None:
    texts = {"Processing order 17": 1, "Order 17 done": 1, "Processing of order 18 failed": 1}
    words, pattern, doubts = event_words(texts, ".message")
    assert (words, pattern) == ({}, r"(?i)\b(?P<event>processing|failed|done)\b")
    assert doubts == ['"Processing of order 18 failed" in .message is read as started, not as retried']


def test_what_a_log_says_cannot_harm_a_terminal() -> None:
    words, pattern, doubts = event_words({"\x1b[2J" + "a" * 200: 1}, ".message")
    assert (words, pattern) == ({}, "")
    assert doubts == [f'.message has words that are not known, "[2J{"a" * 75}…": say what they mean with --events']


def test_sentences_of_too_many_kinds_are_read_by_a_pattern_too() -> None:
    texts = {f"charged {'a' * number}, done": 1 for number in range(1, 32)}
    assert event_words(texts, ".message") == ({}, r"(?i)\b(?P<event>done)\b", [])


@pytest.mark.parametrize("name", ["celery.jsonl", "json-logger.jsonl"])
def test_duckdb_reads_a_pattern_as_python_does(name: str) -> None:
    records = records_of(name)
    mapping = detect(records).mapping
    for record in records:
        text = mapping.values(record)["text"]
        match = re.search(mapping.pattern, text)
        captured = duckdb.execute(f"SELECT regexp_extract(?, ?, {list(mapping.captured)})", [text, mapping.pattern])
        expected = dict.fromkeys(mapping.captured, "") if match is None else match.groupdict(default="")
        assert captured.fetchall() == [(expected,)]


# What cannot be used.


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "no line with fields"),
        ([{}, {}], "no line with fields"),
        ([{"a": None, "b": [], "c": {}}], "Its lines have no values"),
        (
            [{"ts": AT, "request_id": UUID, "order_id": "7"}] * 3,
            r"no message id that can be recognised in 3 lines.\nIts fields: .ts, .request_id, .order_id\n"
            r"Say which field is which, beginning with: --map id=.path.of.message_id,time=.ts$",
        ),
        ([{"message_id": UUID, "took": 3}], r"no time that can(.|\n)*--map id=.message_id,time=.path.of.time$"),
        ([{"messageId": "a sentence with blanks", "ts": AT}], "no message id"),
        ([{"message_id": UUID, "time": 0.35}, {"message_id": UUID, "time": 1.2}], "no time"),
        ([{"id": "service-7", "ts": AT + n} for n in range(5)], "no message id"),
        ([{"timestamp": AT, "message": '{"message_id": 1}'}], r"\.message has JSON as text: unpack it first"),
    ],
)
def test_a_log_without_id_or_time_is_refused_with_its_fields_and_a_beginning(records: Any, said: str) -> None:
    with pytest.raises(DoctorError, match=said):
        detect(records)


def test_the_beginning_can_be_pasted_into_a_shell_whatever_the_names_are() -> None:
    with pytest.raises(DoctorError) as error:
        detect([{"it's": {'a "time"': AT}}])
    words = shlex.split(str(error.value).rpartition("--map ")[2])
    assert [parse(word).paths["time"] for word in words] == [("it's", 'a "time"')]


def test_names_with_quotes_dots_and_other_alphabets_are_found_and_written() -> None:
    lines = [
        {'say "hi"': {"a.b": {"message_id": UUID.format(n)}}, "it's a\ttime": AT + n, "Größe, 大": {"host": "h\n"}}
        for n in range(4)
    ]
    mapping = detect(lines).mapping
    assert mapping.paths == {
        "id": ('say "hi"', "a.b", "message_id"),
        "time": ("it's a\ttime",),
        "worker": ("Größe, 大", "host"),
    }
    assert parse(mapping.as_option()) == mapping


def test_depth_and_width_have_a_limit() -> None:
    deep: dict[str, Any] = {"message_id": UUID}
    for _ in range(2_000):
        deep = {"down": deep}
    wide = {f"f{number}": number for number in range(5_000)}
    lines = [{**message(n), "deep": deep, "lists": [[[{"queue": "q"}]]], **wide, "host": "h"} for n in range(3)]
    assert paths(detect(lines)) == "id=.message_id,time=.ts"


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([AT, UUID, "started", "1"]),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(
            st.text() | st.sampled_from(["id", "message_id", "ts", "event", "order_id"]), values, max_size=5
        )
    ),
    max_leaves=20,
)


@given(
    st.lists(
        st.dictionaries(st.text() | st.sampled_from(["id", "ts", "event", "message"]), JSON, max_size=6), max_size=8
    )
)
def test_whatever_is_in_a_log_is_mapped_or_refused(records: list[dict[str, Any]]) -> None:
    try:
        mapping = detect(records).mapping
    except DoctorError:
        return
    assert {"id", "time"} <= mapping.names
    assert parse(mapping.as_option(), mapping.as_events_option()) == mapping


# The option that says the same.

WORDS: Final = st.text(string.ascii_lowercase + string.digits + "_", min_size=1).filter(
    lambda word: plain(word) == word
)
STEPS: Final = st.sampled_from([step for step in Step if step not in (Step.SENT, Step.DROPPED)])
PART: Final = st.text(max_size=8) | st.sampled_from(['"', "'", "\\", "a.b", "a,b=c", "[0]", "$", ""])


@st.composite
def mappings(draw: st.DrawFn) -> LogMapping:
    optional = ("event", "key", "sent", "seconds", "error")
    names = ["id", "time", *draw(st.lists(st.sampled_from(optional), unique=True))]
    tops = draw(st.lists(PART, min_size=len(names) + 2, max_size=len(names) + 2, unique=True))
    below = st.lists(PART | st.integers(0, 99), max_size=3)
    places = {name: (top, *draw(below)) for name, top in zip(names, tops, strict=False)}
    pattern = draw(
        st.sampled_from(["", r"^a\[\"(?P<handler>[^,']+)\] (?:x|y)", "(?i)(?P<group>é+), (?P<receives>\\d)"])
    )
    if pattern:
        places["text"] = (tops[-1],)
    constants = draw(st.dictionaries(st.sampled_from([n for n in CONSTANTS if n != "visibility"]), PART.filter(bool)))
    words = draw(st.dictionaries(WORDS, STEPS))
    records = (tops[-2], *draw(below)) if draw(st.booleans()) else None
    return LogMapping(places, constants, {**DEFAULT_WORDS, **words}, pattern, records)


@given(mappings())
def test_every_mapping_can_be_written_as_an_option(mapping: LogMapping) -> None:
    assert parse(mapping.as_option(), mapping.as_events_option()) == mapping
