"""The broker's own work, within the transactions of the calls: move tasks, clean-up, the history of metrics.

Rule: if it fails, the calls of its transaction are repeated without it, and it is postponed, each time for longer.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

from semel.broker.answers import is_damage, is_disk_trouble, log_damage
from semel.broker.clock import Clock
from semel.broker.engine import NEVER, Engine
from semel.broker.metric_history import History

log = logging.getLogger("semel.broker")

FIRST_PAUSE: Final = 0.2  # seconds until what failed is tried again
_LONGEST_PAUSE: Final = 60.0
_NOT_CLEANED_UP: Final = (
    "expired data could not be cleaned up; calls are still served, and the clean-up is retried within a minute. If it "
    "keeps failing, restart the broker: it then checks the data folder"
)


class Maintenance:
    """`running`: it is at work, so a failure of the transaction is its own. `sweep_due`: something may have expired."""

    def __init__(self, engine: Engine, clock: Clock, history: History) -> None:
        self._engine, self._clock, self._history = engine, clock, history
        self.running = False
        self.sweep_due = True
        self._moves_due: int | None = 0
        self._failures, self._paused_until = 0, 0.0
        self._logged: set[str] = set()  # errors since it last succeeded

    def move_task_started(self, now: int) -> None:
        self._moves_due = now

    @property
    def allowed(self) -> bool:
        """False for a while after it has failed, because the calls of the same transaction would fail with it."""
        return monotonic() >= self._paused_until

    @property
    def next_move(self) -> int:
        """When the next step of a move task is due, by the broker's clock."""
        return NEVER if self._moves_due is None or not self.allowed else self._moves_due

    def run(self, now: int) -> None:
        if not self.allowed:
            return
        self.running = True
        while self._moves_due is not None and self._moves_due <= now:
            self._moves_due = self._engine.step_moves(now)
            if not self._clock.manual:
                break
        if self.sweep_due or self._engine.sweep_is_due:
            self.sweep_due = self._engine.sweep(now)
        if now >= self._history.due:
            self._history.take(now)
        self.running = False
        if self._failures:
            self._failures = 0
            self._logged.clear()

    def put_off(self, error: Exception) -> float:
        """Postpones the work after a failure. Returns the seconds until it is tried again. An error is logged once,
        however often it occurs. A full disk is not logged: the answers report it."""
        self.running = False
        pause = min(FIRST_PAUSE * 2.0 ** min(self._failures, 10), _LONGEST_PAUSE)
        text = repr(error)
        if text not in self._logged and not is_disk_trouble(error):
            self._logged.add(text)
            if is_damage(error):
                log_damage(error)
            else:
                log.error(_NOT_CLEANED_UP, exc_info=error)
        self._failures, self._paused_until = self._failures + 1, monotonic() + pause
        return pause

    def undone(self) -> None:
        """The transaction was rolled back, so the work in it is due again."""
        self.sweep_due = True
        self._moves_due = 0
