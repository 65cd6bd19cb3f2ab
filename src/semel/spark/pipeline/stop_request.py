"""SIGTERM and SIGINT. Before a query runs, the first signal ends the run at once, whenever it comes.

While a query runs, the first signal asks it to finish its batch and stop, the second one to stop at once. A third one
has the system's default effect: it ends the process. In each case nothing is lost: a batch that was not finished is run
again by the next start.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from semel.signals import SignalNotifier, received

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
INTERRUPT_DRAIN: Final = 5.0  # seconds for the batch after Ctrl-C: somebody is waiting


class Stop:
    """A request to stop. Thread-safe. A signal reaches it through a notifier."""

    def __init__(self) -> None:
        self.interrupted = False  # by Ctrl-C
        self._asked = 0
        self._wake = threading.Event()
        self._lock = threading.Lock()

    @property
    def asked(self) -> bool:
        return self._wake.is_set()

    @property
    def at_once(self) -> bool:
        return self._asked > 1

    def ask(self) -> int:
        with self._lock:
            self._asked += 1
            self._wake.set()
            return self._asked

    def drain(self, seconds: float) -> float:
        """How many seconds a batch may still take: `seconds`, or fewer after Ctrl-C."""
        return min(seconds, INTERRUPT_DRAIN) if self.interrupted else seconds

    def wait(self, seconds: float) -> bool:
        """Sleep, at most until a stop is requested."""
        return self._wake.wait(seconds)


@contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """Within this context, signals call `stop.ask`. Only the main thread gets signals; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    notifier, signals = SignalNotifier(stop.ask), 0

    def heard(number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        stop.interrupted = stop.interrupted or number == signal.SIGINT
        received.add(number)
        notifier.notify()
        if signals > 1:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)

    try:
        with _handled_by(heard):
            yield
    finally:
        notifier.close()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within this context, signals raise KeyboardInterrupt, even if others have set handlers, as Spark does at its
    start. Only the main thread gets signals; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled_by(_raise):
        yield


def _raise(number: int, _frame: FrameType | None) -> None:
    received.add(number)
    raise KeyboardInterrupt


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    former: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, handler)
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)
