"""The attempt log: what is in the folder, also after a crash; how drops are reported; and that it blocks nobody."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from semel.errors import StartError
from semel.telemetry.attempt_log import SPARK_SCHEMA, Attempt, AttemptLog, Step
from semel.telemetry.attempt_log import remote_sink as attempts_remote
from semel.telemetry.attempt_log.local_sink import CLEAN_EVERY, DAY, Roll
from semel.telemetry.attempt_log.remote_sink import RemoteSink

NOON = 1_794_830_400.0  # 2026-11-16 12:00 UTC
LONG = 30.0  # seconds that nothing here should take


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def event(number: int = 1, step: Step = Step.RECEIVED, **fields: Any) -> Attempt:
    return Attempt(NOON + number, step, "orders", f"id-{number}", **fields)


def complete(folder: Path, kind: str = "jsonl") -> list[Path]:
    """What a reader sees: Spark leaves out names that begin with a dot, as a shell does."""
    return sorted(path for path in folder.glob(f"date=*/*.{kind}*") if not path.name.startswith("."))


def opened(folder: Path) -> list[Path]:
    return sorted(folder.glob("date=*/.*.open"))


def lines(*paths: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def ids(*paths: Path) -> list[str]:
    return [line["message_id"] for line in lines(*paths)]


# What a line says.


def test_an_event_is_one_line_with_all_that_is_known_and_nothing_else(tmp_path: Path) -> None:
    full = Attempt(
        NOON,
        Step.RETRIED,
        "orders.fifo",
        "id-1",
        "order-7",
        3,
        2,
        4,
        NOON - 5,
        "eu",
        0.25,
        30.0,
        "boom",
        "w1",
        "path",
        "charge",
    )
    with AttemptLog.open(str(tmp_path)) as log:
        log.add_all([full, Attempt(NOON, Step.RECEIVED, "orders", "id-2", worker="w2")])
    (path,) = complete(tmp_path)
    first, second = lines(path)
    assert first == {**full._asdict(), "step": "retried"}
    assert second == {"at": NOON, "step": "received", "queue": "orders", "message_id": "id-2", "worker": "w2"}


def test_the_documented_columns_are_those_of_an_event_and_the_count_of_drops() -> None:
    columns = [column.split()[0].strip("`") for column in SPARK_SCHEMA.split(", ")]
    assert columns == [*Attempt._fields, "count"]


def test_an_event_that_names_no_worker_gets_the_one_of_the_log(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log:
        log.add(event())
    (path,) = complete(tmp_path)
    (line,) = lines(path)
    assert line["worker"].endswith(f"-{os.getpid()}")
    assert f"attempts-{line['worker']}-" in path.name


def test_an_error_is_cut_and_tells_no_password(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log:
        log.add(event(error="cannot reach postgresql://me:hunter2@db/x " + "y" * 100_000))
    (line,) = lines(*complete(tmp_path))
    assert "hunter2" not in line["error"]
    assert len(line["error"]) < 2_100


def test_odd_values_cost_neither_the_other_events_nor_the_log(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log:
        log.add_all([event(1, key="half \ud800 pair"), event(2, fence=2**70), event(3)])
        log.add("no event at all")  # type: ignore[arg-type]
        log.add(event(4))
        assert log.flush(LONG)
        assert (log.written, log.dropped) == (4, 1)
    assert [line.get("message_id") for line in lines(*complete(tmp_path))] == ["id-1", "id-2", "id-3", "id-4", None]


# Files.


def test_a_reader_sees_a_file_only_when_it_is_complete(tmp_path: Path, clock: Clock) -> None:
    with AttemptLog.open(str(tmp_path), roll_seconds=60, clock=clock) as log:
        log.add(event(1))
        assert log.flush(LONG)
        assert complete(tmp_path) == []
        assert ids(*opened(tmp_path)) == ["id-1"], "on its way to the disk within a second"
        clock.now += 59
        log.add(event(2))
        assert log.flush(LONG)
        assert complete(tmp_path) == []
        clock.now += 1
        assert log.flush(LONG)
        assert ids(*complete(tmp_path)) == ["id-1", "id-2"]
        assert opened(tmp_path) == []


def test_a_file_rolls_by_its_rows(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path), roll_rows=3) as log:
        log.add_all([event(number) for number in range(8)])
    assert [len(lines(path)) for path in complete(tmp_path)] == [3, 3, 2]
    assert ids(*complete(tmp_path)) == [f"id-{number}" for number in range(8)]


def test_a_file_rolls_by_its_size(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path), roll_bytes=50) as log:
        for number in range(3):
            log.add(event(number))
            assert log.flush(LONG)
    assert len(complete(tmp_path)) == 3


@pytest.mark.parametrize(
    ("begun", "now", "due"), [(0, 59, False), (0, 60, True), (86_399, 86_400, True), (10, 9, True)]
)
def test_a_file_is_complete_after_its_time_at_midnight_and_when_the_clock_went_back(
    begun: float, now: float, due: bool
) -> None:
    assert Roll(seconds=60).due(rows=1, size=1, begun=begun, now=now) is due


def test_each_day_has_a_folder(tmp_path: Path, clock: Clock) -> None:
    with AttemptLog.open(str(tmp_path), clock=clock) as log:
        log.add(event(1))
        assert log.flush(LONG)
        clock.now += DAY
        log.add(event(2))
        assert log.flush(LONG)
    assert [path.parent.name for path in complete(tmp_path)] == ["date=2026-11-16", "date=2026-11-17"]


def test_two_logs_in_one_folder_keep_apart(tmp_path: Path, clock: Clock) -> None:
    with AttemptLog.open(str(tmp_path), clock=clock) as first, AttemptLog.open(str(tmp_path), clock=clock) as second:
        first.add(event(1))
        assert first.flush(LONG)
        second.add(event(2))
        assert second.flush(LONG)
        clock.now += CLEAN_EVERY  # both look for abandoned files now
        first.add(event(3))
        assert first.flush(LONG)
        assert second.flush(LONG)
    assert sorted(ids(*complete(tmp_path))) == ["id-1", "id-2", "id-3"]


def test_nothing_to_say_makes_no_file(tmp_path: Path) -> None:
    with AttemptLog.open(tmp_path.as_uri()) as log:
        assert log.flush(LONG)
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_may_be_given_as_a_file_address(tmp_path: Path) -> None:
    with AttemptLog.open((tmp_path / "with space").as_uri()) as log:
        log.add(event())
    assert len(complete(tmp_path / "with space")) == 1


# Crashes.

KILLED = """
import os, signal, sys
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step
log = AttemptLog.open(sys.argv[1], format=sys.argv[2])
log.add_all([Attempt(1.0, Step.RECEIVED, "orders", f"id-{n}") for n in range(1000)])
assert log.flush(30)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path, format: str) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), format], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert complete(folder) == []


