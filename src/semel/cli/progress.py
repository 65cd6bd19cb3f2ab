"""What a long command is doing, on standard error: a line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
from types import TracebackType
from typing import Final, Self, TextIO

from semel.text import one_line

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ERASE: Final = "\r\x1b[K"


class StatusLine:
    """One line, which is redrawn in place if `moves` is true. Nothing is written if it is quiet, or once the stream
    cannot be written to."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.moves = not quiet and self._stream.isatty()
        self.unicode = "utf" in (getattr(self._stream, "encoding", "") or "").lower()

    def draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns
        self._write(f"{_ERASE}{text[: width - 1]}" if self.moves else f"{text}\n")

    def write(self, text: str) -> None:
        """Writes lines that are not redrawn."""
        self.erase()
        self._write("\n".join(one_line(line) for line in text.split("\n")) + "\n")

    def erase(self) -> None:
        if self.moves:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        if self.quiet:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.moves, self.quiet = False, True


class Progress:
    """`update(text)` from any thread. On a terminal the last text is shown with a spinner, and erased at the end."""

    def __init__(self, name: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._name = name
        self._line = StatusLine(quiet=quiet, stream=stream)
        self._text = ""
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._spin, name="progress", daemon=True) if self._line.moves else None

    def update(self, text: str) -> None:
        self._text = "".join(char if char.isprintable() else " " for char in text)
        if self._thread is None:
            self._line.draw(f"{self._name}: {self._text}")

    def above(self, text: str, stream: TextIO) -> None:
        """Writes text to `stream`, above the line that is redrawn."""
        with self._lock:
            self._line.erase()
            print(text, file=stream, flush=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._line.erase()

    def _spin(self) -> None:
        frame = 0
        while not self._ended.wait(0.1) and not self._line.quiet:
            if self._text:
                with self._lock:
                    self._line.draw(f"{_FRAMES[frame % len(_FRAMES)]} {self._text}")
                frame += 1
