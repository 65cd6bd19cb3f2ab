"""Named points in the life of a batch. Nothing happens there unless a test sets `on_point`.

The function that kills a process is in semel.testing, which this package does not import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

POINTS: Final = (
    "before-seal",
    "after-seal",
    "after-delete",
    "before-commit",
    "during-commit",
    "after-commit",
)
on_point: Callable[[str], None] | None = None


def reached(point: str) -> None:
    if on_point is not None:
        on_point(point)