def test_what_a_killed_process_left_open_is_completed_by_the_next_start(tmp_path: Path) -> None:
    killed(tmp_path, "jsonl")
    (left,) = opened(tmp_path)
    with left.open("ab") as file:
        file.write(b'{"at": 1.0, "step": "rec')  # as a power cut may leave it
    with AttemptLog.open(str(tmp_path)) as log:
        assert log.flush(LONG)
        assert opened(tmp_path) == []
    assert ids(*complete(tmp_path)) == [f"id-{number}" for number in range(1_000)]


def test_also_parquet_survives_a_kill(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    killed(tmp_path, "parquet")
    with AttemptLog.open(str(tmp_path)) as log:  # this one writes JSON lines: the file stays what it was meant to be
        assert log.flush(LONG)
    (path,) = complete(tmp_path, "parquet")
    assert parquet.read_table(path).num_rows == 1_000


def test_an_open_file_without_a_whole_line_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "date=2026-11-16"
    folder.mkdir()
    (folder / ".attempts-x-1-abc-1.jsonl.open").write_bytes(b"")
    (folder / ".attempts-x-2-abc-1.jsonl.open").write_bytes(b'{"at": ')
    with AttemptLog.open(str(tmp_path)) as log:
        assert log.flush(LONG)
    assert list(folder.iterdir()) == []


# Parquet.


def test_parquet_has_the_same_rows_and_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with AttemptLog.open(str(tmp_path), format="parquet") as log:
        log.add_all([event(1, key="order-7", fence=3), event(2, seconds=0.5)])
    (path,) = complete(tmp_path, "parquet")
    table = parquet.ParquetFile(path).read()
    assert table.column_names == [*Attempt._fields, "count"]
    assert table.column("message_id").to_pylist() == ["id-1", "id-2"]
    assert table.column("fence").to_pylist() == [3, None]
    assert table.column("seconds").to_pylist() == [None, 0.5]
    assert list(tmp_path.rglob(".*")) == []


def test_parquet_without_pyarrow_says_so_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StartError, match=r"pip install pyarrow, or write JSON lines"):
        AttemptLog.open(str(tmp_path), format="parquet")


