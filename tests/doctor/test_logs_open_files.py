"""Files that are followed while they are written: each line counts once, even if a file is renamed or replaced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from semel.doctor.logs.database import connect
from semel.doctor.logs.follower import LogFollower
from semel.doctor.logs.mapping import own
from semel.doctor.logs.reader import CREATE
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step
from semel.telemetry.attempt_log.events import encode
from semel.telemetry.attempt_log.local_sink import adopt

NOW = time.time()


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(connect()) as connection:
        connection.execute(CREATE)
        yield connection


def received(*ids: str) -> list[Attempt]:
    return [Attempt(NOW, Step.RECEIVED, "orders", id_, receive_count=1) for id_ in ids]


def ids(connection: duckdb.DuckDBPyConnection) -> list[str]:
    rows = connection.execute("SELECT message_id FROM log_lines WHERE problem = 0 ORDER BY message_id").fetchall()
    return [row[0] for row in rows]


def test_a_file_that_is_completed_in_the_middle_of_a_look_is_read_at_the_next(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = LogFollower(connection, [str(tmp_path)], own(), window=3_600)
    with AttemptLog.open(str(tmp_path)) as log:
        log.add_all(received("a", "b"))
        assert log.flush()
        read = follower._reader.read_texts

        def completed_before_it_is_read(*texts: object) -> None:
            log.close()
            read(*texts)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(follower._reader, "read_texts", completed_before_it_is_read)
            assert not follower.look(NOW)
    assert follower.look(NOW)
    assert ids(connection) == ["a", "b"]
    assert not follower.look(NOW)


def test_half_a_line_of_a_killed_worker_is_never_read(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    folder = tmp_path / f"date={time.strftime('%Y-%m-%d', time.gmtime(NOW))}"
    folder.mkdir()
    lines = encode(received("a", "b", "c"), "w1")[0]
    (folder / ".attempts-w1-1-abc.jsonl.open").write_bytes(lines[:-20])
    follower = LogFollower(connection, [str(tmp_path)], own(), window=3_600)
    for _ in range(3):
        follower.look(NOW)
    assert ids(connection) == ["a", "b"]
    assert adopt(tmp_path) == 1  # by the next worker that starts
    for _ in range(3):
        follower.look(NOW)
    assert ids(connection) == ["a", "b"]
    assert connection.execute("SELECT count(*) FROM log_lines").fetchall() == [(2,)]


def test_a_file_that_is_rotated_in_the_middle_of_a_look_is_not_taken_for_its_successor(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "app.jsonl"
    file.write_bytes(encode(received("a", "b"), "w1")[0])
    follower = LogFollower(connection, [str(tmp_path)], own(), window=3_600)
    read = follower._reader.read_texts

    def rotated_before_it_is_read(*texts: object) -> None:
        file.rename(tmp_path / "app.1.jsonl")
        file.write_bytes(encode(received("c", "d", "e"), "w1")[0])
        read(*texts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(follower._reader, "read_texts", rotated_before_it_is_read)
        follower.look(NOW)
    follower.look(NOW)
    assert ids(connection) == ["a", "b", "c", "d", "e"]
