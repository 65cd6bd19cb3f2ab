"""Histories in files: formats, mappings, order, and lines that cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.telemetry.attempt_log import Attempt, AttemptLog, Step
from semel.telemetry.field_mapping import MappingError
from semel.verify import EventKind, merge
from semel.verify.file_parser import HistoryError
from semel.verify.report import HistoryReport, HistoryRequest, verify
from verify.events import event, findings_of

GOOD = [
    {"kind": "send", "message": "m1", "key": "order-1", "time": 1.0},
    {"kind": "effect", "key": "order-1", "time": 2.0},
    {"kind": "delete", "message": "m1", "time": 3.0},
]
DOUBLED = {"kind": "effect", "key": "order-1", "time": 2.5}


def write(path: Path, lines: Iterable[Any]) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    content = "".join(f"{text}\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def verified(*paths: str | Path, **options: Any) -> HistoryReport:
    return verify(HistoryRequest(tuple(map(str, paths)), **options))


# Formats.


@pytest.mark.parametrize("name", ["history.jsonl", "history.jsonl.gz", "history.txt"])
def test_json_lines_are_read_packed_or_not(tmp_path: Path, name: str) -> None:
    assert verified(write(tmp_path / name, GOOD)).ok
    report = verified(write(tmp_path / name, [*GOOD, DOUBLED]))
    assert findings_of(report.verdict) == [("doubled", "order-1")]


def test_evidence_names_its_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "history.jsonl", [*GOOD, "", DOUBLED])
    (finding,) = verified(path).verdict.findings
    assert [(event.file, event.line) for event in finding.evidence] == [(path, 2), (path, 5)]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\n".join(json.dumps(line) for line in reversed(GOOD))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert verified("-").ok


def test_a_folder_is_all_of_its_histories(tmp_path: Path) -> None:
    write(tmp_path / "log" / "a" / "one.jsonl", GOOD[:1])
    write(tmp_path / "log" / "b" / "two.ndjson.gz", GOOD[1:])
    write(tmp_path / "log" / "notes.txt", ["no history"])
    write(tmp_path / "log" / ".half.jsonl", ["being written"])
    report = verified(tmp_path / "log")
    assert (report.ok, len(report.files), report.verdict.counts.events) == (True, 2, 3)


def test_parquet_is_read_as_json_lines_are(tmp_path: Path) -> None:
    rows = [
        {"kind": "send", "key": "a", "at": 1, "n": 7},
        {"kind": "effect", "key": "a", "at": 2, "n": None},
        {"kind": "effect", "key": "a", "at": 3, "n": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "history.parquet")
    (finding,) = verified(tmp_path / "history.parquet").verdict.findings
    assert [event.line for event in finding.evidence] == [2, 3]
    table = pa.table({"order": ["a", "b"], "charged": pa.array([1_000, 2_000], pa.timestamp("ms"))})
    pq.write_table(table, tmp_path / "charges.parquet")
    sends = write(tmp_path / "sends.jsonl", [{"kind": "send", "key": key, "time": 0.5} for key in "ab"])
    report = verified(f"effect={tmp_path / 'charges.parquet'}", sends, fields="key=.order,time=.charged")
    assert (report.ok, report.verdict.counts.effects) == (True, 2)


def test_times_may_be_texts_or_milliseconds(tmp_path: Path) -> None:
    lines = [
        {"kind": "effect", "key": "b", "time": "2026-11-16T10:00:03Z", "group": "g"},
        {"kind": "effect", "key": "a", "time": 1794823202000, "group": "g"},
        {"kind": "send", "key": "b", "time": "2026-11-16 10:00:01", "group": "g"},
        {"kind": "send", "key": "a", "time": 1794823200.5, "group": "g"},
    ]
    assert verified(write(tmp_path / "history.jsonl", lines)).ok


def test_a_queue_is_the_same_by_its_name_url_and_arn(tmp_path: Path) -> None:
    lines = [
        {"kind": "send", "key": "a", "queue": "arn:aws:sqs:eu-west-1:123456789012:orders"},
        {"kind": "effect", "key": "a", "queue": "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"},
        {"kind": "send", "key": "b", "queue": "orders"},
        {"kind": "effect", "key": "b", "queue": "orders"},
    ]
    report = verified(write(tmp_path / "history.jsonl", lines))
    assert report.ok
    assert {entry.queue for entry in report.verdict.unchecked} == {""}


# Order.


def test_files_are_merged_by_time_whatever_their_order(tmp_path: Path) -> None:
    early = [{"kind": "delete", "key": "a", "time": 3.0}, {"kind": "effect", "key": "b", "time": 4.0}]
    late = [{"kind": "send", "key": "a", "time": 1.0}, {"kind": "effect", "key": "a", "time": 2.0}]
    more = [{"kind": "send", "key": "b", "time": 0.5}, {"kind": "delete", "key": "b", "time": 9.0}]
    paths = [write(tmp_path / f"{n}.jsonl", lines) for n, lines in enumerate((early, late, more))]
    assert verified(*paths).ok
    assert findings_of(verified(paths[1], write(tmp_path / "0.jsonl", [{**early[0], "time": 1.5}])).verdict) == [
        ("deleted-early", "a")
    ]


def test_a_file_that_is_out_of_order_is_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verified(write(tmp_path / "few.jsonl", GOOD[::-1])).ok
    monkeypatch.setattr(merge, "WINDOW", 100)
    many = [
        {"kind": kind, "key": f"k{n}", "time": n + offset}
        for kind, offset in (("delete", 0.7), ("effect", 0.5), ("send", 0.0))
        for n in range(1_000)
    ]
    report = verified(write(tmp_path / "many.jsonl", ["{broken", *many]))
    assert report.verdict.ok
    assert (report.verdict.counts.events, report.unreadable) == (3_000, 1)  # counted once, though read twice


def test_lines_that_are_nearly_in_order_are_sorted_on_the_way() -> None:
    events = [event("effect", f"k{n}", time=n + n % 7 * 3.0) for n in range(100)]
    in_time = sorted(events, key=lambda each: each.time or 0)
    assert list(merge.in_order([lambda: iter(events)])) == in_time != events


def test_without_times_the_order_is_that_of_the_lines_and_files(tmp_path: Path) -> None:
    lines = [{name: value for name, value in line.items() if name != "time"} for line in GOOD]
    first, second = write(tmp_path / "1.jsonl", lines[:2]), write(tmp_path / "2.jsonl", lines[2:])
    assert verified(first, second).ok
    assert findings_of(verified(second, first).verdict) == [("deleted-early", "order-1")]


# Somebody else's logs.

THEIRS = [
    {"ts": "2026-11-16T10:00:00Z", "what": "order published", "order": {"id": 7}, "MessageId": "m1"},
    {"ts": "2026-11-16T10:00:01Z", "what": "card charged", "order": {"id": 7}},
    {"ts": "2026-11-16T10:00:02Z", "what": "heartbeat", "order": {"id": 7}},
    {"ts": "2026-11-16T10:00:03Z", "what": "ACKED", "MessageId": "m1"},
]
FIELDS = "id=.MessageId,key=.order.id,time=.ts,event=.what"
WORDS = 'send="order published",effect=card_charged'


def test_fields_and_words_of_other_logs_are_mapped(tmp_path: Path) -> None:
    path = write(tmp_path / "app.log", THEIRS)
    report = verified(path, fields=FIELDS, words=WORDS)
    assert report.ok
    assert (report.verdict.counts.sends, report.verdict.counts.effects, report.verdict.counts.deletes) == (1, 1, 1)
    assert report.ignored == {"heartbeat": 1}
    assert findings_of(
        verified(write(tmp_path / "app.log", [*THEIRS, THEIRS[1]]), fields=FIELDS, words=WORDS).verdict
    ) == [("doubled", "7")]


def test_words_alone_can_be_given(tmp_path: Path) -> None:
    lines = [{"kind": "published", "key": "a"}, {"kind": "charged", "key": "a"}, {"kind": "charged", "key": "a"}]
    report = verified(write(tmp_path / "app.jsonl", lines), words="effect=charged")
    assert findings_of(report.verdict) == [("doubled", "a")]


def test_a_mapping_is_for_the_files_that_need_it(tmp_path: Path) -> None:
    theirs = write(tmp_path / "app.log", THEIRS[:2])
    ours = write(tmp_path / "ours.jsonl", [{"kind": "effect", "key": "7", "time": "2026-11-16T11:00:00Z"}])
    assert findings_of(verified(theirs, ours, fields=FIELDS, words=WORDS).verdict) == [("doubled", "7")]


def test_all_lines_of_a_file_can_be_said_to_be_of_one_kind(tmp_path: Path) -> None:
    sends = write(tmp_path / "sends.jsonl", [{"order": "a"}, {"order": "b"}])
    effects = write(tmp_path / "effects.jsonl", [{"order": "a"}])
    report = verified(f"send={sends}", f"effect={effects}", fields="key=.order")
    assert findings_of(report.verdict) == [("lost", "b")]


def test_a_mapped_field_that_no_line_has_is_noted(tmp_path: Path) -> None:
    report = verified(write(tmp_path / "app.log", THEIRS), fields=f"{FIELDS},group=.grp", words=WORDS)
    assert report.notes == ("no line has a value at group=.grp",)


def test_a_field_that_may_be_misspelled_is_noted(tmp_path: Path) -> None:
    lines = [{**GOOD[0], "amount": 3}, {**GOOD[1], "wroker": "w1"}]
    (note,) = verified(write(tmp_path / "history.jsonl", lines)).notes
    assert note.endswith("the field wroker is ignored, did you mean worker?")


@pytest.mark.parametrize(
    ("fields", "words", "said"),
    [
        ("idd=.x", None, "no such field, did you mean id"),
        ("id=x", None, "a path begins with a dot"),
        ("id=.x,message=.y", None, "given twice"),
        ("time=.ts", None, "id=.path or key=.path is missing"),
        ("id=.x,event=explode", None, "no such event"),
        ("id=.x", "explode=x", "no such event"),
        ("id=.x", "send=x,effect=x", "cannot be both"),
        ("id=.x", "send=", "give words"),
        ("id=.x, =", None, "cannot read"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(fields: str, words: str | None, said: str) -> None:
    with pytest.raises(MappingError, match=said):
        verified("nowhere", fields=fields, words=words)


# What cannot be read.


def test_lines_that_cannot_be_read_are_counted_and_named_and_the_verdict_is_not_ok(tmp_path: Path) -> None:
    lines = [
        GOOD[0],
        "{half",
        "[1, 2]",
        {"kind": "effect"},
        {"kind": "effect", "key": "a", "time": "yesterday"},
        {"kind": "effect", "key": "a", "fence": 1.5},
        *GOOD[1:],
    ]
    report = verified(write(tmp_path / "history.jsonl", lines))
    assert report.verdict.ok
    assert not report.ok
    assert report.unreadable == 5
    assert [line.line for line in report.broken] == [2, 3, 4, 5, 6]
    reasons = [line.reason for line in report.broken]
    assert "not a JSON object" in reasons[1]
    assert "neither a message id nor a key" in reasons[2]
    assert "'yesterday', which is neither seconds nor ISO 8601" in reasons[3]
    assert "fence is '1.5', which is not a whole number" in reasons[4]


def test_a_packed_file_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "history.jsonl.gz", [*GOOD, *({"kind": "send", "key": f"{n}"} for n in range(5_000))]))
    path.write_bytes(path.read_bytes()[:-200])
    report = verified(path)
    assert report.verdict.counts.events > 3
    assert (report.ok, report.unreadable, "the rest cannot be read" in report.broken[0].reason) == (False, 1, True)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    report = verified(write(tmp_path / "history.jsonl", GOOD), tmp_path / "damaged.parquet")
    assert (report.ok, report.unreadable) == (False, 1)
    assert report.broken[0].file.endswith("damaged.parquet")


def test_what_is_not_there_or_has_no_event_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no such file or folder"):
        verified(tmp_path / "nowhere.jsonl")
    with pytest.raises(HistoryError, match="no history is there"):
        verified(tmp_path)
    with pytest.raises(HistoryError, match=r"no event in .*:1: JSON is malformed"):
        verified(write(tmp_path / "broken.jsonl", ["{half"]))
    with pytest.raises(HistoryError, match=r"say what its words mean.*they are boom"):
        verified(write(tmp_path / "words.jsonl", [{"kind": "boom", "key": "a"}]))


def test_a_file_that_is_something_else_is_refused_with_its_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "app.log", THEIRS)
    with pytest.raises(HistoryError, match=r"they have \.ts, \.what, \.order, \.MessageId\. .*--map"):
        verified(path)
    with pytest.raises(HistoryError, match="--map does not say which events"):
        verified(path, fields="key=.order.id")


# The attempt log.


def attempts(folder: Path, *events: Attempt, **options: Any) -> Path:
    with AttemptLog.open(str(folder), **options) as log:
        log.add_all(events)
    return folder


def of(step: Step, at: float, key: str = "a", **fields: Any) -> Attempt:
    return Attempt(at, step, "orders.fifo", f"m-{key}", key, handler="ship", worker="w1", **fields)


HANDLED = (
    of(Step.RECEIVED, 1.0),
    of(Step.CLAIMED, 1.1, fence=1),
    of(Step.STARTED, 1.2, fence=1),
    of(Step.RECORDED, 1.3, fence=1),
    of(Step.DELETED, 1.4, fence=1),
    of(Step.RECEIVED, 2.0),
    of(Step.DUPLICATE, 2.1),
    of(Step.DELETED, 2.2),
)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_attempt_log_is_recognised(tmp_path: Path, format: str) -> None:
    report = verified(attempts(tmp_path / "attempts", *HANDLED, format=format))
    assert report.ok
    counts = report.verdict.counts
    assert (counts.deliveries, counts.claims, counts.records, counts.deletes) == (2, 1, 2, 2)
    assert [entry.reason for entry in report.verdict.unchecked if entry.check == "lost"] == ["no send events"]


def test_the_attempt_log_shows_what_was_recorded_twice_deleted_early_or_by_a_zombie(tmp_path: Path) -> None:
    twice = attempts(tmp_path / "twice", *HANDLED, of(Step.RECORDED, 3.0, fence=2))
    assert findings_of(verified(twice).verdict) == [("doubled", "a")]
    early = attempts(tmp_path / "early", *HANDLED, of(Step.DELETED, 1.0, "b"), of(Step.RECORDED, 1.1, "b", fence=1))
    assert findings_of(verified(early).verdict) == [("deleted-early", "b")]
    zombie = attempts(tmp_path / "zombie", *HANDLED[:2], of(Step.TAKEN_OVER, 1.25, fence=2), *HANDLED[3:5])
    assert findings_of(verified(zombie).verdict) == [("stale", "a")]


def test_the_attempt_log_shows_the_order_of_fifo_groups_by_the_time_of_sending(tmp_path: Path) -> None:
    def handled(key: str, at: float, sent_at: float) -> Attempt:
        return of(Step.RECORDED, at, key, fence=1, group="g", sent_at=sent_at)

    assert verified(attempts(tmp_path / "good", handled("a", 10, 1.0), handled("b", 11, 1.001))).ok
    bad = attempts(tmp_path / "bad", handled("b", 10, 1.001), handled("a", 11, 1.0))
    assert findings_of(verified(bad).verdict) == [("reordered", "b")]


def test_groups_of_standard_queues_have_no_order(tmp_path: Path) -> None:
    events = [
        Attempt(at, Step.RECORDED, "orders", key, key, 1, sent_at=sent_at, group="tenant", handler="ship")
        for key, at, sent_at in (("b", 10, 2.0), ("a", 11, 1.0))
    ]
    assert verified(attempts(tmp_path / "fair", *events)).ok


def test_with_sends_beside_it_the_attempt_log_shows_what_is_lost(tmp_path: Path) -> None:
    sends = [{"kind": "send", "key": key, "queue": "orders.fifo", "time": 0.5} for key in "ab"]
    folder = attempts(tmp_path / "attempts", *HANDLED)
    assert findings_of(verified(folder, write(tmp_path / "sends.jsonl", sends)).verdict) == [("lost", "b")]


def test_what_a_pipeline_has_sealed_it_may_delete_and_a_batch_that_is_logged_twice_is_one(tmp_path: Path) -> None:
    recorded = Attempt(2.0, Step.RECORDED, "orders", "m1", "a", fence=4)
    events = [Attempt(1.0, Step.RECEIVED, "orders", "m1", "a"), Attempt(1.1, Step.DELETED, "orders", "m1", "a")]
    assert verified(attempts(tmp_path / "attempts", *events, recorded, recorded)).ok


def test_events_that_the_attempt_log_had_to_drop_make_the_verdict_incomplete(tmp_path: Path) -> None:
    line = {"at": 3.0, "step": "dropped", "count": 12, "worker": "w1"}
    report = verified(attempts(tmp_path / "attempts", *HANDLED), write(tmp_path / "more.jsonl", [line]))
    assert (report.verdict.ok, report.ok, report.broken[0].reason) == (True, False, "the log dropped 12 events here")


def test_a_file_that_the_attempt_log_is_writing_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    folder = attempts(tmp_path / "attempts", *HANDLED)
    open_file = tmp_path / "attempts" / ".attempts-web1-1-aa-000001.jsonl.open"
    open_file.write_text('{"at":3.0,"step":"received","queue":"orders","message_id":"m9"}\n{"at":3.1,"st')
    report = verified(folder)
    assert (report.ok, report.verdict.counts.deliveries) == (True, 3)


def test_all_kinds_can_be_said_to_be_logged(tmp_path: Path) -> None:
    path = write(tmp_path / "history.jsonl", [{"kind": "send", "key": "a"}, {"kind": "delete", "key": "a"}])
    assert verified(path).ok
    assert findings_of(verified(path, logged=tuple(EventKind)).verdict) == [("lost", "a"), ("deleted-early", "a")]
