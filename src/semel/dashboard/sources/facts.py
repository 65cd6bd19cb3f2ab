"""A queue at one moment, and the protocol of the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from semel.dashboard.views.model import Series
from semel.dlq import queues as dead_letter_queues


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue's attributes and counts at one moment."""

    name: str
    url: str
    arn: str = ""
    fifo: bool = False
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_age: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    def number(self, name: str, default: float) -> float:
        try:
            return float(self.attributes[name])
        except (KeyError, ValueError):
            return default

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed

    @property
    def dead_letter_arn(self) -> str:
        return str(dead_letter_queues.redrive_policy(self.attributes).get("deadLetterTargetArn") or "")

    @property
    def dead_letter_queue(self) -> str | None:
        return dead_letter_queues.dead_letter_queue_name(self.attributes) or None

    @property
    def max_receives(self) -> int | None:
        return dead_letter_queues.max_receives(self.attributes)


class Source(Protocol):
    """Thread-safe; what was read is kept for a moment."""

    is_ours: bool

    def facts(self) -> Sequence[QueueFacts]:
        """Of all queues, by name."""

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        """The history of these queues, of all if none is named; queues without one are left out."""

    def notes(self) -> Sequence[str]:
        """What could not be read, and why."""

    def now(self) -> float:
        """By the clock of the messages' times."""

    def forget(self) -> None:
        """Something was changed: read again."""

    def close(self) -> None: ...
