"""What a long command is at, on standard error: a line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
from types import TracebackType
from typing import Final, TextIO

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ERASE: Final = "\r\x1b[K"


class Progress:
    """`say(text)` from any thread. On a terminal the last text is shown with a spinner, and erased at the end."""

    def __init__(self, name: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._name = name
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._moves = not quiet and self._stream.isatty()
        self._text = ""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def say(self, text: str) -> None:
        if self._quiet:
            return
        self._text = "".join(char if char.isprintable() else " " for char in text)
        if not self._moves:
            print(f"{self._name}: {self._text}", file=self._stream, flush=True)

    def above(self, text: str, stream: TextIO) -> None:
        """Write lines that stay, to `stream`, without tearing the one that moves."""
        with self._lock:
            if self._moves:
                self._write(_ERASE)
            print(text, file=stream, flush=True)

    def __enter__(self) -> Progress:
        if self._moves:
            self._thread = threading.Thread(target=self._move, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._write(_ERASE)

    def _move(self) -> None:
        frame = 0
        while not self._over.wait(0.1):
            if self._text:
                width = shutil.get_terminal_size().columns
                with self._lock:
                    self._write(f"{_ERASE}{_FRAMES[frame % len(_FRAMES)]} {self._text}"[: len(_ERASE) + width - 1])
                frame += 1

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._over.set()  # nobody looks any more
