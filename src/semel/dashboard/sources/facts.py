"""What a queue is and holds at one moment, whoever told it; and what is to be told of queues at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from semel.dashboard.views.model import Series


@dataclass(frozen=True, slots=True)
class QueueFacts:
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

    def number(self, name: str, otherwise: float) -> float:
        try:
            return float(self.attributes[name])
        except (KeyError, ValueError):
            return otherwise

    @property
    def dead_letter_arn(self) -> str:
        return str(self._policy().get("deadLetterTargetArn") or "")

    @property
    def dead_letter_queue(self) -> str | None:
        return self.dead_letter_arn.rpartition(":")[2] or None

    @property
    def max_receives(self) -> int | None:
        text = str(self._policy().get("maxReceiveCount", ""))
        return int(text) if text.isdigit() else None

    def _policy(self) -> dict[str, Any]:
        try:
            found = json.loads(self.attributes.get("RedrivePolicy") or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Source(Protocol):
    """Where facts come from. Thread-safe; asking twice within a moment costs once."""

    is_ours: bool

    def facts(self) -> Sequence[QueueFacts]:
        """Of all queues, by name."""

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        """The past of these queues, or of all if none is named; a queue without a past is left out."""

    def notes(self) -> Sequence[str]:
        """What could not be looked at, and why."""

    def now(self) -> float:
        """The time by the clock that the messages' times are of."""

    def forget(self) -> None:
        """Something was changed: what was kept is no longer true."""

    def close(self) -> None: ...
