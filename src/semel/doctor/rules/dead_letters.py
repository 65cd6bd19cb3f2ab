"""Rules on dead-letter queues: that there is one, that it works, that it keeps messages, that somebody is notified."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.alarms import alarms, formats
from semel.doctor.model import Case, DeadLetters, QueueState, Remedy, Severity
from semel.doctor.rules.rule import Observation, rule
from semel.doctor.text_format import listed
from semel.durations import text as duration
from semel.sqs import limits
from semel.text import count

_FEWEST_RECEIVES = 3
_BOTH = "queue attributes, of the dead-letter queue too"


@rule(
    "no-dead-letter-queue",
    Severity.WARNING,
    title="the queue has no dead-letter queue",
    needs="queue attributes",
    remedy="create one, with a redrive policy",
)
def none(case: Case) -> Observation | None:
    state, (receives, _) = case.state, recommendations.max_receives(case)
    if state is None or state.sources or state.max_receives is not None or state.dead_letters is not None:
        return None
    text = f"Create one that keeps messages for 14 d, and let SQS move messages there after {receives} receives."
    return Observation(
        observed=f"{case.queue} has no dead-letter queue; it keeps messages for {duration(state.retention)}.",
        why="A message that always fails comes back until its retention ends. Then SQS deletes it without a trace.",
        remedy=remedies.create_dead_letter_queue(case, text, receives),
        figures={"retention": state.retention},
    )


@rule(
    "max-receives-low",
    Severity.WARNING,
    title="maxReceiveCount is 1 or 2",
    needs="queue attributes",
    remedy="a maxReceiveCount of 5",
)
def few_receives(case: Case) -> Observation | None:
    state, dlq, name = _dead_letters(case)
    if state is None or dlq is None or state.max_receives is None or state.max_receives >= _FEWEST_RECEIVES:
        return None
    receives, why = recommendations.max_receives(case)
    return Observation(
        observed=(
            f"maxReceiveCount is {state.max_receives}: a message goes to {name} after "
            f"{count(state.max_receives, 'receive')}."
        ),
        why=(
            "One crash, one deploy or one lost answer dead-letters a good message: nothing is ever retried."
            if state.max_receives == 1
            else "Crashes, deploys and lost answers use up receives as well, so good messages are dead-lettered."
        ),
        remedy=remedies.change_max_receives(case, receives, f"Set maxReceiveCount to {receives}: {why}."),
        figures={"max_receives": state.max_receives, "recommended": receives},
    )


@rule(
    "dead-letter-retention",
    Severity.CRITICAL,
    title="dead-letter messages are kept no longer than messages (Standard: they keep their age)",
    needs=_BOTH,
    remedy="14 days for the dead-letter queue, less for the source",
)
def dead_letter_retention(case: Case) -> Observation | None:
    state, dlq, name = _dead_letters(case)
    if state is None or dlq is None or dlq.retention is None:
        return None
    if state.fifo or dlq.retention > state.retention:
        return None
    is_longest = dlq.retention == recommendations.MAX_RETENTION
    source = recommendations.retention_remedy(case, state)
    if source is None and is_longest:
        source = Remedy(f"Shorten the retention of {case.queue} when its backlog is processed.")
    return Observation(
        observed=(
            f"{name} keeps messages for {duration(dlq.retention)}, {case.queue} for {duration(state.retention)}."
        ),
        why=(
            "On a Standard queue a dead-letter message keeps the time at which it was first sent: SQS deletes an old "
            "one as soon as it arrives."
        ),
        remedy=remedies.joined(recommendations.dead_letter_retention_remedy(state), source),
        severity=None if dlq.retention < state.retention else Severity.INFO if is_longest else Severity.WARNING,
        figures={"retention": state.retention, "dead_letter_retention": dlq.retention},
    )


@rule(
    "dead-letter-queue-missing",
    Severity.CRITICAL,
    title="the redrive policy names a queue that does not exist",
    needs=_BOTH,
    remedy="create that queue",
)
def missing(case: Case) -> Observation | None:
    state, dlq, name = _dead_letters(case)
    if state is None or dlq is None or dlq.exists is not False:
        return None
    keeps = {"MessageRetentionPeriod": limits.MAX_RETENTION}
    return Observation(
        observed=f"The redrive policy names {dlq.arn}, and that queue does not exist.",
        why="Messages that have used up their receives cannot be moved: they come back until their retention ends.",
        remedy=Remedy(
            text=f"Create the queue {name}, or name another one in the redrive policy.",
            cli=(remedies.create_queue(name, keeps, remedies.queue_of(case)),),
            terraform=remedies.terraform(name, keeps),
        ),
    )


@rule(
    "dead-letter-queue-mismatch",
    Severity.CRITICAL,
    title="type, region or account of the dead-letter queue differs",
    needs=_BOTH,
    remedy="a dead-letter queue that matches",
)
def mismatch(case: Case) -> Observation | None:
    state, dlq, name = _dead_letters(case)
    if state is None or dlq is None:
        return None
    differences = []
    if dlq.fifo != state.fifo:
        kinds = ("FIFO" if dlq.fifo else "Standard", "FIFO" if state.fifo else "Standard")
        differences.append(f"{name} is a {kinds[0]} queue and {case.queue} a {kinds[1]} queue")
    for place, part in (("region", 3), ("account", 4)):
        here, there = state.arn.split(":")[part : part + 1], dlq.arn.split(":")[part : part + 1]
        if here and there and here != there:
            differences.append(f"{name} is in {place} {there[0]} and {case.queue} in {here[0]}")
    if not differences:
        return None
    text = "Create a dead-letter queue that matches, and name it in the redrive policy."
    return Observation(
        observed=f"{'; '.join(differences)}.",
        why="SQS moves messages only to a queue of the same type, region and account: here they are never moved.",
        remedy=remedies.create_dead_letter_queue(case, text, recommendations.max_receives(case)[0]),
    )


@rule(
    "dead-letters-unwatched",
    Severity.WARNING,
    title="no alarm on the dead-letter queue",
    needs="queue attributes and `--alarms`",
    remedy="an alarm on visible dead-letter messages",
)
def unwatched(case: Case) -> Observation | None:
    _, dlq, name = _dead_letters(case)
    if dlq is None or case.dlq_alarmed is not False:
        return None
    # Only the reader knows where the alarm goes.
    topic = remedies.neighbour_arn(dlq.arn, "TOPIC").replace(":sqs:", ":sns:", 1)
    alarm = [alarm for alarm in alarms.alarms_for(case) if alarm.kind is alarms.Kind.DEAD_LETTERS]
    return Observation(
        observed=f"No alarm uses ApproximateNumberOfMessagesVisible of {name}.",
        why="Dead-letter messages wait for a person, and nobody is notified before SQS deletes them.",
        remedy=Remedy(
            text=(
                "Raise an alarm as soon as one message is visible (NumberOfMessagesSent does not count messages that "
                f"SQS moves); `semel alarms {case.queue}` writes this alarm and the others."
            ),
            cli=tuple(formats.commands_for(alarm, topic)),
            terraform=formats.render_terraform(alarm, topic).strip(),
        ),
    )


@rule(
    "dead-letters-waiting",
    Severity.WARNING,
    title="there are dead-letter messages",
    needs=_BOTH,
    remedy="find out why they failed, then redrive",
)
def waiting(case: Case) -> Observation | None:
    state, dlq, name = _dead_letters(case)
    if state is None or dlq is None or not dlq.visible:
        return None
    address = remedies.dead_letter_queue_of(dlq, state)
    deleted = f" SQS deletes them after {duration(dlq.retention)}." if dlq.retention is not None else ""
    return Observation(
        observed=f"{count(dlq.visible, 'dead-letter message')} in {name}.",
        why=f"They are work that was not done.{deleted}",
        remedy=Remedy(
            text="Find out why they failed. When that is fixed, move them back; they get new message ids.",
            cli=(
                f"aws sqs start-message-move-task --source-arn {dlq.arn} --max-number-of-messages-per-second "
                f"50{remedies.cli_options(address.url, address.arn)}",
            ),
        ),
        figures={"visible": dlq.visible},
    )


@rule(
    "dead-letter-queue-shared",
    Severity.INFO,
    title="several queues share one dead-letter queue",
    needs=_BOTH,
    remedy="one dead-letter queue each",
)
def shared(case: Case) -> Observation | None:
    _, dlq, name = _dead_letters(case)
    sources = dlq.sources if dlq is not None else None
    if sources is None or len(sources) < 2:
        return None
    own = remedies.dead_letter_name(case.queue)
    own = own.replace("-dlq", "-dead") if own == name else own
    text = f"Give {case.queue} a dead-letter queue of its own."
    return Observation(
        observed=(
            f"{name} is the dead-letter queue of {count(len(sources), 'queue')}: "
            f"{listed(sorted(map(remedies.name_of, sources)))}."
        ),
        why="They share one alarm and one retention, and a redrive for one queue must pick out its messages.",
        remedy=remedies.create_dead_letter_queue(case, text, recommendations.max_receives(case)[0], own),
        severity=Severity.WARNING if len(sources) > limits.MAX_REDRIVE_SOURCES else None,
        figures={"sources": len(sources)},
    )


@rule(
    "dead-letter-queue-open",
    Severity.INFO,
    title="any queue may use the dead-letter queue",
    needs=_BOTH,
    remedy="a RedriveAllowPolicy byQueue",
)
def open_to_all(case: Case) -> Observation | None:
    state, dlq, name = _dead_letters(case)
    if state is None or dlq is None or not dlq.exists or dlq.allow not in (None, "allowAll"):
        return None
    sources = sorted({case.queue, *map(remedies.name_of, dlq.sources or ())})[: limits.MAX_REDRIVE_SOURCES]
    arns = [remedies.neighbour_arn(dlq.arn, source) for source in sources]
    policy = {"RedriveAllowPolicy": {"redrivePermission": "byQueue", "sourceQueueArns": arns}}
    return Observation(
        observed=(
            f"Any queue of the account may use {name} as its dead-letter queue (RedriveAllowPolicy allowAll, the "
            "default)."
        ),
        why="A queue that names this one by mistake mixes its messages with yours.",
        remedy=remedies.change(remedies.dead_letter_queue_of(dlq, state), f"Allow only {listed(sources)}.", policy),
    )


def _dead_letters(case: Case) -> tuple[QueueState | None, DeadLetters | None, str]:
    """The queue, its dead-letter queue, and the name of that."""
    dlq = case.state.dead_letters if case.state is not None else None
    return case.state, dlq, remedies.name_of(dlq.arn) if dlq is not None else ""
