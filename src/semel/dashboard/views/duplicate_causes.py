"""The causes of duplicates in the last 24 hours: the doctor's analysis of the attempt log, in the background.

A request gets the last result at once, and starts the next analysis: at most every ten seconds, and for at most a
tenth of the time. If no file has changed, the analysis is only a stat of each file.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from semel.dashboard.views.model import CauseRow, DuplicateCauses
from semel.doctor.logs.discovery import PARQUET, Days, hidden, is_local, local_path
from semel.doctor.model import CAUSES
from semel.errors import SemelError
from semel.extras import require

if TYPE_CHECKING:
    from semel.doctor.engine.duckdb import DuckDBEngine
    from semel.doctor.logs.follower import LogFollower
    from semel.doctor.model import Behaviour

WINDOW: Final = 86_400.0
INTERVAL: Final = 10.0
SHARE: Final = 10  # at most a tenth of the time is spent on it
MEMORY: Final = "300MB"  # DuckDB's buffers; beyond that it writes to disk
MAX_BYTES: Final = 2 * 1024**3  # of JSON lines: about 8 million events
PARQUET_WEIGHT: Final = 25  # a Parquet file holds as many events as JSON lines of this many times its size
log = logging.getLogger("semel.dashboard")


class CauseCounter:
    """Only logs on this machine are read. Thread-safe."""

    def __init__(
        self, logs: Sequence[str], *, clock: Callable[[], float] = time.time, max_bytes: int = MAX_BYTES
    ) -> None:
        self._paths = tuple(path for path in logs if is_local(path))
        self._clock, self._max_bytes = clock, max_bytes
        self._lock = threading.Lock()
        self._latest = DuplicateCauses(note="The attempt log is being read." if self._paths else "")
        self._thread: threading.Thread | None = None
        self._due_at = 0.0
        self._closed = False
        # Used by the thread only.
        self._state: object = None
        self._engine: DuckDBEngine | None = None
        self._follower: LogFollower | None = None
        self._opened_at = 0.0

    def latest(self) -> DuplicateCauses:
        with self._lock:
            if self._paths and self._thread is None and not self._closed and time.monotonic() >= self._due_at:
                self._thread = threading.Thread(target=self._analyse, name="semel-causes", daemon=True)
                self._thread.start()
            return self._latest

    def close(self) -> None:
        with self._lock:
            self._closed, thread = True, self._thread
            if thread is None:
                self._close_engine()
        if thread is not None:
            thread.join(5)

    def _analyse(self) -> None:
        began = time.monotonic()
        try:
            latest = self._causes(self._clock())
        except SemelError as error:
            self._close_engine()
            latest = DuplicateCauses(note=str(error))
        except Exception as error:
            self._close_engine()
            log.exception("the attempt log could not be analysed")
            latest = DuplicateCauses(note=f"The attempt log could not be analysed: {type(error).__name__}: {error}")
        ended = time.monotonic()
        with self._lock:
            self._latest, self._thread = latest, None
            self._due_at = ended + max(INTERVAL, (SHARE - 1) * (ended - began))
            if self._closed:
                self._close_engine()

    def _causes(self, now: float) -> DuplicateCauses:
        files = dict(self._files(now - WINDOW))
        # If the files have not changed, nothing is counted again within the hour.
        state = (now // 3600, frozenset(files.items()))
        if state == self._state:
            return self._latest
        self._state = state
        require("Counting duplicates by cause", "duckdb", extra="doctor")
        if sum(files.values()) > self._max_bytes:
            self._close_engine()
            return DuplicateCauses(note="The attempt log is too large to be read here: run semel doctor on it.")
        engine, follower = self._opened(now)
        if not follower.look(now) and self._opened_at != now:
            return self._latest
        from semel.doctor.analysis import analyse

        return _summary(analyse(engine, follower.mapping, files=follower.names).behaviours)

    def _files(self, oldest: float) -> Iterator[tuple[str, int]]:
        """Each file that changed in the window, with the size that it would have as JSON lines."""
        days = Days.of(oldest, None)
        for path in map(local_path, self._paths):
            if os.path.isfile(path):
                yield from _sized(path, oldest)
            for folder, folders, names in os.walk(path):
                folders[:] = [name for name in folders if not hidden(name) and days.may_hold(name)]
                for name in names:
                    yield from _sized(os.path.join(folder, name), oldest)

    def _opened(self, now: float) -> tuple[DuckDBEngine, LogFollower]:
        """The engine and the follower. Reopened once a day, as the follower keeps a list of all files it has read."""
        from semel.doctor.engine.duckdb import DuckDBEngine
        from semel.doctor.logs.follower import LogFollower
        from semel.doctor.logs.mapping import own
        from semel.doctor.logs.reader import CREATE

        if self._engine is None or self._follower is None or not 0 <= now - self._opened_at < WINDOW:
            self._close_engine()
            self._engine, self._opened_at = DuckDBEngine(threads=1, in_memory=True), now
            self._engine.connection.execute(f"SET memory_limit = '{MEMORY}'")
            self._engine.connection.execute(CREATE)
            self._follower = LogFollower(self._engine.connection, self._paths, own(), window=WINDOW, threads=1)
        return self._engine, self._follower

    def _close_engine(self) -> None:
        engine, self._engine, self._follower = self._engine, None, None
        if engine is not None:
            engine.close()


def _sized(path: str, oldest: float) -> Iterator[tuple[str, int]]:
    try:
        about = os.stat(path)
    except OSError:  # renamed or removed just now
        return
    if about.st_mtime >= oldest:
        yield path, about.st_size * (PARQUET_WEIGHT if path.endswith(PARQUET) else 1)


def _summary(behaviours: Sequence[Behaviour]) -> DuplicateCauses:
    """All queues together, the most frequent cause first."""
    duplicates, ran = Counter[str](), Counter[str]()
    for behaviour in behaviours:
        for summary in behaviour.causes:
            duplicates[summary.cause] += summary.duplicates
            ran[summary.cause] += summary.ran
    rows = tuple(
        CauseRow(cause, *CAUSES[cause], duplicates=duplicates[cause], ran=ran[cause])
        for cause in sorted(CAUSES, key=lambda cause: -duplicates[cause])
        if duplicates[cause]
    )
    return DuplicateCauses(rows, "" if rows else "The attempt log of the last 24 hours shows no duplicate.")
