"""SIGTERM and SIGINT, handled without a lock.

A signal handler interrupts whatever the main thread is doing, even the handler of an earlier signal. If it took a lock
that is held there, as `Event.set` does, the process would hang, and no signal could end it. So it only puts an item
into a `SimpleQueue`, which allows this, and a separate thread does the work.

Code that handles SIGINT in another way than by KeyboardInterrupt adds it to `received`. The command line then exits
with 130.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
received: Final[set[int]] = set()  # of this process


class SignalNotifier:
    """Calls `act` on a thread of its own, once for each `notify`, which is safe to call in a signal handler."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._notes: SimpleQueue[bool] = SimpleQueue()
        threading.Thread(target=self._run, name="semel-signals", daemon=True).start()

    def notify(self) -> None:
        self._notes.put(True)

    def close(self) -> None:
        self._notes.put(False)

    def _run(self) -> None:
        while self._notes.get():
            self._act()


class OnSignals:
    """While entered, each of these signals calls `act`. Use it only in the main thread."""

    def __init__(self, act: Callable[[], object], signals: Sequence[signal.Signals] = STOP_SIGNALS) -> None:
        self._act = act
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._notifier = self.listen()

    def listen(self) -> SignalNotifier:
        """Starts to handle the signals; without `with`, until the process ends."""
        notifier = SignalNotifier(self._act)

        def handle(number: int, _frame: object) -> None:
            received.add(number)
            notifier.notify()

        for number in self._signals:
            self._before[number] = signal.signal(number, handle)
        return notifier

    def __exit__(self, *_exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._notifier.close()
