"""Rules on dead-letter queues: that there is one, that it works, that it keeps what it gets, that somebody looks."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.alarms import alarms
from semel.doctor.alarms import formats as alarm_formats
from semel.doctor.model import Case, DeadLetters, QueueState, Remedy, Severity
from semel.doctor.rules.failures import dead_letter_queue
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import DAY, count, listed, seconds
from semel.sqs import limits

_FEWEST_RECEIVES = 3


def _letters(case: Case) -> tuple[QueueState, DeadLetters, str] | None:
    """The queue, its dead-letter queue and the name of that."""
    state = case.state
    if state is None or state.dead_letters is None:
        return None
    return state, state.dead_letters, remedies.name_of(state.dead_letters.arn)


def _none(case: Case) -> Observation | None:
    state = case.state
    if state is None or state.sources or state.max_receives is not None or state.dead_letters is not None:
        return None
    cli, terraform = dead_letter_queue(case)
    receives, _ = recommendations.max_receives(case)
    return Observation(
        observed=f"{case.queue} has no dead-letter queue; it keeps messages for {seconds(state.retention)}.",
        why="A message that always fails comes back until its retention ends, and is then gone without a trace.",
        remedy=Remedy(
            text=f"Make one that keeps for 14 days, and let SQS move messages there after {receives} receives.",
            cli=cli,
            terraform=terraform,
        ),
        figures={"retention": state.retention},
    )


def _few_receives(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None or found[0].max_receives is None or found[0].max_receives >= _FEWEST_RECEIVES:
        return None
    state, letters, name = found
    receives, why = recommendations.max_receives(case)
    policy = {"RedrivePolicy": remedies.redrive_policy(letters.arn, receives)}
    once = state.max_receives == 1
    return Observation(
        observed=(
            f"maxReceiveCount is {state.max_receives}: a message goes to {name} after "
            f"{count(state.max_receives or 0, 'receive')}."
        ),
        why=(
            "One crash, one deploy or one lost answer puts a good message aside: nothing is ever tried again."
            if once
            else "Receives are also used up by crashes, deploys and lost answers, so good messages are put aside."
        ),
        remedy=Remedy(
            text=f"Set maxReceiveCount to {receives}: {why}.",
            cli=remedies.set_attributes(case, policy),
            terraform=remedies.terraform(case.queue, policy),
        ),
        figures={"max_receives": state.max_receives, "recommended": receives},
    )


def _retention(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None or found[1].retention is None or found[0].fifo or found[1].retention > found[0].retention:
        return None
    state, letters, name = found
    assert letters.retention is not None
    both_full = letters.retention >= limits.MAX_RETENTION
    cli: tuple[str, ...] = ()
    texts, resources = [], []
    if not both_full:
        keeps = {"MessageRetentionPeriod": limits.MAX_RETENTION}
        cli += remedies.set_attributes_of(name, remedies.dead_letters_url(letters, state), letters.arn, keeps)
        texts.append(f"Let {name} keep messages for 14 days.")
        resources.append(remedies.terraform(name, keeps))
    if state.retention > recommendations.LONGEST_SOURCE_RETENTION:
        keeps = {"MessageRetentionPeriod": round(recommendations.LONGEST_SOURCE_RETENTION)}
        texts.append(f"Let {case.queue} keep them for 7 days.")
        if recommendations.may_forget(case, recommendations.LONGEST_SOURCE_RETENTION):
            cli += remedies.set_attributes(case, keeps)
        else:
            texts.append("SQS deletes what is older at once: do that when none of its messages is.")
        resources.append(remedies.terraform(case.queue, keeps))
    less = letters.retention < state.retention
    return Observation(
        observed=(
            f"{name} keeps dead letters for {seconds(letters.retention)}, {case.queue} keeps messages for "
            f"{seconds(state.retention)}."
        ),
        why=(
            "On a Standard queue a dead letter keeps the time at which it was first sent: an old one is deleted "
            "as soon as it arrives."
        ),
        remedy=Remedy(text=" ".join(texts), cli=cli, terraform="\n\n".join(resources)),
        severity=Severity.CRITICAL if less else Severity.INFO if both_full else Severity.WARNING,
        figures={"retention": state.retention, "dead_letter_retention": letters.retention},
    )


def _missing(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None or found[1].exists is not False:
        return None
    state, letters, name = found
    keeps = {"MessageRetentionPeriod": limits.MAX_RETENTION}
    return Observation(
        observed=f"The redrive policy names {letters.arn}, and there is no such queue.",
        why="Messages that have used up their receives cannot be put aside: they come back until their retention ends.",
        remedy=Remedy(
            text=f"Make the queue {name}, or name another one in the redrive policy.",
            cli=(remedies.create_queue(name, keeps, like=state),),
            terraform=remedies.terraform(name, keeps),
        ),
    )


def _mismatch(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None:
        return None
    state, letters, name = found
    wrong = []
    if letters.fifo != state.fifo:
        kinds = ("FIFO" if letters.fifo else "Standard", "FIFO" if state.fifo else "Standard")
        wrong.append(f"{name} is a {kinds[0]} queue and {case.queue} a {kinds[1]} queue")
    for place, part in (("region", 3), ("account", 4)):
        here, there = state.arn.split(":")[part : part + 1], letters.arn.split(":")[part : part + 1]
        if here and there and here != there:
            wrong.append(f"{name} is in {place} {there[0]} and {case.queue} in {here[0]}")
    if not wrong:
        return None
    cli, terraform = dead_letter_queue(case)
    return Observation(
        observed=f"{'; '.join(wrong)}.",
        why="SQS moves dead letters only to a queue of the same type, region and account: here they are never moved.",
        remedy=Remedy(
            text="Make a dead-letter queue that matches, and name it in the redrive policy.",
            cli=cli,
            terraform=terraform,
        ),
    )


def _unwatched(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None or case.dlq_alarmed is not False:
        return None
    _, letters, name = found
    # Where the alarm goes only its reader knows.
    topic = remedies.neighbour_arn(letters.arn, "TOPIC").replace(":sqs:", ":sns:", 1)
    wanted = [alarm for alarm in alarms.alarms_for(case) if alarm.kind is alarms.Kind.DEAD_LETTERS]
    return Observation(
        observed=f"No alarm looks at ApproximateNumberOfMessagesVisible of {name}.",
        why="Dead letters wait for a person, and are deleted when their retention ends: nobody will know of them.",
        remedy=Remedy(
            text=(
                f"Raise an alarm as soon as one is visible (the number sent is no measure: moves do not count in it); "
                f"`semel alarms {case.queue}` writes this and the others."
            ),
            cli=tuple(alarm_formats.commands_for(wanted, topic)),
            terraform=alarm_formats.render_terraform(wanted, topic).strip(),
        ),
    )


def _waiting(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None or not found[1].visible:
        return None
    state, letters, name = found
    where = remedies.place(remedies.dead_letters_url(letters, state), letters.arn)
    return Observation(
        observed=f"{count(letters.visible or 0, 'dead letter')} in {name}.",
        why=f"They are work that was not done, and are deleted after {seconds(letters.retention or 4 * DAY)}.",
        remedy=Remedy(
            text="Look at why they failed; when that is mended, move them back. Their message ids will be new ones.",
            cli=(
                f"aws sqs start-message-move-task --source-arn {letters.arn} --max-number-of-messages-per-second "
                f"50{where}",
            ),
        ),
        figures={"visible": letters.visible},
    )


def _shared(case: Case) -> Observation | None:
    found = _letters(case)
    sources = found[1].sources if found is not None else None
    if found is None or sources is None or len(sources) < 2:
        return None
    _, _, name = found
    own = remedies.dead_letter_name(case.queue)
    if own == name:
        own = own.replace("-dlq", "-dead")
    cli, terraform = dead_letter_queue(case, own)
    return Observation(
        observed=(
            f"{name} takes the dead letters of {count(len(sources), 'queue')}: "
            f"{listed(sorted(map(remedies.name_of, sources)))}."
        ),
        why=(
            "One alarm for all of them, one retention for all, and a redrive of one queue's letters must pick them out."
        ),
        remedy=Remedy(text=f"Give {case.queue} a dead-letter queue of its own.", cli=cli, terraform=terraform),
        severity=Severity.WARNING if len(sources) > limits.MAX_REDRIVE_SOURCES else Severity.INFO,
        figures={"sources": len(sources)},
    )


def _open(case: Case) -> Observation | None:
    found = _letters(case)
    if found is None or not found[1].exists or found[1].allow not in (None, "allowAll"):
        return None
    state, letters, name = found
    names = sorted({case.queue, *map(remedies.name_of, letters.sources or ())})[: limits.MAX_REDRIVE_SOURCES]
    arns = [remedies.neighbour_arn(letters.arn, one) for one in names]
    policy = {"RedriveAllowPolicy": {"redrivePermission": "byQueue", "sourceQueueArns": arns}}
    return Observation(
        observed=(
            f"Any queue of the account may put its dead letters into {name} (RedriveAllowPolicy allowAll, the default)."
        ),
        why="A queue that is set up by mistake with this one mixes its messages with yours.",
        remedy=Remedy(
            text=f"Allow only {listed(names)}.",
            cli=remedies.set_attributes_of(name, remedies.dead_letters_url(letters, state), letters.arn, policy),
            terraform=remedies.terraform(name, policy),
        ),
    )


_STATE = "queue attributes"
_BOTH = "queue attributes, of the dead-letter queue too"
RULES = (
    Rule(
        "no-dead-letter-queue",
        Severity.WARNING,
        "the queue has no dead-letter queue",
        _STATE,
        "make one, with a redrive policy",
        _none,
    ),
    Rule(
        "max-receives-low",
        Severity.WARNING,
        "maxReceiveCount is 1 or 2",
        _STATE,
        "a maxReceiveCount of 5",
        _few_receives,
    ),
    Rule(
        "dead-letter-retention",
        Severity.CRITICAL,
        "dead letters are kept no longer than messages (Standard: they keep their age)",
        _BOTH,
        "14 days for the dead-letter queue, less for the source",
        _retention,
    ),
    Rule(
        "dead-letter-queue-missing",
        Severity.CRITICAL,
        "the redrive policy names a queue that is not there",
        _BOTH,
        "make that queue",
        _missing,
    ),
    Rule(
        "dead-letter-queue-mismatch",
        Severity.CRITICAL,
        "type, region or account of the dead-letter queue is another",
        _BOTH,
        "a dead-letter queue that matches",
        _mismatch,
    ),
    Rule(
        "dead-letters-unwatched",
        Severity.WARNING,
        "no alarm on the dead-letter queue",
        "queue attributes and `--alarms`",
        "an alarm on dead letters that are visible",
        _unwatched,
    ),
    Rule(
        "dead-letters-waiting",
        Severity.WARNING,
        "there are dead letters",
        _BOTH,
        "look at them, then redrive",
        _waiting,
    ),
    Rule(
        "dead-letter-queue-shared",
        Severity.INFO,
        "several queues put their dead letters into one",
        _BOTH,
        "one dead-letter queue each",
        _shared,
    ),
    Rule(
        "dead-letter-queue-open",
        Severity.INFO,
        "any queue may use the dead-letter queue",
        _BOTH,
        "a RedriveAllowPolicy byQueue",
        _open,
    ),
)
