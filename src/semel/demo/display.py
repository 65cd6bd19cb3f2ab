"""The progress of a demo: one line that is redrawn on a terminal, and a new line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, Final, Protocol, TextIO

EVERY: Final = 5.0


class Result(Protocol):
    """The result of a demo. If `problems` is empty, every order was handled exactly once, and the audit adds up."""

    @property
    def problems(self) -> list[str]: ...

    def plain(self) -> dict[str, Any]: ...


class Screen:
    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._out = stream or sys.stdout
        self._live = self._out.isatty() and not quiet
        self._quiet = quiet
        self._said, self._said_at = "", 0.0
        self._drawn = False

    def write(self, text: str = "") -> None:
        """Prints a line that is not redrawn."""
        if not self._quiet:
            self.clear()
            print(text, file=self._out, flush=True)

    def progress(self, done: int, total: int, text: str) -> None:
        share = min(1.0, done / total) if total else 0.0
        if self._live:
            width = max(10, min(40, shutil.get_terminal_size().columns - 60))
            full = round(share * width)
            self.clear()
            line = f"  [{'#' * full}{'.' * (width - full)}] {share:4.0%}  {text}"
            print(line[: shutil.get_terminal_size().columns - 1], end="", file=self._out, flush=True)
            self._drawn = True
        elif not self._quiet and text != self._said and time.monotonic() - self._said_at >= EVERY:
            self._said, self._said_at = text, time.monotonic()
            print(f"  {share:4.0%}  {text}", file=self._out, flush=True)

    def clear(self) -> None:
        """Removes the line that is redrawn."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._out, flush=True)
            self._drawn = False
