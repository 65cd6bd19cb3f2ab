"""The attempt log: every step of every message as one event, in rolling files in a local or remote folder.

The rule: the log never slows the work down. `add` neither blocks nor raises; a separate thread writes. Events that
could not be kept are counted, and the count is shown in the log itself, in the metrics and by a warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from semel.errors import StartError
from semel.telemetry.attempt_log.events import SPARK_SCHEMA, Attempt, Step, dropped_line, encode
from semel.telemetry.attempt_log.local_sink import Format, Keep, LocalSink, Names, Roll, Sink
from semel.telemetry.attempt_log.parquet import need_pyarrow
from semel.telemetry.attempt_log.remote_sink import RemoteSink, store_for
from semel.telemetry.logs import safe_text

__all__ = ["SPARK_SCHEMA", "Attempt", "AttemptLog", "Step"]

log = logging.getLogger("semel.telemetry")

CHUNK: Final = 2_000  # events turned into lines at once
FLUSH_EVERY: Final = 1.0  # seconds; a killed process loses at most this much
WARN_EVERY: Final = 60.0
GRACE: Final = 2.0  # seconds for the writer to count what it gives up; needed only if the disk hangs


class AttemptLog:
    """Writes attempts to a folder. Thread-safe. Open it in the process that uses it: a fork has no writing thread.

    >>> from pathlib import Path
    >>> from semel.telemetry import Attempt, AttemptLog, Step
    >>> with AttemptLog.open("attempts") as log:
    ...     log.add(Attempt(1_700_000_000.0, Step.RECEIVED, "orders", "6f1d"))
    >>> [file.suffix for file in Path("attempts").rglob("*.jsonl")]
    ['.jsonl']
    """

    def __init__(
        self, sink: Sink, *, buffer: int = 100_000, chunk: int = CHUNK, clock: Callable[[], float] = time.time
    ) -> None:
        """Internal. Use `AttemptLog.open`."""
        self._sink, self._limit, self._clock = sink, buffer, clock
        self._chunk = max(1, min(chunk, CHUNK))
        self._worker = Names("jsonl").worker
        self._events: deque[Attempt] = deque()
        self._wake_at = max(1, buffer // 4)
        self._wake = threading.Event()
        self._lines: tuple[bytes, int] | None = None  # lines that are not in the folder yet, and their number
        self._state = threading.Condition()  # guards the numbers below
        self._overflow = 0  # events that found the buffer full, or the log closed
        self._said = 0  # drops that the log itself has reported
        self._asked = self._answered = 0  # flushes
        self._warned: dict[str, float] = {}
        self._warned_of = 0
        self._until = 0.0  # when closing gives up
        self._closed = self._ended = False
        self._thread = threading.Thread(target=self._run, name="semel-attempts", daemon=True)
        self._thread.start()

    @staticmethod
    def open(
        folder_url: str,
        *,
        format: Format = "jsonl",
        roll_rows: int = 1_000_000,
        roll_bytes: int = 32 * 1024 * 1024,
        roll_seconds: float = 60.0,
        buffer: int = 100_000,
        keep_days: float | None = 28.0,
        max_total_bytes: int | None = 10 * 1024**3,
        pending_bytes: int = 128 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> AttemptLog:
        """Opens a log in a folder: a path, file://, s3://, gs://, …

        A file is complete after `roll_rows`, `roll_bytes` or `roll_seconds`, whichever comes first. `buffer` is how
        many events may wait. `keep_days` and `max_total_bytes` limit a local folder; `pending_bytes` limits what waits
        for a remote one.
        """
        if format not in ("jsonl", "parquet"):
            raise StartError(f"unknown attempt log format {format!r}: choose jsonl or parquet")
        if min(roll_rows, roll_bytes, roll_seconds, buffer, pending_bytes) <= 0:
            raise StartError(
                "attempt log: roll_rows, roll_bytes, roll_seconds, buffer and pending_bytes must be greater than 0"
            )
        if format == "parquet":
            need_pyarrow("Parquet files")
        path = _local(folder_url)
        roll = Roll(roll_rows, roll_bytes if path else min(roll_bytes, max(1, pending_bytes // 2)), roll_seconds)
        sink: Sink
        if path is not None:
            sink = LocalSink(path, format, roll, Keep(keep_days, max_total_bytes))
        else:
            sink = RemoteSink(store_for(folder_url), format, roll, pending_bytes)
        return AttemptLog(sink, buffer=buffer, chunk=roll_rows, clock=clock)

    @property
    def dropped(self) -> int:
        """The number of events that are not, and will not be, in the folder."""
        return self._overflow + self._sink.dropped

    @property
    def written(self) -> int:
        """The number of events in the folder. In a local folder, some may still be in the open file."""
        return self._sink.written

    def add(self, event: Attempt) -> None:
        """Adds an event. Never blocks and never raises."""
        waiting = len(self._events)
        if waiting >= self._limit or self._closed:
            self._drop(1)
            return
        self._events.append(event)
        if waiting == self._wake_at:
            self._wake.set()

    def add_all(self, events: Sequence[Attempt]) -> None:
        """Adds several events, as `add` does."""
        waiting, count = len(self._events), len(events)
        room = 0 if self._closed else max(0, self._limit - waiting)
        if count > room:
            self._drop(count - room)
            events = events[:room]
        self._events.extend(events)
        if waiting + count > self._wake_at >= waiting:
            self._wake.set()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all events added so far are in the folder; False if that took longer than `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._state:
            self._asked += 1
            mine = self._asked
        self._wake.set()
        with self._state:
            self._state.wait_for(lambda: self._answered >= mine or self._ended, timeout)
            answered = self._answered >= mine
        return answered and self._sink.wait(until - time.monotonic())

    def close(self, timeout: float = 5.0) -> None:
        """Write the remaining events, complete the files and end. Events not written in time are counted as dropped."""
        until = time.monotonic() + timeout
        with self._state:
            if self._closed:
                return
            self._until = until
            self._closed = True  # what is added from now on is dropped
        self._wake.set()
        self._thread.join(timeout + GRACE)
        self._sink.close(until - time.monotonic())
        while self._events:  # added in the very moment of closing, or left by a disk that hangs
            self._drop(len(self._take(self._limit)))
        if self.dropped:
            log.warning("attempt log: %d events dropped in total, %d written", self.dropped, self.written)

    def __enter__(self) -> Self:
        """Returns the log; the end of the block closes it."""
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _drop(self, count: int) -> None:
        with self._state:
            self._overflow += count

    # The writing thread.

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(FLUSH_EVERY)
            self._wake.clear()
            self._turn()
        while not self._turn() and time.monotonic() < self._until:
            self._wake.wait(min(0.1, max(0.0, self._until - time.monotonic())))
        self._guarded(self._sink.finish)
        if self._lines is not None:
            self._drop(self._lines[1])
        with self._state:
            self._ended = True
            self._state.notify_all()

    def _turn(self) -> bool:
        """Hand over what was added so far; returns whether all of it succeeded."""
        with self._state:
            asked = self._asked
            flush = asked > self._answered or self._closed
        now = self._clock()
        drained = self._guarded(lambda: self._drain(len(self._events), now))
        ticked = self._guarded(lambda: self._sink.tick(now, flush=flush))
        self._warn_of_drops()
        if drained and ticked:
            with self._state:
                self._answered = asked
                self._state.notify_all()
        return drained and ticked

    def _drain(self, count: int, now: float) -> None:
        """Hand the oldest `count` events to the folder."""
        while (count > 0 or self._lines is not None) and not self._sink.full:
            if self._lines is None:
                events = self._take(min(count, self._chunk))
                count -= len(events)
                lines, left_out = encode(events, self._worker)
                if left_out:
                    self._drop(left_out)
                self._lines = (lines, len(events) - left_out)
            self._sink.tick(now, flush=False)
            self._sink.append(*self._lines, now)  # if one of these raises, the lines are tried again in the next turn
            self._lines = None
        if count > 0 or self._lines is not None:
            raise OSError(f"the store is too slow; {len(self._events)} events are waiting")
        if (untold := self.dropped - self._said) > 0:
            self._sink.append(dropped_line(now, untold, self._worker), 0, now)
            self._said += untold

    def _take(self, count: int) -> list[Attempt]:
        take, events = self._events.popleft, []
        with contextlib.suppress(IndexError):  # `close` takes the rest away from a writer that hangs
            for _ in range(min(count, len(self._events))):
                events.append(take())
        return events

    def _guarded(self, act: Callable[[], None]) -> bool:
        """Whether it succeeded. Failures, such as a full disk, are logged, and the next turn tries again."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  the thread must live on, whatever the disk or a library does
            if self._may_warn("failed"):
                why = safe_text(f"{type(error).__name__}: {error}", 500)
                log.warning("attempt log: %s; writing is retried, and events are dropped when the buffer is full", why)
            return False
        return True

    def _warn_of_drops(self) -> None:
        dropped = self.dropped
        if dropped > self._warned_of and self._may_warn("dropped"):
            self._warned_of = dropped
            log.warning("attempt log: %d events dropped so far: they arrive faster than they can be written", dropped)

    def _may_warn(self, what: str) -> bool:
        """Whether to warn now: at most once a minute for each `what`."""
        now = time.monotonic()
        if now - self._warned.get(what, -WARN_EVERY) < WARN_EVERY:
            return False
        self._warned[what] = now
        return True


def _local(url: str) -> Path | None:
    """The path, if the address is on this machine; otherwise None."""
    if "://" not in url:
        return Path(os.path.expanduser(url))
    if not url.startswith("file://"):
        return None
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StartError(f"attempt log folder {url}: {error}; write file:///var/log") from None
    if parts.netloc not in ("", "localhost"):
        raise StartError(f"attempt log folder {url}: file:// takes three slashes before a path, as in file:///var/log")
    return Path(unquote(parts.path))
