"""SIGTERM and SIGINT, heard without a lock.

A signal's handler runs in the middle of whatever the main thread is at, also of the handler of the signal before. If it
took a lock that is held there, as an event's `set` does, the process would hang and no signal would end it any more. So
it only leaves word in a queue made for that, and a thread of its own does what is to be done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final

HEARD: Final = (signal.SIGTERM, signal.SIGINT)


class Herald:
    """Carries word to a thread of its own, which does `act` for each. `tell` is for a signal's handler."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._word: SimpleQueue[bool] = SimpleQueue()
        threading.Thread(target=self._wait, name="semel-signals", daemon=True).start()

    def tell(self) -> None:
        self._word.put(True)

    def close(self) -> None:
        self._word.put(False)

    def _wait(self) -> None:
        while self._word.get():
            self._act()


class OnSignals:
    """While it is entered, each of these signals calls `act`. In the main thread only."""

    def __init__(self, act: Callable[[], object], signals: Sequence[signal.Signals] = HEARD) -> None:
        self._act = act
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._herald = self.listen()

    def listen(self) -> Herald:
        """To the end of the process."""
        herald = Herald(self._act)
        for number in self._signals:
            self._before[number] = signal.signal(number, lambda _number, _frame: herald.tell())
        return herald

    def __exit__(self, *_exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._herald.close()