# Bounds.


class SwitchedStore:
    """A store that takes files when it is open, and fails otherwise."""

    def __init__(self) -> None:
        self.open = True
        self.tries = 0
        self.tried = threading.Event()
        self.files: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self.tries += 1
        self.tried.set()
        if not self.open:
            raise ConnectionError("the store is away")
        self.files[name] = data

    def lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for _, data in sorted(self.files.items()) for line in data.splitlines()]


@pytest.fixture
def store() -> SwitchedStore:
    return SwitchedStore()


@pytest.fixture
def remote(store: SwitchedStore, clock: Clock) -> Iterator[Callable[..., AttemptLog]]:
    made: list[AttemptLog] = []

    def make(*, buffer: int = 1_000, rows: int = 1_000, pending: int = 1_000_000) -> AttemptLog:
        made.append(
            AttemptLog(
                RemoteSink(lambda: store, "jsonl", Roll(rows=rows), pending), buffer=buffer, chunk=rows, clock=clock
            )
        )
        return made[-1]

    yield make
    for log in made:
        log.close(0.0)


def test_a_store_that_was_away_gets_everything_when_it_is_back(
    store: SwitchedStore,
    remote: Callable[..., AttemptLog],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_remote, "RETRY_FIRST", 3_600.0)  # a flush does not wait for the next try
    store.open = False
    log = remote()
    log.add_all([event(number) for number in range(5)])
    assert not log.flush(0.05)
    assert store.tried.wait(LONG)
    assert (log.written, log.dropped) == (0, 0)
    store.open = True
    assert log.flush(LONG)
    assert (log.written, log.dropped) == (5, 0)
    assert [line["message_id"] for line in store.lines()] == [f"id-{number}" for number in range(5)]
    warnings = [record.getMessage() for record in caplog.records if "cannot upload" in record.getMessage()]
    assert len(warnings) == 1, "one a minute is enough"
    assert "ConnectionError: the store is away" in warnings[0]


def test_what_waits_for_a_store_is_bounded_and_drops_are_said_in_the_log_itself(
    store: SwitchedStore, remote: Callable[..., AttemptLog]
) -> None:
    store.open = False
    log = remote(buffer=100, rows=10, pending=2_000)
    for _ in range(50):
        log.add_all([event(number) for number in range(20)])
        log.flush(0.02)  # the writer may take what it can
    assert log.dropped > 0
    kept = 1_000 - log.dropped
    assert kept <= 100 + 2_000 // 60 + 2 * 10, "the buffer, what waits as files, what is being written"
    before = log.dropped
    store.open = True
    log.close(LONG)
    log_lines = store.lines()
    assert sum(line["count"] for line in log_lines if line["step"] == "dropped") == before == log.dropped
    assert sum(line["step"] == "received" for line in log_lines) == kept == log.written


