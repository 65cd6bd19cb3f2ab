"""The state of the alarms that a queue should have, by the thresholds of `semel alarms`.

If a value is not known, the state is UNKNOWN, never OK. An alarm is raised only if its condition held for the whole
period, as far as there is history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from semel import durations
from semel.dashboard.sources.facts import QueueFacts
from semel.dashboard.views.model import WORST_FIRST, AlarmState, Level, Series
from semel.doctor.alarms.alarms import FEWEST_RECEIVED, Alarm, Kind, alarms_for
from semel.doctor.model import Case, DeadLetters, QueueState
from semel.text import count

_LATE: Final = 0.8  # share of the retention; beyond it, the oldest message is lost soon


def alarms_of(facts: QueueFacts, sources: Sequence[str]) -> tuple[Alarm, ...]:
    """The alarms that this queue should have."""
    return alarms_for(Case(queue=facts.name, state=state_of(facts, sources)))


def state_of(facts: QueueFacts, sources: Sequence[str]) -> QueueState:
    arn = facts.dead_letter_arn
    return QueueState(
        queue=facts.name,
        url=facts.url,
        arn=facts.arn,
        fifo=facts.fifo,
        visibility=facts.number("VisibilityTimeout", 30.0),
        retention=facts.retention,
        max_receives=facts.max_receives,
        dead_letters=DeadLetters(arn=arn) if arn else None,
        sources=tuple(sources),
    )


def judged(
    facts: QueueFacts, sources: Sequence[str], dead_letters: int | None, series: Series, now: float
) -> tuple[AlarmState, ...]:
    """All alarms of a queue, the worst first."""
    states = [_judge(alarm, facts, dead_letters, series, now) for alarm in alarms_of(facts, sources)]
    if not sources and not facts.dead_letter_arn:
        text = "There is no dead-letter queue: a message that always fails is delivered again until its retention ends."
        states.append(AlarmState(Kind.DEAD_LETTERS.value, Level.INFO, text))
    return tuple(sorted(states, key=lambda state: WORST_FIRST.index(state.level)))


def _judge(alarm: Alarm, facts: QueueFacts, dead_letters: int | None, series: Series, now: float) -> AlarmState:
    match alarm.kind:
        case Kind.DEAD_LETTERS:
            held = facts.visible if alarm.queue == facts.name else dead_letters
            return _dead_letters(alarm, held)
        case Kind.AGE:
            return _age(alarm, facts, series, now)
        case Kind.IN_FLIGHT:
            level = Level.CRITICAL if facts.in_flight >= alarm.threshold else Level.OK
            text = f"{count(facts.in_flight, 'message')} in flight; SQS delivers no more at 120,000."
            return _state(alarm, level, text, facts.in_flight)
        case Kind.NOT_DELETED:
            return _not_deleted(alarm, series, now)


def _dead_letters(alarm: Alarm, held: int | None) -> AlarmState:
    if held is None:
        return _state(alarm, Level.UNKNOWN, f"The number of messages in {alarm.queue} is not known.")
    level = Level.WARNING if held > alarm.threshold else Level.OK
    text = f"{count(held, 'dead-letter message')} in {alarm.queue}." if held else "No dead-letter messages."
    return _state(alarm, level, text, held)


def _state(alarm: Alarm, level: Level, text: str, value: float | None = None) -> AlarmState:
    return AlarmState(alarm.kind.value, level, text, alarm.threshold, value)


def _age(alarm: Alarm, facts: QueueFacts, series: Series, now: float) -> AlarmState:
    age = facts.oldest_age
    if age is None:
        return _state(alarm, Level.UNKNOWN, "The age of the oldest message is not known.")
    limit = durations.text(alarm.threshold)
    if age <= alarm.threshold:
        shown = durations.text(round(age))
        text = f"The oldest message is {shown} old; the limit is {limit}." if age else "No message is waiting."
        return _state(alarm, Level.OK, text, age)
    held = all(past is None or past > alarm.threshold for past in _recent(series, series.oldest_age, alarm, now))
    text = f"The oldest message is {durations.text(round(age))} old, more than {limit}: the workers do not keep up."
    if not held:
        return _state(alarm, Level.INFO, f"{text} So far for less than the period of the alarm.", age)
    late = age > _LATE * facts.retention
    return _state(alarm, Level.CRITICAL if late else Level.WARNING, text, age)


def _not_deleted(alarm: Alarm, series: Series, now: float) -> AlarmState:
    received, deleted = (_total(series, column, alarm, now) for column in (series.received, series.deleted))
    if received is None or deleted is None:
        return _state(alarm, Level.UNKNOWN, "The rates of receives and deletes are not known.")
    if received < FEWEST_RECEIVED:
        return _state(alarm, Level.OK, "Too few messages are received to judge.")
    missing = max(0.0, 100 * (received - deleted) / received)
    level = Level.WARNING if missing > alarm.threshold else Level.OK
    period = durations.text(alarm.period)
    text = f"{missing:.0f} % of {count(received, 'received message')} were not deleted in {period}."
    return _state(alarm, level, text, round(missing, 1))


def _recent(series: Series, column: Sequence[float | None], alarm: Alarm, now: float) -> Iterator[float | None]:
    since = now - alarm.period * alarm.periods
    return (value for at, value in zip(series.at, column, strict=False) if at > since)


def _total(series: Series, column: Sequence[float | None], alarm: Alarm, now: float) -> float | None:
    """How many in one period of the alarm; None if nothing is known."""
    since = now - alarm.period
    known = [rate for at, rate in zip(series.at, column, strict=False) if at > since and rate is not None]
    return sum(known) * series.period if known else None
