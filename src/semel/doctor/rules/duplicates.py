"""Rules on duplicates that happened: one for each cause, with what it cost and what ends it."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Behaviour, Case, Cause, CauseSummary, Remedy, Severity
from semel.doctor.rules.rule import Figures, Observation, Rule
from semel.doctor.wording import count, seconds, share

LEDGER = (
    "Until then, and for the few that remain: a ledger in front of the handler (`semel run`) lets only one delivery "
    "take effect."
)
_NOTEWORTHY = 0.001  # of the messages


def _caused(case: Case, cause: Cause) -> tuple[Behaviour, CauseSummary] | None:
    behaviour = case.behaviour
    caused = behaviour.caused_by(cause) if behaviour is not None else None
    return (behaviour, caused) if behaviour is not None and caused is not None and caused.duplicates else None


def _cost(behaviour: Behaviour, caused: CauseSummary) -> str:
    """`3.2 % of 1,000 messages (32 duplicates), the handler ran again for 30 (96 s wasted)`."""
    text = (
        f"{share(caused.duplicates, behaviour.messages)} of {count(behaviour.messages, 'message')} "
        f"({count(caused.duplicates, 'duplicate')})"
    )
    if not caused.ran:
        return f"{text}; the handler ran for none of them"
    wasted = f", {seconds(caused.wasted)} of work wasted" if caused.wasted else ""
    return f"{text}; the handler ran again for {count(caused.ran)}{wasted}"


def _figures(behaviour: Behaviour, caused: CauseSummary) -> Figures:
    over = caused.overrun
    return {
        "duplicates": caused.duplicates,
        "share": round(caused.duplicates / behaviour.messages, 6) if behaviour.messages else 0.0,
        "ran_again": caused.ran,
        "wasted_seconds": round(caused.wasted, 3),
        **({"over_p50": round(over.p50, 3), "over_most": round(over.most, 3)} if over is not None else {}),
    }


def _severity(behaviour: Behaviour, caused: CauseSummary) -> Severity:
    """A duplicate that did not run cost a receive; a rare one is SQS as it is."""
    rare = caused.duplicates < _NOTEWORTHY * behaviour.messages
    return Severity.INFO if not caused.ran or rare else Severity.WARNING


# Visibility.


def would_have_been(behaviour: Behaviour, now: float | None, wanted: float) -> str:
    """`with 62 s instead of 30 s: 3.2 % -> 0.1 % duplicates`, by replay of what was observed; or nothing."""
    change = next((change for change in behaviour.replays if change.visibility >= wanted), None)
    if change is None or not behaviour.messages:
        return ""
    instead = f" instead of {seconds(now)}" if now is not None else ""
    before = share(behaviour.duplicates, behaviour.messages)
    after = share(change.duplicates, behaviour.messages)
    return f"With {seconds(change.visibility)}{instead}: {before} -> {after} duplicates."


def lengthen(case: Case, wanted: float, *extra: str) -> Remedy:
    """The cure of a timeout that is too short."""
    behaviour, now = case.behaviour, case.visibility
    if now is not None and wanted <= now:
        return Remedy(text=" ".join(part for part in (_long_enough(behaviour, now), *extra) if part))
    attributes = {"VisibilityTimeout": round(wanted)}
    text = f"Set the visibility timeout to {seconds(wanted)}"
    if behaviour is not None and behaviour.has_heartbeat:
        text += f", and let the heartbeat come every {seconds(recommendations.heartbeat_for(wanted))}."
    else:
        text += f", or enable a heartbeat (every {seconds(recommendations.heartbeat_for(60))}, with a timeout of 60 s)."
    replayed = would_have_been(behaviour, now, wanted) if behaviour is not None else ""
    own = ""
    if case.state is not None and now is not None and now != case.state.visibility:
        own = (
            f"The queue itself has {seconds(case.state.visibility)}: set it where the consumers ask for "
            f"{seconds(now)}, or see whether the log is from before a change."
        )
    return Remedy(
        text=" ".join(part for part in (text, replayed, own, *extra) if part),
        cli=remedies.set_attributes(case, attributes),
        terraform=remedies.terraform(case.queue, attributes),
    )


def _long_enough(behaviour: Behaviour | None, now: float) -> str:
    """The timeout is not what is wrong."""
    if behaviour is not None and behaviour.has_heartbeat:
        return (
            f"The timeout of {seconds(now)} will do; the heartbeat came too late. Let it begin at the receive, also "
            f"for messages that wait for their turn, and come every {seconds(recommendations.heartbeat_for(now))} from "
            "a thread that the work cannot hold up."
        )
    return f"The timeout that was in force last, {seconds(now)}, will do: look at the time since then only (--from)."


def _visibility(case: Case) -> Observation | None:
    found = _caused(case, Cause.VISIBILITY)
    if found is None:
        return None
    behaviour, caused = found
    hold, now = recommendations.holding(behaviour), case.visibility
    wanted = recommendations.visibility(case) or (now or recommendations.SHORT) * 2
    timeout = f"The visibility timeout is {seconds(now)}" if now is not None else "The visibility timeout is too short"
    longest = ""
    if hold is not None:
        low = now is not None and hold.p99 > now
        longest = f" but P99 is {seconds(hold.p99)}" if low else f", P99 is {seconds(hold.p99)}, the longest "
        longest += "" if low else seconds(hold.most)
    over = (
        f"; the work went on for {seconds(caused.overrun.p50)} more (at most {seconds(caused.overrun.most)})"
        if caused.overrun
        else ""
    )
    return Observation(
        observed=f"{timeout}{longest}: {_cost(behaviour, caused)}{over}.",
        why="When the timeout ends before the work does, SQS gives the message to a second worker: both do it.",
        remedy=lengthen(case, wanted, LEDGER if case.ledger is None else ""),
        severity=None if caused.ran else Severity.INFO,
        examples=caused.examples,
        figures={**_figures(behaviour, caused), "visibility": now, "recommended": wanted},
    )


# The others.


def _told(
    case: Case, cause: Cause, seen: str, why: str, remedy: Remedy, severity: Severity | None = None
) -> Observation | None:
    found = _caused(case, cause)
    if found is None:
        return None
    behaviour, caused = found
    return Observation(
        observed=f"{seen}: {_cost(behaviour, caused)}.",
        why=why,
        remedy=remedy,
        severity=_severity(behaviour, caused) if severity is None else severity,
        examples=caused.examples,
        figures=_figures(behaviour, caused),
    )


def _crash(case: Case) -> Observation | None:
    hold = recommendations.holding(case.behaviour)
    grace = f" (at least {seconds(recommendations.round_up(hold.p99 * 1.5))} here)" if hold is not None else ""
    hidden = f" Their messages come back only after {seconds(case.visibility)}." if case.visibility else ""
    remedy = Remedy(
        text=(
            "Look for workers that were killed: out of memory, or a deploy that waits too short. Give them time to "
            f"finish after SIGTERM{grace}, as Kubernetes' terminationGracePeriodSeconds or ECS' stopTimeout, and put "
            f"unfinished messages back at the end, as `semel run` does. {LEDGER}"
        )
    )
    return _told(
        case,
        Cause.CRASH,
        "Workers ended without a word while they had messages",
        f"What they had done is not known, and all of it is done again.{hidden}",
        remedy,
    )


def _lost_delete(case: Case) -> Observation | None:
    remedy = Remedy(
        text=(
            "Check the answer of each delete, for each entry of a batch, and try failed ones again; delete before the "
            "timeout ends, and flush deletes before a worker stops. On a Standard queue SQS itself may lose one: a "
            "ledger recognises the message when it comes back, and deletes it without running the handler."
        )
    )
    return _told(
        case,
        Cause.LOST_DELETE,
        "Messages came back after their outcome was recorded, as their delete was lost, refused or too late",
        "Without a record of what is done the handler does it again.",
        remedy,
    )


def _producer(case: Case) -> Observation | None:
    fifo = case.queue.endswith(".fifo")
    remedy = Remedy(
        text=(
            "Let the producer give each thing one id, and send the same id when it tries again: "
            + ("as MessageDeduplicationId, which SQS honours for 5 minutes, and " if fifo else "")
            + "as a message attribute or in the body that the consumer takes as its key (`@app.handler(key=…)`), "
            "so that the ledger recognises it whatever its message id is."
        )
    )
    return _told(
        case,
        Cause.PRODUCER,
        "The same key came in messages of different ids",
        "SQS cannot know that they are the same: no setting of the queue prevents it.",
        remedy,
    )


def _redrive(case: Case) -> Observation | None:
    remedy = Remedy(
        text=(
            "Nothing is wrong if the earlier attempt really failed. A redrive gives a new message id, so use a "
            "key that "
            "travels with the message (an attribute or a field of the body), and let the ledger remember for as long "
            f"as a message can come back: {seconds(recommendations.ledger_memory(case))}."
        )
    )
    return _told(
        case,
        Cause.REDRIVE,
        "Keys that had failed came again under other message ids",
        "What the failed attempt had already done is done once more, unless the handler can tell.",
        remedy,
        Severity.INFO,
    )


def _concurrent(case: Case) -> Observation | None:
    remedy = Remedy(
        text=(
            "A Standard queue delivers at least once, and no setting changes that. Claim each key in a ledger before "
            "the work (`semel run` does), or use a FIFO queue."
        )
    )
    return _told(
        case,
        Cause.CONCURRENT,
        "SQS handed messages out a second time while they were hidden",
        "Two workers had the same message at the same moment.",
        remedy,
    )


def _unknown(case: Case) -> Observation | None:
    remedy = Remedy(
        text=(
            "Give the doctor the logs of all workers, and from earlier on (--from), at least from one visibility "
            "timeout before the first of these."
        )
    )
    return _told(
        case,
        Cause.UNKNOWN,
        "SQS counts earlier deliveries that are not in these logs",
        "Their cause cannot be told, and the figures of the other causes are lower bounds.",
        remedy,
        Severity.INFO,
    )


def _doubled(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.doubled:
        return None
    causes = ", ".join(f"{caused.cause.value} ({count(caused.duplicates)})" for caused in behaviour.causes[:3])
    first = behaviour.causes[0].examples if behaviour.causes else ()
    return Observation(
        observed=(
            f"{count(behaviour.doubled, 'key')} took effect more than once: {count(behaviour.effects, 'effect')} for "
            f"{count(behaviour.messages, 'message')}" + (f"; duplicates by cause: {causes}." if causes else ".")
        ),
        why="Somebody is charged, mailed or booked twice.",
        remedy=Remedy(
            text=(
                "Claim each key in a ledger before the work and record the outcome in it after, best in the same "
                "transaction as the effect: `semel run` with a PostgreSQL ledger and a handler that takes `tx`. For "
                "effects elsewhere, pass the key on as the idempotency key. Then cure the causes below."
            )
        ),
        examples=first,
        figures={"doubled": behaviour.doubled, "effects": behaviour.effects, "messages": behaviour.messages},
    )


_LOGS = "logs"
RULES = (
    Rule(
        "doubled-effects",
        Severity.CRITICAL,
        "keys whose effect happened more than once",
        _LOGS,
        "a ledger with a key; record before delete",
        _doubled,
    ),
    Rule(
        "duplicates-visibility",
        Severity.WARNING,
        "the visibility timeout ran out while the message was worked on",
        _LOGS,
        "longer timeout, or a heartbeat",
        _visibility,
    ),
    Rule(
        "duplicates-crash",
        Severity.WARNING,
        "a worker ended without a word and its messages came back",
        _LOGS,
        "time to finish at shutdown; a ledger",
        _crash,
    ),
    Rule(
        "duplicates-lost-delete",
        Severity.WARNING,
        "the outcome was there, and the message came again",
        _LOGS,
        "check each delete; a ledger",
        _lost_delete,
    ),
    Rule(
        "duplicates-producer",
        Severity.WARNING,
        "the same key was sent as another message",
        _LOGS,
        "one id for each thing, as the consumer's key",
        _producer,
    ),
    Rule(
        "duplicates-redrive",
        Severity.INFO,
        "a key came again after an earlier message of it had failed",
        _LOGS,
        "a key that survives the redrive; ledger memory",
        _redrive,
    ),
    Rule(
        "duplicates-concurrent",
        Severity.WARNING,
        "SQS handed a message out twice while it was hidden",
        _LOGS,
        "a ledger, or a FIFO queue",
        _concurrent,
    ),
    Rule(
        "duplicates-unknown",
        Severity.INFO,
        "SQS counts earlier deliveries that the logs do not hold",
        _LOGS,
        "logs of all workers, from earlier on",
        _unknown,
    ),
)