def test_what_cannot_be_put_before_closing_is_counted(
    store: SwitchedStore, remote: Callable[..., AttemptLog], caplog: pytest.LogCaptureFixture
) -> None:
    store.open = False
    log = remote()
    log.add_all([event(number) for number in range(7)])
    log.close(0.2)
    assert (log.written, log.dropped) == (0, 7)
    assert "7 events dropped in total, 0 written" in caplog.text


def test_what_comes_after_a_store_was_given_up_on_is_counted_too(store: SwitchedStore) -> None:
    store.open = False
    sink = RemoteSink(lambda: store, "jsonl", Roll(), 1_000)
    sink.close(0.0)
    sink.append(b"{}\n", 1, NOON)
    sink.finish()
    assert (sink.written, sink.dropped) == (0, 1)
    assert sink.wait(0.0), "nothing that somebody would have to wait for"


def test_one_event_too_many_is_dropped(remote: Callable[..., AttemptLog], store: SwitchedStore) -> None:
    store.open = False
    log = remote(buffer=10, rows=1, pending=1)
    for number in range(50):
        log.add(event(number))
        log.flush(0.0)
    assert log.dropped >= 50 - 10 - 2, "beside the buffer: the line being written, and the file that waits"


def test_a_full_buffer_drops_and_never_blocks(remote: Callable[..., AttemptLog], store: SwitchedStore) -> None:
    log = remote(buffer=10)
    log.add_all([event(number) for number in range(25)])
    assert log.dropped == 15
    assert log.flush(LONG)
    log.add(event(99))
    assert log.flush(LONG)
    assert (log.written, log.dropped) == (11, 15)
    assert [line["count"] for line in store.lines() if line["step"] == "dropped"] == [15]


def test_what_is_added_after_closing_is_counted_as_dropped(tmp_path: Path) -> None:
    log = AttemptLog.open(str(tmp_path))
    log.close()
    log.add(event())
    log.add_all([event(), event()])
    assert (log.written, log.dropped) == (0, 3)
    assert not log.flush(LONG)
    log.close()


def test_a_disk_that_is_full_loses_nothing_that_fits_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.write

    def write(file: int, data: Any) -> int:
        if len(data) <= 10:
            raise OSError(28, "No space left on device")
        return real(file, data[:-10])  # the last block that was free

    with AttemptLog.open(str(tmp_path)) as log:
        log.add(event(1))
        assert log.flush(LONG)
        monkeypatch.setattr(os, "write", write)
        log.add(event(2))
        assert not log.flush(0.1)
        monkeypatch.setattr(os, "write", real)
        log.add(event(3))
        assert log.flush(LONG)
        assert (log.written, log.dropped) == (3, 0)
    assert ids(*complete(tmp_path)) == ["id-1", "id-2", "id-3"], "and no half line between them"
    assert "No space left on device" in caplog.text


def test_what_a_full_disk_does_not_take_before_closing_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_file: int, _data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    log = AttemptLog.open(str(tmp_path))
    log.add_all([event(1), event(2)])
    log.flush(0.1)
    log.add(event(3))
    log.close(0.1)
    assert (log.written, log.dropped) == (0, 3)


