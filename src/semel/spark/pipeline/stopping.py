"""SIGTERM and SIGINT: the first asks a pipeline to finish the batch in hand and stop, the second to stop at once.

A third one is the system's: it ends the process as if Semel had never looked. Whichever it is, nothing is lost: a batch
that was not finished is run again by the next start.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from semel.consumer.signals import Herald

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """The wish to stop. Thread-safe; a signal's handler has it asked by a herald."""

    def __init__(self) -> None:
        self._asked = 0
        self._wake = threading.Event()
        self._at_once = threading.Event()
        self._lock = threading.Lock()

    @property
    def asked(self) -> bool:
        return self._wake.is_set()

    @property
    def at_once(self) -> bool:
        return self._at_once.is_set()

    def ask(self) -> int:
        with self._lock:
            self._asked += 1
            self._wake.set()
            if self._asked > 1:
                self._at_once.set()
            return self._asked

    def wait(self, seconds: float) -> bool:
        """Sleep, but not past the wish to stop."""
        return self._wake.wait(seconds)

    def wait_at_once(self, seconds: float) -> bool:
        return self._at_once.wait(seconds)


@contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """While this lasts, signals ask `stop`. Only the main thread gets signals; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    herald, signals = Herald(stop.ask), 0

    def heard(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        herald.tell()
        if signals > 1:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)

    try:
        for number in SIGNALS:
            signal.signal(number, heard)
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        herald.close()
