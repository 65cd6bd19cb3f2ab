"""A log of JSON lines in a file that many processes append to, bounded by rotation.

A line is one write with O_APPEND, so that lines of two processes never mix. A file that has reached its size becomes
`NAME.1`, the one before `NAME.2`, and so on; the oldest is removed. Readers read across all of them.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

_BLOCK: Final = 64 * 1024
_log: Final = logging.getLogger("semel.telemetry")


class RotatingLog:
    """`max_bytes`: size at which a file is rotated; `keep`: number of rotated files. Raises OSError."""

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self.path = path
        self._max_bytes, self._keep = max_bytes, keep

    def append(self, line: bytes, *, sync: bool = False) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            handle = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            # A full disk may have cut the last line; this one must not become a part of it.
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            content = (b"\n" if torn else b"") + line + b"\n"
            if os.write(handle, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(handle)
            if size + len(content) >= self._max_bytes:
                try:
                    self._rotate(handle)
                except OSError as error:  # the line is written; the file just keeps growing
                    _log.warning("%s cannot be rotated: %s", self.path, error)
        finally:
            os.close(handle)

    def newest_first(self) -> Iterator[bytes]:
        """All lines, the newest first. Files of any size are read in blocks."""
        with ExitStack() as stack:
            files: dict[int, IO[bytes]] = {}  # by inode: a file that is rotated meanwhile is not read twice
            for path in (self.path, *map(self._rotated, range(1, self._keep + 1))):
                try:
                    file = path.open("rb")
                except FileNotFoundError:
                    continue
                stack.callback(file.close)
                files.setdefault(os.fstat(file.fileno()).st_ino, file)
            for opened in files.values():
                yield from _newest_first(opened)

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _rotate(self, handle: int) -> None:
        """Only one process rotates: the one that holds the lock of the file that still has the name."""
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            if os.stat(self.path).st_ino != os.fstat(handle).st_ino:
                return
        except FileNotFoundError:
            return
        free = next((n for n in range(1, self._keep + 1) if not self._rotated(n).exists()), self._keep)
        for number in range(free, 1, -1):
            self._rotated(number - 1).replace(self._rotated(number))
        self.path.replace(self._rotated(1))


def _newest_first(file: IO[bytes]) -> Iterator[bytes]:
    position = file.seek(0, os.SEEK_END)
    rest = b""
    while position:
        size = min(_BLOCK, position)
        position = file.seek(position - size)
        first, *lines = (file.read(size) + rest).split(b"\n")
        yield from (line for line in reversed(lines) if line)
        rest = first
    if rest:
        yield rest
