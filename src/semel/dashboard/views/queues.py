"""From facts and their past to what the pages show of queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.dashboard.sources import series as past
from semel.dashboard.sources.facts import QueueFacts
from semel.dashboard.views import alarms
from semel.dashboard.views.model import DeadLetterQueueRow, DeadLetterRow, QueueRow, Series
from semel.dlq.messages import DeadLetterQueue
from semel.dlq.queues import is_called_so

SPARK: Final = 60  # samples of a sparkline
SHORT: Final = 15 * 60.0  # seconds that the list looks back: as far as the alarms do
CHART: Final = 360  # samples of a chart
_NOTHING: Final = Series()


def sources_by_queue(all_facts: Sequence[QueueFacts]) -> Mapping[str, tuple[str, ...]]:
    """For each dead-letter queue, the queues whose dead letters it takes."""
    found: dict[str, list[str]] = {}
    for facts in all_facts:
        if (target := facts.dead_letter_queue) is not None:
            found.setdefault(target, []).append(facts.name)
    return {name: tuple(sorted(sources)) for name, sources in found.items()}


def rows(
    all_facts: Sequence[QueueFacts], series: Mapping[str, Series], takers: Mapping[str, int], now: float
) -> tuple[QueueRow, ...]:
    sources = sources_by_queue(all_facts)
    depths = {facts.name: facts.visible + facts.in_flight + facts.delayed for facts in all_facts}
    return tuple(
        row(
            facts,
            series.get(facts.name, _NOTHING),
            sources.get(facts.name, ()),
            depths.get(facts.dead_letter_queue or ""),
            takers.get(facts.name, 0),
            now,
        )
        for facts in all_facts
    )


def row(
    facts: QueueFacts, series: Series, sources: tuple[str, ...], dead_letters: int | None, workers: int, now: float
) -> QueueRow:
    return QueueRow(
        name=facts.name,
        url=facts.url,
        fifo=facts.fifo,
        visible=facts.visible,
        in_flight=facts.in_flight,
        delayed=facts.delayed,
        oldest_age=facts.oldest_age,
        rates=past.rates(series, now),
        history=past.newest(series, SPARK),
        alarms=() if facts.error else alarms.judged(facts, sources, dead_letters, series, now),
        dead_letter_queue=facts.dead_letter_queue,
        dead_letters=dead_letters,
        max_receives=facts.max_receives,
        sources=sources,
        workers=workers,
        error=facts.error,
    )


def dead_letter_row(info: DeadLetterQueue, facts: QueueFacts | None, series: Series, now: float) -> DeadLetterQueueRow:
    """`info` knows ages and ends, which take a look to know; `facts` has the newest counts."""
    counts = info if facts is None else facts
    return DeadLetterQueueRow(
        name=info.name,
        url=info.url,
        fifo=info.fifo,
        visible=counts.visible,
        in_flight=counts.in_flight,
        delayed=counts.delayed,
        sources=info.sources,
        retention=info.retention,
        oldest_age=info.oldest_age,
        first_expires=info.first_expires,
        estimated=info.estimated,
        alarms=() if facts is None else alarms.judged(facts, info.sources or ("",), None, series, now),
        max_receives=info.max_receives if facts is None else facts.max_receives,
    )


def letter_infos(all_facts: Sequence[QueueFacts]) -> list[DeadLetterQueue]:
    """All dead-letter queues, as far as attributes tell: those that a queue names, and those that are called so."""
    sources = sources_by_queue(all_facts)
    return [
        letter_info(facts, sources.get(facts.name, ()))
        for facts in all_facts
        if facts.name in sources or is_called_so(facts.name)
    ]


def letter_info(facts: QueueFacts, sources: tuple[str, ...]) -> DeadLetterQueue:
    return DeadLetterQueue(
        name=facts.name,
        url=facts.url,
        arn=facts.arn,
        fifo=facts.fifo,
        visible=facts.visible,
        in_flight=facts.in_flight,
        delayed=facts.delayed,
        retention=facts.number("MessageRetentionPeriod", 345_600.0),
        sources=sources,
        oldest_age=facts.oldest_age,
        estimated=True,
    )


def estimated(row: DeadLetterQueueRow, seen: Sequence[DeadLetterRow], now: float) -> DeadLetterQueueRow:
    """With the ages that some of its letters show."""
    oldest = min((message.sent for message in seen if message.sent), default=None)
    if oldest is None:
        return row
    return replace(row, oldest_age=max(0.0, now - oldest), first_expires=oldest + row.retention, estimated=True)
