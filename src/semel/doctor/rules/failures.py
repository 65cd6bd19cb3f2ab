"""Rules on messages that fail: those that come back for ever, what the errors are, and why nobody's metric shows it."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Behaviour, Case, Point, Remedy, Severity
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import count, listed, seconds, share

POISON_RECEIVES = 3
_OFTEN = 0.01
_ENOUGH_POINTS = 5


def _put_aside(case: Case) -> tuple[tuple[str, ...], str | None]:
    """Commands and Terraform that give a queue without a dead-letter queue one."""
    if case.state is None or case.state.max_receives is not None or case.state.sources:
        return (), None
    return dead_letter_queue(case)


def dead_letter_queue(case: Case, name: str | None = None) -> tuple[tuple[str, ...], str]:
    """A dead-letter queue made and tied to the queue, as commands and as Terraform."""
    state = case.state
    name = name or remedies.dead_letter_name(case.queue)
    keeps = {"MessageRetentionPeriod": round(recommendations.DEAD_LETTER_RETENTION)}
    receives, _ = recommendations.max_receives(case)
    policy = remedies.redrive_policy(remedies.neighbour_arn(state.arn if state else "", name), receives)
    cli = (
        remedies.create_queue(name, keeps, like=state),
        *remedies.set_attributes(case, {"RedrivePolicy": policy}),
    )
    made = remedies.terraform(name, keeps)
    label = remedies.label(name)
    tied = remedies.terraform(case.queue, {"RedrivePolicy": policy})
    # Terraform knows the other queue by its resource.
    tied = tied.replace(f'"{policy["deadLetterTargetArn"]}"', f"aws_sqs_queue.{label}.arn")
    return cli, f"{made}\n\n{tied}"


def _loops(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.loops:
        return None
    worst = behaviour.looping[0] if behaviour.looping else None
    ids = listed([one.message_id for one in behaviour.looping])
    often = f"; the worst ({worst.message_id}) {worst.receive_count} times" if worst is not None else ""
    error = _main_error(behaviour)
    cli, terraform = _put_aside(case)
    text = "Find the error and fix it, or let the handler give up on such messages at once (`raise Reject(reason)`)."
    if cli:
        receives, _ = recommendations.max_receives(case)
        text = f"Put such messages aside after {receives} receives, in a dead-letter queue. {text}"
    elif case.state is not None and case.state.max_receives and case.state.max_receives > 2 * recommendations.RECEIVES:
        text = f"maxReceiveCount is {case.state.max_receives}: lower it to {recommendations.RECEIVES}. {text}"
    return Observation(
        observed=(
            f"{count(behaviour.loops, 'message')} came {POISON_RECEIVES} times or more{often}"
            + (f"; ids: {ids}" if ids else "")
            + (f"; most often: {error}." if error else ".")
        ),
        why="Each round costs a worker's time, and SQS leaves such messages out of the age that alarms look at.",
        remedy=Remedy(text=text, cli=cli, terraform=terraform),
        figures={
            "messages": behaviour.loops,
            "most_receives": worst.receive_count if worst is not None else None,
        },
    )


def _main_error(behaviour: Behaviour) -> str:
    """The error of most messages that loop, else the largest group of all."""
    samples = [one.error for one in behaviour.looping if one.error]
    text = max(samples, key=samples.count) if samples else behaviour.errors[0].sample if behaviour.errors else ""
    return _short(text)


def _short(text: str, most: int = 120) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _failing(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.failures:
        return None
    groups = "; ".join(
        f"{count(group.count)} × {_short(group.sample, 80)} ({count(group.messages, 'message')})"
        for group in behaviour.errors[:3]
    )
    often = behaviour.failures >= _OFTEN * max(1, behaviour.attempts)
    return Observation(
        observed=(
            f"{count(behaviour.failures)} of {count(behaviour.attempts, 'attempt')} "
            f"({share(behaviour.failures, behaviour.attempts)}) ended in an error" + (f": {groups}." if groups else ".")
        ),
        why="Each failed attempt is a delivery more, and ends in the dead-letter queue if it goes on.",
        remedy=Remedy(
            text=(
                "Fix the largest group first. Put what may pass back with a growing delay (`raise "
                "Retry(after=…)`), and put aside at once what never will (`raise Reject(reason)`)."
            )
        ),
        severity=Severity.WARNING if often else Severity.INFO,
        figures={"failures": behaviour.failures, "attempts": behaviour.attempts, "groups": len(behaviour.errors)},
    )


# Poison that the age metric hides.


def _hidden(case: Case) -> Observation | None:
    told = _hidden_by_logs(case) or _hidden_by_metrics(case)
    if told is None:
        return None
    cli, terraform = _put_aside(case)
    return Observation(
        observed=told,
        why=(
            "ApproximateAgeOfOldestMessage leaves out messages that were received three times or more: an alarm on it "
            "stays silent."
        ),
        remedy=Remedy(
            text=(
                "Put such messages aside in a dead-letter queue, and raise the alarm on that one: see "
                f"`semel alarms {case.queue}`."
            ),
            cli=cli,
            terraform=terraform,
        ),
    )


def _hidden_by_logs(case: Case) -> str | None:
    """Messages that have been coming back for much longer than the age admits."""
    behaviour, series = case.behaviour, case.series
    if behaviour is None or series is None or not behaviour.looping:
        return None
    oldest = max(behaviour.looping, key=lambda one: one.last_at - one.first_at)
    span = oldest.last_at - oldest.first_at
    ages = [
        point.oldest
        for point in series.points
        if point.oldest is not None and oldest.first_at <= point.at <= oldest.last_at
    ]
    if not ages or span < 2 * series.period or max(ages) >= span / 2:
        return None
    return (
        f"Message {oldest.message_id} has come back for {seconds(span)} ({count(oldest.receive_count, 'receive')}), "
        f"while the age of the oldest message never showed more than {seconds(max(ages))}."
    )


def _hidden_by_metrics(case: Case) -> str | None:
    """Messages are there all the time, and none of them has an age."""
    last = case.series.points[-_ENOUGH_POINTS:] if case.series is not None else ()
    if len(last) < _ENOUGH_POINTS or not all(_there(point) and point.oldest == 0 for point in last):
        return None
    fewest = min(_there(point) for point in last)
    return (
        f"The queue holds {count(fewest, 'message')} or more all the time, and the age of the oldest one is 0: "
        "all of them were received three times or more."
    )


def _there(point: Point) -> float:
    # Delayed messages have an age of their own; they do not count as waiting.
    return (point.visible or 0) + (point.in_flight or 0)


RULES = (
    Rule(
        "poison-loops",
        Severity.WARNING,
        "messages that come three times or more",
        "logs",
        "a dead-letter queue; fix the error",
        _loops,
    ),
    Rule(
        "failing",
        Severity.WARNING,
        "attempts that end in an error, by error",
        "logs",
        "fix the largest group",
        _failing,
    ),
    Rule(
        "age-hides-poison",
        Severity.WARNING,
        "messages keep coming back and the age of the oldest does not show it",
        "metrics, better with logs",
        "a dead-letter queue with an alarm",
        _hidden,
    ),
)
