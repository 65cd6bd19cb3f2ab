"""The thread that waits for the disk, so that the event loop need not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Final

Done = Callable[[Exception | None], None]

_FAST_SECONDS: Final = 0.000_5
_WEIGHT: Final = 0.1  # of the newest sync in the average

_fdatasync: Final = getattr(os, "fdatasync", os.fsync)


class Syncer:
    """Syncs one file, and does other work that would hold up the event loop, one thing at a time.

    `file` is the write-ahead log of the database: what was committed before a sync began is on disk when the sync ends.
    The file is the same one for as long as the database is open."""

    def __init__(self, file: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._file, self._loop = file, loop
        self._descriptor: int | None = None
        self._seconds = 0.0  # that a sync took recently, on average
        self._work: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="semel-sync", daemon=True)
        self._thread.start()

    def sync(self, done: Done) -> None:
        """`done` is called on the event loop."""
        self._work.put((self._sync, done))

    def run(self, work: Callable[[], None], done: Done) -> None:
        self._work.put((work, done))

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()
        if self._descriptor is not None:
            os.close(self._descriptor)

    @property
    def is_fast(self) -> bool:
        """Whether a sync takes less time than waking another thread a few times."""
        return self._seconds < _FAST_SECONDS

    def sync_now(self) -> None:
        """Syncs on the caller's thread. Call it only while no other sync is under way."""
        self._sync()

    def _sync(self) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        start = monotonic()
        _fdatasync(self._descriptor)
        self._seconds += _WEIGHT * (monotonic() - start - self._seconds)

    def _main(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            failure: Exception | None = None
            try:
                work()
            except Exception as error:  # noqa: BLE001 - it is handed to the loop, which deals with it
                failure = error
            self._loop.call_soon_threadsafe(done, failure)
