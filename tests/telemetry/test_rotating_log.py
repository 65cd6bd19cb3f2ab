"""Logs to which many processes append: whole lines, limited size, and readable across rotations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from semel.telemetry import annotation_log
from semel.telemetry.rotating_log import RotatingLog


def numbers(log: RotatingLog) -> list[int]:
    return [int(line.partition(b" ")[0]) for line in log.newest_first()]


def test_lines_are_read_newest_first_across_the_rotation(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", max_bytes=100, keep=50)
    for number in range(200):
        log.append(b"%d x" % number)
    assert numbers(log) == list(range(199, -1, -1))
    assert len(list(tmp_path.iterdir())) > 5


def test_the_log_is_bounded_and_the_oldest_lines_go_first(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", max_bytes=100, keep=2)
    for number in range(1_000):
        log.append(b"%d x" % number)
    assert {path.name for path in tmp_path.iterdir()} <= {"log", "log.1", "log.2"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 110
    kept = numbers(log)
    assert kept == list(range(999, 999 - len(kept), -1))
    assert len(kept) > 15


def test_a_kill_in_the_middle_of_a_rotation_loses_nothing(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", max_bytes=40, keep=5)
    for number in range(10, 35):
        log.append(b"%d" % number)
    (tmp_path / "log.1").replace(tmp_path / "log.2")  # and killed before the next step
    before = numbers(log)
    for number in range(35, 80):
        log.append(b"%d" % number)
    assert numbers(log) == [*range(79, 34, -1), *before]


def test_processes_that_write_at_once_lose_no_line_and_tear_none(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = (
        "import sys; from pathlib import Path; from semel.telemetry.rotating_log import RotatingLog\n"
        f"log = RotatingLog(Path({str(path)!r}), max_bytes=2_000, keep=200)\n"
        "first = int(sys.argv[1])\n"
        "for number in range(first, first + 300):\n    log.append(b'%d %s' % (number, b'y' * 50))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n * 300)]) for n in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    log = RotatingLog(path, max_bytes=2_000, keep=200)
    assert sorted(numbers(log)) == list(range(1_200))
    assert all(line.endswith(b" " + b"y" * 50) for line in log.newest_first())


def test_a_reader_that_a_rotation_overtakes_reads_each_line_once(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", max_bytes=100, keep=50)
    for number in range(50):
        log.append(b"%d x" % number)
    reader = log.newest_first()
    read = [next(reader)]
    for number in range(50, 100):
        log.append(b"%d x" % number)
    read += reader
    assert [int(line.split()[0]) for line in read] == list(range(49, -1, -1))
    # The file is found under both names if it is rotated just between opening the two.
    (tmp_path / "log.1").unlink()
    (tmp_path / "log.1").hardlink_to(log.path)
    assert len(set(numbers(log))) == len(numbers(log))


def test_a_line_that_a_full_disk_has_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", max_bytes=10_000, keep=1)
    log.append(b"1")
    with log.path.open("ab") as file:
        file.write(b"2 is cut")
    log.append(b"3")
    assert list(log.newest_first()) == [b"3", b"2 is cut", b"1"]


def test_the_folder_is_created_and_private(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "state" / "log", max_bytes=10_000, keep=1)
    assert list(log.newest_first()) == []
    log.append(b"1")
    assert log.path.stat().st_mode & 0o077 == log.path.parent.stat().st_mode & 0o077 == 0


def test_annotations_are_bounded_and_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation_log, "MAX_BYTES", 1_000)
    for number in range(500):
        annotation_log.add(tmp_path, f"deploy {number}", "ci", float(number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5_000
    texts = [annotation.text for annotation in annotation_log.since(tmp_path)]
    assert texts == [f"deploy {number}" for number in range(500 - len(texts), 500)]
    assert len(texts) > 60
    assert [annotation.at for annotation in annotation_log.since(tmp_path, 498)] == [498.0, 499.0]
