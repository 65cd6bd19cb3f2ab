"""Writes to a full disk really fail, and succeed again when it is freed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from process_crashes.disks import Disk, LimitedFolder, MountedDisk, make_disk

# Appends eight kilobytes for each line that it reads, and prints the result.
WRITER: Final = """
import errno, os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for _ in sys.stdin:
    try:
        said = "written" if os.write(file, b"x" * 8192) == 8192 else "in part"
    except OSError as error:
        said = errno.errorcode[error.errno]
    print(said, flush=True)
"""


class Writer:
    def __init__(self, file: Path) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._process = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], **pipes)  # type: ignore[call-overload]
        self.pid: int = self._process.pid

    def write(self) -> str:
        self._process.stdin.write("\n")
        return str(self._process.stdout.readline()).strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(params=["mounted", "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, Writer]]:
    writers: list[int] = []
    disk: Disk = make_disk(tmp_path / "disk", lambda: writers)
    if request.param == "mounted" and not isinstance(disk, MountedDisk):
        pytest.skip("no right to mount")
    if request.param == "limited":
        disk.close()
        disk = LimitedFolder(tmp_path / "disk", lambda: writers)
    writer = Writer(disk.folder / "file")
    writers.append(writer.pid)
    yield disk, writer
    writer.close()
    disk.close()


def test_a_full_disk_takes_nothing_until_it_is_freed(disk: tuple[Disk, Writer]) -> None:
    small, writer = disk
    assert writer.write() == "written"
    small.fill(0)
    assert writer.write() in ("ENOSPC", "EFBIG")
    small.free()
    assert writer.write() == "written"
