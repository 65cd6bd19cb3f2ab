"""The results of a run: figures, the bars that they are compared with, and the rows that combine both."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from broker_bench.load import Window

STORES_NOTHING = "stores nothing"
KEEPS_NOTHING = "keeps nothing over a restart"
NOT_ASKED = ("", STORES_NOTHING, KEEPS_NOTHING)  # notes of cells that are empty but did not fail


class Unit(Enum):
    """The unit of a row: how a figure is formatted, and whether more is better."""

    RATE = "messages/s"
    MICROSECONDS = "µs per call"
    PERCENT = "% of a core"
    SECONDS = "s"
    MEGABYTES = "MB"

    @property
    def more_is_better(self) -> bool:
        return self is Unit.RATE

    def write(self, value: float) -> str:
        digits = {Unit.PERCENT: 2, Unit.SECONDS: 3}.get(self, 0)
        return f"{value:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One cell: the median of its samples, and their cost. Without samples, `note` says why there are none."""

    samples: tuple[float, ...] = ()
    amount: int | None = None  # the actual number of messages, if a slow target got fewer than the row says
    note: str = ""
    per_round: float | None = None  # messages in one round's window
    cpu_us: float | None = None
    generator_share: float | None = None
    others_share: float | None = None
    memory_mb: float | None = None
    peak_mb: float | None = None

    @property
    def value(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None

    @property
    def spread(self) -> float | None:
        """Half the distance between the lowest and the highest sample, as a share of the median."""
        if len(self.samples) < 2 or not self.value:
            return None
        return (max(self.samples) - min(self.samples)) / 2 / self.value


def from_windows(windows: Iterable[Window], memory: tuple[float, float] | None = None) -> Figure:
    """The figure of a throughput row: messages per second in each window."""
    rounds = list(windows)
    answered = [window.cpu_us for window in rounds if window.calls]
    return Figure(
        samples=tuple(window.rate for window in rounds),
        per_round=statistics.median(window.messages for window in rounds),
        cpu_us=statistics.median(answered) if answered else None,
        generator_share=statistics.median(window.generator_share for window in rounds),
        others_share=statistics.median(window.others_share for window in rounds),
        memory_mb=memory[0] if memory else None,
        peak_mb=memory[1] if memory else None,
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """What Semel durable must reach in a row, and what it reached; `reached` is None if it was not measured."""

    text: str
    limit: float
    reached: float | None
    written: str
    at_least: bool = True

    @property
    def passed(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached >= self.limit if self.at_least else self.reached <= self.limit

    @property
    def verdict(self) -> str:
        return {True: "pass", False: "short", None: "not measured"}[self.passed]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    unit: Unit
    figures: dict[str, Figure]
    bars: tuple[Bar, ...] = ()

    def value(self, target: str) -> float | None:
        return self.figures[target].value if target in self.figures else None

    def ratio(self, target: str) -> float | None:
        """Semel durable ÷ the target."""
        return ratio(self.value("semel"), self.value(target))

    @property
    def verdict(self) -> str:
        verdicts = [bar.verdict for bar in self.bars]
        return next((verdict for verdict in ("short", "not measured", "pass") if verdict in verdicts), "")


@dataclass(slots=True)
class Report:
    """All results of a run."""

    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, Any]
    labels: dict[str, str]
    quick: bool = False
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "versions": self.versions,
            "quick": self.quick,
            "settings": self.settings,
            "rows": [
                {
                    "key": row.key,
                    "title": row.title,
                    "unit": row.unit.value,
                    "figures": {
                        name: asdict(figure) | {"value": figure.value, "spread": figure.spread}
                        for name, figure in row.figures.items()
                    },
                    "ratios": {name: row.ratio(name) for name in row.figures if name != "semel"},
                    "bars": [asdict(bar) | {"verdict": bar.verdict} for bar in row.bars],
                }
                for row in self.rows
            ],
        }


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def at_least(text: str, limit: float, reached: float | None, unit: str) -> Bar:
    return Bar(text, limit, reached, written(reached, unit))


def at_most(text: str, limit: float, reached: float | None, unit: str) -> Bar:
    return Bar(text, limit, reached, written(reached, unit), at_least=False)


def written(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