def test_a_folder_that_is_removed_costs_what_was_in_it_and_no_more(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "log"
    with AttemptLog.open(str(folder), clock=clock) as log:
        log.add(event(1))
        assert log.flush(LONG)
        shutil.rmtree(folder)
        clock.now += 61
        log.flush(LONG)
        log.add(event(2))
        assert log.flush(LONG)
        assert (log.written, log.dropped) == (1, 1)
    log_lines = lines(*complete(folder))
    assert [line["message_id"] for line in log_lines if "message_id" in line] == ["id-2"]
    assert [line["count"] for line in log_lines if line["step"] == "dropped"] == [1]


def test_old_files_of_ours_go_and_others_stay(tmp_path: Path, clock: Clock) -> None:
    with AttemptLog.open(str(tmp_path), keep_days=28, clock=clock) as log:
        for number in range(2):
            log.add(event(number))
            assert log.flush(LONG)
            clock.now += DAY
        theirs = tmp_path / "date=2026-11-16" / "notes.txt"
        theirs.write_text("mine")
        clock.now = NOON + 29 * DAY  # the first is 29 days old, the second 28
        assert log.flush(LONG)
        assert [path.parent.name for path in complete(tmp_path)] == ["date=2026-11-17"]
        assert theirs.exists()
        clock.now += DAY
        assert log.flush(LONG)
        assert [path.name for path in tmp_path.iterdir()] == ["date=2026-11-16"], "and the empty folder"


def test_a_folder_that_grows_too_large_loses_its_oldest_files(tmp_path: Path, clock: Clock) -> None:
    with AttemptLog.open(str(tmp_path), roll_rows=1, max_total_bytes=10**9, clock=clock) as log:
        log.add_all([event(number) for number in range(5)])
        assert log.flush(LONG)
    for age, path in enumerate(reversed(complete(tmp_path))):
        os.utime(path, (NOON - age, NOON - age))
    size = complete(tmp_path)[0].stat().st_size
    with AttemptLog.open(str(tmp_path), max_total_bytes=2 * size, clock=clock) as log:
        assert log.flush(LONG)
    assert ids(*complete(tmp_path)) == ["id-3", "id-4"]


def test_drops_are_warned_of_once_a_minute_and_no_more(
    remote: Callable[..., AttemptLog], caplog: pytest.LogCaptureFixture
) -> None:
    log = remote(buffer=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            log.add_all([event(1), event(2)])
            assert log.flush(LONG)
    assert sum("events dropped so far" in record.getMessage() for record in caplog.records) == 1


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path), buffer=100_000) as log:

        def work(start: int) -> None:
            for number in range(start, start + 1_000):
                log.add(event(number))

        threads = [threading.Thread(target=work, args=(start * 1_000,)) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.dropped == 0
    assert sorted(ids(*complete(tmp_path))) == sorted(f"id-{number}" for number in range(8_000))


# Starting.


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("/dev/null/log", {}, "choose a folder that this process may write to"),
        ("file://host/log", {}, "three slashes"),
        ("nosuch://bucket/log", {}, "no installed package can write to nosuch://"),
        ("log", {"format": "csv"}, "choose jsonl or parquet"),
        ("log", {"buffer": 0}, "must be greater than 0"),
    ],
)
def test_a_log_that_cannot_be_says_why_at_the_start(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(StartError, match=text):
        AttemptLog.open(url, **options)


# Real remote stores.


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """moto's S3 over HTTP, with a client for it."""
    pytest.importorskip("pyarrow.fs")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    yield client
    client.close()
    server.stop()


def test_a_bucket_gets_whole_files_and_one_that_appears_late_gets_them_late(
    s3: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    endpoint = s3.meta.endpoint_url.removeprefix("http://")
    log = AttemptLog.open(
        f"s3://attempts/prod?region=us-east-1&scheme=http&endpoint_override={endpoint}", format="parquet", clock=clock
    )
    log.add_all([event(number) for number in range(3)])
    assert not log.flush(0.2)
    s3.create_bucket(Bucket="attempts")
    assert log.flush(LONG)
    log.close(LONG)
    (s3_object,) = s3.list_objects_v2(Bucket="attempts")["Contents"]
    assert s3_object["Key"].startswith("prod/date=2026-11-16/attempts-")
    assert s3_object["Key"].endswith(".parquet")
    assert (log.written, log.dropped) == (3, 0)


def test_any_store_of_fsspec_will_do(clock: Clock) -> None:
    fsspec = pytest.importorskip("fsspec")
    log = AttemptLog.open("memory://attempts", clock=clock)
    log.add(event())
    log.close(LONG)
    files = fsspec.filesystem("memory")
    (path,) = files.find("/attempts")
    assert path.startswith("/attempts/date=2026-11-16/attempts-")
    assert orjson.loads(files.cat_file(path))["message_id"] == "id-1"
