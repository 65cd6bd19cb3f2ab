"""The results as tables and JSON: the figures under each condition, and each target with the value that was reached."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from broker_bench.results import Bar, Figure, at_least, at_most, ratio
from consumer_bench.conditions import CONDITIONS
from consumer_bench.contestants import CONTESTANTS
from consumer_bench.options import SLEEP
from consumer_bench.site import Race
from peer_bench.tables import Table, quotient, rate

NOISY = 0.25  # of a core used by others: above this a figure should be measured again
PAUSE = 2.0  # seconds without a delete: longer pauses get a note


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerFigure(Figure):
    """Messages per second, the median of the rounds. `concurrency` is what Semel reported in the last round."""

    concurrency: int | None = None


Figures = dict[tuple[str, str], ConsumerFigure]  # by condition and contestant


def figure(races: Sequence[Race], failure: str) -> ConsumerFigure:
    if failure or not races:
        return ConsumerFigure(note=failure or "not measured")
    pause = max(race.pause for race in races)
    return ConsumerFigure(
        samples=tuple(race.rate for race in races),
        note=f"for up to {pause:.1f} s it deleted nothing, though messages were waiting" if pause > PAUSE else "",
        per_round=statistics.median(race.messages for race in races),
        cpu_us=statistics.median(race.cpu / race.messages * 1e6 for race in races),
        others_share=statistics.median(race.others for race in races),
        concurrency=races[-1].concurrency,
    )


def table(condition: str, figures: Figures) -> Table:
    tuned, semel = figures.get((condition, "tuned")), figures.get((condition, "sqlite"))
    lines: Table = [
        ("consumer", "messages/s", "× tuned loop", "Semel, SQLite is × it", "CPU µs per message", "concurrency")
    ]
    for contestant in CONTESTANTS.values():
        figure = figures.get((condition, contestant.name))
        if figure is not None:
            cpu = "–" if figure.cpu_us is None else f"{figure.cpu_us:,.0f}"
            threads = figure.concurrency if contestant.is_semel else contestant.threads
            lines.append(
                (
                    contestant.label,
                    rate(figure),
                    quotient(figure, tuned),
                    quotient(semel, figure),
                    cpu,
                    str(threads or "–"),
                )
            )
    return lines


def targets(conditions: Sequence[str], figures: Figures, heartbeat: float | None) -> list[tuple[str, Bar]]:
    """Every target of the chosen conditions, with the value that was reached if it was measured."""
    by_condition = {
        "latency": [_rate("latency", "sqlite", 7_000, figures), *_cost("latency", figures)],
        "no-latency": [
            _rate("no-latency", "sqlite", 9_000, figures),
            _rate("no-latency", "postgres", 8_000, figures),
            *_cost("no-latency", figures),
        ],
        "sleep": [_share(figures)],
        "compute": [_scaling(figures)],
        "heartbeat": [("Semel, SQLite: heartbeat of 10,000 in flight", _percent("<", 10, heartbeat))],
    }
    return [target for condition in conditions for target in by_condition[condition]]


def _rate(condition: str, name: str, limit: float, figures: Figures) -> tuple[str, Bar]:
    reached = _value(figures, condition, name)
    return _work(condition, name), at_least(f"≥ {limit:,.0f} messages/s", limit, reached, "messages/s")


def _cost(condition: str, figures: Figures) -> list[tuple[str, Bar]]:
    work = _work(condition, "sqlite")
    figure = figures.get((condition, "sqlite"))
    times = ratio(_value(figures, condition, "sqlite"), _value(figures, condition, "tuned"))
    return [
        (work, at_most("≤ 90 µs of CPU per message", 90, figure.cpu_us if figure else None, "µs")),
        (work, at_least("≥ 4 × tuned loop (which has no ledger)", 4, times, "×")),
    ]


def _share(figures: Figures) -> tuple[str, Bar]:
    """The rate as a share of the possible maximum: `concurrency` messages at a time, each of which takes SLEEP."""
    figure = figures.get(("sleep", "sqlite"))
    if figure is None or figure.value is None or not figure.concurrency:
        return _work("sleep", "sqlite"), at_least("≥ 95 % of concurrency / 50 ms", 95, None, "%")
    most = figure.concurrency / SLEEP
    text = f"≥ 95 % of {most:,.0f} messages/s (concurrency {figure.concurrency:,} / 50 ms)"
    return _work("sleep", "sqlite"), at_least(text, 95, figure.value / most * 100, "%")


def _scaling(figures: Figures) -> tuple[str, Bar]:
    times = ratio(_value(figures, "compute", "processes"), _value(figures, "compute", "sqlite"))
    return _work("compute", "processes"), at_least("≥ 1.7 × one process", 1.7, times, "×")


def _percent(sign: str, limit: float, share: float | None) -> Bar:
    return at_most(f"{sign} {limit:g} % of a core", limit, None if share is None else share * 100, "%")


def _work(condition: str, name: str) -> str:
    return f"{CONTESTANTS[name].label}: {CONDITIONS[condition].title}"


def _value(figures: Figures, condition: str, name: str) -> float | None:
    figure = figures.get((condition, name))
    return figure.value if figure else None


def notes(figures: Figures) -> list[str]:
    lines = []
    for (condition, name), figure in figures.items():
        place = f"{CONTESTANTS[name].label}, {CONDITIONS[condition].title}"
        if figure.note:
            lines.append(f"{place}: {figure.note}")
        if (figure.others_share or 0.0) > NOISY:
            lines.append(f"{place}: other work used {figure.others_share:.0%} of a core meanwhile; repeat it")
    lines.append("CPU is that of the consumer's processes. Concurrency is what Semel reports; of the others, threads")
    if any(CONTESTANTS[name].is_semel and figure.value for (_, name), figure in figures.items()):
        lines.append("Semel: every message that was deleted had been handled exactly once, in every round")
    return lines


def as_json(head: list[str], figures: Figures, reached: list[tuple[str, Bar]]) -> dict[str, Any]:
    return {
        "head": head,
        "figures": [
            {"condition": condition, "contestant": name, "messages_per_second": figure.value}
            | dataclasses.asdict(figure)
            for (condition, name), figure in figures.items()
        ],
        "targets": [dataclasses.asdict(bar) | {"work": work, "verdict": bar.verdict} for work, bar in reached],
    }
