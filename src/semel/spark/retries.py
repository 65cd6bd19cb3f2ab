"""Retries of transient errors: with pauses that double, and for a limited time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

SECONDS = 15.0  # then the caller gets the error: whoever runs the query can wait longer than a task should
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


def retry(action: Callable[[], T], transient: Callable[[Exception], bool], *, seconds: float | None = None) -> T:
    """Returns the result of `action`. While it raises a `transient` error, it is called again, for up to `seconds`
    (default: SECONDS); then the error is raised."""
    deadline = time.monotonic() + (SECONDS if seconds is None else seconds)
    pause = _FIRST_PAUSE
    while True:
        try:
            return action()
        except Exception as error:
            if not transient(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause * (1 + random.random()) / 2)
        pause = min(2 * pause, _LONGEST_PAUSE)
