"""What `semel pipeline run` shows: figures that are redrawn on a terminal, else a line now and then, or JSON lines.

The rule: a display never stops a pipeline. A closed pipe or a terminal that is gone ends the display, not the work.
Rich draws the terminal's picture; it is imported only for that.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TextIO, cast

import orjson

from semel.spark.pipeline.progress import figures
from semel.spark.pipeline.progress.snapshot import Snapshot, State

if TYPE_CHECKING:
    from rich.console import RenderableType

Show = Literal["auto", "live", "lines", "json", "none"]

log: Final = logging.getLogger("semel.spark")
TICK: Final = 0.25  # seconds between two pictures
EVERY: Final = 5.0  # seconds between two lines
IDLE_EVERY: Final = 60.0  # seconds between two lines if nothing has changed
LABEL: Final = 13  # columns, of which two are the margin
FIGURE: Final = 16
NARROW: Final = 60  # below this, the column of figures is as narrow as they are
NOTE_LINES: Final = 6  # about
_ASCII: Final = str.maketrans(dict(zip(f"{figures.BARS}·→–…", "_.-:=+*#|>-~", strict=True)))


class Display(Protocol):
    def draw(self, snapshot: Snapshot) -> None: ...
    def close(self, snapshot: Snapshot) -> None:
        """Draw the end."""


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


class Output:
    """A stream that may be closed at any time, and that may support only ASCII."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._ascii = "utf" not in (getattr(stream, "encoding", None) or "utf-8").lower()
        self._gone = False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self._stream.write(in_ascii(text) if self._ascii else text)
                self._stream.flush()
            except (OSError, ValueError):  # a closed pipe, a closed file
                self._gone = True
        return len(text)

    def flush(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def in_ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode()


# On a terminal.


def picture(snapshot: Snapshot, width: int, *, heading: bool = True) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    if heading:
        name, sink = figures.headline(snapshot)
        gap = max(2, width - Text(name).cell_len - Text(sink).cell_len)
        parts.append(Text(f"{name}{' ' * gap}{sink}", style="bold", no_wrap=True, overflow="ellipsis"))
    table = Table.grid()
    table.add_column(width=LABEL, no_wrap=True)
    table.add_column(min_width=FIGURE if width >= NARROW else None, no_wrap=True)
    table.add_column()  # the column that becomes narrower in a narrow terminal
    for label, figure, details in figures.rows(snapshot, width - LABEL - FIGURE):
        table.add_row(Text(f"  {label}"), Text(f"{figure}  "), Text(details, no_wrap=True, overflow="ellipsis"))
    parts.append(table)
    if note := figures.note(snapshot):
        style = {State.FAILED: "red", State.WAITING: "yellow"}.get(snapshot.state, "")
        most = NOTE_LINES * (width - 2)
        text = note if len(note) <= most else f"{note[: most - 2]} …"
        parts.append(Padding(Text(text, style=style), (0, 0, 0, 2)))
    return Group(*parts)


def as_lines(snapshot: Snapshot, width: int, *, heading: bool = True) -> list[str]:
    """The picture as plain text."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(picture(snapshot, width, heading=heading))
    return [line.rstrip() for line in text.getvalue().splitlines()]


class Live:
    """Redraws the picture in place. Lines of others appear above it, if they come through `print_above`."""

    def __init__(self, stream: TextIO, *, width: int | None = None, height: int | None = None) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        out = cast(TextIO, Output(stream))
        self._console = Console(file=out, width=width, height=height, force_terminal=True, force_jupyter=False)
        self._live = RichLive(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._lock = threading.RLock()
        self._closed = False

    def draw(self, snapshot: Snapshot) -> None:
        from rich.console import Group

        # The empty line is where the cursor stays: there, the terminal's echo of ^C cannot break a line of the picture.
        self._show(Group(picture(snapshot, self._console.width), ""))

    def close(self, snapshot: Snapshot) -> None:
        self._show(picture(snapshot, self._console.width))
        self.stop()

    def _show(self, renderable: RenderableType) -> None:
        with self._lock:
            if not self._closed:
                self._live.start()
                self._live.update(renderable, refresh=True)

    def stop(self) -> None:
        """What was drawn last stays; the cursor is below it."""
        with self._lock:
            self._closed = True
            self._live.stop()

    def print_above(self, text: str) -> None:
        from rich.text import Text

        with self._lock:
            self._console.print(Text.from_ansi(text), soft_wrap=True)


class _Above:
    """Stands in for a stream whose terminal a live display uses. Whole lines are printed above the display."""

    def __init__(self, live: Live, stream: TextIO) -> None:
        self._live, self._stream = live, stream
        self._pending = ""

    def write(self, text: str) -> int:
        lines, newline, self._pending = (self._pending + text).rpartition("\n")
        if newline:
            self._live.print_above(lines)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def logging_above(display: Display) -> Iterator[None]:
    """Log lines and warnings for the terminal are printed above a live display, not into it. At the end, the display
    is stopped, whatever happened: the terminal is as it was."""
    if not isinstance(display, Live):
        yield
        return
    with ExitStack() as stack:
        stack.callback(display.stop)
        if sys.stderr.isatty():
            stack.enter_context(redirect_stderr(cast(TextIO, _Above(display, sys.stderr))))
        for handler in logging.getLogger().handlers:
            stream = getattr(handler, "stream", None)  # a file's handler that was closed has none
            if stream is None or getattr(stream, "closed", False):
                continue
            if isinstance(handler, logging.StreamHandler) and stream.isatty():
                handler.setStream(cast(TextIO, _Above(display, stream)))
                stack.callback(handler.setStream, stream)
        yield


# Without a terminal.


class Lines:
    """For pipes, files and CI: a line every few seconds, as long as something happens."""

    def __init__(self, stream: TextIO, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._out = Output(stream)
        self._monotonic = monotonic
        self._printed_at: float | None = None
        self._printed: tuple[Any, ...] = (None,)

    def draw(self, snapshot: Snapshot) -> None:
        now = self._monotonic()
        news = (snapshot.state, snapshot.counted, snapshot.error, snapshot.waiting_for)
        passed = now - self._printed_at if self._printed_at is not None else IDLE_EVERY
        if passed >= (EVERY if news != self._printed else IDLE_EVERY) or news[0] != self._printed[0]:
            self._printed_at, self._printed = now, news
            self._out.write(self.line(snapshot) + "\n")

    def close(self, snapshot: Snapshot) -> None:
        self._out.write(self.line(snapshot) + "\n")

    def line(self, snapshot: Snapshot) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(snapshot.updated))} {figures.summary(snapshot)}"


class JsonLines(Lines):
    """The same for machines: a snapshot as JSON on each line."""

    def line(self, snapshot: Snapshot) -> str:
        return orjson.dumps(json_values(snapshot)).decode()


def json_values(snapshot: Snapshot) -> dict[str, Any]:
    values = asdict(snapshot)
    del values["trace"], values["rates"]
    return {**values, "lag": snapshot.lag, "uptime": round(snapshot.uptime, 3)}


@contextmanager
def repeatedly(act: Callable[[], None], every: float = TICK) -> Iterator[None]:
    """Call `act` again and again in a thread of its own: also while Spark starts or a batch takes long."""
    end = threading.Event()

    def work() -> None:
        while True:
            try:
                act()
            except Exception:  # one picture is missing
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
