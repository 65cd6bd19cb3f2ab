"""A folder that grows is followed: each new file counts once, what is too old goes, and nothing in a file ends it."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from semel.doctor.logs.tailing import TailReader

from semel.doctor.errors import DoctorError
from semel.doctor.events import SCHEMA
from semel.doctor.logs import watching
from semel.doctor.logs.mapping import LogMapping, parse
from semel.doctor.model import Quality

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC
PATIENCE: Final = 200.0  # seconds, only for a machine that is busy with something else


class Watched:
    """A folder under watch. What was handed on last is asked for until it is as it should be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, NOON
        self.observed: queue.Queue[tuple[list[tuple[str, str]], Quality]] = queue.Queue()
        folder.mkdir()

    def on_events(self, events: DataFrame, quality: Quality) -> None:
        assert events.schema.simpleString() == events.sparkSession.createDataFrame([], SCHEMA).schema.simpleString()
        rows = events.select("message_id", "step").collect()
        self.observed.put((sorted((row.message_id, row.step) for row in rows), quality))

    def put(self, name: str, data: bytes) -> None:
        """As a log does it: under a hidden name first, and renamed when it is whole."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(data)
        hidden.rename(path)

    def until(self, right: Callable[[list[str], Quality], bool]) -> tuple[list[tuple[str, str]], Quality]:
        while True:
            events, quality = self.observed.get(timeout=PATIENCE)
            if right([id_ for id_, _ in events], quality):
                return events, quality


def line(number: int, **fields: Any) -> bytes:
    known = {"at": NOON - 100 + number, "step": "received", "queue": "orders", "message_id": f"id-{number}"}
    return json.dumps(known | fields).encode() + b"\n"


@contextmanager
def watched(spark: SparkSession, tmp_path: Path, mapping: LogMapping | None = None) -> Iterator[Watched]:
    here, stop = Watched(tmp_path / "log"), threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            watching.watch(
                spark,
                [str(here.folder)],
                mapping=mapping,
                interval=0.05,
                window=1000.0,
                work_folder=tmp_path / "work",
                on_events=here.on_events,
                stop=stop,
                clock=lambda: here.now,
            )
        except BaseException as error:  # noqa: BLE001  told by the test's own thread
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield here
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert list((tmp_path / "work").iterdir()) == []


def test_new_files_are_added_and_old_events_go_and_damage_is_survived(spark: SparkSession, tmp_path: Path) -> None:
    with watched(spark, tmp_path) as here:
        here.put("date=2026-11-16/a.jsonl", line(1) + line(2) + line(3, at=NOON - 5000))
        events, quality = here.until(lambda ids, _: len(ids) == 2)
        assert events == [("id-1", "received"), ("id-2", "received")]
        assert (quality.files, quality.events, quality.unreadable) == (1, 2, ())

        whole = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist([json.loads(line(4))]), whole)
        data = whole.getvalue().to_pybytes()
        here.put("half.parquet", data[:-10])
        here.put("torn.jsonl.gz", b"\x1f\x8b\x08\x00 this is no gzip")
        here.put("bad.jsonl", b'no json\n{"half": \n')
        _, quality = here.until(lambda ids, quality: quality.malformed == 2 and len(quality.unreadable) == 1)
        assert "half.parquet: " in quality.unreadable[0]
        assert quality.samples == ("no json", '{"half":')

        here.put("date=2026-11-16/c.parquet", data)
        here.put("date=2026-11-16/d.jsonl", line(5))
        here.until(lambda ids, _: ids == ["id-1", "id-2", "id-4", "id-5"])

        here.now = NOON + 2000
        here.put("date=2026-11-16/e.jsonl", line(6, at=NOON + 1999))
        events, quality = here.until(lambda ids, _: ids == ["id-6"])
        assert quality.malformed == 0


def app_line(id_: str, event: str, **fields: Any) -> bytes:
    return json.dumps({"id": id_, "t": NOON - 20, "e": event} | fields).encode() + b"\n"


@pytest.mark.slow
def test_an_applications_log_is_followed_as_it_is_appended_to_and_rotated(spark: SparkSession, tmp_path: Path) -> None:
    with watched(spark, tmp_path, parse("id=.id,time=.t,event=.e,seconds=.s")) as here:
        log = here.folder / "app.log"
        here.put("app.crc", b"no log")
        log.write_bytes(app_line("a", "done", s=5))
        events, _ = here.until(lambda ids, _: bool(ids))
        assert events == [("a", "recorded"), ("a", "started")]  # the log has no start: its duration tells

        with log.open("ab") as file:
            file.write(app_line("a", "start") + app_line("b", "hums") + b'{"level": "info"}\n')
        events, quality = here.until(lambda _, quality: quality.unknown_events == 1)
        assert events == [("a", "recorded"), ("a", "started")]
        assert (quality.files, quality.lines, quality.events, quality.incomplete) == (1, 4, 2, 1)
        assert quality.unknown_words == ("hums",)

        log.rename(here.folder / "app.log.1")
        here.put("app.log", app_line("c", "start")[:-1])  # without an end of line, and whole all the same
        events, quality = here.until(lambda ids, _: "c" in ids)
        assert events == [("a", "recorded"), ("a", "started"), ("c", "started")]
        assert (quality.files, quality.lines, quality.malformed) == (2, 5, 0)


def lines_between(reader: TailReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    partitions = reader.partitions(start, end)
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return sorted(line.rstrip("\n") for batch in batches for line in batch.column("line").to_pylist())


def test_half_a_line_waits_for_its_end_and_a_file_begun_anew_is_read_anew(tmp_path: Path) -> None:
    log, reader = tmp_path / "app.log", TailReader(str(tmp_path))
    log.write_bytes(b"one\ntwo\nthr")
    (tmp_path / "old.log.gz").write_bytes(b"a copy")
    first = reader.latestOffset({}, None)
    assert lines_between(reader, {}, first) == ["one", "two"]
    with log.open("ab") as file:
        file.write(b"ee\nfo")
    second = reader.latestOffset(first, None)
    assert lines_between(reader, first, second) == ["three"]
    third = reader.latestOffset(second, None)  # it has not grown since: the last line has no end
    assert lines_between(reader, second, third) == ["fo"]
    assert reader.latestOffset(third, None) == third
    log.write_bytes(b"new\n")
    fourth = reader.latestOffset(third, None)
    assert lines_between(reader, third, fourth) == ["new"]


def test_a_file_that_is_renamed_before_it_is_read_is_found(tmp_path: Path) -> None:
    log, reader = tmp_path / "app.log", TailReader(str(tmp_path))
    log.write_bytes(b"x" * 100_000 + b"\nnew\nhalf" + b"y" * 100_000)
    end = reader.latestOffset({}, None)
    log.rename(tmp_path / "app.log.1")
    log.write_bytes(b"another\n")
    assert lines_between(reader, {}, end) == ["new", "x" * 100_000]
    (tmp_path / "app.log.1").unlink()
    log.unlink()
    (problem,) = [batch.column("problem")[0].as_py() for batch in reader.read(reader.partitions({}, end)[0])]
    assert problem.startswith(f"file://{log}: ")


def test_what_cannot_be_followed_is_named(spark: SparkSession, tmp_path: Path) -> None:
    for path, said in ((str(tmp_path / "none"), "no such folder"), ("s3://bucket/log", "--watch cannot follow s3://")):
        with pytest.raises(DoctorError, match=said):
            watching.watch(
                spark, [path], interval=1, window=60, work_folder=tmp_path, on_events=lambda *_: None,
                stop=threading.Event(),
            )  # fmt: skip


def test_what_the_caller_raises_ends_the_watch(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1))

    def on_events(_events: DataFrame, _quality: Quality) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        watching.watch(
            spark, [str(tmp_path)], interval=0.05, window=1000, work_folder=tmp_path / "_work", on_events=on_events,
            stop=threading.Event(), clock=lambda: NOON,
        )  # fmt: skip
    assert spark.streams.active == []
