"""Logs are followed while they grow: each line counts once, old lines are dropped, and nothing in a file stops it."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from semel.broker import running
from semel.doctor.diagnosis import Request, diagnose, watch
from semel.doctor.errors import DoctorError
from semel.doctor.logs import follower as follower_module
from semel.doctor.logs.database import connect
from semel.doctor.logs.discovery import find
from semel.doctor.logs.follower import LogFollower
from semel.doctor.logs.mapping import LogMapping, own, parse
from semel.doctor.logs.reader import CREATE
from semel.doctor.model import Diagnosis

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC
WINDOW: Final = 1_000.0
APP: Final = parse("id=.id,time=.t,event=.e")


class FollowedFolder:
    """A folder that is looked at when a test says so, at the time that it says."""

    def __init__(self, folder: Path, connection: Any) -> None:
        self.folder, self._connection = folder, connection
        self.follow(own())

    def follow(self, mapping: LogMapping, *, any_name: bool = False) -> None:
        """From the beginning."""
        self._connection.execute(CREATE)
        self.follower = LogFollower(
            self._connection, [str(self.folder)], mapping, window=WINDOW, any_name=any_name, threads=1
        )

    def look(self, now: float = NOON) -> list[str]:
        """The ids of all events that count after a look. A look that changes nothing says so."""
        before = self._lines()
        assert self.follower.look(now) is (self._lines() != before)
        return [line[2] for line in self._lines() if line[0] == 0]

    def malformed(self) -> list[str]:
        return [
            f"{Path(self.follower.names[file]).name}:{number}: {sample}" for *_, file, number, sample in self._bad()
        ]

    def _bad(self) -> list[tuple[Any, ...]]:
        return [line for line in self._lines() if line[0] == 1]

    def _lines(self) -> list[tuple[Any, ...]]:
        query = "SELECT problem, rowid, message_id, file, line_number, sample FROM log_lines ORDER BY message_id, rowid"
        lines: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
        return lines


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[FollowedFolder]:
    folder = tmp_path / "log"
    folder.mkdir()
    with closing(connect()) as connection:
        yield FollowedFolder(folder, connection)


def line(number: int, **fields: Any) -> bytes:
    known = {"at": NOON - 100 + number, "step": "received", "queue": "orders", "message_id": f"id-{number}"}
    return json.dumps(known | fields).encode() + b"\n"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_look_reads_what_was_appended_and_nothing_twice(followed: FollowedFolder) -> None:
    log = followed.folder / "a.jsonl"
    assert followed.look() == []
    append(log, line(1) + line(2))
    assert followed.look() == ["id-1", "id-2"]
    assert followed.look() == ["id-1", "id-2"]
    append(log, line(3))
    append(followed.folder / "b.jsonl", line(4))
    assert followed.look() == ["id-1", "id-2", "id-3", "id-4"]


def test_half_a_line_waits_for_its_end(followed: FollowedFolder) -> None:
    log = followed.folder / "a.jsonl"
    append(log, line(1) + line(2)[:20])
    assert followed.look() == ["id-1"]
    append(log, line(2)[20:] + line(3)[:5])
    assert followed.look() == ["id-1", "id-2"]
    append(log, line(3)[5:-1])
    assert followed.look() == ["id-1", "id-2"]
    assert followed.look() == ["id-1", "id-2", "id-3"]  # it has not grown since: the last line has no end
    append(log, b"\n" + line(4))
    assert followed.look() == ["id-1", "id-2", "id-3", "id-4"]
    assert followed.malformed() == []


def test_malformed_lines_are_known_by_their_place_in_the_file(followed: FollowedFolder) -> None:
    log = followed.folder / "a.jsonl"
    append(log, line(1) + b"bad\n" + line(2))
    followed.look()
    append(log, line(3) + b"worse\n")
    assert followed.look() == ["id-1", "id-2", "id-3"]
    assert followed.malformed() == ["a.jsonl:2: bad", "a.jsonl:5: worse"]


def test_a_file_that_was_cut_short_is_read_from_its_start(followed: FollowedFolder) -> None:
    log = followed.folder / "a.jsonl"
    append(log, line(1) + line(2))
    followed.look()
    log.write_bytes(line(3))
    assert followed.look() == ["id-1", "id-2", "id-3"]
    log.write_bytes(b"bad\n")
    followed.look()
    assert followed.malformed() == ["a.jsonl:1: bad"]


def test_a_rotated_file_is_read_to_its_end_and_not_again(followed: FollowedFolder) -> None:
    log = followed.folder / "app.log"
    append(log, line(1))
    followed.look()
    append(log, line(2))  # after the last look, and before the rotation
    log.rename(followed.folder / "app.log.1")
    append(log, line(3))
    assert followed.look() == ["id-1", "id-2", "id-3"]
    (followed.folder / "app.log.1").rename(followed.folder / "app.log.2")
    log.rename(followed.folder / "app.log.1")
    append(log, line(4))
    assert followed.look() == ["id-1", "id-2", "id-3", "id-4"]


def test_a_file_that_is_rotated_or_removed_during_a_look_is_no_end(
    followed: FollowedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gone = followed.folder / "app.log", followed.folder / "b.log"
    append(log, line(1))
    append(gone, line(2))

    def find_and_rotate(*arguments: Any, **options: Any) -> Any:
        log_files = find(*arguments, **options)
        log.rename(followed.folder / "app.log.1")
        append(log, line(3))
        gone.unlink()
        return log_files

    monkeypatch.setattr(follower_module, "find", find_and_rotate)
    assert followed.look() == ["id-3"]
    monkeypatch.undo()
    assert followed.look() == ["id-1", "id-3"]


def test_compressed_and_parquet_files_are_read_once_when_they_appear(followed: FollowedFolder) -> None:
    append(followed.folder / "a.jsonl", line(1))
    followed.look()
    (followed.folder / "b.jsonl.gz").write_bytes(gzip.compress(line(2)))
    (followed.folder / "c.jsonl.zst").write_bytes(pa.compress(line(3), "zstd", asbytes=True))
    parquet.write_table(pa.Table.from_pylist([json.loads(line(4))]), followed.folder / "d.parquet")
    (followed.folder / "e.csv").write_text(f"message_id,at,step\nid-5,{NOON},received\n")
    (followed.folder / "_f.jsonl").write_bytes(line(6))  # it is being written
    assert followed.look() == ["id-1", "id-2", "id-3", "id-4", "id-5"]
    assert followed.look() == ["id-1", "id-2", "id-3", "id-4", "id-5"]


def test_damaged_files_are_named_and_end_nothing(followed: FollowedFolder) -> None:
    append(followed.folder / "a.jsonl", line(1))
    (followed.folder / "half.parquet").write_bytes(b"PAR1")
    (followed.folder / "torn.jsonl.gz").write_bytes(gzip.compress(line(2))[:-9])
    (followed.folder / "bad.jsonl").write_bytes(b"\xff\x00\n" + line(3))
    assert {"id-1", "id-3"} <= set(followed.look())
    assert [Path(problem.partition(": ")[0]).name for problem in followed.follower.problems()] == [
        "half.parquet",
        "torn.jsonl.gz",
    ]


def test_files_that_ended_before_the_window_are_not_read_until_they_grow(followed: FollowedFolder) -> None:
    log, packed = followed.folder / "a.jsonl", followed.folder / "b.jsonl.gz"
    append(log, b"a line that would be malformed\n" + line(1))
    packed.write_bytes(gzip.compress(b"another\n"))
    for path in (log, packed):
        os.utime(path, (NOON - WINDOW - 1, NOON - WINDOW - 1))
    assert followed.look() == []
    append(log, line(2))
    assert followed.look() == ["id-2"]
    assert followed.malformed() == []


def test_of_a_large_file_only_the_end_is_read_that_may_belong_to_the_window(
    followed: FollowedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "SEARCHED", 100_000)
    log = followed.folder / "a.jsonl"
    old = [
        line(number, at=NOON - 50_000 + number, worker="w" * 40) + b"old, and malformed\n" for number in range(9_000)
    ]
    log.write_bytes(b"".join(old) + line(9_001) + line(9_002))
    assert followed.look() == ["id-9001", "id-9002"]
    assert len(followed.malformed()) < 1_000
    append(log, line(9_003))
    assert followed.look() == ["id-9001", "id-9002", "id-9003"]


def test_events_leave_with_the_window(followed: FollowedFolder) -> None:
    append(followed.folder / "a.jsonl", line(1) + line(2, at=NOON + 500) + line(3, at=NOON - WINDOW - 1))
    assert followed.look() == ["id-1", "id-2"]
    assert followed.look(NOON + 1_200) == ["id-2"]
    assert followed.look(NOON + 1_600) == []


def test_lines_without_a_time_are_kept_up_to_a_limit(followed: FollowedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "KEPT", 10)
    log = followed.folder / "a.jsonl"
    for number in range(5):
        append(log, b"bad\n" * 20 + line(number))
        followed.look()
    assert len(followed.malformed()) <= 11
    assert followed.look() == [f"id-{number}" for number in range(5)]


def test_an_applications_log_is_followed_by_its_mapping(followed: FollowedFolder) -> None:
    followed.follow(APP, any_name=True)
    log = followed.folder / "app"
    append(log, b'{"id": "a", "t": 1794830390, "e": "start"}\nstarting up\n{"level": "info"}\n')
    assert followed.look() == ["a"]
    log.rename(followed.folder / "app.old")
    append(log, b'{"id": "b", "t": 1794830391, "e": "done"}')  # without an end of line, and whole all the same
    assert followed.look() == ["a"]
    assert followed.look() == ["a", "b"]
    assert followed.malformed() == ["app:2: starting up"]


def test_a_folder_that_goes_and_comes_back_is_followed_on(followed: FollowedFolder, tmp_path: Path) -> None:
    append(followed.folder / "a.jsonl", line(1))
    followed.look()
    followed.folder.rename(tmp_path / "away")
    assert followed.look() == ["id-1"]
    (tmp_path / "away").rename(followed.folder)
    append(followed.folder / "a.jsonl", line(2))
    assert followed.look() == ["id-1", "id-2"]


# Watching: what is new becomes a diagnosis.


def watched(
    folder: Path, *then: Callable[[Diagnosis], None], mapping: str | None = None, **options: Any
) -> list[Diagnosis]:
    """Watch a folder: after each diagnosis the next of `then` runs; the last diagnosis ends it."""
    stop, diagnoses = threading.Event(), list[Diagnosis]()

    def on_diagnosis(diagnosis: Diagnosis) -> None:
        diagnoses.append(diagnosis)
        if len(diagnoses) > len(then):
            stop.set()
        else:
            then[len(diagnoses) - 1](diagnosis)

    guard = threading.Timer(60, stop.set)
    guard.start()
    try:
        watch(
            Request(logs=(str(folder),), mapping=mapping, **options),
            interval=0.01,
            window=WINDOW,
            on_diagnosis=on_diagnosis,
            stop=stop,
            clock=lambda: NOON,
        )
    finally:
        guard.cancel()
    return diagnoses


def events(diagnosis: Diagnosis) -> int:
    return sum(case.behaviour.events for case in diagnosis.cases if case.behaviour is not None)


def test_each_change_of_the_log_is_a_diagnosis(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    append(log, line(1) + b"bad\n")
    first, second = watched(tmp_path, lambda _: append(log, line(2)))
    assert (events(first), events(second)) == (1, 2)
    assert second.made_at == NOON
    assert second.quality is not None
    assert (second.quality.files, second.quality.lines, second.quality.samples) == (1, 3, (f"{log}:2: bad",))


def test_an_empty_folder_is_watched_until_its_first_lines_tell_what_they_mean(tmp_path: Path) -> None:
    timer = threading.Timer(0.3, lambda: append(tmp_path / "app.log", b'{"messageId": "a", "ts": 1794830390}\n'))
    timer.start()
    (diagnosis,) = watched(tmp_path)
    timer.join()
    assert events(diagnosis) == 1


def test_the_watch_goes_on_without_the_broker_and_says_so(tmp_path: Path, credentials: None) -> None:
    log = tmp_path / "a.jsonl"
    append(log, line(1))
    with ExitStack() as stack:
        broker = stack.enter_context(running())

        def end_broker(_: Diagnosis) -> None:
            stack.close()
            append(log, line(2))

        first, second, third = watched(
            tmp_path, end_broker, lambda _: append(log, line(3)), metrics=(broker.url,), visibility={"": 30.0}
        )
    assert first.notes == ()
    for number, diagnosis in ((2, second), (3, third)):
        (note,) = diagnosis.notes
        assert note.startswith("queues, metrics and ledger are as of an earlier look: --metrics http://127.0.0.1")
        assert events(diagnosis) == number


def test_what_cannot_be_followed_is_named(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", line(1))
    refused: tuple[tuple[str, dict[str, Any], str], ...] = (
        (str(tmp_path / "none"), {}, "no such folder"),
        ("s3://bucket/log", {"mapping": "id=.id,time=.t"}, "--watch cannot follow s3://"),
        (str(tmp_path), {"engine": "spark"}, "leave out --engine spark and --master"),
        (str(tmp_path), {"master": "local[2]"}, "leave out --engine spark and --master"),
    )
    for logs, options, message in refused:
        with pytest.raises(DoctorError, match=message):
            watch(
                Request(logs=(logs,), **options), interval=1, window=60, on_diagnosis=lambda _: None,
                stop=threading.Event(),
            )  # fmt: skip


def test_what_the_caller_raises_ends_the_watch_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "log").mkdir()
    append(tmp_path / "log/a.jsonl", line(1))

    def fail(_: Diagnosis) -> None:
        assert any((tmp_path / "temporary").iterdir())
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        watched(tmp_path / "log", fail)
    assert list((tmp_path / "temporary").iterdir()) == []


def watch_for_ever(request: Request) -> None:
    watch(request, interval=1, window=60, on_diagnosis=print, stop=threading.Event())


@pytest.mark.parametrize("examine", [diagnose, watch_for_ever])
def test_ctrl_c_in_any_query_is_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examine: Callable[[Request], object]
) -> None:
    """DuckDB raises an error of its own, also in the query that finds out what the fields mean."""

    def interrupted(*_: object) -> list[dict[str, object]]:
        raise RuntimeError("Query interrupted")

    (tmp_path / "app.jsonl").write_text('{"id": "m-1", "time": 1794830400}\n')
    monkeypatch.setattr("semel.doctor.logs.reader.first_records", interrupted)
    with pytest.raises(KeyboardInterrupt):
        examine(Request(logs=(str(tmp_path),), engine="duckdb"))
