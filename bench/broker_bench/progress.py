"""The benchmark's progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time


class Progress:
    WIDTH = 24

    def __init__(self) -> None:
        self._steps = 1
        self._done = 0
        self._began = time.monotonic()
        self._bar = sys.stderr.isatty()

    def expect(self, steps: int) -> None:
        self._steps = max(1, steps)

    def report(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def doing(self, text: str) -> None:
        """Show what is being done now, as the text of the bar. Without a bar nothing is printed."""
        if self._bar:
            full = self.WIDTH * self._done // self._steps
            line = f"[{'#' * full}{'.' * (self.WIDTH - full)}] {text}"
            print("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)

    def step(self, text: str, steps: int = 1) -> None:
        """Something is done; `text` is its result."""
        self._done = min(self._steps, self._done + steps)
        if self._bar:
            self.doing(text)
        else:
            seconds = time.monotonic() - self._began
            self.report(f"{self._done * 100 // self._steps:3d} % {seconds:4.0f} s  {text}")

    def finish(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._bar:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
