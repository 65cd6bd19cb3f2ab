"""Small disks that can be filled up.

With the permission to mount, a disk is a tmpfs of its own, and a write to a full one fails with ENOSPC. Without it, a
disk is a folder, and a limit on the size of files (RLIMIT_FSIZE) makes its writers' writes fail with EFBIG.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

MEGABYTE: Final = 1 << 20
SIZE: Final = 96 * MEGABYTE
Writers = Callable[[], Sequence[int]]  # process ids


class Disk(Protocol):
    folder: Path

    def fill(self, leave: int) -> None:
        """Fill the disk up to this number of free bytes."""

    def free(self) -> None: ...

    def close(self) -> None: ...


def make_disk(folder: Path, writers: Writers) -> Disk:
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "semel-process-crashes", str(folder)]
    if os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        return MountedDisk(folder)
    return LimitedFolder(folder, writers)


class MountedDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, leave: int) -> None:
        space = os.statvfs(self.folder)
        with self._filler.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(4096, space.f_bavail * space.f_frsize - leave))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)


class LimitedFolder:
    def __init__(self, folder: Path, writers: Writers) -> None:
        self.folder, self._writers = folder, writers

    def fill(self, leave: int) -> None:
        largest = max((file.stat().st_size for file in self.folder.iterdir() if file.is_file()), default=0)
        self._limit(largest + leave)

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for pid in self._writers():
            with suppress(ProcessLookupError, PermissionError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))

    def close(self) -> None:
        self.free()
