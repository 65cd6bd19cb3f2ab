"""Logs become events, whatever state they are in: nothing in them is fatal, and lines that are left out are counted."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pytest
from pyarrow import parquet

from doctor.stories import events_and_quality
from semel.doctor.engine.contract import Engine, Row
from semel.doctor.engine.duckdb import DuckDBEngine
from semel.doctor.errors import DoctorError
from semel.doctor.events import STEPS
from semel.doctor.logs import reader, streams
from semel.doctor.logs.discovery import Kind, LogFile, find
from semel.doctor.logs.mapping import own
from semel.doctor.model import Quality
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC
DAY: Final = 86_400.0


def line(number: int = 1, **fields: Any) -> str:
    return json.dumps(
        {"at": NOON + number, "step": "received", "queue": "orders", "message_id": f"id-{number}"} | fields
    )


def zstd(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, "zstd", asbytes=True)
    return compressed


PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress}


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{text}\n" for text in lines).encode()
    path.write_bytes(PACKERS.get(path.suffix, bytes)(data))
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path


def row(number: int = 1, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(line(number))
    return known | fields


def ids(events: Sequence[Row]) -> list[str]:
    return [event["message_id"] for event in events]


# What a consumer writes.


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_what_the_attempt_log_wrote_comes_back_as_it_was(
    engine: Engine, tmp_path: Path, format: Literal["jsonl", "parquet"]
) -> None:
    full = Attempt(
        at=NOON + 1,
        step=Step.RECORDED,
        queue="orders",
        message_id="id-1",
        key="order-1",
        receive_count=4,
        sent_at=NOON - 5,
        group="eu",
        seconds=1.5,
        visibility=30,
        error="late",
        worker="w1",
        handler="charge",
    )
    with AttemptLog.open(str(tmp_path), format=format, clock=lambda: NOON) as log:
        log.add_all([full, Attempt(NOON + 2, Step.DELETED, "orders", "id-1", worker="w2")])
        log.add(Attempt(NOON + 3, Step.SENT, "mails", "", "mail-1"))  # of the outbox: it has no id yet
    events, quality = events_and_quality(engine, tmp_path)
    first, second = events
    same = ("queue", "message_id", "key", "receive_count", "error", "worker", "handler")
    assert {name: first[name] for name in same} == {name: getattr(full, name) for name in same}
    assert STEPS[first["flag"]] is Step.RECORDED
    assert (first["event_time"], first["sent_time"]) == (round((NOON + 1) * 1e6), round((NOON - 5) * 1e6))
    assert (first["duration"], first["visibility"]) == (1_500_000, 30_000_000)
    assert (first["group_id"] is None, second["group_id"] is None) == (False, True)
    assert (STEPS[second["flag"]], second["worker"], second["key"], second["receive_count"]) == (
        *(Step.DELETED, "w2", None, None),
    )
    assert quality == Quality(files=1, lines=2, events=2)


def test_one_message_has_one_identity_in_lines_and_in_parquet(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1, worker="w1", key="k", group="g", handler="h", error="e 1"))
    write_parquet(tmp_path / "b.parquet", [row(1, worker="w1", key="k", group="g", handler="h", error="e 1")])
    events, _ = events_and_quality(engine, tmp_path)
    assert len(events) == 2
    assert len({tuple(event.items()) for event in events}) == 1


def test_files_folders_globs_and_formats_can_be_mixed(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "a/date=2026-11-16/one.jsonl", line(1))
    write(tmp_path / "a/date=2026-11-16/deep/er/two.json.gz", line(2))
    write_parquet(tmp_path / "a/three.parquet", [row(3)])
    write(tmp_path / "b/four.log", line(4))
    write(tmp_path / "b/no-log.txt", "a,b")
    write(tmp_path / "c [x] {y}/f*ve 100%.ndjson", line(5))
    write(tmp_path / "six", line(6))  # named by itself, its name does not matter
    write_parquet(tmp_path / "a/it's [7].parquet", [row(7)])
    write(tmp_path / "b/eight.csv", "message_id,at,step,queue,receive_count", f"id-8,{NOON + 8},received,orders,2")
    events, quality = events_and_quality(
        engine,
        tmp_path / "a",
        f"{tmp_path}/b/*.log",
        tmp_path / "b/four.log",
        tmp_path / "c [x] {y}",
        tmp_path / "six",
        tmp_path / "b/eight.csv",
    )
    assert ids(events) == [f"id-{number}" for number in range(1, 9)]
    assert quality == Quality(files=8, lines=8, events=8)


def test_what_is_being_written_is_not_read(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", line(1))
    write(tmp_path / ".open.jsonl", line(2))
    write(tmp_path / "_temporary/part.jsonl", line(3))
    write(tmp_path / ".hidden/part.jsonl", line(4))
    events, quality = events_and_quality(engine, tmp_path)
    assert (ids(events), quality.files) == (["id-1"], 1)


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_lines_are_read(engine: Engine, tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.jsonl{suffix}", *(line(number) for number in range(10_000)))
    events, quality = events_and_quality(engine, tmp_path)
    assert len(set(ids(events))) == 10_000
    assert quality == Quality(files=1, lines=10_000, events=10_000)


def test_lines_that_cross_the_blocks_of_a_file_are_whole_and_have_their_numbers(
    duckdb_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK", 200)
    write(tmp_path / "a.jsonl", *(line(number, key="k" * (number * 70 % 300)) for number in range(20)), "bad")
    events, quality = events_and_quality(duckdb_engine, tmp_path)
    assert len(set(ids(events))) == 20
    assert quality.samples == (f"{tmp_path}/a.jsonl:21: bad",)


# CSV and Parquet of other writers.


def test_a_csv_file_is_read_by_its_header_whatever_its_rows_are(engine: Engine, tmp_path: Path) -> None:
    write(
        tmp_path / "a.csv",
        "\ufeffmessage_id,at,step,queue,error,receive_count",
        f'id-1,{NOON + 1},retried,orders,"a, ""b""',
        'and c",3',
        f"id-2,{NOON + 2}",
        f"id-3,{NOON + 3},received,orders,,1,more,fields",
        "",
    )
    events, quality = events_and_quality(engine, tmp_path)
    assert [(event["message_id"], event["error"], event["receive_count"]) for event in events] == [
        ("id-1", 'a, "b"\nand c', 3),
        ("id-3", None, 1),
    ]
    assert quality == Quality(files=1, lines=3, events=2, incomplete=1)


def test_parquet_from_other_writers_is_cast(engine: Engine, tmp_path: Path) -> None:
    narrow = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")), ("step", pa.string()), ("queue", pa.string()),
            ("message_id", pa.large_string()), ("receive_count", pa.int32()), ("visibility", pa.decimal128(10, 3)),
        ]
    )  # fmt: skip
    write_parquet(tmp_path / "a.parquet", [row(1)])
    write_parquet(tmp_path / "b.parquet", [row(2, at=int((NOON + 2.5) * 1e6), receive_count=3, visibility=30)], narrow)
    events, quality = events_and_quality(engine, tmp_path)
    assert [(event["event_time"], event["receive_count"], event["visibility"]) for event in events] == [
        ((NOON + 1) * 1e6, None, None),
        ((NOON + 2.5) * 1e6, 3, 30_000_000),
    ]
    assert quality == Quality(files=2, lines=2, events=2)


# Times.


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_only_events_of_the_time_asked_for_count_its_beginning_included_and_its_end_not(
    engine: Engine, tmp_path: Path, suffix: str
) -> None:
    if suffix == ".jsonl":
        write(tmp_path / "a.jsonl", *(line(number) for number in range(5)))
    else:
        write_parquet(tmp_path / "a.parquet", [row(number) for number in range(5)])
    events, quality = events_and_quality(engine, tmp_path, since=NOON + 1, until=NOON + 3)
    assert ids(events) == ["id-1", "id-2"]
    assert quality == Quality(files=1, lines=5, events=2, out_of_range=3)


def test_folders_of_other_days_are_not_opened_but_the_next_day_is(engine: Engine, tmp_path: Path) -> None:
    for day, number in ((14, 1), (15, 2), (16, 3), (17, 4), (18, 5)):
        write(tmp_path / f"date=2026-11-{day}/a.jsonl", line(number))  # all of the 16th: late ones
    events, quality = events_and_quality(engine, tmp_path, since=NOON, until=NOON + 600)
    assert (ids(events), quality.files) == (["id-3", "id-4"], 2)
    assert events_and_quality(engine, tmp_path, since=NOON + 3 * DAY) == ([], Quality())


def test_just_after_midnight_the_folder_of_the_day_before_counts_too(engine: Engine, tmp_path: Path) -> None:
    midnight = NOON + DAY / 2
    write(tmp_path / "date=2026-11-16/a.jsonl", line(1, at=midnight + 0.2))
    events, _ = events_and_quality(engine, tmp_path, since=midnight)
    assert ids(events) == ["id-1"]


# What is damaged.


def test_each_flaw_of_a_line_is_counted_and_the_rest_is_used(engine: Engine, tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        line(1),
        '{"at": 17',
        "no json at all",
        "[1, 2]",
        "17",
        line(3, message_id=""),
        line(4, at=None),
        line(5, at="NaN"),
        line(6, step=None),
        line(8, at=-1),
        line(9, at=1e300),
        line(10, at={"a": 1}),
        '{"other": "line"}',
        "",
        "   ",
        "\r",
        json.dumps({"at": NOON, "step": "dropped", "worker": "w1", "count": 17}),
        json.dumps({"at": NOON, "step": "dropped", "worker": "w2", "count": 4}),
        f"2026-11-16T12:00:00Z stdout F {line(2)}",
        line(7, step="deleted", more="fields", than=["we", "know"], receive_count="three", seconds="NaN"),
    )
    events, quality = events_and_quality(engine, tmp_path)
    assert ids(events) == ["id-1", "id-2", "id-7"]
    assert events[2]["receive_count"] is None
    assert quality == Quality(
        files=1,
        lines=17,
        events=3,
        malformed=4,
        incomplete=8,
        dropped=21,
        samples=tuple(
            f"{tmp_path}/a.jsonl:{number}: {text}"
            for number, text in ((2, '{"at": 17'), (3, "no json at all"), (4, "[1, 2]"), (5, "17"))
        ),
    )


def test_samples_of_malformed_lines_are_short_and_few(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1), "x" * 10_000, *["y"] * 10)
    _, quality = events_and_quality(engine, tmp_path)
    assert quality.samples[0] == f"{tmp_path}/a.jsonl:2: {'x' * 200}"
    assert (len(quality.samples), quality.malformed) == (5, 11)


def test_bytes_that_are_not_text_do_not_end_the_reading(engine: Engine, tmp_path: Path) -> None:
    data = b"\x00\x00\xff\xfe\n" + line(1).encode() + b"\n" + b'{"at": 1, "\xff\n' + line(2).encode()
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.jsonl").write_bytes(line(3, key="KEY").encode().replace(b"KEY", b"\xff\xfe"))
    events, quality = events_and_quality(engine, tmp_path)
    assert (ids(events), quality.malformed) == (["id-1", "id-1", "id-2", "id-2", "id-3"], 4)


def test_a_very_long_line_is_an_event_and_one_that_never_ends_is_cut(
    duckdb_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.jsonl", line(1, body="x" * 20_000_000), line(2))
    events, _ = events_and_quality(duckdb_engine, tmp_path)
    assert ids(events) == ["id-1", "id-2"]
    monkeypatch.setattr(streams, "CHUNK", 1_000_000)
    monkeypatch.setattr(streams, "LONGEST_LINE", 2_000_000)
    events, quality = events_and_quality(duckdb_engine, tmp_path)
    assert ids(events) == ["id-2"]
    assert quality.malformed >= 1


def test_empty_files_and_blank_lines_are_not_lines(engine: Engine, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.csv", "c.jsonl.gz"):
        write(tmp_path / name)
    (tmp_path / "d.jsonl.gz").write_bytes(b"")
    write(tmp_path / "e.jsonl", "", " \t\r", "", line(1), "")
    events, quality = events_and_quality(engine, tmp_path)
    assert ids(events) == ["id-1"]
    assert quality == Quality(files=5, lines=1, events=1)


def test_a_half_written_parquet_file_is_named_and_the_others_are_read(engine: Engine, tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "a.parquet", [row(1)])
    (tmp_path / "half.parquet").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "lying.parquet").write_bytes(b"PAR1" + b"x" * 100 + (60).to_bytes(4, "little") + b"PAR1")
    pages = bytearray(write_parquet(tmp_path / "pages.parquet", [row(9)]).read_bytes())
    pages[4:60] = bytes(56)
    (tmp_path / "pages.parquet").write_bytes(pages)
    events, quality = events_and_quality(engine, tmp_path)
    assert (ids(events), quality.lines) == (["id-1"], 1)
    assert [Path(text.partition(": ")[0]).name for text in quality.unreadable] == [
        "empty.parquet", "half.parquet", "lying.parquet", "pages.parquet",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_file_that_breaks_off_counts_up_to_there_and_is_named(engine: Engine, tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"good.jsonl{suffix}", line(1))
    torn = write(tmp_path / f"torn.jsonl{suffix}", *(line(number, key=str(number**9)) for number in range(2, 60_000)))
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    (tmp_path / f"zeros.jsonl{suffix}").write_bytes(bytes(100))
    events, quality = events_and_quality(engine, tmp_path)
    assert 10_000 < quality.events < 50_000
    assert {"id-1", "id-2"} <= set(ids(events))
    names = [Path(text.partition(": ")[0]).name for text in quality.unreadable]
    assert names == [f"torn.jsonl{suffix}", f"zeros.jsonl{suffix}"]
    assert quality.malformed <= 1  # the line at which it breaks off


def test_a_file_that_vanishes_before_it_is_read_is_named(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1))
    gone = [write(tmp_path / "b.jsonl", line(2)), write_parquet(tmp_path / "c.parquet", [row(3)])]
    files = find([str(tmp_path)]).files
    for path in gone:
        path.unlink()
    problems = engine.read(files, own(), None, None)
    assert engine.rows("SELECT message_id FROM log_lines") == [{"message_id": "id-1"}]
    assert sorted(Path(text.partition(": ")[0]).name for text in problems) == ["b.jsonl", "c.parquet"]


def test_one_damaged_parquet_file_among_many_does_not_cost_the_others(
    duckdb_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PARQUET_AT_ONCE", 5_000)
    for number in range(12):
        write_parquet(tmp_path / f"{number}.parquet", [row(number)])
    (tmp_path / "5.parquet").write_bytes(b"PAR1" + bytes(100) + (60).to_bytes(4, "little") + b"PAR1")
    events, quality = events_and_quality(duckdb_engine, tmp_path)
    assert len(ids(events)) == 11
    assert [text.partition(": ")[0] for text in quality.unreadable] == [f"{tmp_path}/5.parquet"]


# What is an error.


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=f"--log {tmp_path}/none: no such file or folder"):
        find([f"{tmp_path}/none"])
    with pytest.raises(DoctorError, match="no file or folder matches"):
        find([f"{tmp_path}/none-*.jsonl"])
    with pytest.raises(DoctorError, match="three slashes"):
        find(["file://var/log"])
    with pytest.raises(DoctorError, match=r"--log nowhere://x/y: no such kind of address"):
        find(["nowhere://x/y"])


def test_a_folder_without_a_log_says_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x")
    with pytest.raises(DoctorError, match=r"no log file is there; looked for JSON lines \(.jsonl"):
        find([str(tmp_path)])


def test_a_damaged_file_at_one_path_does_not_hide_that_another_holds_none(tmp_path: Path) -> None:
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    write(tmp_path / "b/a.txt", "x")
    with pytest.raises(DoctorError, match=f"--log {tmp_path}/b: no log file is there"):
        find([str(tmp_path / "half.parquet"), str(tmp_path / "b")])


def test_a_folder_with_nothing_but_damaged_files_is_not_an_error(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    events, quality = events_and_quality(engine, tmp_path)
    assert (events, quality.files, len(quality.unreadable)) == ([], 0, 1)


ODD: Final = (
    {"message_id": ""},
    {"message_id": None},
    {"at": None},
    {"at": -1.0},
    {"at": 1e13},
    {"at": float("nan")},
    {"at": float("inf")},
    {"step": None},
    {"step": "dropped", "message_id": None, "count": 5},
    {"step": "dropped", "count": 6},
    {"step": "sent", "message_id": ""},
)
COUNTED: Final = pa.schema(
    [
        ("at", pa.float64()),
        ("step", pa.string()),
        ("queue", pa.string()),
        ("message_id", pa.string()),
        ("count", pa.int64()),
    ]
)


def test_each_flaw_of_a_parquet_file_is_counted(engine: Engine, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [row(1), *(row(2, **odd) for odd in ODD)], COUNTED)
    events, quality = events_and_quality(engine, tmp_path)
    assert ids(events) == ["id-1"]
    assert quality == Quality(files=1, lines=11, events=1, incomplete=8, dropped=11)


def test_rotated_files_are_logs_too(tmp_path: Path) -> None:
    for name in ("app.log", "app.log.1", "app.log.2.gz", "app.jsonl-20261116", "app.log.2026-11-16T12", "app.log.old"):
        write(tmp_path / name)
    names = {Path(file.path).name: file.kind for file in find([str(tmp_path)]).files}
    assert names == dict.fromkeys(
        ("app.log", "app.log.1", "app.log.2.gz", "app.jsonl-20261116", "app.log.2026-11-16T12"), Kind.LINES
    )


@pytest.mark.parametrize("suffix", ["", *PACKERS])
@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_the_progress_counts_the_bytes_of_the_file_packed_or_not(tmp_path: Path, kind: str, suffix: str) -> None:
    head = ["message_id,at,step,queue"] if kind == ".csv" else []
    path = write(tmp_path / f"a{kind}{suffix}", *head, *(line(number) for number in range(30_000)))
    sizes = list[int]()
    with closing(DuckDBEngine(threads=1, on_bytes=sizes.append)) as engine:
        engine.read(find([str(path)]).files, own(), None, None)
    assert sum(sizes) == path.stat().st_size


def test_the_kind_of_a_file_is_in_its_name_and_in_nothing_else(tmp_path: Path) -> None:
    names = {
        "a.jsonl": (Kind.LINES, None),
        "a.JSON.GZ": (Kind.LINES, "gzip"),
        "a.log.zst": (Kind.LINES, "zstd"),
        "a.csv.bz2": (Kind.CSV, "bz2"),
        "a.parq": (Kind.PARQUET, None),
    }
    for name in names:
        (tmp_path / name).write_bytes(b"PAR1" + bytes(100) + (60).to_bytes(4, "little") + b"PAR1")
    files: list[LogFile] = find([str(tmp_path)]).files
    assert {Path(file.path).name: (file.kind, file.compression) for file in files} == names


def test_a_document_without_the_list_that_was_named_is_named_itself(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    file.write_text('{"entries": {"id": "m-1"}}')
    with pytest.raises(streams.BrokenLog, match=r"no list of lines at \.entries"):
        list(streams.texts(LogFile("log.json", Kind.LINES, 1, str(file)), ("entries",)))


def test_a_malformed_line_in_any_script_ends_nothing(duckdb_engine: Engine, tmp_path: Path) -> None:
    """DuckDB quotes such a line in its error, cut at a byte that may be within a character."""
    for shift in range(4):
        odd = '{"at": ' + "x" * shift + "ΏΟΟΟΟёʓ" * 20
        events, quality = events_and_quality(duckdb_engine, write(tmp_path / f"{shift}.jsonl", line(), odd))
        assert (len(events), quality.malformed) == (1, 1)
