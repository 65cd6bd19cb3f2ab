"""Attempt files in a remote folder: collected in memory, and uploaded whole by a separate thread.

The rule: a slow or unavailable store holds up nobody. Files wait in memory up to a limit, uploads are retried, and
events that are left when the log closes are counted as dropped.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from semel.errors import StartError
from semel.telemetry.attempt_log.local_sink import Format, Names, Roll
from semel.telemetry.attempt_log.parquet import to_parquet
from semel.telemetry.logs import safe_text

log = logging.getLogger("semel.telemetry")

RETRY_FIRST: Final = 1.0  # seconds; doubles with each try
RETRY_LAST: Final = 30.0
WARN_EVERY: Final = 60.0
# Stores in which a file appears only when it is complete: it needs no rename, which would copy it.
_APPEARS_WHOLE: Final = frozenset({"s3", "gcs", "gs", "abfs"})


class Store(Protocol):
    def put(self, name: str, data: bytes) -> None:
        """Create or replace a file atomically; may raise any exception if that fails."""


class _File(NamedTuple):
    name: str
    data: bytes
    rows: int


class RemoteSink:
    def __init__(self, connect: Callable[[], Store], format: Format, roll: Roll, pending_bytes: int) -> None:
        self._connect, self._format, self._roll, self._limit = connect, format, roll, pending_bytes
        self._names = Names(format)
        self._lines: list[bytes] = []
        self._rows = self._size = 0
        self._begun = 0.0
        self.written = self.dropped = 0
        self._waiting: deque[_File] = deque()
        self._changed = threading.Condition()  # guards all below, and `_waiting`
        self._bytes_waiting = 0
        self._hurry = self._closing = self._given_up = False
        self._warned = -WARN_EVERY
        self._thread = threading.Thread(target=self._upload_all, name="semel-attempts-upload", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        return self._bytes_waiting + self._size >= self._limit

    def append(self, lines: bytes, rows: int, now: float) -> None:
        if not self._lines:
            self._begun = now
        self._lines.append(lines)
        self._rows += rows
        self._size += len(lines)

    def tick(self, now: float, *, flush: bool) -> None:
        if self._lines and (flush or self._roll.due(self._rows, self._size, self._begun, now)):
            self.finish()
        if flush:
            with self._changed:  # do not wait for the next try
                self._hurry = True
                self._changed.notify_all()

    def finish(self) -> None:
        if not self._lines:
            return
        file = _File(self._names.next(self._begun), b"".join(self._lines), self._rows)
        self._lines, self._rows, self._size = [], 0, 0
        with self._changed:
            if self._given_up:
                self.dropped += file.rows
                return
            self._waiting.append(file)
            self._bytes_waiting += len(file.data)
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, max(timeout, 0.0))

    def close(self, timeout: float) -> None:
        with self._changed:
            self._closing = self._hurry = True
            self._changed.notify_all()
        done = self.wait(timeout)
        with self._changed:
            self._given_up = True
            self.dropped += sum(file.rows for file in self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        if done:  # otherwise it may hang in an upload, and is left alone
            self._thread.join(1.0)

    def _upload_all(self) -> None:
        store: Store | None = None
        pause = RETRY_FIRST
        while (file := self._next()) is not None:
            try:
                store = store or self._connect()
                data = to_parquet(file.data) if self._format == "parquet" else file.data
                store.put(file.name, data)
            except Exception as error:  # noqa: BLE001  whatever the store's library raises: the next try may succeed
                store = None
                self._warn(file, error)
                self._rest(pause)
                pause = min(pause * 2, RETRY_LAST)
            else:
                pause = RETRY_FIRST
                self._put(file)

    def _next(self) -> _File | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting[0] if self._waiting else None

    def _put(self, file: _File) -> None:
        with self._changed:
            if self._waiting and self._waiting[0] is file:  # otherwise it was given up during the upload
                self._waiting.popleft()
                self.written += file.rows
                self._bytes_waiting -= len(file.data)
            self._changed.notify_all()

    def _rest(self, seconds: float) -> None:
        with self._changed:
            # While closing: one try a second, until the timeout of `close` is over.
            self._changed.wait_for(lambda: self._hurry or not self._waiting, 1.0 if self._closing else seconds)
            self._hurry = False

    def _warn(self, file: _File, error: Exception) -> None:
        if time.monotonic() - self._warned >= WARN_EVERY:
            self._warned = time.monotonic()
            why = safe_text(f"{type(error).__name__}: {error}", 500)
            log.warning("attempt log: cannot upload %s: %s; the upload is retried", file.name, why)


def store_for(url: str) -> Callable[[], Store]:
    """A function that connects to the store of an address; StartError if no library for it is installed."""
    scheme = url.partition("://")[0]
    with contextlib.suppress(ImportError):
        arrow = importlib.import_module("pyarrow.fs")
        if scheme in ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"):
            return lambda: _ArrowStore(arrow, url)
    with contextlib.suppress(ImportError):
        spec = importlib.import_module("fsspec")
        if scheme in spec.available_protocols():
            return lambda: _FsspecStore(spec, url)
    raise StartError(
        f"attempt log folder {safe_text(url, 300)}: no installed package can write to {scheme}://; "
        "pip install pyarrow (s3, gs, hdfs, abfs) or fsspec with the package for it, or choose a local folder"
    )


class _ArrowStore:
    def __init__(self, arrow: Any, url: str) -> None:
        self._files, path = arrow.FileSystem.from_uri(url)
        self._root = path.rstrip("/")
        self._whole = self._files.type_name in _APPEARS_WHOLE

    def put(self, name: str, data: bytes) -> None:
        folder, _, file = f"{self._root}/{name}".rpartition("/")
        target = f"{folder}/{file}" if self._whole else f"{folder}/.{file}.open"
        if not self._whole:
            self._files.create_dir(folder, recursive=True)
        with self._files.open_output_stream(target) as stream:
            stream.write(data)
        if not self._whole:
            self._files.move(target, f"{folder}/{file}")


class _FsspecStore:
    def __init__(self, spec: Any, url: str) -> None:
        self._files, path = spec.core.url_to_fs(url)
        self._root = path.rstrip("/")
        protocol = self._files.protocol
        self._whole = bool(_APPEARS_WHOLE & {protocol} if isinstance(protocol, str) else _APPEARS_WHOLE & set(protocol))

    def put(self, name: str, data: bytes) -> None:
        folder, _, file = f"{self._root}/{name}".rpartition("/")
        target = f"{folder}/{file}" if self._whole else f"{folder}/.{file}.open"
        if not self._whole:
            self._files.makedirs(folder, exist_ok=True)
        self._files.pipe_file(target, data)
        if not self._whole:
            self._files.mv(target, f"{folder}/{file}")
