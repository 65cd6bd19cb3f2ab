"""Makes the rows that are shown from the facts about queues and their history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.dashboard.sources.facts import QueueFacts, newest, rates
from semel.dashboard.views import alarms
from semel.dashboard.views.model import QueueRow, Series
from semel.dlq import queues as dead_letter_queues
from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue

SPARK: Final = 60  # samples of a sparkline
SHORT: Final = 15 * 60.0  # seconds of history that the list and the alarms use
CHART: Final = 360  # samples of a chart


def sources_by_queue(all_facts: Sequence[QueueFacts]) -> Mapping[str, tuple[str, ...]]:
    """For each dead-letter queue, the queues that have it as theirs."""
    return dead_letter_queues.sources_by_queue({facts.name: facts.attributes for facts in all_facts})


def rows(
    all_facts: Sequence[QueueFacts],
    series: Mapping[str, Series],
    workers: Mapping[str, int],
    now: float,
    only: str | None = None,
) -> tuple[QueueRow, ...]:
    """All queues, or one of them."""
    sources = sources_by_queue(all_facts)
    depths = {facts.name: facts.depth for facts in all_facts}
    return tuple(
        _row(
            facts,
            series.get(facts.name, Series()),
            sources.get(facts.name, ()),
            depths.get(facts.dead_letter_queue or ""),
            workers.get(facts.name, 0),
            now,
        )
        for facts in all_facts
        if only in (None, facts.name)
    )


def _row(
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
        rates=rates(series, now),
        history=newest(series, SPARK),
        alarms=() if facts.error else alarms.judged(facts, _judged_as(facts, sources), dead_letters, series, now),
        dead_letter_queue=facts.dead_letter_queue,
        dead_letters=dead_letters,
        max_receives=facts.max_receives,
        sources=sources,
        workers=workers,
        retention=facts.retention,
        error=facts.error,
    )


def _judged_as(facts: QueueFacts, sources: tuple[str, ...]) -> tuple[str, ...]:
    """A queue that is a dead-letter queue only by its name gets the alarms of one, too."""
    return sources or (("",) if dead_letter_queues.is_called_so(facts.name) else ())


def dated(row: QueueRow, queue: DeadLetterQueue) -> QueueRow:
    """The row with the ages, for which messages of the broker must be peeked at."""
    return replace(row, oldest_age=queue.oldest_age, first_expires=queue.first_expires, estimated=queue.estimated)


def estimated(row: QueueRow, messages: Sequence[DeadLetterMessage], now: float) -> QueueRow:
    """The row with ages estimated from the messages that were received."""
    oldest = min((message.sent for message in messages if message.sent), default=None)
    if oldest is None:
        return row
    return replace(row, oldest_age=max(0.0, now - oldest), first_expires=oldest + row.retention, estimated=True)
