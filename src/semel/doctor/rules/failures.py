"""Rules on messages that fail: those that come back again and again, the errors, and why the age does not show them."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Behaviour, Case, Point, Remedy, Severity
from semel.doctor.rules.rule import Observation, rule
from semel.doctor.text_format import listed, share
from semel.durations import text as duration
from semel.text import count

POISON_RECEIVES = 3
_OFTEN = 0.01
_ENOUGH_POINTS = 5


@rule(
    "poison-loops",
    Severity.WARNING,
    title="messages that come three times or more",
    needs="logs",
    remedy="a dead-letter queue; fix the error",
)
def poison_loops(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.loops:
        return None
    worst = behaviour.looping[0] if behaviour.looping else None
    observed = f"{count(behaviour.loops, 'message')} came {POISON_RECEIVES} times or more"
    if worst is not None:
        ids = listed([message.message_id for message in behaviour.looping])
        observed += f"; the worst ({worst.message_id}) {worst.receive_count} times; ids: {ids}"
    error = _main_error(behaviour)
    fix = "Find the error and fix it, or let the handler reject such messages at once (`raise Reject(reason)`)."
    return Observation(
        observed=f"{observed}; most often: {error}." if error else f"{observed}.",
        why="Each delivery costs a worker's time, and SQS leaves such messages out of the age that alarms use.",
        remedy=remedies.joined(_dead_letter_earlier(case), fix),
        figures={"messages": behaviour.loops, "most_receives": worst.receive_count if worst is not None else None},
    )


@rule(
    "failing",
    Severity.WARNING,
    title="attempts that end in an error, by error",
    needs="logs",
    remedy="fix the largest group",
)
def failing(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.failures:
        return None
    groups = "; ".join(
        f"{count(group.count)} × {_short(group.sample, 80)} ({count(group.messages, 'message')})"
        for group in behaviour.errors[:3]
    )
    is_often = behaviour.failures >= _OFTEN * max(1, behaviour.attempts)
    return Observation(
        observed=(
            f"{count(behaviour.failures)} of {count(behaviour.attempts, 'attempt')} "
            f"({share(behaviour.failures, behaviour.attempts)}) ended in an error" + (f": {groups}." if groups else ".")
        ),
        why="Each failed attempt costs another delivery, and a message that keeps failing is dead-lettered.",
        remedy=(
            "Fix the largest group first. Return messages that may succeed later to the queue with a growing delay "
            "(`raise Retry(after=…)`), and reject those that never will at once (`raise Reject(reason)`)."
        ),
        severity=None if is_often else Severity.INFO,
        figures={"failures": behaviour.failures, "attempts": behaviour.attempts, "groups": len(behaviour.errors)},
    )


@rule(
    "age-hides-poison",
    Severity.WARNING,
    title="messages keep coming back and the age of the oldest does not show it",
    needs="metrics, better with logs",
    remedy="a dead-letter queue with an alarm",
)
def age_hides_poison(case: Case) -> Observation | None:
    observed = _hidden_by_logs(case) or _hidden_by_metrics(case)
    if observed is None:
        return None
    alarm = f"Raise the alarm on the dead-letter queue: see `semel alarms {case.queue}`."
    return Observation(
        observed=observed,
        why=(
            "ApproximateAgeOfOldestMessage leaves out messages that were received three times or more: an alarm on it "
            "stays silent."
        ),
        remedy=remedies.joined(_dead_letter_earlier(case), alarm),
    )


def _dead_letter_earlier(case: Case) -> Remedy | None:
    """A dead-letter queue if there is none, or a lower maxReceiveCount if that is too high; None if all is well."""
    state, (receives, _) = case.state, recommendations.max_receives(case)
    if state is None or state.sources:
        return None
    if state.max_receives is None:
        text = f"Create a dead-letter queue, and let SQS move messages there after {receives} receives."
        return remedies.create_dead_letter_queue(case, text, receives)
    if receives >= state.max_receives:
        return None
    text = f"maxReceiveCount is {state.max_receives}: set it to {receives}."
    return remedies.change_max_receives(case, receives, text) if state.dead_letters else Remedy(text)


def _main_error(behaviour: Behaviour) -> str:
    """The error of most messages that loop, else that of the largest group."""
    samples = [message.error for message in behaviour.looping if message.error]
    text = max(samples, key=samples.count) if samples else behaviour.errors[0].sample if behaviour.errors else ""
    return _short(text)


def _short(text: str, most: int = 120) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _hidden_by_logs(case: Case) -> str | None:
    """Messages that have been coming back for much longer than the age of the oldest says."""
    behaviour, series = case.behaviour, case.series
    if behaviour is None or series is None or not behaviour.looping:
        return None
    oldest = max(behaviour.looping, key=lambda message: message.last_at - message.first_at)
    span = oldest.last_at - oldest.first_at
    points = [point for point in series.points if oldest.first_at <= point.at <= oldest.last_at]
    ages = [point.oldest for point in points if point.oldest is not None]
    if not ages or span < 2 * series.period or max(ages) >= span / 2:
        return None
    return (
        f"Message {oldest.message_id} has come back for {duration(span)} ({count(oldest.receive_count, 'receive')}), "
        f"while the age of the oldest message never showed more than {duration(max(ages))}."
    )


def _hidden_by_metrics(case: Case) -> str | None:
    """The queue always has messages, and none of them has an age."""
    last = case.series.points[-_ENOUGH_POINTS:] if case.series is not None else ()
    if len(last) < _ENOUGH_POINTS or not all(_waiting(point) and point.oldest == 0 for point in last):
        return None
    return (
        f"The queue holds {count(min(map(_waiting, last)), 'message')} or more all the time, and the age of the oldest "
        "is 0: all of them were received three times or more."
    )


def _waiting(point: Point) -> float:
    # Delayed messages have an age of their own; they do not count as waiting.
    return (point.visible or 0) + (point.in_flight or 0)
