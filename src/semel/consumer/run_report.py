"""The result of a run: how many messages were completed, and what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. `left`: by queue, messages whose handler was still running at the end of the drain.
    `waiting`: by queue, messages that a run with exit_when_empty returned for another attempt. `outbox`: messages still
    to be sent.

    >>> from semel import App, Client
    >>> app, queue = App(), Client().create_queue("orders")
    >>> @app.handler("orders")
    ... def ship(order: dict) -> None: ...
    >>> report = app.run(exit_when_empty=True)
    >>> report.clean, report.completed
    (True, 0)
    >>> print(report)
    messages completed: 0
    """

    completed: int = 0
    left: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    duplicates: int = 0
    retried: int = 0
    dead_lettered: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    outbox: int = 0

    @property
    def clean(self) -> bool:
        """Whether the run ended without an error, and no handler was still running."""
        return not self.left and self.error is None

    def __str__(self) -> str:
        counts = {
            "duplicates deleted": self.duplicates,
            "put back for a retry": self.retried,
            "dead-lettered": self.dead_lettered,
            "still running": sum(self.left.values()),
            "waiting for a retry": sum(self.waiting.values()),
            "left in the outbox": self.outbox,
        }
        others = [f"{what}: {count:,}" for what, count in counts.items() if count]
        return ", ".join([f"messages completed: {self.completed:,}", *others])

    @classmethod
    def sum(cls, reports: Sequence[Report]) -> Report:
        """Internal. The sum for workers that share their queues and their outbox. The first error counts."""
        return cls(
            completed=sum(report.completed for report in reports),
            left=_added(report.left for report in reports),
            error=next((report.error for report in reports if report.error is not None), None),
            duplicates=sum(report.duplicates for report in reports),
            retried=sum(report.retried for report in reports),
            dead_lettered=sum(report.dead_lettered for report in reports),
            waiting=_added(report.waiting for report in reports),
            outbox=max((report.outbox for report in reports), default=0),
        )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for by_queue in counts:
        total.update(by_queue)
    return dict(total)
