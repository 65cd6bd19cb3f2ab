"""Logs become events, whatever state they are in: nothing in them is fatal, and what is left out is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import Row, SparkSession

from semel.doctor.errors import DoctorError
from semel.doctor.events import COLUMNS, SCHEMA
from semel.doctor.logs import discovery as files
from semel.doctor.logs import footers
from semel.doctor.logs import spark_reader as logs
from semel.doctor.model import Quality
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step
from suite import slow

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC
DAY: Final = 86_400.0


def line(number: int = 1, **fields: Any) -> str:
    return json.dumps(
        {"at": NOON + number, "step": "received", "queue": "orders", "message_id": f"id-{number}"} | fields
    )


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{one}\n" for one in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path


def row(number: int = 1, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(line(number))
    return known | fields


def read(spark: SparkSession, *paths: Path | str, **options: Any) -> tuple[list[Row], Quality]:
    reading = logs.read(spark, [str(path) for path in paths], mapping=None, **options)
    assert reading.exact
    assert reading.events.schema.simpleString() == spark.createDataFrame([], SCHEMA).schema.simpleString()
    rows = reading.events.orderBy("at").collect()
    return rows, reading.quality()


def ids(rows: Sequence[Row]) -> list[str]:
    return [row.message_id for row in rows]


# What a consumer writes.


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_what_the_attempt_log_wrote_comes_back_as_it_was(
    spark: SparkSession, tmp_path: Path, format: Literal["jsonl", "parquet"]
) -> None:
    full = Attempt(
        NOON + 1,
        Step.RECORDED,
        "orders",
        "id-1",
        "order-1",
        3,
        2,
        4,
        NOON - 5,
        "eu",
        1.5,
        30,
        "late",
        "w1",
        "declared",
        "charge",
    )
    with AttemptLog.open(str(tmp_path), format=format, clock=lambda: NOON) as log:
        log.add_all([full, Attempt(NOON + 2, Step.DELETED, "orders", "id-1", worker="w2")])
        log.add(Attempt(NOON + 3, Step.SENT, "mails", "", "mail-1"))  # of the outbox: it has no id yet
    (first, second), quality = read(spark, tmp_path)
    wanted = full._asdict()
    assert first.asDict() == {name: wanted[name] for name in COLUMNS}
    assert (second.step, second.worker, second.key, second.receive_count) == ("deleted", "w2", None, None)
    assert quality == Quality(files=1, lines=2, events=2)


def test_files_folders_globs_and_both_formats_can_be_mixed(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a/date=2026-11-16/one.jsonl", line(1))
    write(tmp_path / "a/date=2026-11-16/deep/er/two.json.gz", line(2))
    write_parquet(tmp_path / "a/three.parquet", [row(3)])
    write(tmp_path / "b/four.log", line(4))
    write(tmp_path / "b/no-log.csv", "a,b")
    write(tmp_path / "c [x] {y}/f*ve 100%.ndjson", line(5))
    write(tmp_path / "six", line(6))  # named by itself, its name does not matter
    rows, quality = read(
        spark, tmp_path / "a", f"{tmp_path}/b/*.log", tmp_path / "b/four.log", tmp_path / "c [x] {y}", tmp_path / "six"
    )
    assert ids(rows) == ["id-1", "id-2", "id-3", "id-4", "id-5", "id-6"]
    assert quality == Quality(files=6, lines=6, events=6)


def test_what_is_being_written_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", line(1))
    write(tmp_path / ".open.jsonl", line(2))
    write(tmp_path / "_temporary/part.jsonl", line(3))
    write(tmp_path / ".hidden/part.jsonl", line(4))
    rows, quality = read(spark, tmp_path)
    assert (ids(rows), quality.files) == (["id-1"], 1)


@pytest.mark.parametrize("suffix", ["gz", "zst", *slow("bz2", "lz4")])
def test_compressed_lines_are_read(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl.{suffix}"
    with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, files.PACKED[f".{suffix}"]) as stream:
        stream.write("".join(f"{line(number)}\n" for number in range(1, 40_000)).encode() + line(40_000).encode())
    reading = logs.read(spark, [str(path)])
    assert reading.events.select("message_id").distinct().count() == 40_000
    assert reading.quality() == Quality(files=1, lines=40_000, events=40_000)


# Times.


def test_only_events_of_the_time_asked_for_are_there_its_beginning_included_and_its_end_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", *(line(number) for number in range(5)))
    write_parquet(tmp_path / "a.parquet", [row(number, message_id=f"p-{number}") for number in range(5)])
    rows, quality = read(spark, tmp_path, since=NOON + 1, until=NOON + 3)
    assert sorted(ids(rows)) == ["id-1", "id-2", "p-1", "p-2"]
    assert quality == Quality(files=2, lines=4, events=4)


def test_folders_of_other_days_are_not_opened_but_the_next_day_is(spark: SparkSession, tmp_path: Path) -> None:
    for day, number in ((14, 1), (15, 2), (16, 3), (17, 4), (18, 5)):
        write(tmp_path / f"date=2026-11-{day}/a.jsonl", line(number))  # all of the 16th: late ones
    rows, quality = read(spark, tmp_path, since=NOON, until=NOON + 600)
    assert (ids(rows), quality.files) == (["id-3", "id-4"], 2)
    rows, quality = read(spark, tmp_path, since=NOON + 3 * DAY)
    assert (rows, quality) == ([], Quality())


def test_just_after_midnight_the_folder_of_the_day_before_counts_too(spark: SparkSession, tmp_path: Path) -> None:
    midnight = NOON + DAY / 2
    write(tmp_path / "date=2026-11-16/a.jsonl", line(1, at=midnight + 0.2))
    rows, _ = read(spark, tmp_path, since=midnight)
    assert ids(rows) == ["id-1"]


# What is damaged.


def test_each_flaw_of_a_line_is_counted_and_the_rest_is_used(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        line(1),
        '{"at": 17',
        "no json at all",
        "[1, 2]",
        "17",
        line(2, receive_count="three"),
        line(3, message_id=""),
        line(4, at=None),
        line(5, at="NaN"),
        line(6, step=None),
        '{"other": "line"}',
        "",
        "   ",
        json.dumps({"at": NOON, "step": "dropped", "worker": "w1", "count": 17}),
        json.dumps({"at": NOON, "step": "dropped", "worker": "w2", "count": 4}),
        line(7, step="deleted", more="fields", than=["we", "know"]),
    )
    rows, quality = read(spark, tmp_path)
    assert ids(rows) == ["id-1", "id-7"]
    assert len(quality.samples) == 3
    assert {"17", "[1, 2]"} <= set(quality.samples)
    assert (quality.lines, quality.events) == (14, 2)
    assert (quality.malformed, quality.incomplete, quality.dropped) == (5, 5, 21)


def test_samples_of_malformed_lines_are_short(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1), "x" * 10_000)
    _, quality = read(spark, tmp_path)
    assert quality.samples == ("x" * 200,)


def test_bytes_that_are_no_text_are_no_end(spark: SparkSession, tmp_path: Path) -> None:
    data = b"\x00\x00\xff\xfe\n" + line(1).encode() + b"\n" + b'{"at": 1, "\xff\n'
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data))
    rows, quality = read(spark, tmp_path)
    assert (ids(rows), quality.malformed) == (["id-1", "id-1"], 4)


def test_a_half_written_parquet_file_is_named_and_the_others_are_read(spark: SparkSession, tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "a.parquet", [row(1)])
    (tmp_path / "half.parquet").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "lying.parquet").write_bytes(b"PAR1" + b"x" * 100 + (60).to_bytes(4, "little") + b"PAR1")
    write_parquet(tmp_path / "other.parquet", [{"a": 1}])
    rows, quality = read(spark, tmp_path)
    assert (ids(rows), quality.files, quality.lines) == (["id-1"], 1, 1)
    assert [Path(text.partition(": ")[0]).name for text in sorted(quality.unreadable)] == [
        "empty.parquet", "half.parquet", "lying.parquet", "other.parquet",
    ]  # fmt: skip
    assert "no column at, message_id, step" in max(quality.unreadable)


def test_a_file_that_breaks_off_counts_up_to_there_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl.gz", line(1))
    data = gzip.compress("".join(f"{line(2)}\n" for _ in range(60_000)).encode())
    (tmp_path / "torn.jsonl.gz").write_bytes(data[:-1_000])
    (tmp_path / "zeros.jsonl.gz").write_bytes(bytes(100))
    reading = logs.read(spark, [str(tmp_path)])
    counted = {row.message_id: row["count"] for row in reading.events.groupBy("message_id").count().collect()}
    assert counted["id-1"] == 1
    assert 10_000 < counted["id-2"] < 60_000
    quality = reading.quality()
    assert [Path(text.partition(".gz: ")[0]).name for text in quality.unreadable] == ["torn.jsonl", "zeros.jsonl"]
    assert quality.files == 3


def test_parquet_from_other_writers_is_cast(spark: SparkSession, tmp_path: Path) -> None:
    narrow = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")), ("step", pa.string()), ("queue", pa.string()),
            ("message_id", pa.large_string()), ("receive_count", pa.int32()), ("visibility", pa.decimal128(10, 3)),
        ]
    )  # fmt: skip
    write_parquet(tmp_path / "a.parquet", [row(1)])
    write_parquet(tmp_path / "b.parquet", [row(2, at=int((NOON + 2.5) * 1e6), receive_count=3, visibility=30)], narrow)
    rows, quality = read(spark, tmp_path)
    assert [(row.at, row.receive_count, row.visibility) for row in rows] == [
        (NOON + 1, None, None),
        (NOON + 2.5, 3, 30.0),
    ]
    assert quality == Quality(files=2, lines=2, events=2)


def test_a_file_that_vanishes_while_it_is_read_is_no_end(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1))
    gone = [write(tmp_path / "b.jsonl", line(2)), write_parquet(tmp_path / "c.parquet", [row(3)])]
    gone.append(write(tmp_path / "d.jsonl.gz", line(4)))
    reading = logs.read(spark, [str(tmp_path)])
    for path in gone:
        path.unlink()
    assert ids(reading.events.collect()) == ["id-1"]
    (text,) = reading.quality().unreadable
    assert "d.jsonl.gz: " in text


# What is an error, and what is asked too early.


def test_a_path_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=f"--log {tmp_path}/none: no such file or folder"):
        read(spark, tmp_path / "none")
    with pytest.raises(DoctorError, match="no file or folder matches"):
        read(spark, f"{tmp_path}/none-*.jsonl")
    with pytest.raises(DoctorError, match="three slashes"):
        read(spark, "file://var/log")


def test_a_folder_without_a_log_says_what_was_looked_for(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x")
    with pytest.raises(DoctorError, match=r"no log file is there; looked for JSON lines \(.jsonl"):
        read(spark, tmp_path)


def test_a_damaged_file_at_one_path_does_not_hide_that_another_holds_none(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    write(tmp_path / "b/a.csv", "x")
    with pytest.raises(DoctorError, match=f"--log {tmp_path}/b: no log file is there"):
        read(spark, tmp_path / "half.parquet", tmp_path / "b")


def test_a_folder_with_nothing_but_damaged_files_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    rows, quality = read(spark, tmp_path)
    assert (rows, quality.files, len(quality.unreadable)) == ([], 0, 1)


def test_quality_does_not_wait_for_an_action_that_never_comes(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1))
    assert logs.read(spark, [str(tmp_path)]).quality() == Quality(files=1)


def test_counts_survive_a_cache_and_many_uses(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1), "bad", line(2))
    reading = logs.read(spark, [str(tmp_path)])
    events = reading.events.persist()
    assert events.groupBy("queue").count().count() == 1
    assert events.count() == 2
    assert reading.quality() == Quality(files=1, lines=3, events=2, malformed=1, samples=("bad",))
    events.unpersist()


def test_what_only_spark_can_reach_is_listed_by_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line(1))
    write(tmp_path / "deep/b.jsonl.gz", line(2))
    write(tmp_path / "_deep/c.jsonl", line(3))
    found = files._hadoop_files(spark, f"file:{tmp_path}", False)
    assert sorted(file.address for file in found) == [f"file:{tmp_path}/a.jsonl", f"file:{tmp_path}/deep/b.jsonl.gz"]
    assert [file.size for file in found if file.kind is files.Kind.LINES] == [len(line(1)) + 1]
    with pytest.raises(DoctorError, match=r"--log nowhere://x/y: .*nowhere"):
        read(spark, "nowhere://x/y")


ODD: Final = (
    {"message_id": ""},
    {"message_id": None},
    {"at": None},
    {"at": -1.0},
    {"at": 1e13},
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


def test_each_flaw_of_a_parquet_file_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [row(1), *(row(2, **odd) for odd in ODD)], COUNTED)
    rows, quality = read(spark, tmp_path)
    assert ids(rows) == ["id-1"]
    assert quality == Quality(files=1, lines=9, events=1, incomplete=6, dropped=11)


@pytest.mark.parametrize("odd", [{}, *ODD])
def test_the_footer_of_a_file_with_any_flaw_does_not_call_it_clean(tmp_path: Path, odd: dict[str, Any]) -> None:
    path = write_parquet(tmp_path / "a.parquet", [row(1), row(2, **odd)], COUNTED)
    file = files.LogFile(f"file://{path}", files.Kind.PARQUET, path=str(path))
    footer = footers.read_footer(file, None, None)
    assert (footer.clean, footer.rows, footer.problem) == (not odd, 2, None)
    assert not footers.read_footer(file, NOON + 1.5, None).clean
    assert not footers.read_footer(file, None, NOON + 1.5).clean


def test_a_clean_parquet_file_is_counted_by_its_footer_and_others_on_the_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "a.parquet", [row(number) for number in range(1, 6)])
    clean = logs.read(spark, [str(tmp_path)])
    assert clean.tally is None
    assert clean.quality() == Quality(files=1, lines=5, events=5)
    write(tmp_path / "b.jsonl", line(6), "bad")
    rows, quality = read(spark, tmp_path)
    assert (len(rows), quality.lines, quality.events, quality.malformed) == (6, 7, 6, 1)
