"""What `semel pipeline run` shows: a few lines redrawn in place on a terminal, else a line now and then, or JSON lines.

The rule: a display never stops a pipeline. A closed pipe or a terminal that is gone ends the display, not the work.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Literal, Protocol, TextIO, cast

import orjson

from semel.spark.pipeline.progress.figures import render, summary
from semel.spark.pipeline.progress.snapshot import Snapshot

Show = Literal["auto", "live", "lines", "json", "none"]

log: Final = logging.getLogger("semel.spark")
TICK: Final = 0.25  # seconds between two pictures
EVERY: Final = 5.0  # seconds between two lines
IDLE_EVERY: Final = 60.0  # if nothing has changed
_UP: Final = "\x1b[{}F"
_CLEAR_DOWN: Final = "\x1b[J"
_BOLD: Final = "\x1b[1m"
_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"


class Display(Protocol):
    def draw(self, snapshot: Snapshot) -> None: ...
    def close(self, snapshot: Snapshot) -> None:
        """The last word."""


def display_for(show: Show, stream: TextIO | None = None) -> Display:
    out = sys.stdout if stream is None else stream
    if show == "none":
        return Nothing()
    if show == "json":
        return JsonLines(out)
    live = show == "live" or (show == "auto" and out.isatty() and os.environ.get("TERM") != "dumb")
    return Live(out) if live else Lines(out)


class Nothing:
    def draw(self, snapshot: Snapshot) -> None: ...

    def close(self, snapshot: Snapshot) -> None: ...


class _Out:
    """A stream that may go away."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._gone = False

    def put(self, text: str) -> None:
        if self._gone:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # a closed pipe, a closed file
            self._gone = True


class Live:
    """Redraws its lines in place. What others print goes above them, if it comes through `above`."""

    def __init__(self, stream: TextIO, *, size: Callable[[], os.terminal_size] | None = None) -> None:
        self._out = _Out(stream)
        self._size = size or shutil.get_terminal_size
        self._ascii = "utf" not in (getattr(stream, "encoding", None) or "utf-8").lower()
        self._colour = "NO_COLOR" not in os.environ
        self._lines: list[str] = []
        self._drawn = 0
        self._lock = threading.RLock()

    def draw(self, snapshot: Snapshot) -> None:
        size = self._size()
        lines = render(snapshot, size.columns - 1, ascii_only=self._ascii)
        with self._lock:
            self._lines = self._painted(lines)[: max(1, size.lines - 1)]
            self._redraw("")

    def close(self, snapshot: Snapshot) -> None:
        self.draw(snapshot)
        with self._lock:
            self._drawn, self._lines = 0, []  # what is there stays

    def print_above(self, text: str) -> None:
        with self._lock:
            self._redraw(text if text.endswith("\n") or not text else f"{text}\n")

    def _redraw(self, above: str) -> None:
        back = f"{_UP.format(self._drawn)}{_CLEAR_DOWN}" if self._drawn else ""
        self._out.put(back + above + "".join(f"{line}\n" for line in self._lines))
        self._drawn = len(self._lines)

    def _painted(self, lines: list[str]) -> list[str]:
        if not self._colour:
            return lines
        error = next((place for place, line in enumerate(lines) if line.startswith("  error:")), len(lines))
        painted = [f"{_BOLD}{lines[0]}{_PLAIN}", *lines[1:error]]
        return painted + [f"{_RED}{line}{_PLAIN}" for line in lines[error:]]


class Lines:
    """For pipes, files and CI: a line every few seconds, as long as something happens."""

    def __init__(self, stream: TextIO, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._out = _Out(stream)
        self._monotonic = monotonic
        self._said_at: float | None = None
        self._said: tuple[Any, ...] = (None,)

    def draw(self, snapshot: Snapshot) -> None:
        now = self._monotonic()
        news = (snapshot.state, snapshot.counted, snapshot.error)
        waited = now - self._said_at if self._said_at is not None else IDLE_EVERY
        if waited >= (EVERY if news != self._said else IDLE_EVERY) or news[0] != self._said[0]:
            self._say(snapshot, news, now)

    def close(self, snapshot: Snapshot) -> None:
        self._say(snapshot, (None,), self._monotonic())

    def _say(self, snapshot: Snapshot, news: tuple[Any, ...], now: float) -> None:
        self._said_at, self._said = now, news
        self._out.put(self.line(snapshot) + "\n")

    def line(self, snapshot: Snapshot) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(snapshot.updated))} {summary(snapshot)}"


class JsonLines(Lines):
    """The same moments for machines: a snapshot each."""

    def line(self, snapshot: Snapshot) -> str:
        return orjson.dumps(machine_readable(snapshot)).decode()


def machine_readable(snapshot: Snapshot) -> dict[str, Any]:
    found = asdict(snapshot)
    for inner in ("trace", "rates"):
        del found[inner]
    return {**found, "lag": snapshot.lag, "uptime": round(snapshot.uptime, 3)}


@contextmanager
def repeatedly(act: Callable[[], None], every: float = TICK) -> Iterator[None]:
    """While this lasts, a thread of its own does it again and again: also while Spark starts, or a batch takes long."""
    end = threading.Event()

    def work() -> None:
        while True:
            try:
                act()
            except Exception:  # a picture less
                log.debug("the display", exc_info=True)
            if end.wait(every):
                return

    thread = threading.Thread(target=work, name="semel-display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


class _Above:
    """Stands in for a stream whose terminal a live display uses."""

    def __init__(self, live: Live, stream: TextIO) -> None:
        self._live, self._stream = live, stream

    def write(self, text: str) -> int:
        self._live.print_above(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def logging_above(display: Display) -> Iterator[None]:
    """Log lines that go to the terminal are printed above a live display, not into it."""
    if not isinstance(display, Live):
        yield
        return
    moved = []
    for handler in logging.getLogger().handlers:
        stream = getattr(handler, "stream", None)  # a file's handler that was closed has none
        if isinstance(handler, logging.StreamHandler) and stream is not None and stream.isatty():
            moved.append((handler, handler.stream))
            handler.setStream(cast(TextIO, _Above(display, handler.stream)))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)
